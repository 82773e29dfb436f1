//! A cluster that loses all nodes, and a new cluster from a backup of it.
//!
//! The holders of the lost cluster continue until their own deadlines. They meet the grants of the new cluster at the
//! resources that the leases protect.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use tempfile::NamedTempFile;
use tenure::backup::{LostHolders, RestoreError, RestoreOptions};
use tenure::lease::Change;
use tenure::node::Consistency;
use tenure::testing::{Cluster, Cut, Setup};
use tenure::token::FencingToken;

use super::client::{LONGEST_DELAY, LONGEST_TTL};
use super::judge::Broken;
use super::plan::Plan;
use super::run::{Load, in_virtual_time, judge, simulate};
use super::verdict::Verdict;
use super::world::{World, lock};

/// Changes the seed of the lost cluster to the one of the new cluster.
const NEW_CLUSTER: u64 = 0x7265_7374_6f72_6500;
/// Pause before another attempt to write a backup.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Runs a cluster, its loss, and a new cluster from a backup.
pub fn run(plan: Plan) -> Verdict {
    in_virtual_time(plan.seed, async {
        let lost = World::new(plan);
        let mut load = Load::begin(&lost).await;
        let mut rng = lost.rng(11_000);
        sleep_ms(rng.random_range(2_000..8_000)).await;
        let backup = back_up(&lost, &mut rng).await;
        // Everything from here on is missing in the backup.
        sleep_ms(rng.random_range(0..3_000)).await;
        load.end_faults().await;
        lost.ids().for_each(|id| lost.crash(id, Cut::Keep(0)));
        sleep_ms(rng.random_range(0..200)).await;

        let new = World::new(plan_of_new(&lost.plan));
        let options = RestoreOptions::new(match lost.plan.planted.restored_too_soon {
            true => LostHolders::Stopped,
            false => LostHolders::StopWithin(LONGEST_TTL + LONGEST_DELAY),
        });
        let restored = lock(&new.cluster).restore(backup.path(), options, wall_ms(&lost));
        let (restored, cluster_ms) = restored.expect("the backup of the lost cluster can be restored");
        lock(&new.ledger).begin_at(cluster_ms);
        let mut verdict = simulate(&new).await;
        load.end().await;
        lost.end().await;
        let before = judge(&lost);
        verdict.violations.splice(0..0, before.violations);
        verdict.undecided.extend(before.undecided);
        verdict.trace.splice(0..0, before.trace);
        for (promise, checked) in
            [("one_holder", check_holders(&lost, &new)), ("tokens_rise", check_tokens(&lost, &new, restored.above))]
        {
            verdict.violations.extend(checked.err().map(|how| Broken::of_cluster(promise, how)));
        }
        verdict.figures.insert("leases that a restore ended", restored.ended);
        verdict.figures.insert("waiters that a restore dropped", restored.dropped);
        new.end().await;
        (verdict, vec![Arc::downgrade(&lost), Arc::downgrade(&new)])
    })
}

async fn sleep_ms(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

/// A cluster whose clocks stay inside the drift: otherwise it may grant too soon.
fn plan_of_new(lost: &Plan) -> Plan {
    let mut seeds = (0..).map(|number: u64| lost.seed ^ NEW_CLUSTER ^ (number << 48));
    let plan = seeds.find_map(|seed| Some(Plan::of(seed, lost.planted)).filter(|plan| plan.inside_drift));
    let mut plan = plan.expect("most seeds stay inside the drift");
    plan.faults = Duration::from_secs(8);
    plan.traced = lost.traced;
    // An older release refuses a state of a newer feature level.
    plan.older.clear();
    plan
}

/// Writes a backup at a random node, while faults are injected. A backup with an infinite lease needs stopped holders, so
/// it does not count.
async fn back_up(world: &Arc<World>, rng: &mut StdRng) -> NamedTempFile {
    loop {
        let at = world.random_node(rng);
        let consistency = if rng.random_bool(0.5) { Consistency::Leader } else { Consistency::Stale };
        if let Some(node) = world.node(at)
            && let Some(bytes) = world.on_node(at, node.backup_bytes(consistency)).await
        {
            world.trace(|| format!("node {at} wrote a backup of {} bytes, {consistency:?}", bytes.len()));
            let mut file = NamedTempFile::new().expect("a temporary file");
            file.write_all(&bytes).expect("a write to a temporary file");
            let options = RestoreOptions::new(LostHolders::StopWithin(LONGEST_TTL + LONGEST_DELAY));
            match Cluster::prepare(1, Setup::default()).restore(file.path(), options, wall_ms(world)) {
                Ok(_) => return file,
                Err(RestoreError::Infinite { .. }) => {}
                Err(error) => world.report_violation("restores", error.to_string()),
            }
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// The wall clock of the operator, later than those of all nodes.
fn wall_ms(world: &World) -> u64 {
    1_700_000_000_000 + 100_000 * (world.plan.last_id + 1) + 2 * world.now().as_millis() as u64
}

/// No grant of the new cluster begins while a holder of the lost one believes that it holds the lease.
fn check_holders(lost: &World, new: &World) -> Result<(), String> {
    let later = new.began - lost.began;
    let (ledger, history) = (lock(&new.ledger), lock(&lost.history));
    for (entry, granted) in ledger.transitions().filter(|(_, seen)| matches!(seen.change, Change::Granted(_))) {
        let at = later + entry.at;
        let holds = history.beliefs.iter().find(|belief| belief.name == granted.name && at < belief.until);
        if let Some(belief) = holds {
            return Err(format!("{granted:?} at {at:?}, but a holder of the lost cluster continues: {belief:?}"));
        }
    }
    Ok(())
}

/// Each token of the new cluster is above all tokens of the lost one.
fn check_tokens(lost: &World, new: &World, above: FencingToken) -> Result<(), String> {
    let (lost, new) = (lock(&lost.ledger), lock(&new.ledger));
    let highest = lost.transitions().map(|(_, seen)| seen.token).max();
    let mut granted = new.transitions().map(|(_, seen)| seen.token);
    let low =
        granted.find(|token| *token <= above || highest.is_some_and(|highest| token.as_u64() <= highest.as_u64()));
    match low {
        Some(low) => Err(format!("{low:?} is not above {highest:?} and {above:?}")),
        None => Ok(()),
    }
}
