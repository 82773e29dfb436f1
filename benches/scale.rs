//! The cost of many leases: writes, reads, memory, snapshots and restarts, at each power of ten up to the last number.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::http::Connection;
use crate::percentiles::round;
use crate::{pairs, reads};

/// Clients that acquire the leases.
const CLIENTS: usize = 256;
const MEASURED_TIME: Duration = Duration::from_secs(5);
/// A lone client writes about 1,000 entries per second. So nodes write snapshots for most of the measured time.
const CONFIG: &str = "[raft]\nsnapshot_every = 2000\nsnapshot_keep = 200\n";
const SNAPSHOTS_TIME: Duration = Duration::from_secs(30);
const RESTART_TIMEOUT: Duration = Duration::from_secs(120);

/// Prints the results for each number of leases: of the acquires, of a load, and of a restart.
pub async fn run(last: usize, print: fn(Value)) {
    let mut cluster = Cluster::start().await;
    for (held, leases) in steps(last) {
        let mut result = acquire(&cluster, held, leases).await;
        let follower = cluster.follower().await;
        cluster.kill(follower);
        let start = Instant::now();
        cluster.launch(follower);
        let ready = wait_ready(cluster.address(follower)).await;
        result["restart_seconds"] = json!(round((ready - start).as_secs_f64()));
        print(result);
        for mut result in [
            pairs::run(&cluster, 64, MEASURED_TIME).await,
            reads::run(&cluster, 64, MEASURED_TIME, reads::Target::Leader).await,
        ] {
            result["leases"] = json!(leases);
            print(result);
        }
    }
    drop(cluster);
    let cluster = Cluster::start_with(3, CONFIG).await;
    for (held, leases) in [(0, 10), (10, last)] {
        acquire(&cluster, held, leases).await;
        let address = cluster.leader_address().await;
        let before = applied(&address).await;
        let mut result = pairs::run(&cluster, 1, SNAPSHOTS_TIME).await;
        result["workload"] = json!("snapshots");
        result["leases"] = json!(leases);
        result["entries"] = json!(applied(&address).await - before);
        print(result);
    }
}

/// The powers of ten from 10 on, and the last number. Each has the number before.
fn steps(last: usize) -> Vec<(usize, usize)> {
    let mut numbers: Vec<usize> = (1..).map(|power| 10_usize.pow(power)).take_while(|number| *number < last).collect();
    numbers.push(last);
    let before = std::iter::once(0).chain(numbers.clone());
    before.zip(numbers).collect()
}

/// Acquires the leases from the number `held` on.
async fn acquire(cluster: &Cluster, held: usize, leases: usize) -> Value {
    let address = cluster.leader_address().await;
    let start = Instant::now();
    let workers: Vec<_> = (0..CLIENTS)
        .map(|client| tokio::spawn(acquire_each(address.clone(), (held + client..leases).step_by(CLIENTS))))
        .collect();
    for worker in workers {
        worker.await.expect("the client task does not panic");
    }
    let acquired = start.elapsed();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mib = |bytes: Vec<u64>| bytes.iter().map(|bytes| bytes >> 20).collect::<Vec<_>>();
    json!({
        "workload": "scale", "leases": leases, "clients": CLIENTS,
        "acquired_per_second": ((leases - held) as f64 / acquired.as_secs_f64()).round(),
        "memory_mib": mib(cluster.memory()), "data_mib": mib(cluster.data_sizes()),
    })
}

async fn acquire_each(address: String, leases: impl Iterator<Item = usize>) {
    let mut connection = Connection::open(&address).await.expect("the leader accepts connections");
    for lease in leases {
        let body = format!(r#"{{"holder":"scale-{}","ttl_ms":36000000}}"#, lease % 100);
        let held = connection.post(&format!("/v1/leases/scale-{lease:07}/acquire"), &body).await.expect("an answer");
        assert_eq!(held.status, 200);
    }
}

/// Log index of the last entry that a node applied.
async fn applied(address: &str) -> u64 {
    let mut connection = Connection::open(address).await.expect("the node accepts connections");
    let metrics = String::from_utf8(connection.get("/metrics").await.expect("an answer").body).expect("text");
    let line = metrics.lines().find(|line| line.starts_with("tenure_raft_applied_index"));
    let (_, value) = line.and_then(|line| line.rsplit_once(' ')).expect("a metric of each node");
    value.parse().expect("a number")
}

async fn wait_ready(address: &str) -> Instant {
    let start = Instant::now();
    while start.elapsed() < RESTART_TIMEOUT {
        if let Ok(mut connection) = Connection::open(address).await
            && let Ok(answer) = connection.get("/readyz").await
            && answer.status == 200
        {
            return Instant::now();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("node at {address} not ready within {RESTART_TIMEOUT:?}");
}
