//! Requests to a node, and its answers.
//!
//! Callers in the same process, the HTTP listener and peer connections use the same types. Nodes of different versions
//! exchange them, so the fields of a variant never change, and new variants are added at the end.

mod batch;
pub(crate) mod call;
pub(in crate::node) mod propose;
pub(crate) mod read;
pub(crate) mod route;
pub(in crate::node) mod wait;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::access::{AccessChange, AccessView, Denied, Need, TokenId};
use crate::lease::{Acquire, Command, Explanation, HolderLease, ListCursor, ListFilter, Outcome, Transition, Waiter};
use crate::node::membership::MemberRefusal;
use crate::node::request::propose::{AppliedOutcome, Class};
use crate::node::status::MemberStatus;
use crate::peer::Lane;
use crate::storage::Position;
use crate::types::{ClusterMs, Consistency, HolderId, LeaseName, MemberChange, NodeId, Right};

/// A request to a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Claims a lease. With `wait_ms` the node answers when the lease is granted or the wait ends.
    Acquire(Acquire),
    /// Any other change.
    Change(Command),
    /// Reads the replicated state.
    Read {
        query: Query,
        consistency: Consistency,
    },
    /// Reads the leader's view of the members: their replication lag and last contact.
    Members,
    /// Changes the members.
    ChangeMembers(MemberChange),
    /// Transfers the leadership: to this voter, or to one that has almost all entries.
    Transfer(Option<NodeId>),
    /// Reads the state of access control.
    Access,
    ChangeAccess(AccessChange),
}

impl Request {
    /// The action and its subject, for the audit log. It has no secret.
    pub(crate) fn summary(&self) -> (&'static str, String) {
        match self {
            Request::Acquire(acquire) => ("acquire", acquire.name.to_string()),
            Request::Change(command) => command_summary(command),
            Request::Read { query, .. } => ("read", query.subject().to_owned()),
            Request::Members => ("read", "members".to_owned()),
            Request::ChangeMembers(change) => ("change members", format!("{change:?}")),
            Request::Transfer(to) => ("transfer", to.map(|to| to.to_string()).unwrap_or_default()),
            Request::Access => ("read", "access control".to_owned()),
            Request::ChangeAccess(change) => access_summary(change),
        }
    }
}

fn command_summary(command: &Command) -> (&'static str, String) {
    match command {
        Command::Acquire(acquire) => ("acquire", acquire.name.to_string()),
        Command::Renew { leases, .. } => match &leases[..] {
            [one] => ("renew", one.name.to_string()),
            leases => ("renew", format!("{} leases", leases.len())),
        },
        Command::Release { name, .. } => ("release", name.to_string()),
        Command::HandOver { name, .. } => ("hand over", name.to_string()),
        Command::Revoke { name, .. } => ("revoke", name.to_string()),
        Command::UpdateMetadata { name, .. } => ("update metadata", name.to_string()),
        Command::As { command, .. } => command_summary(&command.clone().into()),
        Command::KeepWaiting { .. } | Command::LeaveQueue { .. } | Command::Tick | Command::SetLimits(_) => {
            ("maintain", String::new())
        }
    }
}

/// The id of a token connects its creation with its revoke.
fn access_summary(change: &AccessChange) -> (&'static str, String) {
    match change {
        AccessChange::Enable(true) => ("enable access control", String::new()),
        AccessChange::Enable(false) => ("disable access control", String::new()),
        AccessChange::SetRole { role, .. } => ("set role", role.to_string()),
        AccessChange::RemoveRole(role) => ("remove role", role.to_string()),
        AccessChange::SetPrincipal { principal, .. } => ("set principal", principal.to_string()),
        AccessChange::RemovePrincipal(principal) => ("remove principal", principal.to_string()),
        AccessChange::AddToken { principal, hash, .. } | AccessChange::AddExpiringToken { principal, hash, .. } => {
            ("create token", format!("{principal} {}", hash.id()))
        }
        AccessChange::RemoveToken(id) => ("revoke token", id.to_string()),
    }
}

/// A read of the replicated state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Query {
    Lease(LeaseName),
    History(LeaseName),
    Queue(LeaseName),
    Explain { name: LeaseName, holder: Option<HolderId> },
    List { filter: ListFilter, after: Option<ListCursor>, limit: u32 },
}

/// An answer, with the node and state that it comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Response {
    pub answer: Answer,
    pub served: Served,
}

/// An answer, and the position of the entry that it reflects. `None`: it reflects the state of the node.
pub(in crate::node) type Answered = (Answer, Option<Position>);

impl AppliedOutcome {
    fn answered(self) -> Answered {
        (Answer::Outcome(self.outcome), Some(self.position))
    }
}

/// The answer to a claim that has waited. The token of a grant is the position of its entry.
fn waited(answer: Answer) -> Answered {
    let entry = match &answer {
        Answer::Outcome(Outcome::Held { lease, .. }) => {
            Some(Position { term: lease.token.term, index: lease.token.index })
        }
        _ => None,
    };
    (answer, entry)
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// The outcome of a change.
    Outcome(Outcome),
    /// The wait of an acquire ended without a grant.
    WaitTimeout,
    /// The waiter lost its position in the queue, because it left the queue or no node confirmed that it still waits.
    WaitAbandoned,
    /// The current holders of a lease, or otherwise the last ended grant that is kept. Empty if neither exists. A lease
    /// with more holders than fit into one answer is answered with the first page of a `List`.
    Lease(Vec<HolderLease>),
    History(Vec<Transition>),
    Queue(Vec<Waiter>),
    Explain(Explanation),
    List {
        leases: Vec<HolderLease>,
        next: Option<ListCursor>,
    },
    Members(Vec<MemberStatus>),
    /// The first waiters of a queue that is too long for one answer. The whole queue has `total` waiters.
    QueuePart {
        waiters: Vec<Waiter>,
        total: u32,
    },
    /// An explanation with the first holders of a lease with too many for one answer. The lease has `holders` in all.
    ExplainPart {
        explanation: Explanation,
        holders: u32,
    },
    /// The leadership was transferred.
    Transferred {
        from: NodeId,
        leader: NodeId,
    },
    /// The state of access control, after a change if the request was one.
    Access(AccessView),
    /// The same, while any token expires.
    AccessWithExpiries {
        view: AccessView,
        /// When tokens expire, by the wall clock in milliseconds since 1970.
        expiries: BTreeMap<TokenId, u64>,
    },
}

/// The node that answered, and the state that the answer reflects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    pub node: NodeId,
    pub term: u64,
    /// Log index that the answer reflects. The answer to a change may lack later changes of the same entry.
    pub applied: u64,
    /// Cluster time at the answer, by the answering node's clock. `expires_in_ms` is `deadline - now`.
    pub now: ClusterMs,
    /// For a stale read: the age of the state in milliseconds. It has all changes that were committed before. `None` if
    /// the age is unknown.
    pub stale_ms: Option<u64>,
}

/// An error instead of an answer. Each variant documents whether the request may have been applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum RequestError {
    /// Certainly not applied.
    #[error("no leader is known; try again")]
    NoLeader,
    /// Certainly not applied. Only for a request with [`Forward::Never`](crate::node::Forward::Never).
    #[error("this node is not the leader; send the request to the leader, node {leader}")]
    NotLeader { leader: NodeId, http: String },
    /// Certainly not applied: the command queue of the leader is full or too slow.
    #[error("the node is overloaded: too many commands wait; try again later")]
    Busy,
    /// Certainly not applied. A retry fails as well: the request does not fit into a log entry.
    #[error("the request is larger than a log entry may be")]
    TooLarge,
    /// Certainly not applied. A retry fails as well: the version of the leader does not know this request.
    #[error("{0}")]
    Unreadable(String),
    /// Certainly not applied.
    #[error("the node is shutting down")]
    ShuttingDown,
    /// The request may have been applied or may still be applied. A retry is safe.
    #[error("the outcome is unknown: {0}")]
    Unknown(String),
    /// The request was a read, and a retry fails as well: its answer is larger than a message between nodes may be.
    #[error("the answer is too large: {0}")]
    AnswerTooLarge(String),
    /// Certainly not applied: the leader refuses a change of the members.
    #[error("{detail}")]
    MemberRefused { refusal: MemberRefusal, detail: String },
    /// Certainly not applied: the caller may not do this, or a change of access control is invalid.
    #[error(transparent)]
    Denied(Denied),
    /// Only for a backup.
    #[error("the node already writes as many backups as it may at a time; try again later")]
    TooManyBackups,
}

impl Query {
    /// The name or the prefix that is read.
    fn subject(&self) -> &str {
        match self {
            Query::Lease(name) | Query::History(name) | Query::Queue(name) | Query::Explain { name, .. } => {
                name.as_str()
            }
            Query::List { filter, .. } => &filter.prefix,
        }
    }

    /// The rights that the read needs.
    fn need(&self) -> Need<'_> {
        match self {
            Query::Lease(name) | Query::History(name) | Query::Queue(name) | Query::Explain { name, .. } => {
                Need::Names(Right::Read, vec![name])
            }
            Query::List { filter, .. } => Need::Prefix(&filter.prefix),
        }
    }
}

impl Request {
    /// Whether a repetition has the same effect and answer. Then an unknown outcome is retried. A repeated release or
    /// handover is answered as if the first one had not been applied.
    fn is_idempotent(&self) -> bool {
        match self {
            Request::Acquire(_) | Request::Read { .. } | Request::Members | Request::Access => true,
            Request::Change(command) => matches!(command, Command::Renew { .. } | Command::UpdateMetadata { .. }),
            Request::ChangeMembers(_) | Request::Transfer(_) | Request::ChangeAccess(_) => false,
        }
    }

    fn is_of_access_control(&self) -> bool {
        matches!(self, Request::Access | Request::ChangeAccess(_))
    }

    /// The rights that the request needs.
    fn need(&self) -> Need<'_> {
        let (right, name) = match self {
            Request::Acquire(acquire) => (Right::Hold, &acquire.name),
            Request::Change(command) => match command {
                Command::Renew { leases, .. } => {
                    return Need::Names(Right::Hold, leases.iter().map(|renewal| &renewal.name).collect());
                }
                Command::HandOver { name, .. } => return Need::HandOver(name),
                Command::Release { name, .. } | Command::UpdateMetadata { name, .. } => (Right::Hold, name),
                Command::Revoke { name, .. } => (Right::Operate, name),
                // Only nodes send these.
                _ => return Need::Admin,
            },
            Request::Read { query, .. } => return query.need(),
            Request::Members => return Need::Principal,
            Request::ChangeMembers(_) | Request::Transfer(_) | Request::Access | Request::ChangeAccess(_) => {
                return Need::Admin;
            }
        };
        Need::Names(right, vec![name])
    }

    pub(in crate::node) fn lane(&self) -> Lane {
        match self {
            Request::Change(command) if Class::of(command) == Class::Urgent => Lane::Urgent,
            _ => Lane::Request,
        }
    }

    pub(crate) fn is_change(&self) -> bool {
        !matches!(self, Request::Read { .. } | Request::Members | Request::Access)
    }

    /// Whether the leader may transfer its leadership before it answers.
    fn may_transfer(&self) -> bool {
        matches!(self, Request::ChangeMembers(_) | Request::Transfer(_))
    }

    pub(in crate::node) fn wait(&self) -> Duration {
        match self {
            Request::Acquire(acquire) => Duration::from_millis(acquire.wait_ms.unwrap_or_default()),
            _ => Duration::ZERO,
        }
    }

    /// Clones the request for an attempt that starts now, with the remaining wait. When it is over, a claim that may be in
    /// the queue goes without a wait: a wait of 0 would end that of another request of its holder. Until the end of the
    /// wait in cluster time, a hand-over with `to` can then still reach its waiter.
    fn clone_with_remaining_wait(&self, arrived: Instant, may_be_queued: bool) -> Request {
        let mut request = self.clone();
        if let Request::Acquire(acquire) = &mut request
            && let Some(wait_ms) = &mut acquire.wait_ms
        {
            *wait_ms = wait_ms.saturating_sub(arrived.elapsed().as_millis() as u64);
            if *wait_ms == 0 && may_be_queued {
                acquire.wait_ms = None;
            }
        }
        request
    }
}
