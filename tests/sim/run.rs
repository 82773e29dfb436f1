//! One run: faults, then healing, then the end of all leases; and the judgement of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure::lease::{Change, GrantCause};
use tenure::types::NodeId;
use tokio::runtime::{Builder, RngSeed};
use tokio::task::JoinSet;

use super::client::{self, LONGEST_TTL};
use super::history::{Ended, History, Operation, What};
use super::history_file::{self, HistoryWriter};
use super::ledger::Ledger;
use super::plan::Plan;
use super::register::Write;
use super::verdict::{Broken, Counts, Verdict};
use super::world::{Step, World, lock};
use super::{bootstrap, faults, promises, voters, watcher};

/// The longest that a cluster takes to agree on a leader once everything works, in true time.
const AGREEMENT: Duration = Duration::from_secs(10);
/// How long clients go on after that.
const CALM: Duration = Duration::from_secs(3);
/// The longest that replicas take to apply the same once nothing is asked any more.
const CONVERGENCE: Duration = Duration::from_secs(5);

/// What is judged at the end.
pub struct Evidence<'a> {
    pub plan: &'a Plan,
    pub ledger: &'a Ledger,
    pub history: &'a History,
    pub writes: &'a [Write],
    pub steps: &'a [Step],
}

/// Runs a plan on this thread, which is the only one that it needs.
pub fn run(plan: Plan) -> Verdict {
    promises::nobody_panics::begin();
    let _seeded = tenure::testing::seed(plan.seed);
    let seed = RngSeed::from_bytes(&plan.seed.to_le_bytes());
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).rng_seed(seed).build();
    let runtime = runtime.expect("a runtime");
    let (verdict, world) = runtime.block_on(async {
        let world = World::new(plan);
        let verdict = simulate(&world).await;
        world.end().await;
        (verdict, Arc::downgrade(&world))
    });
    drop(runtime);
    assert_eq!(world.strong_count(), 0, "the run is over, and something keeps its memory");
    verdict
}

async fn simulate(world: &Arc<World>) -> Verdict {
    bootstrap::begin(world).await;
    if !faults::settled(world, AGREEMENT).await {
        world.break_promise("converges", format!("no cluster formed within {AGREEMENT:?} of the last fault"));
    }
    let mut clients = JoinSet::new();
    (0..world.plan.clients).for_each(|number| drop(clients.spawn(client::run(world.clone(), number))));
    let mut watching = JoinSet::new();
    watching.spawn(promises::one_leader::watch(world.clone()));
    watching.spawn(watcher::watch(world.clone()));
    let faults = tokio::spawn(faults::rage(world.clone()));
    tokio::time::sleep(world.plan.faults).await;
    faults.abort();
    let _ = faults.await;
    world.heal();
    if !faults::settled(world, AGREEMENT).await {
        world.break_promise("converges", format!("no leader within {AGREEMENT:?} of the healing"));
    }
    if !voters::all_vote_again(world, AGREEMENT).await {
        world.break_promise("converges", format!("not everybody votes again within {AGREEMENT:?}"));
    }
    tokio::time::sleep(CALM).await;
    // They all die at once, and so nothing is released.
    world.no_clients.store(true, Ordering::Relaxed);
    clients.shutdown().await;
    let holders: Vec<_> = lock(&world.history).beliefs.iter().map(|belief| belief.by.clone()).collect();
    holders.iter().for_each(|holder| client::end_beliefs(world, holder));
    let (slowest, _) = world.plan.extreme_rates();
    // The bound with a leader that lives: the ttl, and one commit.
    let bound = LONGEST_TTL.div_f64(slowest) + Duration::from_millis(100);
    tokio::time::sleep(bound).await;
    let expired = promises::expiry_happens::check(&lock(&world.ledger), world.now(), bound);
    if let Err(how) = expired {
        world.break_promise("expiry_happens", how);
    }
    converge(world).await;
    watching.shutdown().await;
    judge(world)
}

/// Everybody applies what anybody ever applied, and nobody has failed.
async fn converge(world: &Arc<World>) {
    let behind = || {
        let ledger = lock(&world.ledger);
        let last = ledger.last_index();
        let behind = |id: &NodeId| ledger.applied.get(id).is_none_or(|applied| *applied < last);
        world.living().into_iter().filter(behind).collect::<Vec<_>>()
    };
    let converged = async {
        while !behind().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    if tokio::time::timeout(CONVERGENCE, converged).await.is_err() {
        world.break_promise("converges", format!("{:?} are behind", behind()));
    }
    for id in world.living() {
        match world.node(id).map(|node| node.health().failed) {
            Some(None) => {}
            failed => world.break_promise("converges", format!("node {id} is not well: {failed:?}")),
        }
    }
    let taken = world.wiped_and_not_refused();
    if !taken.is_empty() {
        world.break_promise("wiped_voter_is_refused", format!("{taken:?} run on empty disks"));
    }
    promises::log_matching::check(world);
}

fn judge(world: &World) -> Verdict {
    let (ledger, history) = (lock(&world.ledger), lock(&world.history));
    let registers = lock(&world.registers);
    let (plan, steps) = (&world.plan, lock(&world.steps));
    let evidence = Evidence { plan, ledger: &ledger, history: &history, writes: &registers.writes, steps: &steps };
    let mut broken = std::mem::take(&mut *lock(&world.broken));
    broken.extend(ledger.broken.iter().cloned());
    broken.extend(promises::check(&evidence));
    broken.extend(promises::nobody_panics::check().err().map(|how| Broken::new("nobody_panics", how)));
    let undecided = promises::linear::check(&evidence).unwrap_or_else(|how| {
        broken.push(Broken::new("linearizable", how));
        Vec::new()
    });
    if world.plan.traced {
        note_all(world, &ledger, &history);
    }
    Verdict {
        broken,
        undecided,
        trace: world.take_trace(),
        history: if world.plan.exported { export(&world.plan, &ledger, &history) } else { Vec::new() },
        faults: std::mem::take(&mut *lock(&world.faults)),
        work: std::mem::take(&mut *lock(&world.work)),
        operations: history.operations.iter().fold(Counts::new(), |mut counts, operation| {
            *counts.entry(kind_and_end(operation)).or_default() += 1;
            counts
        }),
        figures: figures(&evidence),
        simulated: world.now(),
    }
}

fn figures(run: &Evidence) -> Counts {
    let (taken, refused) = promises::fenced_register::late(run);
    Counts::from([
        ("log entries", run.ledger.entries.len() as u64),
        ("transitions", run.ledger.transitions().count() as u64),
        ("writes to fenced registers", run.writes.len() as u64),
        ("writes after the lease was over, refused by the fence", refused),
        ("writes after the lease was over, before anything newer", taken),
    ])
}

/// The histories of all leases as JSON lines.
fn export(plan: &Plan, ledger: &Ledger, history: &History) -> Vec<u8> {
    let transitions = ledger.transitions().map(|(entry, seen)| {
        let (event, cause) = match seen.change {
            Change::Granted(GrantCause::Asked) => ("granted", Some("asked")),
            Change::Granted(GrantCause::Queue) => ("granted", Some("queue")),
            Change::Granted(GrantCause::HandOver) => ("granted", Some("hand_over")),
            Change::Expired => ("expired", None),
            Change::Released => ("released", None),
            Change::Revoked { .. } => ("revoked", None),
            Change::HandedOver { .. } => ("handed_over", None),
        };
        history_file::Transition {
            event,
            cause,
            index: seen.index,
            part: seen.part,
            name: seen.name.as_str(),
            holder: seen.holder.as_str(),
            token: seen.token,
            at: entry.at,
        }
    });
    let mut lines = Vec::new();
    let mut writer = HistoryWriter::new(&mut lines, format!("simulation, seed {}", plan.seed));
    writer.write(&history.operations, transitions).expect("memory takes all that is written");
    lines
}

fn note_all(world: &World, ledger: &Ledger, history: &History) {
    for (entry, transition) in ledger.transitions() {
        let (at, change) = (entry.at.as_secs_f64(), &transition.change);
        let (name, holder, token) = (&transition.name, &transition.holder, transition.token);
        world.note(|| format!("{at:.6} {} {name} {holder} {token:?} {change:?}", entry.index));
    }
    for belief in &history.beliefs {
        world.note(|| format!("{belief:?}"));
    }
}

/// What an operation counts as.
fn kind_and_end(operation: &Operation) -> &'static str {
    let [done, not, refused, unknown] = match operation.what {
        What::Acquire { .. } => ["acquire: held", "acquire: not held", "acquire: refused", "acquire: unknown"],
        What::Renew { .. } => ["renew: held", "renew: lost", "renew: refused", "renew: unknown"],
        What::Release { .. } => ["release: done", "release: not held", "release: refused", "release: unknown"],
        What::HandOver { .. } => ["hand over: done", "hand over: not done", "hand over: refused", "hand over: unknown"],
        What::Revoke => ["revoke: done", "revoke: not held", "revoke: refused", "revoke: unknown"],
        What::Read => ["read: answered", "read: not answered", "read: refused", "read: unknown"],
    };
    match operation.ended {
        Ended::Held(..) | Ended::Changed(true) | Ended::Saw(..) => done,
        Ended::Changed(false) => not,
        Ended::Refused(_) => refused,
        Ended::Unknown => unknown,
    }
}
