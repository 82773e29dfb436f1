//! Connections between the nodes of a cluster: who is at the other end, and one answer for each request.
//!
//! This module does not know Raft: bodies are bytes whose meaning is the caller's. [`Transport`] is what callers
//! see; [`TcpTransport`] is the real one. The module `sim` has a twin in memory.

mod connection;
pub(crate) mod frame;
pub(crate) mod handshake;
mod listener;
mod pool;
#[cfg(all(test, feature = "testing"))]
mod scripted;
#[cfg(all(test, feature = "testing"))]
mod tests;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::types::NodeId;

pub use handshake::{Identity, Incarnations, Refusal};
pub use listener::serve;
pub use pool::TcpTransport;

/// Each lane is a connection of its own, so that what must be quick does not queue behind what is large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Heartbeats, votes, transfers.
    Control,
    /// Log entries, one request at a time.
    Log,
    /// Snapshot chunks, one request at a time.
    Snapshot,
    /// Client requests on their way to the leader.
    Request,
    /// Those that keep or free a lease: they do not wait behind the others.
    Urgent,
}

impl Lane {
    pub const ALL: [Lane; 5] = [Lane::Control, Lane::Log, Lane::Snapshot, Lane::Request, Lane::Urgent];

    /// Largest body of a frame, in bytes.
    pub const fn max_body(self) -> usize {
        match self {
            Lane::Control => 1 << 20,
            Lane::Log | Lane::Snapshot => 4 << 20,
            Lane::Request | Lane::Urgent => 16 << 20,
        }
    }

    /// Passes a request that a frame takes.
    pub(crate) fn check_request(self, target: NodeId, body: &[u8]) -> Result<(), PeerError> {
        let (bytes, max) = (body.len(), self.max_body());
        if bytes > max { Err(PeerError::TooLarge { target, bytes, max }) } else { Ok(()) }
    }

    /// Why an answer of so many bytes cannot be sent; `None` if it can.
    pub(crate) fn refuses(self, answer: &[u8]) -> Option<String> {
        let (bytes, max) = (answer.len(), self.max_body());
        (bytes > max).then(|| format!("the answer has {bytes} bytes; at most {max} are allowed"))
    }

    /// Whether requests are answered one after the other, in order.
    pub(crate) fn in_order(self) -> bool {
        matches!(self, Lane::Log | Lane::Snapshot)
    }

    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    fn from_code(code: u8) -> Option<Lane> {
        Lane::ALL.into_iter().find(|lane| lane.code() == code)
    }
}

/// Sends one request to a node and brings its answer.
pub trait Transport: Clone + Send + Sync + 'static {
    /// Dropping the future withdraws the request, as far as it has not been carried out.
    fn call(
        &self,
        target: NodeId,
        address: &str,
        lane: Lane,
        body: Bytes,
        timeout: Duration,
    ) -> impl Future<Output = Result<Bytes, PeerError>> + Send;

    /// Closes every connection and waits until nothing of this transport runs. Calls fail from then on.
    fn shutdown(&self) -> impl Future<Output = ()> + Send;
}

/// Answers what other nodes ask.
pub trait Service: Send + Sync + 'static {
    fn serve(&self, from: NodeId, lane: Lane, body: Bytes) -> impl Future<Output = Bytes> + Send;
}

impl<S: Service> Service for Arc<S> {
    fn serve(&self, from: NodeId, lane: Lane, body: Bytes) -> impl Future<Output = Bytes> + Send {
        (**self).serve(from, lane, body)
    }
}

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// Certainly not delivered.
    #[error("node {target} at {address} cannot be reached: {reason}")]
    NotSent { target: NodeId, address: String, reason: String },
    /// Certainly not delivered: the other end is not who it should be, or will not have us.
    #[error("node {target} at {address} and this node do not belong together: {reason}")]
    Refused { target: NodeId, address: String, reason: Refusal },
    /// Certainly not delivered: it is larger than the lane takes, and would be at the next try.
    #[error("a request of {bytes} bytes to node {target}; at most {max} are allowed")]
    TooLarge { target: NodeId, bytes: usize, max: usize },
    /// It may have been carried out; its answer cannot be sent.
    #[error("node {target} has no answer that it can send: {reason}")]
    NoAnswer { target: NodeId, reason: String },
    /// It may have been delivered and carried out.
    #[error("the connection to node {target} was lost: {reason}")]
    Lost { target: NodeId, reason: String },
    /// It may have been delivered and carried out.
    #[error("node {target} did not answer within {timeout:?}")]
    Timeout { target: NodeId, timeout: Duration },
}

impl PeerError {
    /// Whether the request certainly had no effect.
    pub fn certainly_not_done(&self) -> bool {
        matches!(self, PeerError::NotSent { .. } | PeerError::Refused { .. } | PeerError::TooLarge { .. })
    }
}
