//! Benchmarks: three real nodes with real disks on this machine, driven over HTTP by clients in this process.
//!
//! `cargo bench` runs all workloads; `cargo bench -- pairs reads` runs those whose names contain a word. Each prints
//! one line of JSON; the first line is the raw fdatasync of the same run, the yardstick for all others. Figures of one
//! run may be compared with each other, not with another machine's.

mod bulk;
mod cluster;
mod contended;
mod crowd;
mod expiry;
mod failover;
mod fsync;
mod holder;
mod http;
mod idle;
mod load;
mod pairs;
mod reads;
mod renew;

use std::time::Duration;

use cluster::Cluster;

/// How long each steady workload is measured.
const MEASURE: Duration = Duration::from_secs(5);

/// Clients that watch, or wait, at once. Each is a file of this process and of a node's: see `ulimit -n`.
const CROWD: usize = 10_000;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let wanted = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word));
    let mut cluster = Cluster::start().await;
    print(fsync::run(cluster.dir()));
    for clients in [1, 64, 256] {
        if wanted(&format!("pairs-{clients}")) {
            print(pairs::run(&cluster, clients, MEASURE).await);
        }
    }
    if wanted("contended") {
        print(contended::run(&cluster, 64, MEASURE).await);
    }
    if wanted("renew-single") {
        print(renew::single(&cluster, 64, MEASURE).await);
    }
    if wanted("renew-batch") {
        print(renew::batched(&cluster, 8, 1_000, MEASURE).await);
    }
    if wanted("reads") {
        print(reads::run(&cluster, 64, MEASURE, reads::Target::Livez).await);
        print(reads::run(&cluster, 64, MEASURE, reads::Target::Leader).await);
        print(reads::run(&cluster, 64, MEASURE, reads::Target::Linearizable).await);
    }
    if wanted("holder") {
        print(holder::questions(&cluster).await);
        print(holder::keeping(&cluster, 10_000, Duration::from_secs(20)).await);
    }
    if wanted("expiry") {
        print(expiry::run(&cluster, 200).await);
    }
    if wanted("idle") {
        print(idle::run(&cluster, MEASURE).await);
    }
    if wanted("watchers") {
        print(crowd::watchers(&cluster, CROWD).await);
    }
    if wanted("waiters") {
        print(crowd::waiters(&cluster, CROWD, CROWD).await);
        print(crowd::waiters(&cluster, CROWD, 1).await);
    }
    if wanted("failover") {
        print(failover::handover(&mut cluster, 5).await);
        print(failover::kill(&mut cluster, 10).await);
    }
    if wanted("bulk") {
        drop(cluster);
        let mut cluster = Cluster::start().await;
        print(bulk::run(&mut cluster, 100_000).await);
    }
}

fn print(result: serde_json::Value) {
    println!("{result}");
}
