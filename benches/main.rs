//! Benchmarks of three `tenure serve` processes with real disks on this machine. The HTTP clients run in this process.
//!
//! `cargo bench` runs all workloads. `cargo bench -- pairs reads` runs those whose names contain one of the words. Each
//! workload prints one line of JSON. The first line is the time of a raw fdatasync in the same run, for comparison.
//! Compare only figures of the same run.
//!
//! `TENURE_BENCH_FAILOVERS=50` ends the leadership so many times for each workload of the failover (5). With the word
//! `five-nodes`, these workloads run in a cluster of five nodes, too.
//! `TENURE_BENCH_LEASES=1000000` is the last number of leases of the workload `scale` (100,000).
//! The word `endurance` runs an hour of full load, or `TENURE_BENCH_SECONDS`, and draws its curves in `target/tmp`.

mod cluster;
mod contended;
mod endurance;
mod expiry;
mod failover;
mod fsync;
mod holder;
mod http;
mod idle;
mod idle_clients;
mod load;
mod pairs;
mod percentiles;
mod reads;
mod renew;
mod scale;
mod security;

use std::path::Path;
use std::time::Duration;

use cluster::Cluster;
use failover::Ending;

/// Measured time of each workload with a constant load.
const MEASURED_TIME: Duration = Duration::from_secs(5);

/// Concurrent clients that watch or wait. Each needs a file descriptor in this process and in a node: see `ulimit -n`.
const IDLE_CLIENTS: usize = 10_000;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let runs = std::env::var("TENURE_BENCH_FAILOVERS").map_or(5, |runs| runs.parse().expect("a number"));
    let wanted = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word));
    let mut cluster = Cluster::start().await;
    print(fsync::run(cluster.dir()));
    for clients in [1, 64, 256] {
        if wanted(&format!("pairs-{clients}")) {
            print(pairs::run(&cluster, clients, MEASURED_TIME).await);
        }
    }
    if wanted("contended") {
        print(contended::run(&cluster, 64, MEASURED_TIME).await);
    }
    if wanted("renew-single") {
        print(renew::single(&cluster, 64, MEASURED_TIME).await);
    }
    if wanted("renew-batch") {
        print(renew::batched(&cluster, 8, 1_000, MEASURED_TIME).await);
    }
    if wanted("reads") {
        print(reads::run(&cluster, 64, MEASURED_TIME, reads::Target::Livez).await);
        print(reads::run(&cluster, 64, MEASURED_TIME, reads::Target::Leader).await);
        print(reads::run(&cluster, 64, MEASURED_TIME, reads::Target::Linearizable).await);
    }
    if wanted("holder") {
        print(holder::questions(&cluster).await);
        print(holder::keeping(&cluster, 10_000, Duration::from_secs(20)).await);
    }
    if wanted("expiry") {
        print(expiry::run(&cluster, 200).await);
    }
    if wanted("idle") {
        print(idle::run(&cluster, MEASURED_TIME).await);
    }
    if wanted("watchers") {
        print(idle_clients::watchers(&cluster, IDLE_CLIENTS).await);
    }
    if wanted("waiters") {
        print(idle_clients::waiters(&cluster, IDLE_CLIENTS, IDLE_CLIENTS).await);
        print(idle_clients::waiters(&cluster, IDLE_CLIENTS, 1).await);
    }
    for is_loaded in [false, true] {
        for ending in Ending::ALL {
            if wanted(&failover::workload(ending, is_loaded)) {
                print(failover::run(&mut cluster, ending, is_loaded, runs).await);
            }
        }
    }
    if words.iter().any(|word| word == "five-nodes") {
        let mut cluster = Cluster::start_with(5, "").await;
        for (ending, is_loaded) in Ending::ALL.into_iter().flat_map(|ending| [(ending, false), (ending, true)]) {
            print(failover::run(&mut cluster, ending, is_loaded, runs).await);
        }
    }
    if wanted("security") {
        security::run(MEASURED_TIME, print).await;
    }
    if words.iter().any(|word| word == "endurance") {
        let seconds = std::env::var("TENURE_BENCH_SECONDS").map_or(3600, |seconds| seconds.parse().expect("a number"));
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
        print(endurance::run(&cluster, Duration::from_secs(seconds), dir).await);
    }
    if wanted("scale") {
        drop(cluster);
        let leases = std::env::var("TENURE_BENCH_LEASES");
        scale::run(leases.map_or(100_000, |leases| leases.parse().expect("a number above 10")), print).await;
    }
}

fn print(result: serde_json::Value) {
    println!("{result}");
}
