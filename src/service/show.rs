//! Conversion of the values of the lease machine and the node to API types.

use crate::api;
use crate::lease::{
    Change, Explanation, GrantCause, Lease, LeaseState, ListCursor, ListState, LostCause, Standing, Transition, Waiter,
};
use crate::node::{ClusterStatus, Role};
use crate::types::{ClusterMs, LeaseName, Metadata};

/// Converts the lease of one holder, at cluster time `now`.
pub(super) fn lease(lease: Lease, now: ClusterMs) -> api::Lease {
    api::Lease {
        name: lease.name.into(),
        holder: lease.holder.into(),
        token: lease.token,
        term: lease.token.term,
        index: lease.token.index,
        ttl_ms: lease.ttl.as_millis(),
        expires_in_ms: lease.deadline.map(|deadline| deadline.saturating_sub(now)),
        state: state(lease.state),
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
pub(super) fn renewal(renewed: Lease, now: ClusterMs) -> api::Lease {
    lease(Lease { metadata: Metadata::default(), ..renewed }, now)
}

/// Encodes a cursor: the name and token of the last lease before the next page. It is opaque to clients. A name never
/// contains a tilde.
pub(crate) fn write_cursor(cursor: &ListCursor) -> String {
    format!("{}~{}", cursor.name, cursor.token)
}

/// Converts the leases of one name: the current holders, or otherwise the last ended lease. `None` without leases.
///
/// A counted lease lists all current holders. Its own fields are those of the first holder.
pub(super) fn one_name(leases: Vec<Lease>, now: ClusterMs) -> Option<api::Lease> {
    let (held, ended): (Vec<Lease>, Vec<Lease>) =
        leases.into_iter().partition(|lease| lease.state == LeaseState::Active);
    let mut holders: Vec<api::Lease> = held.into_iter().map(|held| lease(held, now)).collect();
    holders.sort_by_key(|holder| holder.token);
    let Some(first) = holders.first().cloned() else {
        return ended.into_iter().max_by_key(|ended| ended.token).map(|ended| lease(ended, now));
    };
    let is_counted = first.limit > 1;
    Some(api::Lease { holders: is_counted.then_some(holders), ..first })
}

fn state(state: LeaseState) -> api::LeaseState {
    match state {
        LeaseState::Active => api::LeaseState::Active,
        LeaseState::Expired => api::LeaseState::Expired,
        LeaseState::Released => api::LeaseState::Released,
        LeaseState::Revoked => api::LeaseState::Revoked,
        LeaseState::HandedOver => api::LeaseState::HandedOver,
    }
}

pub(crate) fn list_state(filter: api::StateFilter) -> ListState {
    match filter {
        api::StateFilter::Active => ListState::Active,
        api::StateFilter::Renewed => ListState::Renewed,
        api::StateFilter::Expired => ListState::Expired,
        api::StateFilter::Released => ListState::Released,
        api::StateFilter::Revoked => ListState::Revoked,
        api::StateFilter::HandedOver => ListState::HandedOver,
    }
}

pub(super) fn lost_reason(cause: LostCause) -> api::LostReason {
    match cause {
        LostCause::Expired => api::LostReason::Expired,
        LostCause::Released => api::LostReason::Released,
        LostCause::Revoked => api::LostReason::Revoked,
        LostCause::HandedOver => api::LostReason::HandedOver,
        LostCause::Unknown => api::LostReason::Unknown,
    }
}

fn grant_cause(cause: GrantCause) -> api::GrantCause {
    match cause {
        GrantCause::Asked => api::GrantCause::Asked,
        GrantCause::Queue => api::GrantCause::Queue,
        GrantCause::HandOver => api::GrantCause::HandOver,
    }
}

/// Converts a transition for a watch or the history.
pub(crate) fn event(transition: &Transition) -> api::Event {
    let (kind, cause, reason, to) = match &transition.change {
        Change::Granted(cause) => (api::EventKind::Granted, Some(grant_cause(*cause)), None, None),
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
pub(super) fn queue(name: LeaseName, waiters: Vec<Waiter>, total: Option<u32>, now: ClusterMs) -> api::Queue {
    let total = total.unwrap_or(waiters.len() as u32);
    let waiters = (0..).zip(waiters).map(|(place, next)| waiter(place, next, now)).collect();
    api::Queue { name: name.into(), total, waiters }
}

fn waiter(place: u32, waiter: Waiter, now: ClusterMs) -> api::Waiter {
    api::Waiter {
        place,
        holder: waiter.holder.into(),
        since_at: api::Timestamp::from_millis(waiter.since_wall_ms),
        waited_ms: now.saturating_sub(waiter.since),
        expires_in_ms: waiter.until.saturating_sub(now),
    }
}

/// Converts an explanation. `holders` is the number of all holders if the explanation is truncated.
pub(super) fn explanation(
    name: LeaseName,
    explanation: Explanation,
    holders: Option<u32>,
    now: ClusterMs,
) -> api::Explanation {
    let holders = holders.unwrap_or(explanation.held.len() as u32);
    let held: Vec<api::Lease> = explanation.held.into_iter().map(|held| lease(held, now)).collect();
    let lock_delay_left_ms = explanation.delay_until.map(|until| until.saturating_sub(now)).filter(|left| *left > 0);
    let standing = explanation.standing.map(|standing| self::standing(standing, now));
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
        next: explanation.next.map(|next| waiter(0, next, now)),
        waiters: explanation.waiters,
        standing,
    }
}

fn standing(standing: Standing, now: ClusterMs) -> api::Standing {
    match standing {
        Standing::Holds { lease: held, cause } => {
            api::Standing::Holds { lease: Box::new(lease(held, now)), cause: cause.map(grant_cause) }
        }
        Standing::Waits { place, waiter: waits } => api::Standing::Waits { waiter: waiter(place, waits, now) },
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
        role: match member.role {
            Role::Leader => api::Role::Leader,
            Role::Follower => api::Role::Follower,
            Role::Learner => api::Role::Learner,
        },
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
