//! Cluster time keeps up with the leader's clock while the cluster commits entries of one term.
//!
//! Otherwise leases that are granted meanwhile outlive their ttl, although the leader lives.

use std::time::Duration;

use crate::evidence::LONGEST_COMMIT;
use crate::ledger::Entry;

/// The longest time by which cluster time may fall behind. An entry has the time of its proposal, so cluster time falls
/// behind by the time in which it is in flight. 790 seeds needed at most 344 ms.
const LONGEST_LAG: Duration = Duration::from_millis(500);

/// The parts of an applied entry that this check needs.
#[derive(Clone, Copy, Debug)]
pub struct Advance {
    pub term: u64,
    /// True time.
    pub at: Duration,
    /// Cluster time.
    pub now: Duration,
}

impl Advance {
    /// `None` for an entry without commands.
    pub fn of(entry: &Entry) -> Option<Advance> {
        let term = entry.input.as_ref()?.position.term();
        Some(Advance { term, at: entry.at, now: Duration::from_millis(entry.machine.now()) })
    }
}

/// `slowest` is the lowest clock rate of the run. A pause between two entries longer than [`LONGEST_COMMIT`] counts as time
/// without a leader.
pub fn check(entries: impl IntoIterator<Item = Advance>, slowest: f64) -> Result<(), String> {
    let mut last: Option<Advance> = None;
    // Since the entry of this term at which cluster time was the furthest ahead: the time that passed, and cluster time.
    let (mut passed, mut counted) = (Duration::ZERO, Duration::ZERO);
    for entry in entries {
        match last.filter(|last| last.term == entry.term) {
            Some(last) => {
                let pause = entry.at - last.at;
                passed += if pause > LONGEST_COMMIT { Duration::ZERO } else { pause.mul_f64(slowest) };
                counted += entry.now - last.now;
            }
            None => (passed, counted) = (Duration::ZERO, Duration::ZERO),
        }
        if counted > passed {
            (passed, counted) = (Duration::ZERO, Duration::ZERO);
        }
        if passed - counted > LONGEST_LAG {
            return Err(format!("{passed:?} passed, and cluster time counts {counted:?}, until {entry:?}"));
        }
        last = Some(entry);
    }
    Ok(())
}
