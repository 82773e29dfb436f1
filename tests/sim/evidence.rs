//! The records of a run, as evidence for the judge of each promise.

use std::time::Duration;

use tenure::types::LeaseName;

use super::client::{LEASES, leases};
use super::judge::fenced_register::{self, AcceptedWrites};
use super::judge::history::{Belief, History, Operation};
use super::judge::{
    self, Bounds, Broken, LeaseHistory, Observed, SearchResult, Transition, expiry_happens, holder_stops_first,
    reads_are_current, waits_last,
};
use super::ledger::Ledger;
use super::plan::Plan;
use super::register::Write;
use super::world::WorkStep;

/// A longer pause between two entries counts as time without a leader.
pub const LONGEST_COMMIT: Duration = Duration::from_millis(250);

/// The records that the promises are checked against after a run.
pub struct Evidence<'a> {
    pub plan: &'a Plan,
    pub ledger: &'a Ledger,
    pub history: &'a History,
    pub writes: &'a [Write],
    pub steps: &'a [WorkStep],
    /// The end of the run.
    pub now: Duration,
}

/// The result of all checks of a run.
#[derive(Default)]
pub struct Judged {
    pub broken: Vec<Broken>,
    /// Leases whose history the linearizability search could not decide.
    pub undecided: Vec<String>,
    /// The numbers of expiries, of grants from a queue and of lock delays that were judged.
    pub bounded: [u64; 3],
}

/// The clock rates of a plan, and the exact times of the simulation.
fn bounds(plan: &Plan) -> Bounds {
    let (slowest, fastest) = plan.extreme_rates();
    Bounds {
        inside_drift: plan.inside_drift,
        // The leader counts a ttl by its own clock: the fastest clock gives the shortest true time.
        shortest_second: 1.0 / fastest,
        longest_second: 1.0 / slowest,
        // Of the conversion between clock rates.
        rounding: Duration::from_nanos(1),
        observed: Observed::AtApply,
        tick: Duration::from_secs(1).div_f64(slowest),
        commit: LONGEST_COMMIT,
    }
}

impl Evidence<'_> {
    /// Checks all promises.
    pub fn judge(&self) -> Judged {
        let bounds = bounds(self.plan);
        let mut judged = Judged::default();
        let progress = self.ledger.progress();
        for name in leases() {
            let operations = self.operations_on(&name);
            let transitions = transitions_of(self.ledger, &name);
            let history =
                LeaseHistory { operations: &operations, queues: &[], transitions: &transitions, bounds: &bounds };
            let (broken, decided) = judge::check(name.as_str(), &history);
            judged.broken.extend(broken);
            if self.plan.inside_drift {
                let (broken, times) = judge::check_bounds(name.as_str(), &history, &progress, self.now);
                judged.broken.extend(broken);
                let counts = [times.expiries.judged, times.queue_grants.judged, times.delays];
                judged.bounded.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            }
            if decided == SearchResult::TooHard {
                judged.undecided.push(name.to_string());
            }
            let stops = ("holder_stops_first", self.check_holders(&name, &history));
            let fenced = ("fenced_register", self.check_writes(&name, &transitions));
            let kept = ("waits_last", self.check_waits(&history));
            for (promise, checked) in [stops, fenced, kept] {
                judged.broken.extend(checked.err().map(|how| Broken::of_lease(promise, name.as_str(), how)));
            }
        }
        let current = reads_are_current::check_indexes(self.history.operations.iter());
        judged.broken.extend(current.err().map(|how| Broken::of_cluster("reads_are_current", how)));
        judged
    }

    fn operations_on(&self, name: &LeaseName) -> Vec<Operation> {
        self.history.operations.iter().filter(|operation| operation.name == *name).cloned().collect()
    }

    /// Beliefs and work under a guard end before the lease expires. All times are true times.
    fn check_holders(&self, name: &LeaseName, history: &LeaseHistory) -> Result<(), String> {
        if !self.plan.inside_drift {
            return Ok(());
        }
        let beliefs: Vec<Belief> = self.history.beliefs.iter().filter(|belief| belief.name == *name).cloned().collect();
        for belief in &beliefs {
            holder_stops_first::check(history.transitions, belief.token, belief.until, belief)?;
        }
        for step in self.steps.iter().filter(|step| step.name == *name) {
            holder_stops_first::check(history.transitions, step.token, step.at, step)?;
        }
        if history.limit() == 1 { holder_stops_first::check_overlaps(history.transitions, &beliefs) } else { Ok(()) }
    }

    /// After the last fault, no waiter loses its place.
    fn check_waits(&self, history: &LeaseHistory) -> Result<(), String> {
        match self.history.calm {
            Some(calm) if !self.plan.slow_links => waits_last::check_kept(history, calm, &self.ledger.terms()),
            _ => Ok(()),
        }
    }

    fn check_writes(&self, name: &LeaseName, transitions: &[Transition]) -> Result<(), String> {
        let mut accepted = AcceptedWrites::default();
        for write in self.writes.iter().filter(|write| write.accepted && write.name == *name) {
            accepted.accept(write.token, write.by.as_str())?;
            fenced_register::check_granted(transitions, write.token, write.by.as_str())?;
        }
        Ok(())
    }

    /// Counts the writes that arrived after their lease ended: accepted, refused.
    ///
    /// The resource accepts such a write if no newer one arrived before it.
    pub fn late_writes(&self) -> (u64, u64) {
        let is_late = |write: &&Write| {
            let count = self.ledger.entries.partition_point(|entry| entry.at <= write.at);
            let held = count.checked_sub(1).map(|last| self.ledger.entries[last].held(&write.name)).unwrap_or_default();
            !held.iter().any(|lease| lease.token == write.token)
        };
        let late: Vec<_> = self.writes.iter().filter(is_late).collect();
        let refused = late.iter().filter(|write| !write.accepted).count() as u64;
        (late.len() as u64 - refused, refused)
    }
}

/// Checks that no client lease is held `bound` after its grant. All holders died `bound` ago. Probes take leases with
/// an infinite ttl, so they are excluded.
pub fn check_abandoned(ledger: &Ledger, now: Duration, bound: Duration) -> Result<(), String> {
    let names = LEASES.iter().map(|(name, _)| LeaseName::new(*name).expect("valid"));
    names
        .map(|name| transitions_of(ledger, &name))
        .try_for_each(|transitions| expiry_happens::check_abandoned(&transitions, now, bound))
}

fn transitions_of(ledger: &Ledger, name: &LeaseName) -> Vec<Transition> {
    let of_name = ledger.transitions().filter(|(_, seen)| seen.name == *name);
    of_name.map(|(entry, seen)| Transition::of_replica(seen, entry.at)).collect()
}
