//! A lease without an extension expires within its bound: the ttl, the time in which the cluster commits nothing, one
//! tick, and one commit.

use std::time::Duration;

use tenure::api::EventKind;
use tenure::types::{ClusterMs, LeaseName};

use super::claims::LeaseHistory;
use super::history::{Ended, Operation, RequestKind};
use super::progress::Progress;
use super::replay::ObservedName;
use super::transition::Transition;

/// Applied entries: no grant outlives the first entry after its deadline.
pub fn check_late(name: &LeaseName, observed: &ObservedName, now: ClusterMs) -> Result<(), String> {
    match observed.held.iter().find(|(_, held)| held.until.is_some_and(|until| until < now)) {
        Some((token, held)) => Err(format!("{name} {token:?} at {now}: {held:?}")),
        None => Ok(()),
    }
}

/// Client histories without any client that is alive for `bound`: no grant is older than that. A waiter that died while
/// its request was in flight can still be granted a lease. That lease expires, too.
pub fn check_abandoned(transitions: &[Transition], now: Duration, bound: Duration) -> Result<(), String> {
    match super::held(transitions).into_iter().find(|grant| grant.at + bound < now) {
        Some(grant) => Err(format!("{grant:?} is still held at {now:?}; the bound is {bound:?}")),
        None => Ok(()),
    }
}

/// The expiries of one lease.
#[derive(Debug, Default, PartialEq)]
pub struct Expiries {
    pub judged: u64,
    /// Grants that the check skipped, because an extension has an unknown outcome.
    pub ambiguous: u64,
    /// Grants of an infinite ttl. They have no bound; `no_early_expiry` checks that they do not expire.
    pub infinite: u64,
    /// The longest time from the end of a ttl to its expiry, without the time in which the cluster committed nothing.
    pub longest: Duration,
    /// An expiry after the bound.
    pub late: Option<String>,
    /// The expiry that reached a watcher the longest time after the end of the ttl. Skipped expiries count, too.
    pub last_heard: ExpiryDelivery,
}

/// The time at which a watcher received an expiry, and its known parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExpiryDelivery {
    /// The time since the end of the last ttl in an answer to the holder.
    pub behind: Duration,
    /// The time without commits since that extension.
    pub without_commits: Duration,
    /// The time from the expiry in the log to its event.
    pub delivery: Duration,
    /// An extension has an unknown outcome. If the cluster applied it, the ttl began again.
    pub is_ambiguous: bool,
}

/// Client histories: checks the expired grants, and the grants that are still held at `now`.
///
/// The harness sees a commit when an answer shows a higher log index than every earlier answer. A pause between two
/// commits longer than `commit` of the bounds counts as time without a leader. The check subtracts exactly this time.
///
/// The last extension is known only if every acquire and renewal of the holder has a known outcome. The check skips
/// other leases. They still have to expire after the episode.
pub fn check(history: &LeaseHistory, progress: &Progress, now: Duration) -> Expiries {
    let bounds = history.bounds;
    let mut expiries = Expiries::default();
    for granted in history.grants() {
        if history.is_infinite(&granted.holder) {
            expiries.infinite += 1;
            continue;
        }
        let same = |seen: &&Transition| seen.token == granted.token && seen.holder == granted.holder;
        let ended = history.transitions.iter().filter(|seen| !seen.is_grant()).find(same);
        let until = match ended {
            Some(ended) if ended.event == EventKind::Expired => {
                let until = ended.at.min(progress.first_at(ended.index).unwrap_or(Duration::MAX));
                let heard = heard(history, progress, granted, ended.at, until);
                expiries.last_heard = expiries.last_heard.max(heard.unwrap_or_default());
                until
            }
            Some(_) => continue,
            None => now,
        };
        let Some((extended, due)) = last_extension(history, granted) else {
            expiries.ambiguous += 1;
            continue;
        };
        expiries.judged += 1;
        let behind = until.saturating_sub(due);
        // Cluster time stands still without commits, before and after the end of the ttl.
        let stood = progress.without_commits(extended, until, bounds.commit);
        expiries.longest = expiries.longest.max(behind.saturating_sub(stood));
        if behind > stood + bounds.tick + bounds.commit {
            let how = format!(
                "{:?} outlived its ttl by {behind:.2?}; the bound is {:.2?}: {stood:.2?} without a commit, one tick \
                 and one commit",
                granted,
                stood + bounds.tick + bounds.commit,
            );
            expiries.late.get_or_insert(how);
        }
    }
    expiries
}

/// The parts of an expiry with an event at `at` that the log had at `logged`. `None` if no extension is known.
fn heard(
    history: &LeaseHistory,
    progress: &Progress,
    granted: &Transition,
    at: Duration,
    logged: Duration,
) -> Option<ExpiryDelivery> {
    let (extended, due) = last_known_extension(history, granted)?;
    Some(ExpiryDelivery {
        behind: at.saturating_sub(due),
        without_commits: progress.without_commits(extended, logged, history.bounds.commit),
        delivery: at.saturating_sub(logged),
        is_ambiguous: is_ambiguous(history, granted),
    })
}

/// Whether this is an acquire or a renewal of the holder.
fn extends(operation: &Operation, granted: &Transition) -> bool {
    let own = operation.by.as_str() == granted.holder;
    own && matches!(operation.what, RequestKind::Acquire { .. } | RequestKind::Renew { .. })
}

/// Whether an extension has an unknown outcome.
fn is_ambiguous(history: &LeaseHistory, granted: &Transition) -> bool {
    history.operations.iter().any(|operation| extends(operation, granted) && operation.ended == Ended::Unknown)
}

/// The start of the last extension, and the latest end of its ttl by the answer. `None` if an extension has an unknown
/// outcome or is infinite.
fn last_extension(history: &LeaseHistory, granted: &Transition) -> Option<(Duration, Duration)> {
    if is_ambiguous(history, granted) { None } else { last_known_extension(history, granted) }
}

/// Like [`last_extension`], but ignores extensions without an answer.
fn last_known_extension(history: &LeaseHistory, granted: &Transition) -> Option<(Duration, Duration)> {
    let mut latest: Option<(Duration, Duration)> = None;
    for operation in history.operations.iter().filter(|operation| extends(operation, granted)) {
        match operation.ended {
            Ended::Held(token, left) if token == granted.token => {
                let due = operation.returned? + history.bounds.longest(Duration::from_millis(left?));
                latest = latest.filter(|(_, latest)| *latest > due).or(Some((operation.invoked, due)));
            }
            _ => {}
        }
    }
    latest
}
