//! Histories for the tests of the checks.

use std::time::Duration;

use tenure::api::{Event, EventKind, GrantCause};
use tenure::token::FencingToken;
use tenure::types::{HolderId, LeaseName};

use super::super::history::{Ended, Operation, What};
use super::super::log::Seen;
use super::super::progress::Progress;
use super::{Evidence, ObservedQueue};

pub fn token(index: u64) -> FencingToken {
    FencingToken::new(1, index)
}

fn event(kind: EventKind, holder: &str, granted: u64, index: u64) -> Event {
    let at = "2026-01-01T00:00:00.000Z";
    let value = serde_json::json!({
        "event": kind.as_str(), "index": index, "part": 0, "name": "job", "holder": holder,
        "token": token(granted).to_string(), "at": at,
    });
    serde_json::from_value(value).expect("an event")
}

/// A watcher saw at `ms` that the log granted the lease to `holder` at `index`.
pub fn granted(ms: u64, holder: &str, index: u64) -> Seen {
    let mut event = event(EventKind::Granted, holder, index, index);
    event.cause = Some(GrantCause::Asked);
    Seen { event, at: Duration::from_millis(ms) }
}

pub fn from_queue(ms: u64, holder: &str, index: u64) -> Seen {
    let mut seen = granted(ms, holder, index);
    seen.event.cause = Some(GrantCause::Queue);
    seen
}

pub fn expired(ms: u64, holder: &str, granted: u64, index: u64) -> Seen {
    Seen { event: event(EventKind::Expired, holder, granted, index), at: Duration::from_millis(ms) }
}

pub fn released(ms: u64, holder: &str, granted: u64, index: u64) -> Seen {
    Seen { event: event(EventKind::Released, holder, granted, index), at: Duration::from_millis(ms) }
}

pub fn revoked(ms: u64, holder: &str, granted: u64, index: u64) -> Seen {
    Seen { event: event(EventKind::Revoked, holder, granted, index), at: Duration::from_millis(ms) }
}

pub fn handed_over(ms: u64, holder: &str, granted: u64, index: u64) -> Seen {
    Seen { event: event(EventKind::HandedOver, holder, granted, index), at: Duration::from_millis(ms) }
}

/// An operation with these times in milliseconds.
pub fn did(by: &str, what: What, (invoked, returned): (u64, u64), ended: Ended) -> Operation {
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

pub fn acquire() -> What {
    What::Acquire { ttl_ms: Some(1000), limit: 1, wait: false, lock_delay_ms: 0 }
}

pub fn saw(times: (u64, u64), held: &[(&str, u64)], index: u64) -> Operation {
    let held = held.iter().map(|(by, granted)| ((*by).to_owned(), token(*granted))).collect();
    did("reader", What::Read, times, Ended::Saw(held, index))
}

pub fn evidence<'a>(operations: &'a [Operation], log: &'a [Seen]) -> Evidence<'a> {
    Evidence { operations, queues: &[], log }
}

pub fn with_queues<'a>(queues: &'a [ObservedQueue], log: &'a [Seen]) -> Evidence<'a> {
    Evidence { operations: &[], queues, log }
}

/// A commit every 100 ms for 20 s, except in the given range of milliseconds.
pub fn commits(without: (u64, u64)) -> Progress {
    let mut progress = Progress::default();
    for time in (0..20_000).step_by(100).filter(|time| !(without.0..without.1).contains(time)) {
        progress.saw(100 + time, Duration::from_millis(time));
    }
    progress
}
