//! One grant of a lease: its deadline and its renewal times. All times are times of the manager's clock.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rand::RngExt;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{LeaseOptions, Loss};
use crate::rng::rng;
use crate::token::FencingToken;

/// Time between two renewals of an infinite lease. They detect a revoke.
const INFINITE_CHECK: Duration = Duration::from_secs(10);
/// Bounds of the delay after a failed renewal. The delay is ttl / 20.
const SHORTEST_RETRY: Duration = Duration::from_millis(20);
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// The grant of a held lease.
pub(super) struct Grant {
    pub token: FencingToken,
    /// The options of its claim. Later options are those of the next acquire.
    pub options: LeaseOptions,
    pub ttl: Option<Duration>,
    /// When the claim was sent.
    pub since: Duration,
    /// When the last successful claim or renewal was sent, plus the ttl less the drift margin. `None`: infinite.
    pub deadline: Option<Duration>,
    pub next_renewal: Duration,
    pub is_renewing: bool,
    pub failures: u32,
    pub ending: Option<Loss>,
    /// A hand-over is in progress: another holder may have the lease already.
    pub is_paused: bool,
    pub signals: GrantSignals,
}

/// The cancellation tokens of one grant, and why it ended.
#[derive(Clone, Debug, Default)]
pub(super) struct GrantSignals {
    /// Cancelled when the grant ends, for any reason.
    pub ended: CancellationToken,
    /// Cancelled when the keeper stops renewing the grant.
    pub stopping: CancellationToken,
    /// Notified when a refused hand-over leaves the grant held.
    pub resumed: Arc<Notify>,
    why: Arc<OnceLock<Loss>>,
}

impl Grant {
    /// A grant whose claim was sent at `sent`. The deadline is earlier than `sent + ttl` by the drift margin.
    pub fn new(token: FencingToken, ttl: Option<Duration>, sent: Duration, drift_permille: u32) -> Grant {
        Grant {
            token,
            options: LeaseOptions::new(),
            ttl,
            since: sent,
            deadline: ttl.map(|ttl| deadline(ttl, sent, drift_permille)),
            next_renewal: next_renewal(ttl, sent),
            is_renewing: false,
            failures: 0,
            ending: None,
            is_paused: false,
            signals: GrantSignals::default(),
        }
    }

    /// Ends a new grant after its longest hold, if the default ttl of the cluster is above that.
    pub fn end_at_longest_hold(&mut self, now: Duration) {
        let latest = self.options.longest_hold.map(|longest| now.saturating_add(longest));
        if let (Some(latest), Some(deadline)) = (latest, self.deadline)
            && latest < deadline
        {
            (self.deadline, self.ending) = (Some(latest), Some(Loss::HeldLongest));
        }
    }

    /// Applies a renewal that was sent at `sent`. It never moves the deadline backwards.
    pub fn renew(&mut self, ttl: Option<Duration>, sent: Duration, drift_permille: u32) {
        self.ttl = ttl;
        self.failures = 0;
        self.deadline = ttl.map(|ttl| deadline(ttl, sent, drift_permille).max(self.deadline.unwrap_or_default()));
        self.next_renewal = next_renewal(ttl, sent);
    }

    /// Schedules another renewal after one that failed at `now`.
    pub fn retry(&mut self, now: Duration) {
        self.failures += 1;
        self.next_renewal = now + self.ttl.map_or(LONGEST_RETRY, |ttl| (ttl / 20).clamp(SHORTEST_RETRY, LONGEST_RETRY));
    }

    pub fn is_expired(&self, now: Duration) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    pub fn left(&self, now: Duration) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_sub(now))
    }

    /// Whether a batch that is sent at `now` can include this grant, although its renewal is not due yet.
    pub fn can_renew_early(&self, now: Duration) -> bool {
        let soon = self.ttl.map_or(INFINITE_CHECK, |ttl| ttl / 3) / 2;
        !self.is_busy() && self.ending.is_none() && now + soon >= self.next_renewal
    }

    /// Whether a renewal or a hand-over is in progress.
    pub fn is_busy(&self) -> bool {
        self.is_renewing || self.is_paused
    }

    /// The next action at `now`. Stops renewals when only the grace period remains.
    pub fn next_action(&mut self, now: Duration, was_not_running: bool, grace: Duration) -> GrantAction {
        let Some(deadline) = self.deadline else {
            return match self.is_busy() {
                true => GrantAction::Idle,
                false if now < self.next_renewal => GrantAction::Wait(self.next_renewal),
                false => GrantAction::Renew,
            };
        };
        if deadline <= now {
            let why = if was_not_running { Loss::Suspended } else { self.ending.unwrap_or(Loss::Unreachable) };
            return GrantAction::Expired(why);
        }
        let shortest = self.options.longest_hold.unwrap_or(Duration::MAX).min(self.ttl.unwrap_or_default());
        let stop = deadline.saturating_sub(grace.min(shortest / 2));
        let is_stopping = now >= stop;
        if is_stopping {
            self.ending.get_or_insert(Loss::Unreachable);
        }
        match self.ending {
            Some(why) => GrantAction::Ending {
                at: if is_stopping { deadline } else { stop },
                left: deadline - now,
                why,
                is_stopping,
            },
            None if self.is_busy() => GrantAction::Wait(stop),
            None if now < self.next_renewal => GrantAction::Wait(self.next_renewal.min(stop)),
            None => GrantAction::Renew,
        }
    }
}

/// The next action for a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GrantAction {
    /// No timer: the keeper waits for an answer.
    Idle,
    /// Nothing until then.
    Wait(Duration),
    Renew,
    /// The keeper no longer renews the grant. It checks again at `at`.
    Ending {
        at: Duration,
        left: Duration,
        why: Loss,
        /// The grace period has begun.
        is_stopping: bool,
    },
    /// The deadline has passed.
    Expired(Loss),
}

impl GrantSignals {
    pub fn cancelled(why: Loss) -> GrantSignals {
        let signals = GrantSignals::default();
        signals.cancel(why);
        signals
    }

    pub fn cancel(&self, why: Loss) {
        self.why.get_or_init(|| why);
        self.stopping.cancel();
        self.ended.cancel();
    }

    /// Why the grant ended. `None`: it has not ended.
    pub fn why(&self) -> Option<Loss> {
        self.why.get().copied()
    }
}

fn deadline(ttl: Duration, sent: Duration, drift_permille: u32) -> Duration {
    sent + ttl - ttl * drift_permille / 1000
}

/// A third of the ttl after `sent`, with 10 % jitter, so that holders do not renew at the same moment.
fn next_renewal(ttl: Option<Duration>, sent: Duration) -> Duration {
    sent + (ttl.map_or(INFINITE_CHECK, |ttl| ttl / 3)).mul_f64(rng().random_range(0.9..1.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: FencingToken = FencingToken { term: 1, index: 7 };

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn grant() -> Grant {
        Grant::new(TOKEN, Some(ms(3000)), ms(10_000), 10)
    }

    #[test]
    fn holder_stops_first_by_the_drift_and_from_before_the_request() {
        let mut grant = grant();
        assert_eq!(grant.left(ms(10_000)), Some(ms(2970)), "the ttl less 1 %");
        grant.renew(Some(ms(3000)), ms(11_000), 10);
        assert_eq!(grant.left(ms(11_000)), Some(ms(2970)));
        grant.renew(Some(ms(100)), ms(11_001), 10);
        assert_eq!(grant.left(ms(11_000)), Some(ms(2970)), "a shorter ttl does not shorten the grant");
    }

    #[test]
    fn renewal_is_due_after_a_third_of_the_ttl() {
        let mut grant = grant();
        assert!(matches!(grant.next_action(ms(10_899), false, ms(0)), GrantAction::Wait(at) if at <= ms(11_100)));
        assert_eq!(grant.next_action(ms(11_101), false, ms(0)), GrantAction::Renew);
        grant.is_renewing = true;
        assert_eq!(
            grant.next_action(ms(11_102), false, ms(0)),
            GrantAction::Wait(ms(12_970)),
            "the deadline stays in force during a renewal"
        );
    }

    #[test]
    fn failed_renewal_is_retried_until_the_grace_begins() {
        let mut grant = grant();
        grant.retry(ms(12_000));
        assert_eq!(grant.next_action(ms(12_000), false, ms(500)), GrantAction::Wait(ms(12_150)));
        assert_eq!(grant.next_action(ms(12_150), false, ms(500)), GrantAction::Renew);
        let ending = GrantAction::Ending { at: ms(12_970), left: ms(500), why: Loss::Unreachable, is_stopping: true };
        assert_eq!(grant.next_action(ms(12_470), false, ms(500)), ending);
        assert_eq!(grant.next_action(ms(12_970), false, ms(500)), GrantAction::Expired(Loss::Unreachable));
    }

    #[test]
    fn any_longer_grace_is_cut_to_half_the_ttl() {
        for grace in [ms(1_500), ms(1_501), ms(3_000), Duration::MAX] {
            assert_eq!(grant().next_action(ms(11_469), false, grace), GrantAction::Renew, "{grace:?}");
            let action = grant().next_action(ms(11_470), false, grace);
            assert!(
                matches!(action, GrantAction::Ending { left, is_stopping: true, .. } if left == ms(1_500)),
                "{action:?}"
            );
        }
    }

    #[test]
    fn deadline_missed_while_not_running_is_suspended() {
        assert_eq!(grant().next_action(ms(12_970), true, ms(0)), GrantAction::Expired(Loss::Suspended));
        let mut stalled = Grant { ending: Some(Loss::Stalled), ..grant() };
        assert_eq!(stalled.next_action(ms(12_970), false, ms(0)), GrantAction::Expired(Loss::Stalled));
    }

    #[test]
    fn infinite_grant_has_no_deadline_and_is_renewed() {
        let mut grant = Grant::new(TOKEN, None, ms(0), 10);
        assert_eq!((grant.left(ms(1)), grant.is_expired(Duration::MAX)), (None, false));
        assert!(matches!(grant.next_action(ms(8_000), false, ms(0)), GrantAction::Wait(_)));
        assert_eq!(grant.next_action(ms(11_001), false, ms(0)), GrantAction::Renew);
    }

    #[test]
    fn grant_is_renewed_early_with_others_by_a_sixth_of_the_ttl() {
        let grant = || Grant { next_renewal: ms(11_000), ..grant() };
        assert_eq!((grant().can_renew_early(ms(10_499)), grant().can_renew_early(ms(10_500))), (false, true));
        assert!(!Grant { is_renewing: true, ..grant() }.can_renew_early(ms(10_500)));
        assert!(!Grant { is_paused: true, ..grant() }.can_renew_early(ms(10_500)));
        assert!(!Grant { ending: Some(Loss::Stalled), ..grant() }.can_renew_early(ms(10_500)));
        let endless = Grant { next_renewal: ms(11_000), ..Grant::new(TOKEN, None, ms(1_000), 10) };
        assert_eq!((endless.can_renew_early(ms(5_999)), endless.can_renew_early(ms(6_000))), (false, true));
    }

    #[test]
    fn failed_renewal_is_retried_after_a_twentieth_of_the_ttl() {
        let pause = |ttl| {
            let mut grant = Grant::new(TOKEN, ttl, ms(0), 10);
            grant.retry(ms(500));
            grant.next_renewal - ms(500)
        };
        assert_eq!((pause(Some(ms(100))), pause(Some(ms(3_000)))), (ms(20), ms(150)));
        assert_eq!((pause(Some(ms(60_000))), pause(None)), (ms(1_000), ms(1_000)));
    }

    #[test]
    fn grace_is_at_most_half_the_ttl() {
        let mut grant = Grant { is_renewing: true, ..grant() };
        let stop = 12_970 - 1_500;
        assert_eq!(grant.next_action(ms(stop - 1), false, ms(2_000)), GrantAction::Wait(ms(stop)));
        let ending = GrantAction::Ending { at: ms(12_970), left: ms(1_500), why: Loss::Unreachable, is_stopping: true };
        assert_eq!(grant.next_action(ms(stop), false, ms(2_000)), ending);
    }
}
