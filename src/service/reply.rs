//! Conversion of the node's answers to API results or problems. `now` is the cluster time of the answer.

use super::problem::{lost, problem, refusal, unexpected};
use crate::api::{self, Code, Problem};
use crate::lease::{Change, Explanation, Lease, LeaseState, ListCursor, Outcome, Standing, Transition, Waiter};
use crate::node::{Answer, ClusterStatus};
use crate::types::{ClusterMs, LeaseName, Metadata};

/// Converts the answer to an acquire.
pub(crate) fn granted(answer: Answer, now: ClusterMs) -> Result<api::Lease, Box<Problem>> {
    match answer {
        Answer::Outcome(Outcome::Held { lease, .. }) => Ok(lease_of(lease, now)),
        answer => Err(refused(answer)),
    }
}

/// Converts the answer to a renewal of one lease.
pub(crate) fn renewed_one(answer: Answer, now: ClusterMs) -> Result<api::Lease, Box<Problem>> {
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

pub(crate) fn handed_over(answer: Answer, now: ClusterMs) -> Result<api::Lease, Box<Problem>> {
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
pub(crate) fn found(name: &LeaseName, answer: Answer, now: ClusterMs) -> Result<api::Lease, Box<Problem>> {
    let (leases, next) = match answer {
        Answer::Lease(leases) => (leases, None),
        Answer::List { leases, next } => (leases, next),
        answer => return Err(unexpected(&answer)),
    };
    let found = one_name(leases, now).ok_or_else(|| {
        Box::new(problem(Code::NotFound, format!("no lease {:?} exists, and no ended one is kept", name.as_str())))
    })?;
    Ok(api::Lease { holders_cursor: next.as_ref().map(write_cursor), ..found })
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
pub(crate) fn listed(answer: Answer, now: ClusterMs) -> Result<(Vec<api::Lease>, Option<ListCursor>), Box<Problem>> {
    match answer {
        Answer::List { leases, next } => Ok((leases.into_iter().map(|lease| lease_of(lease, now)).collect(), next)),
        answer => Err(unexpected(&answer)),
    }
}

/// Converts any answer to a change except success.
fn refused(answer: Answer) -> Box<Problem> {
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
fn lease_of(lease: Lease, now: ClusterMs) -> api::Lease {
    api::Lease {
        name: lease.name.into(),
        holder: lease.holder.into(),
        token: lease.token,
        term: lease.token.term,
        index: lease.token.index,
        ttl_ms: lease.ttl.as_millis(),
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
fn renewal(renewed: Lease, now: ClusterMs) -> api::Lease {
    lease_of(Lease { metadata: Metadata::default(), ..renewed }, now)
}

/// Encodes a cursor: the name and token of the last lease before the next page. It is opaque to clients. A name never
/// contains a tilde.
pub(crate) fn write_cursor(cursor: &ListCursor) -> String {
    format!("{}~{}", cursor.name, cursor.token)
}

/// Converts the leases of one name: the current holders, or otherwise the last ended lease. `None` without leases.
///
/// A counted lease lists all current holders. Its own fields are those of the first holder.
fn one_name(leases: Vec<Lease>, now: ClusterMs) -> Option<api::Lease> {
    let (held, ended): (Vec<Lease>, Vec<Lease>) =
        leases.into_iter().partition(|lease| lease.state == LeaseState::Active);
    let mut holders: Vec<api::Lease> = held.into_iter().map(|held| lease_of(held, now)).collect();
    holders.sort_by_key(|holder| holder.token);
    let Some(first) = holders.first().cloned() else {
        return ended.into_iter().max_by_key(|ended| ended.token).map(|ended| lease_of(ended, now));
    };
    let is_counted = first.limit > 1;
    Some(api::Lease { holders: is_counted.then_some(holders), ..first })
}

/// Converts a transition for a watch or the history.
pub(crate) fn event(transition: &Transition) -> api::Event {
    let (kind, cause, reason, to) = match &transition.change {
        Change::Granted(cause) => (api::EventKind::Granted, Some(*cause), None, None),
        Change::Expired => (api::EventKind::Expired, None, None, None),
        Change::Released => (api::EventKind::Released, None, None, None),
        Change::Revoked { reason } => (api::EventKind::Revoked, None, Some(reason.clone()), None),
        Change::HandedOver { to } => (api::EventKind::HandedOver, None, None, Some(to.to_string())),
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
    let held: Vec<api::Lease> = explanation.held.into_iter().map(|held| lease_of(held, now)).collect();
    let lock_delay_left_ms = explanation.delay_until.map(|until| until.saturating_sub(now)).filter(|left| *left > 0);
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

fn describe_holders(held: &[api::Lease], holders: u32, lock_delay_left_ms: Option<u64>) -> String {
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
            let reason = event.reason.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default();
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

pub(crate) fn cluster(status: ClusterStatus) -> api::Cluster {
    let members = status.members.into_iter().map(|member| api::Member {
        id: member.id,
        role: member.role,
        http: member.http,
        peer: member.peer,
        lag: member.lag,
        last_contact_ms: member.last_contact_ms,
    });
    api::Cluster {
        members: members.collect(),
        cluster_id: status.cluster_id,
        node: status.node,
        leader: status.leader,
        term: status.term,
        applied: status.applied,
    }
}
