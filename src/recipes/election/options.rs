//! Options of a candidate.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::client::LeaseOptions;
use crate::types::Metadata;

/// Options of a candidate and its leadership. Each method names the default of its option.
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
    /// The default options.
    pub fn new() -> ElectionOptions {
        ElectionOptions {
            lease: LeaseOptions::new(),
            metadata: Metadata::default(),
            minimum_hold: Duration::ZERO,
            budget: None,
            refresh: Duration::from_secs(1),
        }
    }

    /// How long other candidates wait when the leader dies ([`LeaseOptions::ttl`]). Default: the cluster's default.
    pub fn ttl(self, ttl: Duration) -> ElectionOptions {
        ElectionOptions { lease: self.lease.ttl(ttl), ..self }
    }

    /// How long before its deadline a leader that cannot renew its lease must stop ([`LeaseOptions::grace`]). Default:
    /// 0.
    pub fn grace(self, grace: Duration) -> ElectionOptions {
        ElectionOptions { lease: self.lease.grace(grace), ..self }
    }

    /// How long a resignation waits for the end of the work ([`LeaseOptions::drain`]). Default: 30 s.
    pub fn drain(self, drain: Duration) -> ElectionOptions {
        ElectionOptions { lease: self.lease.drain(drain), ..self }
    }

    /// After the death of a leader or a revoke, no candidate is elected for this time ([`LeaseOptions::lock_delay`]). A
    /// resignation causes no delay. Default: 0.
    pub fn lock_delay(self, lock_delay: Duration) -> ElectionOptions {
        ElectionOptions { lease: self.lease.lock_delay(lock_delay), ..self }
    }

    /// Key-value pairs that observers see when this candidate leads, for example its address. Keys that start with
    /// `tenure.` are refused. Default: empty.
    pub fn metadata(self, metadata: Metadata) -> ElectionOptions {
        ElectionOptions { metadata, ..self }
    }

    /// The shortest time before a leader can resign or hand over. [`resign_now`](super::Leadership::resign_now) and
    /// dropping the leadership ignore it. Default: 0.
    ///
    /// It restricts only this candidate: a leader that dies, is revoked or cannot renew its lease leads for less.
    pub fn minimum_hold(self, minimum_hold: Duration) -> ElectionOptions {
        ElectionOptions { minimum_hold, ..self }
    }

    /// The largest number of elections of this candidate in each `window`. After that, its campaign waits outside the
    /// queue in the state [`Candidacy::HeldBack`](super::Candidacy::HeldBack). Default: unlimited.
    ///
    /// It limits the part of this candidate in leader flapping. The count belongs to one [`Election`](super::Election)
    /// and its clones, and ends with the process. If all candidates have used up their budgets, there is no leader
    /// until a window ends.
    pub fn budget(self, elections: NonZeroU32, window: Duration) -> ElectionOptions {
        ElectionOptions { budget: Some((elections, window)), ..self }
    }

    /// The longest time between two reads of an observer. A change without a transition, such as an established leader,
    /// is seen this late. From 10 ms to 24 h. Default: 1 s.
    pub fn refresh(self, refresh: Duration) -> ElectionOptions {
        ElectionOptions { refresh, ..self }
    }
}

impl Default for ElectionOptions {
    fn default() -> ElectionOptions {
        ElectionOptions::new()
    }
}
