//! A lease without an extension expires within its bound: the ttl, the time in which the cluster commits nothing, one
//! tick, and one commit.
//!
//! The harness sees a commit when an answer shows a higher log index than every earlier answer. A pause between two
//! commits longer than [`COMMIT`] counts as time without a leader. The cause may be an election, a slow disk or a
//! machine that stands still. The check subtracts exactly this time.
//!
//! The last extension is known only if every acquire and renewal of the holder has a known outcome. The check skips
//! other leases. They still have to expire after the episode.

use std::time::Duration;

use tenure::api::{Event, EventKind};

use super::super::history::{Ended, Operation, What};
use super::super::progress::Progress;
use super::{DRIFT, Evidence};

/// The default of `lease.tick_ms`, which the cluster uses.
pub const TICK: Duration = Duration::from_millis(1_000);
/// The longest pause between two commits of a cluster with a leader.
pub const COMMIT: Duration = Duration::from_millis(250);

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

/// Checks the expired grants, and the grants that are still held at `now`.
pub fn check(evidence: &Evidence, progress: &Progress, now: Duration) -> Expiries {
    let mut expiries = Expiries::default();
    for granted in evidence.log.iter().filter(|seen| seen.event.event == EventKind::Granted) {
        if evidence.is_infinite(&granted.event.holder) {
            expiries.infinite += 1;
            continue;
        }
        let same = |event: &Event| event.token == granted.event.token && event.holder == granted.event.holder;
        let ended = evidence.log.iter().find(|seen| seen.event.event != EventKind::Granted && same(&seen.event));
        let until = match ended {
            Some(ended) if ended.event.event == EventKind::Expired => {
                let until = ended.at.min(progress.first_at(ended.event.index).unwrap_or(Duration::MAX));
                let heard = heard(evidence, progress, &granted.event, ended.at, until);
                expiries.last_heard = expiries.last_heard.max(heard.unwrap_or_default());
                until
            }
            Some(_) => continue,
            None => now,
        };
        let Some((extended, due)) = last_extension(evidence.operations, &granted.event) else {
            expiries.ambiguous += 1;
            continue;
        };
        expiries.judged += 1;
        let behind = until.saturating_sub(due);
        // Cluster time stands still without commits, before and after the end of the ttl.
        let stood = progress.without_commits(extended, until, COMMIT);
        expiries.longest = expiries.longest.max(behind.saturating_sub(stood));
        if behind > stood + TICK + COMMIT {
            let how = format!(
                "{:?} outlived its ttl by {behind:.2?}; the bound is {:.2?}: {stood:.2?} without a commit, one tick \
                 and one commit",
                granted.event,
                stood + TICK + COMMIT,
            );
            expiries.late.get_or_insert(how);
        }
    }
    expiries
}

/// The parts of an expiry with an event at `at` that the log had at `logged`. `None` if no extension is known.
fn heard(
    evidence: &Evidence,
    progress: &Progress,
    granted: &Event,
    at: Duration,
    logged: Duration,
) -> Option<ExpiryDelivery> {
    let (extended, due) = last_known_extension(evidence.operations, granted)?;
    Some(ExpiryDelivery {
        behind: at.saturating_sub(due),
        without_commits: progress.without_commits(extended, logged, COMMIT),
        delivery: at.saturating_sub(logged),
        is_ambiguous: is_ambiguous(evidence.operations, granted),
    })
}

fn extensions<'a>(operations: &'a [Operation], granted: &Event) -> impl Iterator<Item = &'a Operation> + use<'a> {
    let extends = |what: &What| matches!(what, What::Acquire { .. } | What::Renew { .. });
    let holder = granted.holder.clone();
    operations.iter().filter(move |operation| operation.by.as_str() == holder && extends(&operation.what))
}

/// Whether an extension has an unknown outcome.
fn is_ambiguous(operations: &[Operation], granted: &Event) -> bool {
    extensions(operations, granted).any(|operation| matches!(operation.ended, Ended::Unknown))
}

/// The start of the last extension, and the latest end of its ttl by the answer. `None` if an extension has an unknown
/// outcome or is infinite.
fn last_extension(operations: &[Operation], granted: &Event) -> Option<(Duration, Duration)> {
    if is_ambiguous(operations, granted) { None } else { last_known_extension(operations, granted) }
}

/// Like [`last_extension`], but ignores extensions without an answer.
fn last_known_extension(operations: &[Operation], granted: &Event) -> Option<(Duration, Duration)> {
    let mut latest: Option<(Duration, Duration)> = None;
    for operation in extensions(operations, granted) {
        match operation.ended {
            Ended::Held(token, left) if token == granted.token => {
                let left = Duration::from_millis(left?).mul_f64(1.0 + DRIFT);
                let due = operation.returned? + left;
                latest = latest.filter(|(_, latest)| *latest > due).or(Some((operation.invoked, due)));
            }
            _ => {}
        }
    }
    latest
}

#[cfg(test)]
mod tests {
    use super::super::evidence::{acquire, acquired, commits, did, evidence, expired, granted, token};
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn judge(asked: &[Operation], expired_at: u64, without: (u64, u64)) -> Expiries {
        let log = [granted(5, "a", 5), expired(expired_at, "a", 5, 100_000)];
        check(&evidence(asked, &log), &commits(without), ms(20_000))
    }

    #[test]
    fn expiry_within_the_bound_is_accepted() {
        let asked = [acquired("a", (0, 10), 5)];
        assert_eq!(judge(&asked, 2_200, (0, 0)).late, None);
        assert_eq!(judge(&asked, 6_200, (1_500, 5_500)).late, None, "four seconds without a commit after the ttl");
        assert_eq!(judge(&asked, 6_200, (500, 4_500)).late, None, "four seconds without a commit before its end");
        assert_eq!(judge(&asked, 2_200, (0, 0)).judged, 1);
    }

    #[test]
    fn expiry_after_the_bound_is_caught() {
        let asked = [acquired("a", (0, 10), 5)];
        assert!(judge(&asked, 2_400, (0, 0)).late.is_some(), "1.4 s after the ttl");
        assert!(judge(&asked, 6_900, (1_500, 5_500)).late.is_some(), "four of the seconds had no commit");
        assert!(judge(&asked, 6_200, (8_000, 12_000)).late.is_some(), "the pause begins after the expiry");
    }

    #[test]
    fn expiry_counts_from_the_first_answer_with_its_index() {
        let (asked, log) = ([acquired("a", (0, 10), 5)], [granted(5, "a", 5), expired(9_000, "a", 5, 1_500)]);
        let expiries = check(&evidence(&asked, &log), &commits((0, 0)), ms(20_000));
        assert_eq!(expiries.late, None, "an answer showed index 1,500 after 1.4 s; the watchers received it late");
    }

    #[test]
    fn parts_of_a_late_event_are_known() {
        let log = [granted(5, "a", 5), expired(9_000, "a", 5, 1_500)];
        let heard = |asked: &[Operation]| check(&evidence(asked, &log), &commits((200, 700)), ms(20_000)).last_heard;
        let known = heard(&[acquired("a", (0, 10), 5)]);
        assert!(known.behind > ms(7_900) && known.behind < ms(8_000), "the ttl is one second: {known:?}");
        assert_eq!((known.delivery, known.is_ambiguous), (ms(7_600), false), "an answer showed it at 1.4 s");
        assert_eq!(known.without_commits, ms(600), "from 100 to 700 ms");
        let unknown = did("a", What::Renew { token: token(5) }, (900, 950), Ended::Unknown);
        assert!(heard(&[acquired("a", (0, 10), 5), unknown]).is_ambiguous);
    }

    #[test]
    fn lease_that_never_expires_is_caught() {
        let asked = [acquired("a", (0, 10), 5)];
        let late = |now| check(&evidence(&asked, &[granted(5, "a", 5)]), &commits((0, 0)), ms(now)).late.is_some();
        assert_eq!((late(2_200), late(2_400)), (false, true));
    }

    #[test]
    fn infinite_lease_has_no_bound() {
        let claim = What::Acquire { ttl_ms: None, limit: 1, wait: false, lock_delay_ms: 0 };
        let unknown = [did("a", claim, (0, 10), Ended::Unknown)];
        let held = check(&evidence(&unknown, &[granted(5, "a", 5)]), &commits((0, 0)), ms(20_000));
        assert_eq!((held.judged, held.ambiguous, held.infinite, held.late), (0, 0, 1, None));
    }

    #[test]
    fn extension_moves_the_bound_unless_unknown() {
        let renew = |ended| did("a", What::Renew { token: token(5) }, (900, 910), ended);
        let renewed = [acquired("a", (0, 10), 5), renew(Ended::Held(token(5), Some(3_000)))];
        assert_eq!(judge(&renewed, 5_100, (0, 0)).late, None);
        assert!(judge(&renewed, 5_400, (0, 0)).late.is_some());
        let unknown = judge(&[acquired("a", (0, 10), 5), renew(Ended::Unknown)], 9_000, (0, 0));
        assert_eq!((unknown.judged, unknown.ambiguous, unknown.late), (0, 1, None));
        let lost = judge(&[did("a", acquire(), (0, 10), Ended::Unknown)], 9_000, (0, 0));
        assert_eq!((lost.judged, lost.ambiguous), (0, 1));
    }
}
