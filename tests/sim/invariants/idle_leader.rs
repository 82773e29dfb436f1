//! Without faults, the leader commits an entry as soon as the state has a deadline: the end of a ttl, of a wait or of a
//! lock delay. An idle cluster waits for no tick.

use std::time::Duration;

use crate::client::leases;
use crate::evidence::LONGEST_COMMIT;
use crate::ledger::Entry;

/// The parts of an applied entry that this check needs.
#[derive(Clone, Copy, Debug)]
pub struct NextDeadline {
    /// `None` for an entry without commands.
    pub term: Option<u64>,
    /// True time.
    pub at: Duration,
    /// Cluster time.
    pub now: Duration,
    /// The cluster time of the first deadline of the state.
    pub next: Option<Duration>,
}

impl NextDeadline {
    pub fn of(entry: &Entry) -> NextDeadline {
        let machine = &entry.machine;
        // The ends of leases do not rely on the timers of the machine.
        let held = leases().flat_map(|name| machine.holders(&name).0).filter_map(|lease| lease.deadline);
        NextDeadline {
            term: entry.input.as_ref().map(|input| input.position.term()),
            at: entry.at,
            now: Duration::from_millis(machine.now()),
            next: held.chain(machine.next_due()).min().map(Duration::from_millis),
        }
    }
}

/// The entries of a time without faults, which ends at `until`. `slowest` is the lowest clock rate of the run. Returns
/// the number of deadlines that passed.
///
/// The check excludes a change of the leader: it judges only two entries of one term, and the last entry.
pub fn check(entries: &[NextDeadline], until: Duration, slowest: f64) -> Result<u64, String> {
    let mut passed = 0;
    for (place, entry) in entries.iter().enumerate() {
        let later = &entries[place + 1..];
        // An entry without commands lies in the term of those around it, if it is the same one.
        let later_term = later.iter().find_map(|later| later.term);
        let is_led = entry.term.is_some() && (later.is_empty() || later_term == entry.term);
        let Some(next) = entry.next.filter(|_| is_led) else { continue };
        let due = entry.at + next.saturating_sub(entry.now).div_f64(slowest);
        let came = later.first().map_or(until, |later| later.at);
        passed += u64::from(due <= came);
        if came > due + LONGEST_COMMIT {
            return Err(format!("{entry:?} had a deadline at {due:?}; the next entry came at {came:?}"));
        }
    }
    Ok(passed)
}
