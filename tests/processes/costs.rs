//! The syncs, the bytes and the wake-ups of three nodes for each write of a lone client. On a busy machine, threads sleep
//! less often, so the counts do not rise there. tests/cluster/messages.rs counts the messages between the nodes.

use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::json;

use crate::calm;
use crate::client::{Call, Outcome};
use crate::cluster::{Cluster, NODES, place};
use crate::metrics::sample;
use crate::steady::strict;

strict!(lone_write_costs_no_more_than_recorded);

const WRITES: u64 = 300;
/// The time without requests, for the cost of heartbeats.
const IDLE: Duration = Duration::from_secs(2);

/// Of all nodes, for each write. A higher count means that a write became more expensive: find out why, or record the new
/// count together with the reason in the commit.
const RECORDED_SLEEPS: f64 = 20.7;
const RECORDED_SLEEPS_ON_A_DISK: f64 = 31.7;
const RECORDED_BYTES: f64 = 107.1;
/// Threads that meet each other at other times add a few.
const MORE_SLEEPS: f64 = 6.0;
/// The type of a file system in memory: TMPFS_MAGIC of Linux.
const IN_MEMORY: i64 = 0x0102_1994;

#[derive(Clone, Copy, Default)]
struct Counts {
    /// How often a thread of a node went to sleep. A thread that ends takes its count along.
    sleeps: f64,
    /// Group commits: one sync each.
    syncs: f64,
    /// The payload of the group commits.
    bytes: f64,
}

impl Counts {
    async fn of(cluster: &mut Cluster) -> Counts {
        let mut counts = Counts::default();
        for id in NODES {
            counts.sleeps += sleeps(cluster.node(id).id()) as f64;
        }
        for id in NODES {
            counts.syncs += sample(cluster, id, "tenure_storage_groups_total").await as f64;
            counts.bytes += sample(cluster, id, "tenure_storage_written_bytes_total").await as f64;
        }
        counts
    }
}

/// The voluntary context switches of all threads of a process.
fn sleeps(process: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("the process runs");
    let of_task = |task: std::io::Result<std::fs::DirEntry>| {
        // A thread can end between both calls.
        let status = std::fs::read_to_string(task.ok()?.path().join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    };
    tasks.filter_map(of_task).sum()
}

async fn write(cluster: &Cluster, leader: u64, number: u64) {
    // With a deadline, the leader would also write ticks.
    let call =
        Call::post(format!("/v1/leases/job-{number}/acquire"), json!({"holder": "holder", "ttl_ms": "infinite"}));
    let written = cluster.client.attempt(place(leader), &call).await;
    assert!(matches!(written, Outcome::Done(_)), "write {number}: {written:?}");
}

/// Lets this thread, and the processes that it starts, use two processors. More of them would wake more threads.
fn use_two_processors() {
    let allowed = sched_getaffinity(None).expect("the set of this thread");
    let mut two = CpuSet::new();
    (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).take(2).for_each(|cpu| two.set(cpu));
    sched_setaffinity(None, &two).expect("a part of the own set");
}

async fn lone_write_costs_no_more_than_recorded() {
    use_two_processors();
    let mut cluster = Cluster::start(calm::SETTINGS).await;
    cluster.settled().await;
    let leader = cluster.leader().await;
    for number in 0..10 {
        write(&cluster, leader, number).await;
    }
    let first = Counts::of(&mut cluster).await;
    tokio::time::sleep(IDLE).await;
    let before = Counts::of(&mut cluster).await;
    let start = Instant::now();
    for number in 0..WRITES {
        write(&cluster, leader, 10 + number).await;
    }
    let took = start.elapsed();
    let after = Counts::of(&mut cluster).await;
    let heartbeats = (before.sleeps - first.sleeps) * took.as_secs_f64() / IDLE.as_secs_f64();
    let each = |count: f64| count / WRITES as f64;
    let sleeps = each(after.sleeps - before.sleeps - heartbeats);
    let (syncs, bytes) = (each(after.syncs - before.syncs), each(after.bytes - before.bytes));
    println!("each write: {sleeps:.1} sleeps, {syncs:.2} syncs, {bytes:.1} bytes; {took:.1?} for all");
    // Each node syncs each entry once, and a late follower several entries at once.
    assert!(syncs > 2.0 && syncs < 3.05, "{syncs} syncs for each write");
    let file_system = rustix::fs::statfs(cluster.folder()).expect("a folder");
    let recorded = if file_system.f_type == IN_MEMORY { RECORDED_SLEEPS } else { RECORDED_SLEEPS_ON_A_DISK };
    assert!(sleeps < recorded + MORE_SLEEPS, "{sleeps} sleeps for each write, recorded {recorded}");
    assert!(bytes < 1.05 * RECORDED_BYTES, "{bytes} bytes for each write, recorded {RECORDED_BYTES}");
}
