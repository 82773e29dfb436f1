//! Prints outcomes and reads for transcripts: tokens as term/index, times as cluster milliseconds.

use std::fmt::Write as _;

use tenure::lease::{
    Change, Effects, Explanation, HolderLease, LeaseState, LeaseView, ListFilter, Lost, Machine, Outcome, Refusal,
    Standing, Transition, Waiter,
};
use tenure::token::FencingToken;
use tenure::types::ClusterMs;

/// One log entry: position, time, an outcome for each command, and the effects.
pub fn entry(position: FencingToken, now: ClusterMs, outcomes: &[Outcome], effects: &Effects) -> String {
    let mut text = format!("{} @{now}", token(position));
    let is_batch = outcomes.len() > 1;
    for outcome in outcomes {
        text.push_str(if is_batch { "\n  = " } else { " = " });
        text.push_str(&self::outcome(outcome));
    }
    for transition in &effects.transitions {
        write!(text, "\n  {}", self::transition(transition)).expect("a write to a string succeeds");
    }
    for dropped in &effects.dropped {
        let waiter = &dropped.waiter;
        write!(text, "\n  {}: {} left the queue: {:?}", waiter.name, waiter.holder, dropped.cause)
            .expect("a write to a string succeeds");
    }
    text
}

fn outcome(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Held { lease, fresh: true } => format!("granted: {}", self::lease(lease)),
        Outcome::Held { lease, fresh: false } => format!("held already: {}", self::lease(lease)),
        Outcome::Queued { place } => format!("queued, {place} ahead"),
        Outcome::Renewed(answers) => {
            let answers = answers.iter().map(|answer| match answer {
                Ok(renewed) => format!("renewed: {}", lease(renewed)),
                Err(lost) => self::lost(lost),
            });
            answers.collect::<Vec<_>>().join("; ")
        }
        Outcome::Released(true) => "released".to_string(),
        Outcome::Released(false) => "not held, nothing released".to_string(),
        Outcome::Revoked(holders) => format!("revoked from {holders}"),
        Outcome::HandedOver(lease) => format!("handed over: {}", self::lease(lease)),
        Outcome::Waiting(waiters) => format!("waiting: {waiters}"),
        Outcome::Done => "done".to_string(),
        Outcome::Refused(refusal) => format!("refused: {}", self::refusal(refusal)),
    }
}

pub fn refusal(refusal: &Refusal) -> String {
    match refusal {
        Refusal::Held { holder, token, retry_after_ms, waiters, .. } => {
            let retry = retry_after_ms.map_or("unknown".to_string(), |ms| format!("{ms}ms"));
            format!("held by {holder}, token {}, retry after {retry}, waiters {waiters}", self::token(*token))
        }
        Refusal::LockDelay { retry_after_ms } => format!("lock delay, retry after {retry_after_ms}ms"),
        Refusal::Restored { retry_after_ms } => format!("restored, retry after {retry_after_ms}ms"),
        Refusal::QueueFull { max_waiters } => format!("queue full, at most {max_waiters}"),
        Refusal::TooManyLeases { max_leases } => format!("too many leases, at most {max_leases}"),
        Refusal::LimitDiffers { limit } => format!("its limit is {limit}"),
        Refusal::HolderInUse => "another principal has this holder".to_string(),
        Refusal::Lost(lost) => self::lost(lost),
        Refusal::MetadataChanged { version } => format!("the metadata has version {version}"),
        Refusal::NoSuchWaiter => "no such waiter".to_string(),
        Refusal::LeaseFull { max_bytes } => format!("lease full, at most {max_bytes} bytes"),
        Refusal::GrantedInThisEntry => "granted in this entry already".to_string(),
    }
}

fn lost(lost: &Lost) -> String {
    let now = lost.holder.as_ref().map_or("no holder".to_string(), |holder| format!("{holder} holds it"));
    format!("lost: {:?}, {now}", lost.cause)
}

fn lease(lease: &HolderLease) -> String {
    let mut text = format!("{} by {}, token {}", lease.name, lease.holder, token(lease.token));
    match (lease.state, lease.deadline) {
        (LeaseState::Active, Some(at)) => write!(text, ", until {at}"),
        (LeaseState::Active, None) => write!(text, ", until released"),
        (state, _) => write!(text, ", {state:?}"),
    }
    .expect("a write to a string succeeds");
    let details = [
        ("renewals", lease.renewals, lease.renewals > 0),
        ("limit", lease.limit as u64, lease.limit > 1),
        ("lock delay", lease.lock_delay_ms, lease.lock_delay_ms > 0),
        ("waiters", lease.waiters as u64, lease.waiters > 0),
        ("metadata version", lease.metadata_version, lease.metadata_version > 0),
    ];
    for (label, value, _) in details.iter().filter(|(.., is_shown)| *is_shown) {
        write!(text, ", {label} {value}").expect("a write to a string succeeds");
    }
    for (name, value) in lease.metadata.iter() {
        write!(text, ", {name}={value}").expect("a write to a string succeeds");
    }
    text
}

fn transition(transition: &Transition) -> String {
    let Transition { index, part, name, holder, token, change, at, .. } = transition;
    let change = match change {
        Change::Granted(cause) => format!("granted ({cause:?})"),
        Change::Revoked { reason } => format!("revoked ({reason})"),
        Change::HandedOver { to } => format!("handed over to {to}"),
        Change::Expired => "expired".to_string(),
        Change::Released => "released".to_string(),
        Change::Restored => "restored".to_string(),
    };
    format!("#{index}.{part} @{at} {name}: {holder} {} {change}", self::token(*token))
}

pub fn view(view: Option<LeaseView>) -> String {
    let Some(view) = view else { return "nothing is remembered of it".to_string() };
    let mut lines: Vec<String> = view.held.iter().chain(&view.ended).map(lease).collect();
    lines.extend(view.delay_until.map(|at| format!("delayed until {at}")));
    if view.held.is_empty() && view.waiters > 0 {
        lines.push(format!("waiters {}", view.waiters));
    }
    lines.join("\n")
}

pub fn queue(waiters: &[Waiter]) -> String {
    lines_or(waiters.iter().map(waiter), "no waiter")
}

fn waiter(waiter: &Waiter) -> String {
    format!("{} since {}, until {}", waiter.holder, waiter.since, waiter.until)
}

pub fn history(transitions: &[Transition]) -> String {
    lines_or(transitions.iter().map(transition), "no history")
}

pub fn explanation(explanation: &Explanation) -> String {
    let mut lines: Vec<String> = explanation.held.iter().map(lease).collect();
    if lines.is_empty() {
        lines.push("no holder".to_string());
    }
    lines.extend(explanation.delay_until.map(|at| format!("delayed until {at}")));
    lines.extend(explanation.next.as_ref().map(|next| format!("next: {}", waiter(next))));
    lines.extend(explanation.standing.as_ref().map(|standing| match standing {
        Standing::Holds { lease, cause } => format!("{} holds it: {cause:?}", lease.holder),
        Standing::Waits { place, waiter } => format!("{} waits, {place} ahead", waiter.holder),
        Standing::Ended(end) => format!("ended: {}", transition(end)),
        Standing::Unknown => "never held it, as far as is remembered".to_string(),
    }));
    lines.join("\n")
}

/// All pages of a list, with a line between pages.
pub fn list(machine: &Machine, filter: &ListFilter, page: usize) -> String {
    let mut lines = Vec::new();
    let mut after = None;
    loop {
        let (leases, cursor) = machine.list(filter, after.as_ref(), page);
        lines.extend(leases.iter().map(lease));
        let Some(cursor) = cursor else { break };
        let token: FencingToken = cursor.token.to_string().parse().expect("a cursor has a token");
        lines.push(format!("-- more after {} {}", cursor.name, self::token(token)));
        after = Some(cursor);
    }
    lines_or(lines.into_iter(), "none")
}

fn lines_or(lines: impl Iterator<Item = String>, nothing: &str) -> String {
    let lines: Vec<String> = lines.collect();
    if lines.is_empty() { nothing.to_string() } else { lines.join("\n") }
}

fn token(token: FencingToken) -> String {
    format!("{}/{}", token.term(), token.index())
}
