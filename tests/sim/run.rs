//! The phases of one run, and its verdict.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tenure::types::NodeId;
use tokio::runtime::{Builder, RngSeed};
use tokio::task::{JoinHandle, JoinSet};

use super::client::{self, LONGEST_TTL};
use super::evidence::{Evidence, Judged};
use super::invariants::cluster_time_advances::{self, Advance};
use super::invariants::{idle_leader, log_matching, nobody_panics, one_leader, state_ages};
use super::judge::file::HistoryWriter;
use super::judge::history::{Ended, History, Operation, RequestKind};
use super::judge::{Broken, Transition, reads_are_current};
use super::ledger::Ledger;
use super::plan::Plan;
use super::verdict::{Counts, Verdict};
use super::world::{World, lock};
use super::{bootstrap, evidence, faults, members, principals, watcher};

/// Bound for an election after the last fault, in true time.
const ELECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Bound for the completion of all changes of the members after the last fault.
const MEMBERS_TIMEOUT: Duration = Duration::from_secs(20);
/// Time in which clients work without faults.
const FAULT_FREE_TIME: Duration = Duration::from_secs(3);
/// The part of [`FAULT_FREE_TIME`] after which no fault has an effect.
const SETTLING_TIME: Duration = Duration::from_secs(1);
/// Bound for all replicas to apply the same entries after the last request.
const CONVERGENCE_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs a plan on the current thread.
pub fn run(plan: Plan) -> Verdict {
    in_virtual_time(plan.seed, async {
        let world = World::new(plan);
        let verdict = simulate(&world).await;
        world.end().await;
        (verdict, vec![Arc::downgrade(&world)])
    })
}

/// Runs a simulation on the current thread. It returns its worlds, which no task may hold afterwards.
pub fn in_virtual_time(seed: u64, simulation: impl Future<Output = (Verdict, Vec<Weak<World>>)>) -> Verdict {
    nobody_panics::begin();
    let _seeded = tenure::testing::seed(seed);
    let seed = RngSeed::from_bytes(&seed.to_le_bytes());
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).rng_seed(seed).build();
    let runtime = runtime.expect("a runtime");
    let (verdict, worlds) = runtime.block_on(simulation);
    drop(runtime);
    for world in worlds {
        assert_eq!(world.strong_count(), 0, "a task still holds the world after the run");
    }
    verdict
}

/// The tasks around a cluster that has formed.
pub struct Load {
    pub clients: JoinSet<()>,
    watching: JoinSet<()>,
    faults: JoinHandle<()>,
}

impl Load {
    /// Forms the cluster. Then clients work, and faults are injected.
    pub async fn begin(world: &Arc<World>) -> Load {
        bootstrap::start_all(world).await;
        if !faults::wait_for_leader(world, ELECTION_TIMEOUT).await {
            let how = format!("no cluster formed within {ELECTION_TIMEOUT:?} of the last fault");
            world.report_violation("converges", how);
        }
        let mut clients = JoinSet::new();
        (0..world.plan.clients).for_each(|number| drop(clients.spawn(client::run(world.clone(), number))));
        if principals::work_in(world.plan.seed) {
            clients.spawn(principals::run(world.clone()));
        }
        let mut watching = JoinSet::new();
        watching.spawn(one_leader::watch(world.clone()));
        watching.spawn(watcher::watch(world.clone()));
        watching.spawn(watcher::watch_from_now(world.clone()));
        watching.spawn(state_ages::watch(world.clone()));
        let (all, of_disks) = (faults::inject_all(world.clone()), faults::inject_disk_faults(world.clone()));
        let faults = tokio::spawn(async move {
            futures_util::future::join(all, of_disks).await;
        });
        Load { clients, watching, faults }
    }

    pub async fn end_faults(&mut self) {
        self.faults.abort();
        let _ = (&mut self.faults).await;
    }

    pub async fn end(mut self) {
        self.clients.shutdown().await;
        self.watching.shutdown().await;
    }
}

pub async fn simulate(world: &Arc<World>) -> Verdict {
    let mut load = Load::begin(world).await;
    tokio::time::sleep(world.plan.faults).await;
    load.end_faults().await;
    world.heal();
    if !faults::wait_for_leader(world, ELECTION_TIMEOUT).await {
        world.report_violation("converges", format!("no leader within {ELECTION_TIMEOUT:?} of the healing"));
    }
    if let Err(how) = members::wait_until_stable(world, MEMBERS_TIMEOUT).await {
        world.report_violation("converges", how);
    }
    tokio::time::sleep(SETTLING_TIME).await;
    let calm = world.now();
    lock(&world.history).calm = Some(calm);
    tokio::time::sleep(FAULT_FREE_TIME - SETTLING_TIME).await;
    // Clients die without a release, so that every lease must expire.
    world.no_clients.store(true, Ordering::Relaxed);
    load.clients.shutdown().await;
    let holders: Vec<_> = lock(&world.history).beliefs.iter().map(|belief| belief.by.clone()).collect();
    holders.iter().for_each(|holder| client::end_beliefs(world, holder));
    let (slowest, _) = world.plan.extreme_rates();
    // The leader is alive: a lease ends after its ttl and one commit.
    let bound = LONGEST_TTL.div_f64(slowest) + Duration::from_millis(100);
    tokio::time::sleep(bound).await;
    let expired = evidence::check_abandoned(&lock(&world.ledger), world.now(), bound);
    if let Err(how) = expired {
        world.report_violation("expiry_happens", how);
    }
    if world.plan.inside_drift {
        check_deadlines(world, calm, slowest);
    }
    converge(world).await;
    watcher::check_end(world).await;
    load.end().await;
    judge(world)
}

/// Checks the deadlines since `calm`, from which on the run has no faults.
fn check_deadlines(world: &World, calm: Duration, slowest: f64) {
    let entries: Vec<_> = {
        let ledger = lock(&world.ledger);
        ledger.entries.iter().filter(|entry| entry.at >= calm).map(idle_leader::NextDeadline::of).collect()
    };
    match idle_leader::check(&entries, world.now(), slowest) {
        Ok(0) => {}
        Ok(_) => world.count_work("deadlines without faults"),
        Err(how) => world.report_violation("expiry_happens", how),
    }
}

/// Checks that each usable node applies all entries of the ledger and reports no failure.
async fn converge(world: &Arc<World>) {
    let behind = || {
        let ledger = lock(&world.ledger);
        let last = ledger.last_index();
        let behind = |id: &NodeId| ledger.applied.get(id).is_none_or(|applied| *applied < last);
        world.usable_nodes().into_iter().filter(behind).collect::<Vec<_>>()
    };
    let converged = async {
        while !behind().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    if tokio::time::timeout(CONVERGENCE_TIMEOUT, converged).await.is_err() {
        world.report_violation(
            "converges",
            format!("nodes {:?} have not applied all entries within {CONVERGENCE_TIMEOUT:?}", behind()),
        );
    }
    for id in world.usable_nodes() {
        match world.node(id).map(|node| node.health().failed) {
            Some(None) => {}
            failed => {
                world.report_violation("converges", format!("node {id} reports a failure or does not run: {failed:?}"))
            }
        }
    }
    let accepted = world.wiped_and_not_refused();
    if !accepted.is_empty() {
        world.report_violation(
            "wiped_voter_is_refused",
            format!("the cluster accepted voters {accepted:?} on empty disks"),
        );
    }
    members::check_removed(world);
    principals::check_replicas(world);
    log_matching::check(world);
}

/// Judges the records of a run.
pub fn judge(world: &World) -> Verdict {
    let (ledger, history) = (lock(&world.ledger), lock(&world.history));
    let registers = lock(&world.registers);
    let (plan, steps) = (&world.plan, lock(&world.steps));
    let evidence = Evidence {
        plan,
        ledger: &ledger,
        history: &history,
        writes: &registers.writes,
        steps: &steps,
        now: world.now(),
    };
    let mut violations = std::mem::take(&mut *lock(&world.violations));
    violations.extend(ledger.violations.iter().cloned());
    let Judged { broken, undecided, bounded } = evidence.judge();
    if plan.inside_drift {
        let advances = ledger.entries.iter().filter_map(Advance::of);
        let advanced = cluster_time_advances::check(advances, plan.extreme_rates().0);
        violations.extend(advanced.err().map(|how| Broken::of_cluster("cluster_time_advances", how)));
        let dated = reads_are_current::check_ages(&history.ages, history.operations.iter(), plan.extreme_rates().0);
        violations.extend(dated.err().map(|how| Broken::of_cluster("reads_are_current", how)));
    }
    violations.extend(broken);
    violations.extend(lock(&world.principals).judge());
    violations.extend(nobody_panics::check().err().map(|how| Broken::of_cluster("nobody_panics", how)));
    if world.plan.traced {
        trace_all(world, &ledger, &history);
    }
    Verdict {
        violations,
        undecided,
        trace: world.take_trace(),
        history: if world.plan.exported { export(&world.plan, &ledger, &history) } else { Vec::new() },
        faults: std::mem::take(&mut *lock(&world.faults)),
        work: std::mem::take(&mut *lock(&world.work)),
        operations: history.operations.iter().fold(Counts::new(), |mut counts, operation| {
            *counts.entry(operation_label(operation)).or_default() += 1;
            counts
        }),
        figures: figures(&evidence, bounded),
        simulated: world.now(),
    }
}

fn figures(run: &Evidence, bounded: [u64; 3]) -> Counts {
    let (accepted, refused) = run.late_writes();
    let [expiries, queue_grants, delays] = bounded;
    Counts::from([
        ("expiries within their bound", expiries),
        ("grants from a queue within their bound", queue_grants),
        ("lock delays before a grant", delays),
        ("ages of states", run.history.ages.len() as u64),
        ("log entries", run.ledger.entries.len() as u64),
        ("transitions", run.ledger.transitions().count() as u64),
        ("writes to fenced registers", run.writes.len() as u64),
        ("writes after the lease was over, refused by the fence", refused),
        ("writes after the lease was over, before anything newer", accepted),
    ])
}

/// The histories of all leases as JSON lines.
fn export(plan: &Plan, ledger: &Ledger, history: &History) -> Vec<u8> {
    let transitions: Vec<Transition> =
        ledger.transitions().map(|(entry, seen)| Transition::of_replica(seen, entry.at)).collect();
    let mut lines = Vec::new();
    let mut writer = HistoryWriter::new(&mut lines, format!("simulation, seed {}", plan.seed));
    writer.write(&history.operations, &transitions).expect("a write to memory cannot fail");
    lines
}

fn trace_all(world: &World, ledger: &Ledger, history: &History) {
    for (entry, transition) in ledger.transitions() {
        let (at, change) = (entry.at.as_secs_f64(), &transition.change);
        let (name, holder, token) = (&transition.name, &transition.holder, transition.token);
        world.trace(|| format!("{at:.6} {} {name} {holder} {token:?} {change:?}", entry.index));
    }
    for belief in &history.beliefs {
        world.trace(|| format!("{belief:?}"));
    }
}

/// The label of an operation in the summary.
fn operation_label(operation: &Operation) -> &'static str {
    let [done, not, refused, unknown] = match operation.what {
        RequestKind::Acquire { .. } => ["acquire: held", "acquire: not held", "acquire: refused", "acquire: unknown"],
        RequestKind::Renew { .. } => ["renew: held", "renew: lost", "renew: refused", "renew: unknown"],
        RequestKind::Release { .. } => ["release: done", "release: not held", "release: refused", "release: unknown"],
        RequestKind::HandOver { .. } => {
            ["hand over: done", "hand over: not done", "hand over: refused", "hand over: unknown"]
        }
        RequestKind::UpdateMetadata { .. } => {
            ["metadata: replaced", "metadata: not replaced", "metadata: refused", "metadata: unknown"]
        }
        RequestKind::Revoke => ["revoke: done", "revoke: not held", "revoke: refused", "revoke: unknown"],
        RequestKind::Read => ["read: answered", "read: not answered", "read: refused", "read: unknown"],
    };
    match operation.ended {
        Ended::Held(..) | Ended::Changed(true) | Ended::Saw(..) | Ended::Showed | Ended::Updated { .. } => done,
        Ended::Changed(false) => not,
        Ended::Refused(_) => refused,
        Ended::Unknown => unknown,
    }
}
