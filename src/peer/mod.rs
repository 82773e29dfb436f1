//! Connections between the nodes of a cluster. They check the identity of the peer and carry requests and answers.
//!
//! This module does not know Raft: bodies are opaque bytes. Callers use the trait [`Transport`]; [`TcpTransport`]
//! implements it over TCP. The module `sim` has an implementation in memory.

mod connection;
pub(crate) mod frame;
pub(crate) mod handshake;
mod listener;
mod pool;
#[cfg(all(test, feature = "testing"))]
mod scripted;
#[cfg(all(test, feature = "testing"))]
mod strangers;
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

/// A class of requests. Each lane has a separate connection, so that urgent messages do not queue behind large ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Heartbeats, votes, transfers.
    Control,
    /// Log entries, one request at a time.
    Log,
    /// Snapshot chunks, one request at a time.
    Snapshot,
    /// Client requests that a node forwards to the leader.
    Request,
    /// Client requests that keep or free a lease. They do not wait behind other client requests.
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

    /// Fails if the body exceeds [`max_body`](Lane::max_body).
    pub(crate) fn check_request(self, target: NodeId, body: &[u8]) -> Result<(), PeerError> {
        let (bytes, max) = (body.len(), self.max_body());
        if bytes > max { Err(PeerError::TooLarge { target, bytes, max }) } else { Ok(()) }
    }

    /// The reason why this answer is too large for the lane; `None` if it fits.
    pub(crate) fn refuses(self, answer: &[u8]) -> Option<String> {
        let (bytes, max) = (answer.len(), self.max_body());
        (bytes > max).then(|| format!("the answer has {bytes} bytes; at most {max} are allowed"))
    }

    /// Whether the answering node serves one request at a time, in order.
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

/// Sends requests to other nodes and returns their answers.
pub trait Transport: Clone + Send + Sync + 'static {
    /// Sends one request to `target` and waits for its answer.
    ///
    /// # Errors
    ///
    /// See [`PeerError`]. [`PeerError::certainly_not_done`] tells whether the request may have had an effect.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future asks the target to cancel the request. The request may still have an effect.
    fn call(
        &self,
        target: NodeId,
        address: &str,
        lane: Lane,
        body: Bytes,
        timeout: Duration,
    ) -> impl Future<Output = Result<Bytes, PeerError>> + Send;

    /// Closes every connection and waits until all tasks of this transport end. Later calls fail.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops only the wait. Call this again to wait once more.
    fn shutdown(&self) -> impl Future<Output = ()> + Send;
}

/// Serves the requests of other nodes.
pub trait Service: Send + Sync + 'static {
    /// Returns the answer to one request.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any await: the caller withdrew the request or its connection closed.
    fn serve(&self, from: NodeId, lane: Lane, body: Bytes) -> impl Future<Output = Bytes> + Send;
}

impl<S: Service> Service for Arc<S> {
    fn serve(&self, from: NodeId, lane: Lane, body: Bytes) -> impl Future<Output = Bytes> + Send {
        (**self).serve(from, lane, body)
    }
}

/// The reason why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// The request was not delivered.
    #[error("node {target} at {address} cannot be reached: {reason}")]
    NotSent { target: NodeId, address: String, reason: String },
    /// The request was not delivered: one of the two nodes refused the connection.
    #[error("node {target} at {address} and this node cannot connect: {reason}")]
    Refused { target: NodeId, address: String, reason: Refusal },
    /// The request was not delivered: it exceeds the limit of the lane. A retry would fail, too.
    #[error("the request to node {target} has {bytes} bytes: at most {max} are allowed")]
    TooLarge { target: NodeId, bytes: usize, max: usize },
    /// The request may have been carried out. The target cannot send the answer.
    #[error("node {target} cannot send its answer: {reason}")]
    NoAnswer { target: NodeId, reason: String },
    /// The request may have been delivered and carried out.
    #[error("the connection to node {target} was lost: {reason}")]
    Lost { target: NodeId, reason: String },
    /// The request may have been delivered and carried out.
    #[error("node {target} did not answer within {timeout:?}")]
    Timeout { target: NodeId, timeout: Duration },
}

impl PeerError {
    /// Whether the request certainly had no effect.
    pub fn certainly_not_done(&self) -> bool {
        matches!(self, PeerError::NotSent { .. } | PeerError::Refused { .. } | PeerError::TooLarge { .. })
    }
}
