//! The mapping between the types of a node and the types of the API. The HTTP listener and the [`Local`](Local)
//! coordinator share it.
//!
//! In order: API requests to checked requests of the node; answers, events and the status of the node to API types;
//! refusals and errors to problems. `now` is the cluster time of an answer.

pub(crate) mod access;
mod local;
#[cfg(test)]
mod tests;

use tracing::error;

use crate::access::Denied;
use crate::api::{self, Code, EventId, MAX_RENEW_ITEMS, Problem, Timestamp, TtlMs};
use crate::config::TtlPolicy;
use crate::lease::{
    Acquire, Change, Command, Explanation, HolderLease, LeaseState, ListCursor, Lost, LostReason, Outcome, Refusal,
    Renewal, Standing, Transition, Waiter,
};
use crate::node::{self, Answer, ClusterStatus, Compacted, MemberRefusal, Request, RequestError, WatchPosition};
use crate::storage::disk::directory;
use crate::types::{
    ClusterMs, LeaseName, MAX_LIMIT, MAX_LOCK_DELAY_MS, MAX_METADATA_VERSION, MAX_REASON_BYTES, MAX_WAIT_MS, Metadata,
    Ttl,
};

pub use local::Local;

/// Milliseconds until a retry, for problems that end soon.
pub(crate) const RETRY_MS: u64 = 250;

pub(crate) fn claim(policy: &TtlPolicy, name: LeaseName, body: api::Acquire) -> Result<Acquire, Box<Problem>> {
    let limit = body.limit.unwrap_or(1);
    let lock_delay_ms = body.lock_delay_ms.unwrap_or(0);
    at_most("limit", limit, MAX_LIMIT)?;
    at_most("lock_delay_ms", lock_delay_ms, MAX_LOCK_DELAY_MS)?;
    at_most("wait_ms", body.wait_ms.unwrap_or(0), MAX_WAIT_MS)?;
    if limit == 0 {
        return Err(invalid(format!("limit 0 allows no holder: expected 1 to {MAX_LIMIT}")));
    }
    let ttl = allowed_ttl(policy, body.ttl_ms.unwrap_or(TtlMs::Millis(policy.default_ms)))?;
    let wait_ms = body.wait_ms.filter(|wait| *wait > 0);
    Ok(Acquire { name, holder: body.holder, ttl, wait_ms, lock_delay_ms, limit, metadata: body.metadata })
}

pub(crate) fn renew(policy: &TtlPolicy, name: LeaseName, body: api::Renew) -> Result<Request, Box<Problem>> {
    let ttl = body.ttl_ms.map(|ttl| allowed_ttl(policy, ttl)).transpose()?;
    let leases = vec![Renewal { name, token: body.token, ttl }];
    Ok(Request::Change(Command::Renew { holder: body.holder, leases }))
}

pub(crate) fn renew_batch(policy: &TtlPolicy, body: api::RenewBatch) -> Result<Request, Box<Problem>> {
    if body.leases.len() > MAX_RENEW_ITEMS {
        let detail = format!("the batch has {} leases: expected at most {MAX_RENEW_ITEMS}", body.leases.len());
        return Err(Box::new(problem(Code::TooLarge, detail)));
    }
    let renewal = |item: api::RenewItem| -> Result<Renewal, Box<Problem>> {
        let ttl = item.ttl_ms.map(|ttl| allowed_ttl(policy, ttl)).transpose()?;
        Ok(Renewal { name: item.name, token: item.token, ttl })
    };
    let leases = body.leases.into_iter().map(renewal).collect::<Result<Vec<Renewal>, Box<Problem>>>()?;
    Ok(Request::Change(Command::Renew { holder: body.holder, leases }))
}

pub(crate) fn release(name: LeaseName, body: api::Release) -> Request {
    Request::Change(Command::Release { name, holder: body.holder, token: body.token })
}

pub(crate) fn hand_over(name: LeaseName, body: api::HandOver) -> Request {
    Request::Change(Command::HandOver { name, holder: body.holder, token: body.token, to: body.to })
}

pub(crate) fn update_metadata(name: LeaseName, body: api::UpdateMetadata) -> Result<Request, Box<Problem>> {
    let api::UpdateMetadata { holder, token, version, metadata } = body;
    at_most("version", version, MAX_METADATA_VERSION)?;
    Ok(Request::Change(Command::UpdateMetadata { name, holder, token, version, metadata }))
}

pub(crate) fn revoke(name: LeaseName, reason: String) -> Result<Request, Box<Problem>> {
    at_most("reason bytes", reason.len(), MAX_REASON_BYTES)?;
    Ok(Request::Change(Command::Revoke { name, reason }))
}

fn allowed_ttl(policy: &TtlPolicy, requested: TtlMs) -> Result<Ttl, Box<Problem>> {
    policy.check(requested).map_err(|error| invalid(error.to_string()))
}

fn at_most<T: PartialOrd + std::fmt::Display>(field: &str, value: T, max: T) -> Result<(), Box<Problem>> {
    if value > max { Err(invalid(format!("{field} {value} is above {max}"))) } else { Ok(()) }
}

fn invalid(detail: impl Into<String>) -> Box<Problem> {
    Box::new(problem(Code::Invalid, detail))
}

/// Converts the answer to an acquire.
pub(crate) fn granted(answer: Answer, now: ClusterMs) -> Result<api::LeaseInfo, Box<Problem>> {
    match answer {
        Answer::Outcome(Outcome::Held { lease, .. }) => Ok(lease_of(lease, now)),
        answer => Err(refused(answer)),
    }
}

/// Converts the answer to a renewal of one lease.
pub(crate) fn renewed_one(answer: Answer, now: ClusterMs) -> Result<api::LeaseInfo, Box<Problem>> {
    let results = match answer {
        Answer::Outcome(Outcome::Renewed(results)) => results,
        answer => return Err(refused(answer)),
    };
    match <[_; 1]>::try_from(results) {
        Ok([Ok(lease)]) => Ok(lease_of(lease, now)),
        Ok([Err(loss)]) => Err(Box::new(lost(loss))),
        Err(results) => Err(unexpected(&results)),
    }
}

/// Converts the answer to a batch renewal. `names` are the names of its leases in order.
pub(crate) fn renewed(names: Vec<LeaseName>, answer: Answer, now: ClusterMs) -> Result<api::Renewed, Box<Problem>> {
    let results = match answer {
        Answer::Outcome(Outcome::Renewed(results)) if results.len() == names.len() => results,
        answer => return Err(refused(answer)),
    };
    let results = names.into_iter().zip(results).map(|(name, result)| match result {
        Ok(lease) => api::RenewResult { name: name.into(), lease: Some(renewal(lease, now)), problem: None },
        Err(loss) => api::RenewResult { name: name.into(), lease: None, problem: Some(lost(loss)) },
    });
    Ok(api::Renewed { results: results.collect() })
}

pub(crate) fn released(answer: Answer) -> Result<api::Released, Box<Problem>> {
    match answer {
        Answer::Outcome(Outcome::Released(released)) => Ok(api::Released { released }),
        answer => Err(refused(answer)),
    }
}

pub(crate) fn handed_over(answer: Answer, now: ClusterMs) -> Result<api::LeaseInfo, Box<Problem>> {
    match answer {
        Answer::Outcome(Outcome::HandedOver(lease)) => Ok(lease_of(lease, now)),
        answer => Err(refused(answer)),
    }
}

pub(crate) fn revoked(answer: Answer) -> Result<api::Revoked, Box<Problem>> {
    match answer {
        Answer::Outcome(Outcome::Revoked(revoked)) => Ok(api::Revoked { revoked }),
        answer => Err(refused(answer)),
    }
}

/// Converts the answer to a read of one lease.
pub(crate) fn found(name: &LeaseName, answer: Answer, now: ClusterMs) -> Result<api::LeaseInfo, Box<Problem>> {
    let (leases, next) = match answer {
        Answer::Lease(leases) => (leases, None),
        Answer::List { leases, next } => (leases, next),
        answer => return Err(unexpected(&answer)),
    };
    let found = one_name(leases, now).ok_or_else(|| {
        Box::new(problem(Code::NotFound, format!("no lease {:?} exists, and no ended one is kept", name.as_str())))
    })?;
    Ok(api::LeaseInfo { holders_cursor: next.as_ref().map(write_cursor), ..found })
}

pub(crate) fn history(name: LeaseName, answer: Answer) -> Result<api::History, Box<Problem>> {
    match answer {
        Answer::History(transitions) => {
            Ok(api::History { name: name.into(), transitions: transitions.iter().map(event).collect() })
        }
        answer => Err(unexpected(&answer)),
    }
}

pub(crate) fn queue(name: LeaseName, answer: Answer, now: ClusterMs) -> Result<api::Queue, Box<Problem>> {
    match answer {
        Answer::Queue(waiters) => Ok(queue_of(name, waiters, None, now)),
        Answer::QueuePart { waiters, total } => Ok(queue_of(name, waiters, Some(total), now)),
        answer => Err(unexpected(&answer)),
    }
}

pub(crate) fn explained(name: LeaseName, answer: Answer, now: ClusterMs) -> Result<api::Explanation, Box<Problem>> {
    match answer {
        Answer::Explain(explanation) => Ok(explanation_of(name, explanation, None, now)),
        Answer::ExplainPart { explanation, holders } => Ok(explanation_of(name, explanation, Some(holders), now)),
        answer => Err(unexpected(&answer)),
    }
}

/// Converts one page of a list. Also returns the start of the next page.
pub(crate) fn listed(
    answer: Answer,
    now: ClusterMs,
) -> Result<(Vec<api::LeaseInfo>, Option<ListCursor>), Box<Problem>> {
    match answer {
        Answer::List { leases, next } => Ok((leases.into_iter().map(|lease| lease_of(lease, now)).collect(), next)),
        answer => Err(unexpected(&answer)),
    }
}

/// The code of an answer that refuses a change.
pub(crate) fn refusal_code(answer: &Answer) -> Option<Code> {
    match answer {
        Answer::Outcome(Outcome::Refused(_)) | Answer::WaitTimeout | Answer::WaitAbandoned => {
            Some(refused(answer.clone()).code)
        }
        // A request may renew several leases.
        Answer::Outcome(Outcome::Renewed(renewed)) => renewed.iter().any(Result::is_err).then_some(Code::Lost),
        // The caller does not hold the lease with this token.
        Answer::Outcome(Outcome::Released(false)) => Some(Code::Lost),
        _ => None,
    }
}

/// Converts any answer to a change except success.
pub(crate) fn refused(answer: Answer) -> Box<Problem> {
    match answer {
        Answer::Outcome(Outcome::Refused(refused)) => refusal(refused),
        Answer::WaitTimeout => Box::new(problem(Code::WaitTimeout, "the lease was not granted within wait_ms")),
        Answer::WaitAbandoned => {
            let detail = "the position in the queue was lost; acquire again for a new one";
            Box::new(problem(Code::WaitAbandoned, detail))
        }
        answer => unexpected(&answer),
    }
}

/// Converts the lease of one holder, at cluster time `now`.
fn lease_of(lease: HolderLease, now: ClusterMs) -> api::LeaseInfo {
    api::LeaseInfo {
        name: lease.name.into(),
        holder: lease.holder.into(),
        token: lease.token,
        term: lease.token.term,
        index: lease.token.index,
        ttl_ms: lease.ttl.into(),
        expires_in_ms: lease.deadline.map(|deadline| deadline.saturating_sub(now)),
        state: lease.state,
        granted_at: api::Timestamp::from_millis(lease.granted_wall_ms),
        renewed_at: api::Timestamp::from_millis(lease.renewed_wall_ms),
        renewals: lease.renewals,
        metadata: lease.metadata.into(),
        limit: lease.limit,
        lock_delay_ms: lease.lock_delay_ms,
        waiters: lease.waiters,
        metadata_version: lease.metadata_version,
        holders: None,
        holders_cursor: None,
    }
}

/// Converts a lease of a batch renewal. It has no metadata: the holder knows it.
fn renewal(renewed: HolderLease, now: ClusterMs) -> api::LeaseInfo {
    lease_of(HolderLease { metadata: Metadata::default(), ..renewed }, now)
}

/// Encodes a cursor: the name and token of the last lease before the next page. It is opaque to clients. A name never
/// contains a tilde.
pub(crate) fn write_cursor(cursor: &ListCursor) -> String {
    format!("{}~{}", cursor.name, cursor.token)
}

/// Converts the leases of one name: the current holders, or otherwise the last ended lease. `None` without leases.
///
/// A counted lease lists all current holders. Its own fields are those of the first holder.
fn one_name(leases: Vec<HolderLease>, now: ClusterMs) -> Option<api::LeaseInfo> {
    let (held, ended): (Vec<HolderLease>, Vec<HolderLease>) =
        leases.into_iter().partition(|lease| lease.state == LeaseState::Active);
    let mut holders: Vec<api::LeaseInfo> = held.into_iter().map(|held| lease_of(held, now)).collect();
    holders.sort_by_key(|holder| holder.token);
    let Some(first) = holders.first().cloned() else {
        return ended.into_iter().max_by_key(|ended| ended.token).map(|ended| lease_of(ended, now));
    };
    let is_counted = first.limit > 1;
    Some(api::LeaseInfo { holders: is_counted.then_some(holders), ..first })
}

/// Converts a transition for a watch or the history.
pub(crate) fn event(transition: &Transition) -> api::Event {
    let (kind, cause, reason, to) = match &transition.change {
        Change::Granted(cause) => (api::EventKind::Granted, Some(*cause), None, None),
        Change::Expired => (api::EventKind::Expired, None, None, None),
        Change::Released => (api::EventKind::Released, None, None, None),
        Change::Revoked { reason } => (api::EventKind::Revoked, None, Some(reason.clone()), None),
        Change::HandedOver { to } => (api::EventKind::HandedOver, None, None, Some(to.to_string())),
        Change::Restored => (api::EventKind::Restored, None, None, None),
    };
    api::Event {
        event: kind,
        index: transition.index,
        part: transition.part,
        name: transition.name.to_string(),
        holder: transition.holder.to_string(),
        token: transition.token,
        cause,
        reason,
        to,
        at: api::Timestamp::from_millis(transition.wall_ms),
    }
}

/// Converts a queue. `total` is the number of all waiters if `waiters` is truncated.
fn queue_of(name: LeaseName, waiters: Vec<Waiter>, total: Option<u32>, now: ClusterMs) -> api::Queue {
    let total = total.unwrap_or(waiters.len() as u32);
    let waiters = (0..).zip(waiters).map(|(place, next)| waiter_of(place, next, now)).collect();
    api::Queue { name: name.into(), total, waiters }
}

fn waiter_of(place: u32, waiter: Waiter, now: ClusterMs) -> api::Waiter {
    api::Waiter {
        place,
        holder: waiter.holder.into(),
        since_at: api::Timestamp::from_millis(waiter.since_wall_ms),
        waited_ms: now.saturating_sub(waiter.since),
        expires_in_ms: waiter.until.saturating_sub(now),
    }
}

/// Converts an explanation. `holders` is the number of all holders if the explanation is truncated.
fn explanation_of(name: LeaseName, explanation: Explanation, holders: Option<u32>, now: ClusterMs) -> api::Explanation {
    let holders = holders.unwrap_or(explanation.held.len() as u32);
    let held: Vec<api::LeaseInfo> = explanation.held.into_iter().map(|held| lease_of(held, now)).collect();
    // A claim can get the lease after the last millisecond of the delay.
    let left_ms = |until: ClusterMs| until.saturating_add(1).saturating_sub(now);
    let lock_delay_left_ms = explanation.delay_until.map(left_ms).filter(|left| *left > 0);
    let standing = explanation.standing.map(|standing| standing_of(standing, now));
    let mut summary = describe_holders(&held, holders, lock_delay_left_ms);
    if explanation.waiters > 0 {
        summary.push_str(&format!("; {} waiting", explanation.waiters));
    }
    if let Some(standing) = &standing {
        summary.push_str("; ");
        summary.push_str(&describe_standing(standing));
    }
    api::Explanation {
        name: name.into(),
        summary,
        holders,
        held,
        lock_delay_left_ms,
        next: explanation.next.map(|next| waiter_of(0, next, now)),
        waiters: explanation.waiters,
        standing,
    }
}

fn standing_of(standing: Standing, now: ClusterMs) -> api::Standing {
    match standing {
        Standing::Holds { lease: held, cause } => api::Standing::Holds { lease: Box::new(lease_of(held, now)), cause },
        Standing::Waits { place, waiter: waits } => api::Standing::Waits { waiter: waiter_of(place, waits, now) },
        Standing::Ended(transition) => api::Standing::Ended { event: event(&transition) },
        Standing::Unknown => api::Standing::Unknown,
    }
}

fn describe_holders(held: &[api::LeaseInfo], holders: u32, lock_delay_left_ms: Option<u64>) -> String {
    match (held, lock_delay_left_ms) {
        ([], None) => "free".to_owned(),
        ([], Some(left)) => format!("free, but under a lock delay for another {left} ms"),
        ([only], _) => {
            let until = match only.expires_in_ms {
                Some(left) => format!("expires in {left} ms unless renewed"),
                None => "with an infinite ttl".to_owned(),
            };
            format!("held by {} since {}, {until}", only.holder, only.granted_at)
        }
        (several, _) => format!("held by {holders} of at most {}", several[0].limit),
    }
}

fn describe_standing(standing: &api::Standing) -> String {
    match standing {
        api::Standing::Holds { lease, .. } => format!("{} holds it with token {}", lease.holder, lease.token),
        api::Standing::Waits { waiter } => format!("{} waits, with {} before it", waiter.holder, waiter.place),
        api::Standing::Ended { event } => {
            let reason = event.reason.as_deref().filter(|reason| !reason.is_empty());
            let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
            let to = event.to.as_deref().map(|to| format!(" to {to}")).unwrap_or_default();
            let how = match event.event {
                api::EventKind::Expired => "expired".to_owned(),
                other => format!("was {}", other.as_str().replace('_', " ")),
            };
            format!("the lease of {} with token {} {how}{to}{reason} at {}", event.holder, event.token, event.at)
        }
        api::Standing::Unknown | api::Standing::Other => {
            "the requested holder neither holds the lease nor waits for it, and no grant to it is known".to_owned()
        }
    }
}

fn member_of(member: node::MemberStatus) -> api::MemberInfo {
    let node::MemberStatus { id, role, state, http, peer, lag, last_contact_ms, certificate_expires_ms, disk } = member;
    let certificate_expires_at = certificate_expires_ms.map(api::Timestamp::from_millis);
    api::MemberInfo { id, role, state, http, peer, lag, last_contact_ms, certificate_expires_at, disk }
}

/// Converts the answer to a change of the members.
pub(crate) fn members(answer: Answer) -> Result<api::Members, Box<Problem>> {
    match answer {
        Answer::Members(members) => Ok(api::Members { members: members.into_iter().map(member_of).collect() }),
        answer => Err(unexpected(&answer)),
    }
}

pub(crate) fn transferred(answer: Answer) -> Result<api::Transferred, Box<Problem>> {
    match answer {
        Answer::Transferred { from, leader } => Ok(api::Transferred { from, leader }),
        answer => Err(unexpected(&answer)),
    }
}

pub(crate) fn cluster(status: ClusterStatus) -> api::Cluster {
    api::Cluster {
        members: status.members.into_iter().map(member_of).collect(),
        cluster_id: status.cluster_id,
        node: status.node,
        leader: status.leader,
        quorum: status.quorum,
        term: status.term,
        applied: status.applied,
        clock: api::NodeClock { monotonic_ms: status.monotonic_ms, wall: Timestamp::from_millis(status.wall_ms) },
        feature_level: status.feature_level,
        leader_changes: status.leader_changes.into_iter().map(leader_change_of).collect(),
    }
}

fn leader_change_of(node::LeaderChange { term, leader, wall_ms }: node::LeaderChange) -> api::LeaderChange {
    api::LeaderChange { term, leader, at: Timestamp::from_millis(wall_ms) }
}

/// Returns the version of this build.
pub(crate) fn version() -> api::Version {
    api::Version { version: env!("CARGO_PKG_VERSION").to_owned(), data_format: directory::FORMAT }
}

/// Returns a problem. Problems that end soon have `retry_after_ms`.
pub(crate) fn problem(code: Code, detail: impl Into<String>) -> Problem {
    let is_temporary = matches!(code, Code::NoLeader | Code::NotReady | Code::TooBusy);
    Problem { retry_after_ms: is_temporary.then_some(RETRY_MS), ..Problem::new(code, detail) }
}

/// Returns the problem for an answer that does not match its request. This is a bug of the node.
pub(crate) fn unexpected(answer: &impl std::fmt::Debug) -> Box<Problem> {
    error!(?answer, "the answer of the node does not match the request");
    Box::new(problem(Code::Internal, "the answer of the node does not match the request; see the log of the node"))
}

pub(crate) fn request_error(error: RequestError) -> Problem {
    let detail = error.to_string();
    match error {
        RequestError::NoLeader => problem(Code::NoLeader, detail),
        RequestError::Busy | RequestError::TooManyBackups => problem(Code::TooBusy, detail),
        RequestError::ShuttingDown => problem(Code::ShuttingDown, detail),
        RequestError::TooLarge => problem(Code::TooLarge, detail),
        RequestError::Unreadable(_) => problem(Code::Unsupported, detail),
        RequestError::Unknown(_) => problem(Code::OutcomeUnknown, detail),
        RequestError::AnswerTooLarge(_) => {
            error!(%detail, "an answer does not fit into a message between nodes");
            problem(Code::Internal, detail)
        }
        RequestError::MemberRefused { refusal: MemberRefusal::InProgress, .. } => {
            Problem { retry_after_ms: Some(RETRY_MS), ..problem(Code::ChangeInProgress, detail) }
        }
        RequestError::MemberRefused { refusal: MemberRefusal::NotMember, .. } => problem(Code::NotFound, detail),
        RequestError::MemberRefused { refusal: MemberRefusal::Lags, .. } => problem(Code::MemberLags, detail),
        RequestError::MemberRefused { refusal: MemberRefusal::Other, .. } => problem(Code::MemberRefused, detail),
        RequestError::Denied(Denied::Unauthenticated(_)) => problem(Code::Unauthenticated, detail),
        RequestError::Denied(Denied::Forbidden(_)) => problem(Code::Forbidden, detail),
        RequestError::Denied(Denied::NotFound(_)) => problem(Code::NotFound, detail),
        RequestError::Denied(Denied::Refused(_)) => problem(Code::AccessRefused, detail),
        RequestError::NotLeader { leader, .. } => Problem { leader: Some(leader), ..problem(Code::NotLeader, detail) },
    }
}

/// Returns the problem for a watch from a position that is no longer kept.
pub(crate) fn compacted(Compacted { oldest }: Compacted) -> Problem {
    let detail = format!("only events after log index {oldest} are kept; list the leases and watch from now");
    Problem { oldest: Some(oldest), ..problem(Code::Compacted, detail) }
}

/// Returns the problem for a refusal by the lease machine.
fn refusal(refusal: Refusal) -> Box<Problem> {
    Box::new(match refusal {
        Refusal::Held { holder, token, granted_wall_ms, retry_after_ms, waiters } => {
            let since = Timestamp::from_millis(granted_wall_ms);
            let until = match retry_after_ms {
                Some(ms) => format!("it can expire in {ms} ms"),
                None => "its ttl is infinite".to_owned(),
            };
            Problem {
                holder: Some(holder.to_string()),
                token: Some(token),
                since: Some(since),
                retry_after_ms,
                waiters: Some(waiters),
                ..Problem::new(Code::Held, format!("held by {holder} since {since}; {until}"))
            }
        }
        Refusal::LockDelay { retry_after_ms } => Problem {
            retry_after_ms: Some(retry_after_ms),
            ..Problem::new(Code::LockDelay, format!("free, but under a lock delay for another {retry_after_ms} ms"))
        },
        Refusal::Restored { retry_after_ms } => Problem {
            retry_after_ms: Some(retry_after_ms),
            ..Problem::new(
                Code::LockDelay,
                format!(
                    "the cluster was restored from a backup and grants no lease for another {retry_after_ms} ms: \
                     holders of the lost cluster may still be active"
                ),
            )
        },
        Refusal::QueueFull { max_waiters } => Problem {
            limit: Some(max_waiters.into()),
            ..Problem::new(Code::QueueFull, format!("the queue has {max_waiters} waiters, which is the limit"))
        },
        Refusal::TooManyLeases { max_leases } => Problem {
            limit: Some(max_leases),
            ..Problem::new(Code::TooManyLeases, format!("the cluster has {max_leases} leases, which is the limit"))
        },
        Refusal::LeaseFull { max_bytes } => Problem {
            limit: Some(max_bytes),
            ..Problem::new(
                Code::LeaseFull,
                format!("the holders and waiters of a lease may have at most {max_bytes} bytes of names and metadata"),
            )
        },
        Refusal::LimitDiffers { limit } => Problem {
            limit: Some(limit.into()),
            ..Problem::new(Code::LimitDiffers, format!("the lease is held or waited for with limit {limit}"))
        },
        Refusal::HolderInUse => {
            Problem::new(Code::Forbidden, "another principal holds this lease or waits for it with the same holder")
        }
        Refusal::Lost(lost) => self::lost(lost),
        Refusal::MetadataChanged { version } => Problem {
            metadata_version: Some(version),
            ..Problem::new(Code::MetadataChanged, format!("the metadata has changed: its version is {version}"))
        },
        Refusal::NoSuchWaiter => {
            Problem::new(Code::NoSuchWaiter, "the named holder does not wait, or no waiter has reached the leader")
        }
        refusal @ Refusal::GrantedInThisEntry => return unexpected(&refusal),
    })
}

/// Returns the problem for a token that is not current.
fn lost(lost: Lost) -> Problem {
    let how = match lost.cause {
        LostReason::Expired => "it expired before it was renewed",
        LostReason::Released => "it was released",
        LostReason::Revoked => "an operator revoked it",
        LostReason::HandedOver => "it was handed over",
        LostReason::Restored => "the cluster was restored from a backup",
        LostReason::Unknown | LostReason::Other => "no grant of this token to this holder is known",
    };
    let now = match &lost.holder {
        Some(holder) => format!("; {holder} holds the lease now"),
        None => "; the lease has no holder now".to_owned(),
    };
    Problem {
        why: Some(lost.cause),
        holder: lost.holder.map(String::from),
        ..Problem::new(Code::Lost, format!("{how}{now}"))
    }
}

impl From<EventId> for WatchPosition {
    fn from(EventId { index, part }: EventId) -> WatchPosition {
        WatchPosition { index, part }
    }
}

impl From<WatchPosition> for EventId {
    fn from(WatchPosition { index, part }: WatchPosition) -> EventId {
        EventId { index, part }
    }
}
