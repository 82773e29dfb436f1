//! Clients that ask and hang up, in masses. What they asked for goes on without them: not for long, and not in much memory.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::cluster::{Cluster, NODES, SOON, place};
use crate::figures;
use crate::steady::strict;

strict!(reads_that_nobody_waits_for_any_more_leave_nothing,);

/// Reads that are given up, in each round, and how many at once.
const READS: usize = 20_000;
const AT_ONCE: usize = 200;
/// How much a leader may grow by what is on its way, and by all that went on before.
const GROWTH: u64 = 64 << 20;

const READ: &str = "/v1/leases?consistency=linearizable";

/// Reads that a majority has to confirm, at a leader that cannot reach one: each is on its way until its time is over.
async fn reads_that_nobody_waits_for_any_more_leave_nothing() {
    let mut cluster = Cluster::start("").await;
    let before = NODES.map(|id| figures::memory(cluster.node(id).id()));
    for round in 1..=3 {
        // Whoever leads now: those that were stopped may have elected another.
        let leader = cluster.leader().await;
        let (process, before) = (cluster.node(leader).id(), before[place(leader)]);
        let urls = cluster.client.endpoints();
        let address = urls.split(',').nth(place(leader)).expect("one of each").replace("http://", "");
        let followers: Vec<u64> = NODES.into_iter().filter(|id| *id != leader).collect();
        assert!(cluster.ask(leader, READ).await.is_some(), "it is confirmed");
        followers.iter().for_each(|id| cluster.stop(*id));
        let asked = futures_util::stream::iter(0..READS).map(|_| ask_and_hang_up(&address));
        asked.buffer_unordered(AT_ONCE).collect::<()>().await;
        let after = figures::memory(process);
        assert!(cluster.ask(leader, READ).await.is_none(), "nobody confirms it");
        followers.iter().for_each(|id| cluster.go_on(*id));
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

async fn ask_and_hang_up(address: &str) {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let ask = format!("GET {READ} HTTP/1.1\r\nhost: t\r\n\r\n");
    stream.write_all(ask.as_bytes()).await.expect("a new connection takes a request");
    tokio::time::sleep(Duration::from_millis(20)).await;
    stream.set_zero_linger().expect("a plain option");
}
