//! Runs the programs in `examples/` like a reader would.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::cluster::{Cluster, SOON};
use crate::example::example;
use crate::process::Process;
use crate::steady::steady;

steady!(
    nightly_job_runs_on_one_of_three_replicas,
    nightly_job_moves_to_another_replica_after_a_crash,
    election_example_replaces_a_leader_that_ends,
    sharded_workers_example_covers_each_shard_once,
);

fn nightly(cluster: &Cluster, replica: usize, reports: &Path) -> Process {
    let mut command = example("nightly");
    command.arg("2026-11-21").arg(reports).env("TENURE_ENDPOINTS", cluster.client.endpoints());
    Process::start(&format!("replica-{replica}"), command, cluster.folder())
}

fn whole_report(reports: &Path) -> bool {
    let text = std::fs::read_to_string(reports.join("2026-11-21.txt"));
    text.is_ok_and(|text| text.lines().count() == 20)
}

async fn nightly_job_runs_on_one_of_three_replicas() {
    let cluster = Cluster::start("").await;
    let reports = TempDir::new().expect("a folder");
    let mut replicas: Vec<Process> = (0..3).map(|n| nightly(&cluster, n, reports.path())).collect();
    let mut said = Vec::new();
    for replica in &mut replicas {
        assert!(replica.exit(SOON).await.success(), "{}", replica.said());
        said.push(replica.printed());
    }
    let of = |words: &str| said.iter().filter(|text| text.contains(words)).count();
    assert_eq!((of("working, with token"), of("the report is written")), (1, 1), "{said:?}");
    assert_eq!(of("another replica has written the report"), 2, "{said:?}");
    assert!(whole_report(reports.path()));
}

async fn nightly_job_moves_to_another_replica_after_a_crash() {
    let cluster = Cluster::start("").await;
    let reports = TempDir::new().expect("a folder");
    let mut replicas: Vec<Process> = (0..2).map(|n| nightly(&cluster, n, reports.path())).collect();
    let begun = Instant::now();
    let dies = loop {
        match replicas.iter().position(|replica| replica.printed().contains("working")) {
            Some(working) => break working,
            None => assert!(begun.elapsed() < SOON, "no replica works"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    replicas[dies].kill();
    let other = &mut replicas[1 - dies];
    assert!(other.exit(SOON).await.success(), "{}", other.said());
    assert!(other.printed().contains("the report is written"));
    assert!(whole_report(reports.path()));
}

fn start(cluster: &Cluster, program: &str, name: &str) -> Process {
    let mut command = example(program);
    command.arg(name).env("TENURE_ENDPOINTS", cluster.client.endpoints()).env("EXAMPLE_SECONDS", "120");
    Process::start(name, command, cluster.folder())
}

/// Waits until exactly one process prints `words` after its earlier output. Returns its index.
async fn one_says(processes: &[Process], words: &str, before: &[usize]) -> usize {
    let begun = Instant::now();
    loop {
        let said = |n: &usize| processes[*n].printed()[before[*n]..].contains(words);
        let saying: Vec<usize> = (0..processes.len()).filter(said).collect();
        if let [only] = saying[..] {
            return only;
        }
        assert!(saying.is_empty(), "expected one process to print {words:?}, found {saying:?}");
        assert!(begun.elapsed() < SOON, "no process prints {words:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn election_example_replaces_a_leader_that_ends() {
    let cluster = Cluster::start("").await;
    let mut processes: Vec<Process> = ["a", "b", "c"].map(|name| start(&cluster, "election", name)).into();
    let mut before = vec![0; 3];
    for ends in [Signal::KILL, Signal::INT] {
        let leader = one_says(&processes, ": established", &before).await;
        before = processes.iter().map(|process| process.printed().len()).collect();
        processes[leader].signal(ends);
        if ends == Signal::INT {
            assert!(processes[leader].exit(SOON).await.success(), "{}", processes[leader].said());
            assert!(processes[leader].printed().contains("stopped"));
        }
    }
    one_says(&processes, ": established", &before).await;
}

async fn sharded_workers_example_covers_each_shard_once() {
    let cluster = Cluster::start("").await;
    let mut workers: Vec<Process> = ["a", "b"].map(|name| start(&cluster, "sharded_workers", name)).into();
    let shards_of = |worker: &Process| {
        let mut shards = std::collections::BTreeSet::new();
        for line in worker.printed().lines() {
            if let Some((_, rest)) = line.split_once("works on ") {
                shards.insert(rest.split(' ').next().unwrap_or_default().to_owned());
            } else if let Some((_, shard)) = line.split_once("leaves ") {
                shards.remove(shard);
            }
        }
        shards
    };
    let begun = Instant::now();
    loop {
        let (one, other) = (shards_of(&workers[0]), shards_of(&workers[1]));
        if one.len() + other.len() == 16 && !one.is_empty() && !other.is_empty() {
            assert!(one.is_disjoint(&other), "{one:?} {other:?}");
            break;
        }
        assert!(begun.elapsed() < SOON, "not all shards have a worker: {one:?} {other:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    workers[0].kill();
    let begun = Instant::now();
    while shards_of(&workers[1]).len() < 16 {
        assert!(begun.elapsed() < SOON, "not all shards moved to the other worker: {:?}", shards_of(&workers[1]));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    workers[1].signal(Signal::INT);
    assert!(workers[1].exit(SOON).await.success(), "{}", workers[1].said());
}
