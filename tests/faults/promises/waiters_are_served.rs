//! The first waiter gets a free place within the bound: the time in which the cluster commits nothing, one tick, and
//! one commit. A place is free when a holder has left a full lease and every lock delay is over.
//!
//! A grant from the queue shows that a claim waited since the place became free: a claim that finds a free place and an
//! empty queue is granted at once. One entry grants a name at most once, so the next waiter is due after an earlier
//! grant.
//!
//! A new leader reserves a free place for the first waiter until one second after the first entry of its term. The
//! check skips a grant that this may explain.

use std::time::Duration;

use tenure::api::{EventKind, GrantCause};

use super::super::log::Seen;
use super::super::progress::Progress;
use super::expiry_happens::{COMMIT, TICK};
use super::{DRIFT, Evidence};

/// How long a new leader reserves a place for a waiter.
const CONFIRM_WINDOW: Duration = Duration::from_millis(tenure::lease::CONFIRM_WINDOW_MS);

/// The grants from the queue of one lease.
#[derive(Debug, Default, PartialEq)]
pub struct QueueGrants {
    pub judged: u64,
    /// The checked grants that followed a lock delay.
    pub behind_delay: u64,
    /// The longest time from a free place to its grant, without the time in which the cluster committed nothing.
    pub longest: Duration,
    /// A grant to a waiter after the bound.
    pub late: Option<String>,
}

/// The reason why a waiter has to wait.
#[derive(Clone, Copy, Default)]
struct Block {
    /// When the block was known to have begun.
    since: Duration,
    /// The latest end of the block.
    over: Duration,
    is_delay: bool,
}

pub fn check(evidence: &Evidence, progress: &Progress) -> QueueGrants {
    let mut queue_grants = QueueGrants::default();
    let (mut held, mut last) = (0_usize, Block::default());
    for seen in evidence.log {
        let known = known_at(seen, progress);
        let is_grant = seen.event.event == EventKind::Granted;
        if is_grant && seen.event.cause == Some(GrantCause::Queue) && !may_be_reserved(evidence, seen, progress, last) {
            judge(&mut queue_grants, seen, last, known, progress);
        }
        if is_grant || held >= evidence.limit() {
            last = last.or(Block { since: known, over: known, is_delay: false });
        }
        if let Some((_, delay)) = evidence.lock_delays_behind(&seen.event) {
            last = last.or(Block { since: known, over: known + delay.mul_f64(1.0 + DRIFT), is_delay: true });
        }
        held = if is_grant { held + 1 } else { held.saturating_sub(1) };
    }
    queue_grants
}

impl Block {
    /// Returns the block that ends later.
    fn or(self, other: Block) -> Block {
        if other.over >= self.over { other } else { self }
    }
}

fn judge(queue_grants: &mut QueueGrants, granted: &Seen, block: Block, until: Duration, progress: &Progress) {
    queue_grants.judged += 1;
    queue_grants.behind_delay += u64::from(block.is_delay);
    let behind = until.saturating_sub(block.over);
    let stood = progress.without_commits(block.since, until, COMMIT);
    queue_grants.longest = queue_grants.longest.max(behind.saturating_sub(stood));
    let bound = stood + TICK + COMMIT;
    if behind > bound {
        let how = format!(
            "{:?} came {behind:.2?} after the place became free; the bound is {bound:.2?}: {stood:.2?} without a \
             commit, one tick and one commit",
            granted.event
        );
        queue_grants.late.get_or_insert(how);
    }
}

/// The earliest time at which the transition was known, from a watcher or from an answer.
fn known_at(seen: &Seen, progress: &Progress) -> Duration {
    seen.at.min(progress.first_at(seen.event.index).unwrap_or(Duration::MAX))
}

/// Whether the leader of this grant may have reserved the place for a waiter. An earlier grant of the term excludes it
/// if the reservation was over when the place became free.
fn may_be_reserved(evidence: &Evidence, granted: &Seen, progress: &Progress, block: Block) -> bool {
    let term = granted.event.token.term();
    let of_term = evidence.log.iter().filter(|seen| seen.event.event == EventKind::Granted);
    let first = of_term.filter(|seen| seen.event.token.term() == term).map(|seen| known_at(seen, progress)).min();
    first.is_none_or(|first| first + CONFIRM_WINDOW.mul_f64(1.0 + DRIFT) > block.over)
}

#[cfg(test)]
mod tests {
    use super::super::super::history::{Ended, Operation, What};
    use super::super::evidence::{commits, did, evidence, expired, from_queue, granted, released};
    use super::*;

    fn claim(by: &str, limit: u32, lock_delay_ms: u64) -> Operation {
        did(by, What::Acquire { ttl_ms: Some(1_000), limit, wait: true, lock_delay_ms }, (0, 10), Ended::Unknown)
    }

    fn judge(asked: &[Operation], log: &[Seen], without: (u64, u64)) -> QueueGrants {
        // The indices are higher than those of the commits, so only the events of the watchers give the times.
        let later = |seen: &Seen| {
            let mut seen = seen.clone();
            seen.event.index += 100_000;
            seen
        };
        let log: Vec<Seen> = log.iter().map(later).collect();
        check(&evidence(asked, &log), &commits(without))
    }

    #[test]
    fn late_grant_to_a_waiter_is_caught() {
        let log = |at| [granted(5, "a", 5), released(4_000, "a", 5, 8), from_queue(at, "b", 9)];
        let queue_grants = judge(&[claim("a", 1, 500)], &log(5_200), (0, 0));
        assert_eq!(
            (queue_grants.judged, queue_grants.behind_delay, queue_grants.late),
            (1, 0, None),
            "a release has no delay"
        );
        assert!(judge(&[], &log(5_300), (0, 0)).late.is_some(), "1.3 s after the release");
        assert_eq!(judge(&[], &log(8_000), (4_100, 7_100)).late, None, "three seconds of them without a commit");
        assert!(judge(&[], &log(8_500), (4_100, 7_100)).late.is_some(), "four and a half seconds");
    }

    #[test]
    fn late_grant_after_a_lock_delay_is_caught() {
        let log = |at| [granted(5, "a", 5), expired(4_000, "a", 5, 8), from_queue(at, "b", 9)];
        let asked = [claim("a", 1, 500)];
        let queue_grants = judge(&asked, &log(5_700), (0, 0));
        assert_eq!(
            (queue_grants.judged, queue_grants.behind_delay, queue_grants.late),
            (1, 1, None),
            "1.2 s after the delay"
        );
        assert!(judge(&asked, &log(5_800), (0, 0)).late.is_some(), "1.3 s after the delay");
    }

    #[test]
    fn free_place_of_a_counted_lease_must_be_granted() {
        let asked = [claim("a", 2, 0)];
        let log = |second| {
            [
                granted(5, "a", 5),
                granted(6, "b", 6),
                released(4_000, "a", 5, 8),
                released(second, "b", 6, 9),
                from_queue(second + 10, "c", 10),
            ]
        };
        assert_eq!(judge(&asked, &log(5_000), (0, 0)).late, None);
        assert!(judge(&asked, &log(6_000), (0, 0)).late.is_some(), "it waited until the second place was free");
    }

    #[test]
    fn grant_in_the_window_of_a_new_leader_is_not_judged() {
        let mut log = [granted(5, "a", 5), released(4_000, "a", 5, 8), from_queue(6_000, "b", 9)];
        log[2].event.token = tenure::FencingToken::new(2, log[2].event.token.index());
        assert_eq!(judge(&[], &log, (0, 0)), QueueGrants::default());
        let early = [granted(3_500, "a", 5), released(4_000, "a", 5, 8), from_queue(6_000, "b", 9)];
        assert_eq!(judge(&[], &early, (0, 0)), QueueGrants::default(), "the term may have begun with its first grant");
    }
}
