//! Reads a lease with thousands of holders through a follower, while clients acquire other leases through it.

use std::time::{Duration, Instant};

use tenure::client::Remote;
use tokio::task::JoinSet;

use crate::cluster::{Cluster, place};
use crate::flood::{Connection, Flood};
use crate::steady::steady;

steady!(reads_of_a_large_counted_lease_cost_other_claims_nothing);

/// With their metadata, the holders exceed the limit of 16 MiB for one answer between nodes.
const HOLDERS: usize = 4_300;
const METADATA: usize = 4_000;
const CLAIMERS: usize = 32;
/// The reads at the follower, and the concurrent acquires.
const READS: usize = 30;
const CLAIMS_PER_SECOND: usize = 150;
const TIME: Duration = Duration::from_secs(3);

/// Acquires the lease for each holder whose number belongs to this task.
async fn hold(node: String, claimer: usize) {
    let mut connection = Connection::open(&node).await.expect("the node accepts connections");
    let metadata = "m".repeat(METADATA);
    for number in (claimer..HOLDERS).step_by(CLAIMERS) {
        let holder = format!(r#""holder":"h-{number}","limit":10000,"ttl_ms":600000"#);
        let body = format!(r#"{{{holder},"metadata":{{"m":"{metadata}"}}}}"#);
        loop {
            let answer = connection.post("leases/pool/acquire", &body).await.expect("the node answers");
            match answer.status {
                200 => break,
                429 => tokio::time::sleep(Duration::from_millis(50)).await,
                status => panic!("{status}: {}", answer.body),
            }
        }
    }
}

async fn reads_of_a_large_counted_lease_cost_other_claims_nothing() {
    let cluster = Cluster::start("").await;
    let nodes: Vec<String> = cluster.client.endpoints().split(',').map(|url| url.replace("http://", "")).collect();
    let (leader, follower) = (&nodes[place(cluster.leader().await)], &nodes[place(cluster.follower().await)]);
    let mut holders = JoinSet::new();
    for claimer in 0..CLAIMERS {
        holders.spawn(hold(leader.clone(), claimer));
    }
    holders.join_all().await;

    let flood = Flood {
        nodes: vec![follower.clone()],
        clients: 16,
        per_second: Some(CLAIMS_PER_SECOND),
        metadata: 0,
        time: TIME,
    };
    let claims = tokio::spawn(flood.run());
    let mut slowest = Duration::ZERO;
    let mut failed = Vec::new();
    let http = crate::plain_http::builder().build().expect("the options are valid");
    for read in 0..READS {
        let path = ["pool", "pool/explain?holder=h-7", "pool/queue"][read % 3];
        let sent = Instant::now();
        let answer = http.get(format!("http://{follower}/v1/leases/{path}")).send().await.expect("the node answers");
        let (status, bytes) = (answer.status(), answer.bytes().await.expect("a body").len());
        slowest = slowest.max(sent.elapsed());
        if status != 200 || bytes > 4 << 20 {
            failed.push((path, status, bytes));
        }
        tokio::time::sleep(TIME / READS as u32).await;
    }
    let results = claims.await.expect("the flood does not panic");
    println!(
        "{HOLDERS} holders: {} of {READS} reads at a follower failed, the slowest took {slowest:?}; of {} claims {} were \
         served, {} refused as too busy, {} answered otherwise, {} not answered",
        failed.len(),
        results.offered(),
        results.served.len(),
        results.refused.len(),
        results.other.values().map(|(count, _)| count).sum::<usize>(),
        results.unanswered
    );
    assert_eq!(failed, []);
    assert!(results.other.is_empty() && results.unanswered == 0 && !results.served.is_empty(), "{:?}", results.other);

    let remote = Remote::new(follower.parse().expect("an address"));
    let lease = remote.get(&"pool".parse().expect("a name")).await.expect("the lease is held");
    let mut seen: Vec<String> = lease.holders.expect("a counted lease").into_iter().map(|held| held.holder).collect();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), HOLDERS, "the client reads every page");
}
