//! Options of managers, leases and acquires.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;

use crate::api::TtlMs;
use crate::clock::{Clock, SystemClock};
use crate::rng::rng;
use crate::types::{
    HolderId, InvalidValue, MAX_DRIFT_PERMILLE, MAX_LIMIT, MAX_LOCK_DELAY_MS, MAX_WAIT_MS, MIN_TTL_MS, Metadata, Ttl,
    ceil_ms,
};

/// Most bytes of the host name in a default holder. The process id and the random part must fit into the limit of 200.
const MAX_HOST_BYTES: usize = 100;
/// Valid operation timeouts.
const OPERATION_TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(24 * 60 * 60);

/// Options of a [`LeaseManager`](super::LeaseManager). Each method names the default of its option.
#[derive(Clone)]
pub struct ManagerOptions {
    pub(super) holder: HolderId,
    pub(super) operation_timeout: Duration,
    pub(super) drift_permille: u32,
    pub(super) clock: Arc<dyn Clock>,
}

impl ManagerOptions {
    /// The default options.
    pub fn new() -> ManagerOptions {
        ManagerOptions {
            holder: default_holder(),
            operation_timeout: Duration::from_secs(5),
            drift_permille: 10,
            clock: Arc::new(SystemClock),
        }
    }

    /// The holder of the manager's leases. Default: the host name, the process id and a random part, so that two
    /// managers are never one holder by accident.
    ///
    /// Two managers with the same holder share its leases: each can release a lease on which the other relies.
    pub fn holder(self, holder: HolderId) -> ManagerOptions {
        ManagerOptions { holder, ..self }
    }

    /// The time limit of one operation with its retries, without its wait for a lease. From 1 ms to 24 h. Default: 5 s.
    pub fn operation_timeout(self, operation_timeout: Duration) -> ManagerOptions {
        ManagerOptions { operation_timeout, ..self }
    }

    /// The largest difference between the clock rates of this machine and the cluster, in thousandths. Default: 10 (1
    /// %), as in the cluster's configuration. At most [`MAX_DRIFT_PERMILLE`].
    ///
    /// The holder's deadline is earlier by this part of the ttl.
    pub fn drift_permille(self, drift_permille: u32) -> ManagerOptions {
        ManagerOptions { drift_permille, ..self }
    }

    /// The clock of the deadlines. Default: the system clock that counts suspend.
    pub fn clock(self, clock: Arc<dyn Clock>) -> ManagerOptions {
        ManagerOptions { clock, ..self }
    }

    pub(super) fn check(&self) -> Result<(), InvalidValue> {
        if !OPERATION_TIMEOUTS.contains(&self.operation_timeout) {
            return Err(InvalidValue::OperationTimeout(self.operation_timeout));
        }
        if self.drift_permille > MAX_DRIFT_PERMILLE {
            return Err(InvalidValue::Drift(self.drift_permille));
        }
        Ok(())
    }
}

impl Default for ManagerOptions {
    fn default() -> ManagerOptions {
        ManagerOptions::new()
    }
}

impl fmt::Debug for ManagerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagerOptions")
            .field("holder", &self.holder)
            .field("operation_timeout", &self.operation_timeout)
            .field("drift_permille", &self.drift_permille)
            .finish_non_exhaustive()
    }
}

type Predicate = Arc<dyn Fn() -> bool + Send + Sync>;

/// Options of one lease. Each method names the default of its option.
#[derive(Clone, Default)]
pub struct LeaseOptions {
    pub(super) ttl: Option<TtlMs>,
    pub(super) metadata: Metadata,
    lock_delay: Duration,
    limit: Option<u32>,
    pub(super) grace: Duration,
    pub(super) drain: Option<Duration>,
    pub(super) longest_hold: Option<Duration>,
    pub(super) renew_while: Option<Predicate>,
    pub(super) should_hold: Option<Predicate>,
}

impl LeaseOptions {
    /// The default options.
    pub fn new() -> LeaseOptions {
        LeaseOptions::default()
    }

    /// How long the lease lasts without a renewal, and thus how long others wait when this process dies. Default: the
    /// cluster's default.
    ///
    /// The range is 100 ms to 24 h in whole milliseconds. A cluster can have narrower bounds.
    pub fn ttl(self, ttl: Duration) -> LeaseOptions {
        LeaseOptions { ttl: Some(TtlMs::Millis(millis(ttl))), ..self }
    }

    /// The lease lasts until it is released or revoked, also when this process dies. The manager asks the cluster every
    /// 10 s whether the lease was revoked.
    pub fn infinite(self) -> LeaseOptions {
        LeaseOptions { ttl: Some(TtlMs::Infinite), ..self }
    }

    /// Key-value pairs that each client of the cluster can read with the lease. Default: empty.
    pub fn metadata(self, metadata: Metadata) -> LeaseOptions {
        LeaseOptions { metadata, ..self }
    }

    /// After an expiry or a revoke, the cluster grants the lease to no holder for this time. A release causes no delay.
    /// At most 24 h. Default: 0.
    pub fn lock_delay(self, lock_delay: Duration) -> LeaseOptions {
        LeaseOptions { lock_delay, ..self }
    }

    /// The largest number of concurrent holders, 1 to [`MAX_LIMIT`]. Default: 1.
    pub fn limit(self, limit: u32) -> LeaseOptions {
        LeaseOptions { limit: Some(limit), ..self }
    }

    /// The time that the work needs to stop. This long before the deadline, the manager stops renewing the lease and
    /// cancels [`Lease::stopping`](super::Lease::stopping). Default: 0.
    ///
    /// At most half the [`ttl`](LeaseOptions::ttl). If that option is not set, and the cluster's default ttl turns out to
    /// be too short, half of that ttl is used and the manager logs a warning. An infinite lease has no deadline, and so
    /// no grace.
    pub fn grace(self, grace: Duration) -> LeaseOptions {
        LeaseOptions { grace, ..self }
    }

    /// How long a release waits for the before-release listeners. Default: 30 s.
    ///
    /// The manager renews the lease during that time. After it, the manager lets the lease expire instead of releasing
    /// it, because the work may still run.
    pub fn drain(self, drain: Duration) -> LeaseOptions {
        LeaseOptions { drain: Some(drain), ..self }
    }

    /// The longest time from the acquire to the end of the lease: the manager renews it no further. At least the ttl.
    /// It has no effect on an infinite lease. Default: unlimited.
    pub fn longest_hold(self, longest_hold: Duration) -> LeaseOptions {
        LeaseOptions { longest_hold: Some(longest_hold), ..self }
    }

    /// A progress check. The manager renews the lease only while `progress` returns `true`, so that stuck work does not
    /// hold the lease forever. Default: always `true`.
    ///
    /// `progress` must not block, because it runs in the task that renews the leases. It may use its lease. A panic
    /// counts as `false`. An infinite lease ignores the check.
    pub fn renew_while(self, progress: impl Fn() -> bool + Send + Sync + 'static) -> LeaseOptions {
        LeaseOptions { renew_while: Some(Arc::new(progress)), ..self }
    }

    /// Whether this process should hold the lease. Default: always `true`.
    ///
    /// [`Lease::should_hold`](super::Lease::should_hold) returns its result. While the result is `false`, an acquire is
    /// refused with code `should_not_hold`. The function must not block. The manager stores it, so a function that owns
    /// a lease or the manager keeps the manager alive.
    pub fn should_hold(self, should_hold: impl Fn() -> bool + Send + Sync + 'static) -> LeaseOptions {
        LeaseOptions { should_hold: Some(Arc::new(should_hold)), ..self }
    }

    /// Checks the bounds that apply in every cluster.
    pub(crate) fn check(&self) -> Result<(), InvalidValue> {
        let ttl = self.ttl.map(Ttl::try_from).transpose()?;
        if millis(self.lock_delay) > MAX_LOCK_DELAY_MS {
            return Err(InvalidValue::LockDelay(millis(self.lock_delay)));
        }
        // Without a ttl, the lease has that of the cluster.
        let shortest_ttl_ms = ttl.map_or(Some(MIN_TTL_MS), Ttl::as_millis);
        if let (Some(ttl_ms), Some(longest)) = (shortest_ttl_ms, self.longest_hold)
            && longest < Duration::from_millis(ttl_ms)
        {
            return Err(InvalidValue::LongestHold { longest_ms: millis(longest), ttl_ms });
        }
        if let Some(ttl_ms) = ttl.and_then(Ttl::as_millis)
            && self.grace > Duration::from_millis(ttl_ms) / 2
        {
            return Err(InvalidValue::Grace { grace_ms: millis(self.grace), ttl_ms });
        }
        match self.limit {
            Some(limit) if !(1..=MAX_LIMIT).contains(&limit) => Err(InvalidValue::Limit(limit)),
            _ => Ok(()),
        }
    }

    pub(super) fn ttl_ms(&self) -> Option<TtlMs> {
        self.ttl
    }

    pub(super) fn lock_delay_ms(&self) -> Option<u64> {
        Some(millis(self.lock_delay)).filter(|delay| *delay > 0)
    }

    pub(super) fn requested_limit(&self) -> Option<u32> {
        self.limit
    }

    /// The duration of [`Wait::ForTtl`].
    pub(crate) fn ttl_wait(&self) -> Duration {
        match self.ttl {
            Some(TtlMs::Millis(ms)) => Duration::from_millis(ms),
            Some(TtlMs::Infinite) => Duration::from_millis(MAX_WAIT_MS),
            None => Duration::from_secs(30),
        }
    }
}

impl fmt::Debug for LeaseOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseOptions").field("ttl_ms", &self.ttl_ms()).finish_non_exhaustive()
    }
}

/// Whether an acquire waits for a lease that another holder has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// Do not wait: the acquire is refused at once.
    #[default]
    No,
    /// Wait in the cluster's queue, in order of arrival, for at most this time. At most 24 h.
    UpTo(Duration),
    /// Wait in the queue for one ttl of this lease's options (30 s if they use the cluster's default). By then the
    /// present holder has renewed its lease, or the lease has expired.
    ForTtl,
}

/// Options of one acquire. A [`Wait`] converts into them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcquireOptions {
    wait: Wait,
    pub(super) retries: u32,
    pub(super) retry_delay: Duration,
}

impl AcquireOptions {
    /// The default options: no wait and no retries.
    pub fn new() -> AcquireOptions {
        AcquireOptions::default()
    }

    /// Whether to wait in the queue. Default: [`Wait::No`].
    pub fn wait(self, wait: Wait) -> AcquireOptions {
        AcquireOptions { wait, ..self }
    }

    /// How often to try again after an error, and the delay before each retry. Default: no retries.
    ///
    /// If another holder has the lease, a wait in the queue is fairer and faster than retries.
    pub fn retries(self, retries: u32, delay: Duration) -> AcquireOptions {
        AcquireOptions { retries, retry_delay: delay, ..self }
    }

    pub(super) fn wait_for(&self, lease: &LeaseOptions) -> Result<Duration, InvalidValue> {
        match self.wait {
            Wait::No => Ok(Duration::ZERO),
            Wait::UpTo(wait) if wait > Duration::from_millis(MAX_WAIT_MS) => Err(InvalidValue::Wait(ceil_ms(wait))),
            Wait::UpTo(wait) => Ok(wait),
            Wait::ForTtl => Ok(lease.ttl_wait()),
        }
    }
}

impl From<Wait> for AcquireOptions {
    fn from(wait: Wait) -> AcquireOptions {
        AcquireOptions::new().wait(wait)
    }
}

fn millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}

/// The host name, the process id and a random part.
fn default_holder() -> HolderId {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut host: String = host.chars().filter(|c| !c.is_control()).collect();
    while host.len() > MAX_HOST_BYTES {
        host.pop();
    }
    let (process, random) = (std::process::id(), rng().random::<u32>());
    HolderId::new(format!("{host}:{process}:{random:08x}"))
        .expect("the holder is within its length limit and has no control characters")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_managers_of_one_process_are_two_holders() {
        let (one, other) = (ManagerOptions::new(), ManagerOptions::new());
        assert_ne!(one.holder, other.holder);
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let host: String = host.chars().take(20).collect();
        assert!(one.holder.as_str().starts_with(&host));
        assert!(one.holder.as_str().contains(&format!(":{}:", std::process::id())));
    }

    #[test]
    fn options_outside_every_bound_are_refused() {
        let bad = [
            LeaseOptions::new().ttl(Duration::from_millis(99)),
            LeaseOptions::new().ttl(Duration::MAX),
            LeaseOptions::new().limit(0),
            LeaseOptions::new().ttl(Duration::from_secs(9)).longest_hold(Duration::from_secs(8)),
            LeaseOptions::new().lock_delay(Duration::MAX),
        ];
        assert!(bad.iter().all(|options| options.check().is_err()));
        let grace = |grace| LeaseOptions::new().ttl(Duration::from_secs(9)).grace(Duration::from_millis(grace)).check();
        assert_eq!((grace(4_500), grace(4_501)), (Ok(()), Err(InvalidValue::Grace { grace_ms: 4_501, ttl_ms: 9_000 })));
        assert!(LeaseOptions::new().infinite().limit(3).check().is_ok());
    }

    #[test]
    fn options_at_their_bounds_are_accepted() {
        const DAY: Duration = Duration::from_secs(24 * 60 * 60);
        let ms = Duration::from_millis(1);
        let ttl = |ttl| LeaseOptions::new().ttl(ttl).check();
        assert_eq!((ttl(100 * ms), ttl(DAY)), (Ok(()), Ok(())));
        assert_eq!((ttl(99 * ms), ttl(DAY + ms)), (Err(InvalidValue::Ttl(99)), Err(InvalidValue::Ttl(86_400_001))));
        let delay = |delay| LeaseOptions::new().lock_delay(delay).check();
        assert_eq!((delay(DAY), delay(DAY + ms)), (Ok(()), Err(InvalidValue::LockDelay(86_400_001))));
        let limit = |limit| LeaseOptions::new().limit(limit).check();
        assert_eq!((limit(1), limit(10_000)), (Ok(()), Ok(())));
        assert_eq!((limit(0), limit(10_001)), (Err(InvalidValue::Limit(0)), Err(InvalidValue::Limit(10_001))));
        assert_eq!(LeaseOptions::new().ttl(DAY).longest_hold(DAY).check(), Ok(()));
        let longest_hold = |longest| LeaseOptions::new().longest_hold(longest).check();
        let too_short = Err(InvalidValue::LongestHold { longest_ms: 99, ttl_ms: 100 });
        assert_eq!((longest_hold(100 * ms), longest_hold(99 * ms)), (Ok(()), too_short));
        assert_eq!(LeaseOptions::new().infinite().longest_hold(Duration::ZERO).check(), Ok(()));
    }

    #[test]
    fn each_manager_option_is_kept() {
        let second = Duration::from_secs(1);
        let holder = HolderId::new("worker-1").expect("a valid holder");
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let options = ManagerOptions::new().holder(holder.clone()).operation_timeout(second).drift_permille(20);
        let options = options.clock(Arc::clone(&clock));
        assert_eq!((options.holder, options.operation_timeout, options.drift_permille), (holder, second, 20));
        assert!(Arc::ptr_eq(&options.clock, &clock));
        let defaults = ManagerOptions::default();
        assert_eq!((defaults.operation_timeout, defaults.drift_permille), (5 * second, 10));
    }

    #[test]
    fn manager_options_outside_their_bounds_are_refused() {
        let drift = |permille| ManagerOptions::new().drift_permille(permille).check();
        assert_eq!((drift(500), drift(501)), (Ok(()), Err(InvalidValue::Drift(501))));
        let timeout = |timeout| ManagerOptions::new().operation_timeout(timeout).check();
        let (ms, day) = (Duration::from_millis(1), Duration::from_secs(24 * 60 * 60));
        assert_eq!((timeout(ms), timeout(day)), (Ok(()), Ok(())));
        for bad in [Duration::ZERO, day + ms, Duration::MAX] {
            assert_eq!(timeout(bad), Err(InvalidValue::OperationTimeout(bad)));
        }
    }

    #[test]
    fn each_lease_option_is_kept() {
        let second = Duration::from_secs(1);
        let metadata =
            Metadata::new([("zone".to_owned(), "a".to_owned())].into()).expect("the metadata is within its limit");
        let options = LeaseOptions::new().ttl(9 * second).metadata(metadata.clone()).lock_delay(2 * second).limit(3);
        let options = options.grace(4 * second).drain(5 * second).longest_hold(60 * second);
        let options = options.renew_while(|| false).should_hold(|| false);
        assert_eq!((options.ttl_ms(), options.metadata.clone()), (Some(TtlMs::Millis(9_000)), metadata));
        assert_eq!((options.lock_delay_ms(), options.requested_limit()), (Some(2_000), Some(3)));
        assert_eq!((options.grace, options.drain), (4 * second, Some(5 * second)));
        assert_eq!(options.longest_hold, Some(60 * second));
        assert!(options.renew_while.as_ref().is_some_and(|renew| !renew()));
        assert!(options.should_hold.as_ref().is_some_and(|should_hold| !should_hold()));
        let infinite = options.infinite();
        assert_eq!((infinite.ttl_ms(), infinite.requested_limit()), (Some(TtlMs::Infinite), Some(3)));
        let defaults = LeaseOptions::new();
        assert_eq!((defaults.ttl_ms(), defaults.lock_delay_ms(), defaults.requested_limit()), (None, None, None));
    }

    #[test]
    fn wait_for_ttl_uses_the_ttl_of_the_lease() {
        let (second, most) = (Duration::from_secs(1), Duration::from_millis(MAX_WAIT_MS));
        let lease = LeaseOptions::new();
        let checked = |wait: Wait, lease: &LeaseOptions| AcquireOptions::from(wait).wait_for(lease);
        let wait_for = |wait: Wait, lease: &LeaseOptions| checked(wait, lease).expect("at most 24 h");
        assert_eq!(wait_for(Wait::ForTtl, &lease), 30 * second);
        assert_eq!(wait_for(Wait::ForTtl, &lease.clone().ttl(7 * second)), 7 * second);
        assert_eq!(wait_for(Wait::ForTtl, &lease.clone().infinite()), most);
        assert_eq!((wait_for(Wait::No, &lease), wait_for(Wait::UpTo(second), &lease)), (Duration::ZERO, second));
        assert_eq!(wait_for(Wait::UpTo(most), &lease), most);
        assert_eq!(checked(Wait::UpTo(most + second), &lease), Err(InvalidValue::Wait(86_401_000)));
        let retried = AcquireOptions::new().retries(3, second).wait(Wait::UpTo(second));
        assert_eq!((retried.retries, retried.retry_delay, retried.wait_for(&lease)), (3, second, Ok(second)));
    }
}
