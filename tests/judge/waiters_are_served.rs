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

use tenure::api::GrantCause;

use super::claims::LeaseHistory;
use super::progress::Progress;
use super::transition::Transition;

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

/// Client histories.
pub fn check(history: &LeaseHistory, progress: &Progress) -> QueueGrants {
    let mut queue_grants = QueueGrants::default();
    let (mut held, mut last) = (0_usize, Block::default());
    for seen in history.transitions {
        let known = known_at(seen, progress);
        let is_turn = seen.is_grant() && seen.cause == Some(GrantCause::Queue);
        if is_turn && !may_be_reserved(history, seen, progress, last) {
            judge(&mut queue_grants, history, seen, last, progress);
        }
        if seen.is_grant() || held >= history.limit() {
            last = last.or(Block { since: known, over: known, is_delay: false });
        }
        if let Some((_, delay)) = history.lock_delays_behind(seen) {
            last = last.or(Block { since: known, over: known + history.bounds.longest(delay), is_delay: true });
        }
        held = if seen.is_grant() { held + 1 } else { held.saturating_sub(1) };
    }
    queue_grants
}

impl Block {
    /// Returns the block that ends later.
    fn or(self, other: Block) -> Block {
        if other.over >= self.over { other } else { self }
    }
}

fn judge(
    queue_grants: &mut QueueGrants,
    history: &LeaseHistory,
    granted: &Transition,
    block: Block,
    progress: &Progress,
) {
    queue_grants.judged += 1;
    queue_grants.behind_delay += u64::from(block.is_delay);
    let until = known_at(granted, progress);
    let behind = until.saturating_sub(block.over);
    let stood = progress.without_commits(block.since, until, history.bounds.commit);
    queue_grants.longest = queue_grants.longest.max(behind.saturating_sub(stood));
    let bound = stood + history.bounds.tick + history.bounds.commit;
    if behind > bound {
        let how = format!(
            "{granted:?} came {behind:.2?} after the place became free; the bound is {bound:.2?}: {stood:.2?} without \
             a commit, one tick and one commit"
        );
        queue_grants.late.get_or_insert(how);
    }
}

/// The earliest time at which the transition was known, from a watcher or from an answer.
fn known_at(seen: &Transition, progress: &Progress) -> Duration {
    seen.at.min(progress.first_at(seen.index).unwrap_or(Duration::MAX))
}

/// Whether the leader of this grant may have reserved the place for a waiter. An earlier grant of the term excludes it
/// if the reservation was over when the place became free.
fn may_be_reserved(history: &LeaseHistory, granted: &Transition, progress: &Progress, block: Block) -> bool {
    let of_term = history.grants().filter(|seen| seen.token.term() == granted.token.term());
    let first = of_term.map(|seen| known_at(seen, progress)).min();
    first.is_none_or(|first| first + history.bounds.longest(CONFIRM_WINDOW) > block.over)
}
