//! The programs in `examples/`, run as their readers would.

use std::path::Path;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::cluster::{Cluster, SOON};
use crate::example::example;
use crate::process::Process;

fn nightly(cluster: &Cluster, replica: usize, reports: &Path) -> Process {
    let mut command = example("nightly");
    command.arg("2026-11-21").arg(reports).env("TENURE_ENDPOINTS", cluster.client.endpoints());
    Process::start(&format!("replica-{replica}"), command, cluster.folder())
}

fn whole_report(reports: &Path) -> bool {
    let text = std::fs::read_to_string(reports.join("2026-11-21.txt"));
    text.is_ok_and(|text| text.lines().count() == 20)
}

#[tokio::test(flavor = "multi_thread")]
async fn of_three_replicas_one_does_the_nightly_job() {
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

#[tokio::test(flavor = "multi_thread")]
async fn when_the_replica_with_the_nightly_job_dies_another_does_it() {
    let cluster = Cluster::start("").await;
    let reports = TempDir::new().expect("a folder");
    let mut replicas: Vec<Process> = (0..2).map(|n| nightly(&cluster, n, reports.path())).collect();
    let begun = Instant::now();
    let dies = loop {
        match replicas.iter().position(|replica| replica.printed().contains("working")) {
            Some(working) => break working,
            None => assert!(begun.elapsed() < SOON, "nobody works"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    replicas[dies].kill();
    let other = &mut replicas[1 - dies];
    assert!(other.exit(SOON).await.success(), "{}", other.said());
    assert!(other.printed().contains("the report is written"));
    assert!(whole_report(reports.path()));
}
