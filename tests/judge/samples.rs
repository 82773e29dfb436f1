//! Histories for the tests of the checks.

use std::time::Duration;

use tenure::api::{EventKind, GrantCause};
use tenure::token::FencingToken;
use tenure::types::{HolderId, LeaseName};

use super::history::{Ended, Operation, RequestKind};
use super::{Bounds, LeaseHistory, Observed, ObservedQueue, Progress, Transition};

/// Bounds of clocks that run at most 1 % too fast or too slow, and of watchers.
pub static BOUNDS: Bounds = Bounds {
    inside_drift: true,
    shortest_second: 0.99,
    longest_second: 1.01,
    rounding: Duration::ZERO,
    observed: Observed::Later,
    tick: Duration::from_millis(1_000),
    commit: Duration::from_millis(250),
};

pub fn token(index: u64) -> FencingToken {
    FencingToken::new(1, index)
}

fn transition(event: EventKind, ms: u64, holder: &str, granted: u64, index: u64) -> Transition {
    Transition {
        event,
        cause: None,
        index,
        part: 0,
        name: "job".to_owned(),
        holder: holder.to_owned(),
        token: token(granted),
        at: Duration::from_millis(ms),
    }
}

/// An observer saw at `ms` that the log granted the lease to `holder` at `index`.
pub fn granted(ms: u64, holder: &str, index: u64) -> Transition {
    Transition { cause: Some(GrantCause::Asked), ..transition(EventKind::Granted, ms, holder, index, index) }
}

pub fn from_queue(ms: u64, holder: &str, index: u64) -> Transition {
    Transition { cause: Some(GrantCause::Queue), ..granted(ms, holder, index) }
}

pub fn by_hand_over(ms: u64, holder: &str, index: u64) -> Transition {
    Transition { cause: Some(GrantCause::HandOver), ..granted(ms, holder, index) }
}

pub fn expired(ms: u64, holder: &str, granted: u64, index: u64) -> Transition {
    transition(EventKind::Expired, ms, holder, granted, index)
}

pub fn released(ms: u64, holder: &str, granted: u64, index: u64) -> Transition {
    transition(EventKind::Released, ms, holder, granted, index)
}

pub fn revoked(ms: u64, holder: &str, granted: u64, index: u64) -> Transition {
    transition(EventKind::Revoked, ms, holder, granted, index)
}

pub fn handed_over(ms: u64, holder: &str, granted: u64, index: u64) -> Transition {
    transition(EventKind::HandedOver, ms, holder, granted, index)
}

/// An operation with these times in milliseconds.
pub fn did(by: &str, what: RequestKind, (invoked, returned): (u64, u64), ended: Ended) -> Operation {
    Operation {
        by: HolderId::new(by).expect("valid"),
        name: LeaseName::new("job").expect("valid"),
        what,
        invoked: Duration::from_millis(invoked),
        returned: Some(Duration::from_millis(returned)),
        ended,
        index: None,
    }
}

pub fn acquired(by: &str, times: (u64, u64), index: u64) -> Operation {
    did(by, acquire(), times, Ended::Held(token(index), Some(1000)))
}

pub fn acquire() -> RequestKind {
    RequestKind::Acquire { ttl_ms: Some(1000), limit: 1, wait_ms: None, lock_delay_ms: 0 }
}

pub fn saw(times: (u64, u64), held: &[(&str, u64)], index: u64) -> Operation {
    let held = held.iter().map(|(by, granted)| ((*by).to_owned(), token(*granted))).collect();
    did("reader", RequestKind::Read, times, Ended::Saw(held, index))
}

pub fn history<'a>(operations: &'a [Operation], transitions: &'a [Transition]) -> LeaseHistory<'a> {
    LeaseHistory { operations, queues: &[], transitions, bounds: &BOUNDS }
}

pub fn with_queues<'a>(queues: &'a [ObservedQueue], transitions: &'a [Transition]) -> LeaseHistory<'a> {
    LeaseHistory { queues, ..history(&[], transitions) }
}

/// A commit every 100 ms for 20 s, except in the given range of milliseconds.
pub fn commits(without: (u64, u64)) -> Progress {
    let mut progress = Progress::default();
    for time in (0..20_000).step_by(100).filter(|time| !(without.0..without.1).contains(time)) {
        progress.saw(100 + time, Duration::from_millis(time));
    }
    progress
}
