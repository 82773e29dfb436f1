//! The requests of clients and their answers, with the true time of each.

use std::time::Duration;

use tenure::token::FencingToken;
use tenure::types::{HolderId, LeaseName};

/// One request to the cluster.
#[derive(Clone, Debug)]
pub struct Operation {
    pub by: HolderId,
    pub name: LeaseName,
    pub what: RequestKind,
    pub invoked: Duration,
    /// When the answer arrived. For a request without an answer: when the client gave up.
    pub returned: Option<Duration>,
    pub ended: Ended,
    /// The answer shows the state up to this log index.
    pub index: Option<u64>,
}

impl Operation {
    /// The token that an acquire got.
    pub fn granted(&self) -> Option<FencingToken> {
        match (&self.what, &self.ended) {
            (RequestKind::Acquire { .. }, Ended::Held(token, _)) => Some(*token),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestKind {
    Acquire {
        /// `None`: infinite.
        ttl_ms: Option<u64>,
        limit: u32,
        /// The longest wait in the queue. `None`: the request does not wait. 0 if it is not known.
        wait_ms: Option<u64>,
        lock_delay_ms: u64,
    },
    Renew {
        token: FencingToken,
    },
    Release {
        token: FencingToken,
    },
    HandOver {
        token: FencingToken,
        /// The waiter that the holder chose.
        to: Option<HolderId>,
    },
    /// Replaces the metadata of this version by one that only this request has.
    UpdateMetadata {
        token: FencingToken,
        version: u64,
        tag: String,
    },
    Revoke,
    /// `leader` or `linearizable`.
    Read,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Held, with this token and ttl.
    Held(FencingToken, Option<u64>),
    /// Released or not, revoked or not.
    Changed(bool),
    /// The holders of the lease, at this log index.
    Saw(Vec<(String, FencingToken)>, u64),
    /// A read of something else: only its log index counts.
    Showed,
    /// The metadata and their version, after an update.
    Updated {
        version: u64,
        tag: String,
    },
    /// The request was certainly not applied.
    Refused(String),
    Unknown,
}

#[derive(Default)]
pub struct History {
    pub operations: Vec<Operation>,
    pub beliefs: Vec<Belief>,
    pub ages: Vec<StateAge>,
    /// No fault happens after this time.
    pub calm: Option<Duration>,
}

/// An age that a node gave for its own state.
#[derive(Clone, Debug)]
pub struct StateAge {
    pub node: u64,
    /// When the node was asked, in true time. It answered later.
    pub asked: Duration,
    /// In time of the node's clock.
    pub age: Duration,
    /// The state has the log up to this index.
    pub index: u64,
}

/// A period in which a client believed to hold a lease.
#[derive(Clone, Debug)]
pub struct Belief {
    pub by: HolderId,
    pub name: LeaseName,
    pub token: FencingToken,
    pub from: Duration,
    pub until: Duration,
}

impl History {
    /// Records a request. [`History::end`] records its outcome.
    pub fn begin(&mut self, by: &HolderId, name: &LeaseName, what: RequestKind, now: Duration) -> usize {
        let (by, name) = (by.clone(), name.clone());
        self.operations.push(Operation {
            by,
            name,
            what,
            invoked: now,
            returned: None,
            ended: Ended::Unknown,
            index: None,
        });
        self.operations.len() - 1
    }

    pub fn end(&mut self, operation: usize, ended: Ended, now: Duration) {
        let operation = &mut self.operations[operation];
        operation.returned = Some(now);
        operation.ended = ended;
    }
}
