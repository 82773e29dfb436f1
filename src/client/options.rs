//! How leases are acquired and held.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;

use crate::api::TtlMs;
use crate::clock::{Clock, SystemClock};
use crate::rng::rng;
use crate::types::{HolderId, InvalidValue, MAX_LIMIT, MAX_LOCK_DELAY_MS, MAX_WAIT_MS, Metadata, Ttl};

/// Bytes of the host's name in a holder that was not named: the rest of its 200 must fit behind it.
const MAX_HOST_BYTES: usize = 100;

/// How a manager does things. What is not said has the default that its method names.
#[derive(Clone)]
pub struct ManagerOptions {
    pub(super) holder: HolderId,
    pub(super) operation_timeout: Duration,
    pub(super) drift_permille: u32,
    pub(super) clock: Arc<dyn Clock>,
}

impl ManagerOptions {
    pub fn new() -> ManagerOptions {
        ManagerOptions {
            holder: default_holder(),
            operation_timeout: Duration::from_secs(5),
            drift_permille: 10,
            clock: Arc::new(SystemClock),
        }
    }

    /// Who holds. The default is the host's name, the process id and a random part, so that two processes, or two
    /// managers, are never one holder by accident. Two managers with one holder share its leases, and either can
    /// release what the other relies on.
    pub fn holder(self, holder: HolderId) -> ManagerOptions {
        ManagerOptions { holder, ..self }
    }

    /// Time for one operation with its retries, beside what it waits for a lease. 5 s.
    pub fn operation_timeout(self, operation_timeout: Duration) -> ManagerOptions {
        ManagerOptions { operation_timeout, ..self }
    }

    /// By how much the rates of this machine's clock and the cluster's may differ, in thousandths. 10, which is 1 %,
    /// as in the cluster's own configuration; at most 500. A holder's deadline is earlier by that part of the ttl.
    pub fn drift_permille(self, drift_permille: u32) -> ManagerOptions {
        ManagerOptions { drift_permille: drift_permille.min(500), ..self }
    }

    /// Where deadlines are read. The system's clock that counts suspend.
    pub fn clock(self, clock: Arc<dyn Clock>) -> ManagerOptions {
        ManagerOptions { clock, ..self }
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

type Question = Arc<dyn Fn() -> bool + Send + Sync>;

/// How one lease is held. What is not said has the default that its method names.
#[derive(Clone, Default)]
pub struct LeaseOptions {
    ttl: Option<Ending>,
    pub(super) metadata: Metadata,
    lock_delay: Duration,
    limit: Option<u32>,
    pub(super) grace: Duration,
    pub(super) drain: Option<Duration>,
    pub(super) longest_hold: Option<Duration>,
    pub(super) renew_while: Option<Question>,
    pub(super) should_hold: Option<Question>,
}

#[derive(Clone, Copy)]
enum Ending {
    After(Duration),
    Never,
}

impl LeaseOptions {
    pub fn new() -> LeaseOptions {
        LeaseOptions::default()
    }

    /// How long the lease lasts without a renewal, and so how long others wait when this process dies: 100 ms to
    /// 24 h in whole milliseconds, within the cluster's own bounds. The cluster's default if not said.
    pub fn ttl(self, ttl: Duration) -> LeaseOptions {
        LeaseOptions { ttl: Some(Ending::After(ttl)), ..self }
    }

    /// The lease lasts until it is released or revoked, also when this process dies. Whether it was revoked is asked
    /// every 10 s.
    pub fn infinite(self) -> LeaseOptions {
        LeaseOptions { ttl: Some(Ending::Never), ..self }
    }

    /// Notes that everybody can read beside the lease. None if not said.
    pub fn metadata(self, metadata: Metadata) -> LeaseOptions {
        LeaseOptions { metadata, ..self }
    }

    /// After an expiry or a revoke, never after a release, nobody gets the lease for this long: at most 24 h. 0.
    pub fn lock_delay(self, lock_delay: Duration) -> LeaseOptions {
        LeaseOptions { lock_delay, ..self }
    }

    /// How many may hold it at once. 1.
    pub fn limit(self, limit: u32) -> LeaseOptions {
        LeaseOptions { limit: Some(limit), ..self }
    }

    /// How long before the deadline renewing is given up and [`Lease::stopping`](super::Lease::stopping) fires: what
    /// the work needs to stop. At most half the ttl counts; an infinite lease has no deadline, and so no grace. 0.
    pub fn grace(self, grace: Duration) -> LeaseOptions {
        LeaseOptions { grace, ..self }
    }

    /// How long a release waits for the before-release listeners. The lease is renewed meanwhile; after this it is
    /// not released but left to expire, because the work may still run. 30 s.
    pub fn drain(self, drain: Duration) -> LeaseOptions {
        LeaseOptions { drain: Some(drain), ..self }
    }

    /// The lease is not renewed beyond this time after it was acquired; not less than the ttl. Without an end if not said,
    /// and for an infinite lease.
    pub fn longest_hold(self, longest_hold: Duration) -> LeaseOptions {
        LeaseOptions { longest_hold: Some(longest_hold), ..self }
    }

    /// Asked before each renewal: the lease is renewed only while the answer is true, so that stuck work does not
    /// hold it for ever. A panic counts as false. It must not block: it runs where leases are renewed. An infinite lease is
    /// not asked for.
    pub fn renew_while(self, progress: impl Fn() -> bool + Send + Sync + 'static) -> LeaseOptions {
        LeaseOptions { renew_while: Some(Arc::new(progress)), ..self }
    }

    /// Whether this process is the one that should hold the lease: [`Lease::should_hold`](super::Lease::should_hold)
    /// answers with it, and acquiring is refused with code `should_not_hold` while it says no. It must not block.
    /// The manager keeps it: one that has a lease or the manager in it keeps the manager alive. Always true if not said.
    pub fn should_hold(self, should_hold: impl Fn() -> bool + Send + Sync + 'static) -> LeaseOptions {
        LeaseOptions { should_hold: Some(Arc::new(should_hold)), ..self }
    }

    /// Checks what a request would be refused for.
    pub(super) fn check(&self) -> Result<(), InvalidValue> {
        if let Some(Ending::After(ttl)) = self.ttl {
            Ttl::millis(millis(ttl))?;
        }
        if millis(self.lock_delay) > MAX_LOCK_DELAY_MS {
            return Err(InvalidValue::LockDelay(millis(self.lock_delay)));
        }
        if let (Some(Ending::After(ttl)), Some(longest)) = (self.ttl, self.longest_hold)
            && longest < ttl
        {
            return Err(InvalidValue::LongestHold { longest_ms: millis(longest), ttl_ms: millis(ttl) });
        }
        match self.limit {
            Some(limit) if !(1..=MAX_LIMIT).contains(&limit) => Err(InvalidValue::Limit(limit)),
            _ => Ok(()),
        }
    }

    pub(super) fn ttl_ms(&self) -> Option<TtlMs> {
        self.ttl.map(|ttl| match ttl {
            Ending::After(ttl) => TtlMs::Millis(millis(ttl)),
            Ending::Never => TtlMs::Infinite,
        })
    }

    pub(super) fn lock_delay_ms(&self) -> Option<u64> {
        Some(millis(self.lock_delay)).filter(|delay| *delay > 0)
    }

    pub(super) fn limit_wanted(&self) -> Option<u32> {
        self.limit
    }

    /// How long [`Wait::ForTtl`] waits.
    fn ttl_to_wait(&self) -> Duration {
        match self.ttl {
            Some(Ending::After(ttl)) => ttl,
            Some(Ending::Never) => Duration::from_millis(MAX_WAIT_MS),
            None => Duration::from_secs(30),
        }
    }
}

impl fmt::Debug for LeaseOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseOptions").field("ttl_ms", &self.ttl_ms()).finish_non_exhaustive()
    }
}

/// What to do about a lease that somebody else holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// Be refused at once.
    #[default]
    No,
    /// Wait in the cluster's queue, first come first served, for at most this long (24 h at most).
    UpTo(Duration),
    /// Wait for one ttl of this lease's own options (30 s where the cluster's default is used): whoever holds it has
    /// renewed by then, or is gone.
    ForTtl,
}

/// How a lease is acquired. A [`Wait`] alone will do where one of these is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcquireOptions {
    wait: Wait,
    pub(super) retries: u32,
    pub(super) retry_delay: Duration,
}

impl AcquireOptions {
    /// Neither waits nor tries again.
    pub fn new() -> AcquireOptions {
        AcquireOptions::default()
    }

    /// Whether to wait in the queue. [`Wait::No`].
    pub fn wait(self, wait: Wait) -> AcquireOptions {
        AcquireOptions { wait, ..self }
    }

    /// After anything but a grant, tries again so many times, each after a delay. 0. Waiting in the queue is fairer
    /// and quicker where somebody else holds the lease.
    pub fn retries(self, retries: u32, delay: Duration) -> AcquireOptions {
        AcquireOptions { retries, retry_delay: delay, ..self }
    }

    pub(super) fn wait_for(&self, lease: &LeaseOptions) -> Duration {
        let wait = match self.wait {
            Wait::No => Duration::ZERO,
            Wait::UpTo(wait) => wait,
            Wait::ForTtl => lease.ttl_to_wait(),
        };
        wait.min(Duration::from_millis(MAX_WAIT_MS))
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

/// Host, process, and a random part.
fn default_holder() -> HolderId {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut host: String = host.chars().filter(|c| !c.is_control()).collect();
    while host.len() > MAX_HOST_BYTES {
        host.pop();
    }
    let (process, random) = (std::process::id(), rng().random::<u32>());
    HolderId::new(format!("{host}:{process}:{random:08x}")).expect("short, and without control characters")
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
    fn what_no_cluster_would_take_is_refused_at_once() {
        let bad = [
            LeaseOptions::new().ttl(Duration::from_millis(99)),
            LeaseOptions::new().ttl(Duration::MAX),
            LeaseOptions::new().limit(0),
            LeaseOptions::new().ttl(Duration::from_secs(9)).longest_hold(Duration::from_secs(8)),
            LeaseOptions::new().lock_delay(Duration::MAX),
        ];
        assert!(bad.iter().all(|options| options.check().is_err()));
        assert!(LeaseOptions::new().infinite().limit(3).check().is_ok());
    }

    #[test]
    fn options_at_their_bounds_are_taken() {
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
        assert_eq!(ManagerOptions::new().drift_permille(501).drift_permille, 500);
        let defaults = ManagerOptions::default();
        assert_eq!((defaults.operation_timeout, defaults.drift_permille), (5 * second, 10));
    }

    #[test]
    fn each_lease_option_is_kept() {
        let second = Duration::from_secs(1);
        let metadata = Metadata::new([("zone".to_owned(), "a".to_owned())].into()).expect("it fits");
        let options = LeaseOptions::new().ttl(9 * second).metadata(metadata.clone()).lock_delay(2 * second).limit(3);
        let options = options.grace(4 * second).drain(5 * second).longest_hold(60 * second);
        let options = options.renew_while(|| false).should_hold(|| false);
        assert_eq!((options.ttl_ms(), options.metadata.clone()), (Some(TtlMs::Millis(9_000)), metadata));
        assert_eq!((options.lock_delay_ms(), options.limit_wanted()), (Some(2_000), Some(3)));
        assert_eq!((options.grace, options.drain), (4 * second, Some(5 * second)));
        assert_eq!(options.longest_hold, Some(60 * second));
        assert!(options.renew_while.as_ref().is_some_and(|renew| !renew()));
        assert!(options.should_hold.as_ref().is_some_and(|should_hold| !should_hold()));
        let infinite = options.infinite();
        assert_eq!((infinite.ttl_ms(), infinite.limit_wanted()), (Some(TtlMs::Infinite), Some(3)));
        let defaults = LeaseOptions::new();
        assert_eq!((defaults.ttl_ms(), defaults.lock_delay_ms(), defaults.limit_wanted()), (None, None, None));
    }

    #[test]
    fn wait_for_a_ttl_is_that_of_the_lease() {
        let (second, most) = (Duration::from_secs(1), Duration::from_millis(MAX_WAIT_MS));
        let lease = LeaseOptions::new();
        let wait_for = |wait: Wait, lease: &LeaseOptions| AcquireOptions::from(wait).wait_for(lease);
        assert_eq!(wait_for(Wait::ForTtl, &lease), 30 * second);
        assert_eq!(wait_for(Wait::ForTtl, &lease.clone().ttl(7 * second)), 7 * second);
        assert_eq!(wait_for(Wait::ForTtl, &lease.clone().infinite()), most);
        assert_eq!((wait_for(Wait::No, &lease), wait_for(Wait::UpTo(second), &lease)), (Duration::ZERO, second));
        assert_eq!(wait_for(Wait::UpTo(most + second), &lease), most);
        let retried = AcquireOptions::new().retries(3, second).wait(Wait::UpTo(second));
        assert_eq!((retried.retries, retried.retry_delay, retried.wait_for(&lease)), (3, second, second));
    }
}
