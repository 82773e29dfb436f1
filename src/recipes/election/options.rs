//! How a candidate behaves.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::client::LeaseOptions;
use crate::types::Metadata;

/// How a candidate stands for election, and how it leads. What is not said has the default that its method names.
///
/// ```
/// use std::time::Duration;
/// use tenure::election::ElectionOptions;
///
/// let options = ElectionOptions::new()
///     .ttl(Duration::from_secs(10))
///     .grace(Duration::from_secs(2))
///     .minimum_hold(Duration::from_secs(60))
///     .budget(5.try_into().expect("not 0"), Duration::from_secs(600));
/// # let _ = options;
/// ```
#[derive(Clone, Debug)]
pub struct ElectionOptions {
    pub(super) lease: LeaseOptions,
    pub(super) metadata: Metadata,
    pub(super) minimum_hold: Duration,
    pub(super) budget: Option<(NonZeroU32, Duration)>,
    pub(super) refresh: Duration,
}

impl ElectionOptions {
    pub fn new() -> ElectionOptions {
        ElectionOptions {
            lease: LeaseOptions::new(),
            metadata: Metadata::default(),
            minimum_hold: Duration::ZERO,
            budget: None,
            refresh: Duration::from_secs(1),
        }
    }

    /// How long others wait when the leader dies ([`LeaseOptions::ttl`]). The cluster's default if not said.
    pub fn ttl(self, ttl: Duration) -> ElectionOptions {
        ElectionOptions { lease: self.lease.ttl(ttl), ..self }
    }

    /// How long before its deadline a leader that cannot renew is told to stop ([`LeaseOptions::grace`]). 0.
    pub fn grace(self, grace: Duration) -> ElectionOptions {
        ElectionOptions { lease: self.lease.grace(grace), ..self }
    }

    /// How long a resignation waits for the work to end ([`LeaseOptions::drain`]). 30 s.
    pub fn drain(self, drain: Duration) -> ElectionOptions {
        ElectionOptions { lease: self.lease.drain(drain), ..self }
    }

    /// After a leader's death or a revoke, never after a resignation, nobody is elected for this long
    /// ([`LeaseOptions::lock_delay`]). 0.
    pub fn lock_delay(self, lock_delay: Duration) -> ElectionOptions {
        ElectionOptions { lease: self.lease.lock_delay(lock_delay), ..self }
    }

    /// What observers see of this candidate when it leads: its address, for instance. Keys that start with `tenure.`
    /// are refused. None if not said.
    pub fn metadata(self, metadata: Metadata) -> ElectionOptions {
        ElectionOptions { metadata, ..self }
    }

    /// A leader does not resign or hand over before it has led for so long, unless by
    /// [`resign_now`](super::Leadership::resign_now) or by dropping its leadership. 0.
    ///
    /// It binds this candidate alone: a leader that dies, is revoked or cannot renew leads for less.
    pub fn minimum_hold(self, minimum_hold: Duration) -> ElectionOptions {
        ElectionOptions { minimum_hold, ..self }
    }

    /// This candidate is elected at most so often in any `window`; then its campaign waits outside the queue, and
    /// [`Candidacy::HeldBack`](super::Candidacy::HeldBack) says so. Without an end if not said.
    ///
    /// It bounds this candidate's own part in flapping: the count is this [`Election`](super::Election)'s (and its
    /// clones'), and is forgotten when the process ends. It does not bound the others, and if all of them have used up
    /// theirs, nobody leads until one may again.
    pub fn budget(self, elections: NonZeroU32, window: Duration) -> ElectionOptions {
        ElectionOptions { budget: Some((elections, window)), ..self }
    }

    /// An observer looks at least so often, also if it hears of no change. It is how late it sees what is no change of
    /// holder: that a leader is established. 1 s; at least 10 ms.
    pub fn refresh(self, refresh: Duration) -> ElectionOptions {
        ElectionOptions { refresh: refresh.max(Duration::from_millis(10)), ..self }
    }
}

impl Default for ElectionOptions {
    fn default() -> ElectionOptions {
        ElectionOptions::new()
    }
}
