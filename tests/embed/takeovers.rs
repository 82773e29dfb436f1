//! Takeover times of an elected leader, measured with replica processes: `ttl` 3 s, `lan` timings.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use tenure::client::{LeaseManager, LeaseOptions, ManagerOptions, Wait};
use tenure::election::{Election, ElectionOptions};
use tenure::semaphore::Semaphore;
use tenure::types::LeaseName;
use tokio::sync::Mutex;

use crate::replica::{ELECTION, Replica, TTL, remote};
use crate::steady::steady;
use crate::trio::{Plan, SOON, holder};

steady!(
    stop_of_all_replicas_leaves_the_lease_free,
    crashed_candidate_does_not_delay_a_resignation,
    stopped_node_delays_a_candidate_by_less_than_a_ttl,
    stopped_leader_delays_releases_by_less_than_4_s,
);

/// Runs one test at a time, because each one measures three processes on an otherwise idle machine. Under cargo-nextest
/// each test is a process, and `.config/nextest.toml` does the same.
static SERIAL: Mutex<()> = Mutex::const_new(());

/// Longest takeover that waits only for commits, on a busy machine.
const COMMITS: Duration = Duration::from_millis(900);

/// Waits until the queue of the election has `count` waiters.
async fn waiters(plan: &Plan, count: usize) {
    let (remote, name) = (remote(plan, 1..=3), LeaseName::new(ELECTION).expect("valid"));
    let begun = Instant::now();
    while remote.queue(&name).await.map_or(0, |queue| queue.waiters.len()) != count {
        assert!(begun.elapsed() < SOON, "no {count} waiters within {SOON:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Returns the leader of the cluster and the two other nodes.
async fn roles(plan: &Plan) -> (u64, [u64; 2]) {
    let remote = remote(plan, 1..=3);
    let known = async {
        loop {
            if let Some(leader) = remote.cluster().await.expect("an answer").leader {
                return leader;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let leader = tokio::time::timeout(SOON, known).await.expect("the cluster has a leader");
    let others: Vec<u64> = (1..=3).filter(|id| *id != leader).collect();
    (leader, [others[0], others[1]])
}

/// Starts the campaigns of all replicas in `order`, so that the first one is elected.
async fn campaigning(plan: &Plan, order: [u64; 3], mut replicas: Vec<Replica>) -> Vec<Replica> {
    for (before, id) in order.into_iter().enumerate() {
        let replica = &mut replicas[id as usize - 1];
        replica.campaign();
        match before {
            0 => _ = replica.wait_for("elected", SOON),
            before => waiters(plan, before).await,
        }
    }
    replicas
}

/// Waits for the first elected replica. Returns its id and the time of its election.
fn first_elected(replicas: &[Replica]) -> (u64, Instant) {
    let begun = Instant::now();
    loop {
        let elected = replicas.iter().find_map(|replica| Some((replica.id, replica.has_said("elected")?)));
        if let Some(elected) = elected {
            return elected;
        }
        assert!(begun.elapsed() < SOON, "no leader within {SOON:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

async fn stop_of_all_replicas_leaves_the_lease_free() {
    let _serial = SERIAL.lock().await;
    let mut longest = Duration::ZERO;
    for round in 0..6 {
        let plan = Plan::new(&[]);
        let first = round % 3 + 1;
        let order = [first, first % 3 + 1, (first + 1) % 3 + 1];
        let mut replicas = campaigning(&plan, order, Replica::start_all(&plan)).await;
        replicas.iter_mut().for_each(Replica::stop);
        for replica in &replicas {
            let (_, line) = replica.wait_for("stopped", SOON);
            assert!(line.contains("not released: []; campaign: ShutDown"), "replica {}: {line}", replica.id);
        }
        drop(replicas);
        let mut replicas = Replica::start_all(&plan);
        let ready = Instant::now();
        replicas.iter_mut().for_each(Replica::campaign);
        let (id, elected) = first_elected(&replicas);
        let without = elected.saturating_duration_since(ready);
        println!("all replicas restarted: replica {id} is elected after {without:.1?}");
        longest = longest.max(without);
    }
    assert!(longest < COMMITS, "no leader for {longest:?}");
}

async fn crashed_candidate_does_not_delay_a_resignation() {
    let _serial = SERIAL.lock().await;
    let plan = Plan::new(&[]);
    let replicas = Replica::start_all(&plan);
    let (leader, [first, second]) = roles(&plan).await;
    let mut replicas = campaigning(&plan, [first, second, leader], replicas).await;
    let crashed = replicas.remove(second as usize - 1);
    crashed.kill();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let resigned = Instant::now();
    let by_id =
        |replicas: &[Replica], id| replicas.iter().position(|replica| replica.id == id).expect("the replica runs");
    let (first, leader) = (by_id(&replicas, first), by_id(&replicas, leader));
    replicas[first].stop();
    let (elected, _) = replicas[leader].wait_for("elected", SOON);
    let without = elected.saturating_duration_since(resigned);
    println!("a candidate crashed, then the elected replica stopped: {without:.1?} without a leader");
    assert!(without < COMMITS, "{without:?}");
}

async fn stopped_node_delays_a_candidate_by_less_than_a_ttl() {
    let _serial = SERIAL.lock().await;
    let plan = Plan::new(&[]);
    let replicas = Replica::start_all(&plan);
    let (leader, [hung, other]) = roles(&plan).await;
    let candidate = |name: &str, ids: [u64; 3]| {
        let options = ManagerOptions::new().holder(holder(name));
        let manager = LeaseManager::with_options(remote(&plan, ids), options).expect("valid options");
        Election::new(&manager, ELECTION, ElectionOptions::new().ttl(TTL)).expect("valid")
    };
    let first = candidate("first", [leader, other, hung]).campaign().await.expect("elected");
    let second = candidate("second", [hung, other, leader]);
    let campaign = tokio::spawn(async move { second.campaign().await });
    waiters(&plan, 1).await;
    replicas[hung as usize - 1].signal(Signal::STOP);
    let stopped = Instant::now();
    first.resign().await.expect("an answer");
    let second = campaign.await.expect("the campaign does not panic").expect("elected");
    let without = stopped.elapsed();
    println!("the node of a candidate was stopped, then the elected one resigned: {without:.1?} without a leader");
    assert!(second.is_leader() && without < TTL, "{without:?}");
    replicas[hung as usize - 1].signal(Signal::CONT);
}

async fn stopped_leader_delays_releases_by_less_than_4_s() {
    let _serial = SERIAL.lock().await;
    const PERMITS: u32 = 20;
    let plan = Plan::new(&[]);
    let replicas = Replica::start_all(&plan);
    let (leader, [one, other]) = roles(&plan).await;
    let manager = LeaseManager::new(remote(&plan, [leader, one, other]));
    let semaphore = Semaphore::new(&manager, "uploads", PERMITS, LeaseOptions::new()).expect("valid");
    let mut permits = Vec::new();
    for _ in 0..PERMITS {
        permits.push(semaphore.acquire(Wait::No).await.expect("a permit is free"));
    }
    replicas[leader as usize - 1].signal(Signal::STOP);
    let begun = Instant::now();
    let released = permits.into_iter().map(|permit| async move { permit.release().await });
    let released = futures_util::future::join_all(released).await;
    let took = begun.elapsed();
    println!("{PERMITS} permits released with a stopped leader: {took:.1?}");
    assert!(released.iter().all(|released| *released == Ok(true)), "{released:?}");
    assert!(took < Duration::from_secs(4), "{took:?}");
    replicas[leader as usize - 1].signal(Signal::CONT);
}
