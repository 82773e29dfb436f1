//! Many clients that send a read and disconnect. Their reads continue for a limited time and use limited memory.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::cluster::{Cluster, NODES, SOON, place};
use crate::figures;
use crate::steady::strict;

strict!(abandoned_reads_leave_no_memory_behind,);

/// The abandoned reads per round, and the number of concurrent ones.
const READS: usize = 20_000;
const AT_ONCE: usize = 200;
/// The largest growth of the leader during the reads.
const GROWTH: u64 = 64 << 20;

const READ: &str = "/v1/leases?consistency=linearizable";

/// A leader without a majority cannot confirm these reads. Each one lasts until its timeout.
async fn abandoned_reads_leave_no_memory_behind() {
    let mut cluster = Cluster::start("").await;
    let before = NODES.map(|id| figures::memory(cluster.node(id).id()));
    for round in 1..=2 {
        // The leader may change between rounds, because the resumed nodes may elect another one.
        let leader = cluster.leader().await;
        let (process, before) = (cluster.node(leader).id(), before[place(leader)]);
        let urls = cluster.client.endpoints();
        let address = urls.split(',').nth(place(leader)).expect("each node has an address").replace("http://", "");
        let followers: Vec<u64> = NODES.into_iter().filter(|id| *id != leader).collect();
        let began = Instant::now();
        while cluster.ask(leader, READ).await.is_none() {
            assert!(began.elapsed() < SOON, "the majority confirms the read");
        }
        followers.iter().for_each(|id| cluster.stop(*id));
        let asked = futures_util::stream::iter(0..READS).map(|_| send_and_disconnect(&address));
        asked.buffer_unordered(AT_ONCE).collect::<()>().await;
        let after = figures::memory(process);
        assert!(cluster.ask(leader, READ).await.is_none(), "no majority confirms the read");
        followers.iter().for_each(|id| cluster.resume(*id));
        let went_on = Instant::now();
        cluster.client.acquire(&format!("after-{round}"), "holder", 60_000).await;
        let served = went_on.elapsed();
        println!(
            "round {round}: {} KiB, and {} KiB before all; served again after {served:.1?}",
            after >> 10,
            before >> 10
        );
        assert!(after < before + GROWTH, "{before} bytes before, {after} after");
        assert!(served < SOON, "{served:?}");
    }
}

async fn send_and_disconnect(address: &str) {
    let mut stream = TcpStream::connect(address).await.expect("the node listens");
    let ask = format!("GET {READ} HTTP/1.1\r\nhost: t\r\n\r\n");
    stream.write_all(ask.as_bytes()).await.expect("a new connection accepts a request");
    tokio::time::sleep(Duration::from_millis(20)).await;
    stream.set_zero_linger().expect("the option is valid");
}
