//! What any node can be asked, and what it answers: the same types in process, from the HTTP listener and over the
//! peer connection to the leader. They travel between nodes of different builds: fields of a variant are frozen, and
//! a new variant goes at the end.

mod batch;
mod execute;
pub(in crate::node) mod local_waits;
pub(in crate::node) mod propose;
pub(in crate::node) mod queue;
pub(in crate::node) mod read;
pub(crate) mod route;
pub(in crate::node) mod wait;

use serde::{Deserialize, Serialize};

use crate::lease::{Acquire, Command, Explanation, Lease, ListCursor, ListFilter, Outcome, Transition, Waiter};
use crate::node::status::Member;
use crate::types::{ClusterMs, HolderId, LeaseName, NodeId};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Claim a lease. With `wait_ms` the answer comes when it is granted or the wait ends.
    Acquire(Acquire),
    /// Any other change.
    Change(Command),
    Read {
        query: Query,
        consistency: Consistency,
    },
    /// What the leader knows of the members: how far each is behind, and when it was heard from.
    Members,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Query {
    Lease(LeaseName),
    History(LeaseName),
    Queue(LeaseName),
    Explain { name: LeaseName, holder: Option<HolderId> },
    List { filter: ListFilter, after: Option<ListCursor>, limit: u32 },
}

/// How current a read must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Consistency {
    /// From the leader's memory while its leadership lease is fresh, otherwise like `Linearizable`.
    #[default]
    Leader,
    /// Confirmed by a round trip to a majority.
    Linearizable,
    /// From the memory of the node asked, however old; the answer says how old.
    Stale,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Response {
    pub answer: Answer,
    pub served: Served,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    Outcome(Outcome),
    /// The wait of an acquire ended without a grant.
    WaitTimeout,
    /// The waiter was dropped from the queue by a revoke of its place or because nobody asked for it.
    WaitAbandoned,
    /// A plain lease's one entry, a counted lease's holders, ended ones while remembered; empty: not found. More holders
    /// than one answer has are the first page of a `List`.
    Lease(Vec<Lease>),
    History(Vec<Transition>),
    Queue(Vec<Waiter>),
    Explain(Explanation),
    List {
        leases: Vec<Lease>,
        next: Option<ListCursor>,
    },
    Members(Vec<Member>),
    /// The first in a queue of `total`, where that is more than one answer has.
    QueuePart {
        waiters: Vec<Waiter>,
        total: u32,
    },
    /// An explanation with the first of so many holders.
    ExplainPart {
        explanation: Explanation,
        holders: u32,
    },
}

/// Who answered, and from what state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    pub node: NodeId,
    pub term: u64,
    /// Log index that the answer reflects.
    pub applied: u64,
    /// Cluster time at the answer, by the answering node's clock. `deadline - now` is what `expires_in_ms` says.
    pub now: ClusterMs,
    /// For a stale read: milliseconds since this node last heard from the leader or, on the leader, since it sent what a
    /// majority last acknowledged; `None` if it never did.
    pub stale_ms: Option<u64>,
}

/// Why a request has no answer. Every one of them says whether it may have happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum RequestError {
    /// Certainly not done.
    #[error("no leader is known; try again")]
    NoLeader,
    /// Certainly not done; only when the caller asked not to forward.
    #[error("this node is not the leader; node {leader} is")]
    NotLeader { leader: NodeId, http: String },
    /// Certainly not done: the node has as many requests as it takes.
    #[error("the node has as many requests in hand as it takes; try again")]
    Busy,
    /// Certainly not done, and final: more than one log entry takes.
    #[error("the request is larger than a log entry may be")]
    TooLarge,
    /// Certainly not done, and final: the leader's build does not know this request.
    #[error("{0}")]
    Unreadable(String),
    /// Certainly not done: the node is going down.
    #[error("the node is shutting down")]
    ShuttingDown,
    /// It may have been done or may be done yet. Sending it again is safe.
    #[error("the outcome is unknown: {0}")]
    Unknown(String),
    /// Certainly nothing was done, and final: the answer to a read is larger than nodes send to each other.
    #[error("the answer is too large: {0}")]
    AnswerTooLarge(String),
}
