//! Connections between the nodes of a cluster. They check the identity of the peer and carry requests and answers.
//!
//! A request is a [`Payload`]: its kind selects the service that answers it, and its bytes are opaque to this module.
//! Callers use the trait [`Transport`]; [`TcpTransport`] implements it over TCP. The module `sim` has an implementation
//! in memory.

mod dial;
pub(crate) mod frame;
pub(crate) mod handshake;
mod listener;
mod outbox;
#[cfg(all(test, feature = "testing"))]
mod scripted;
#[cfg(all(test, feature = "testing"))]
mod strangers;
#[cfg(all(test, feature = "testing"))]
mod tests;
mod transport;

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::types::NodeId;

pub(crate) use dial::connect;
#[cfg(feature = "cli")]
pub(crate) use dial::connect_any;
pub use handshake::{Incarnations, PeerIdentity, PeerRefusal};
pub use listener::TcpPeerListener;
pub use transport::TcpTransport;

/// The kernel ends a connection whose other end acknowledges nothing for this time.
const MAX_SILENCE: Duration = Duration::from_secs(5);
/// Pause between the probes of an idle connection.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Sets the options of a connection. A write must not wait for the acknowledgement of an earlier one.
///
/// The kernel ends a connection after [`MAX_SILENCE`]. Otherwise a request after a partition would wait until the kernel
/// sends again, which takes as long as the partition, and a node that lost its power would occupy a connection forever.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    set_socket_keepalive(stream, true)?;
    set_tcp_keepidle(stream, PROBE_INTERVAL)?;
    set_tcp_keepintvl(stream, PROBE_INTERVAL)?;
    set_tcp_keepcnt(stream, (MAX_SILENCE.as_secs() / PROBE_INTERVAL.as_secs()) as u32 - 1)?;
    #[cfg(target_os = "linux")]
    rustix::net::sockopt::set_tcp_user_timeout(stream, MAX_SILENCE.as_millis() as u32)?;
    Ok(())
}

/// The content of a request. Its kind selects the service that decodes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// A Raft call, for the module `raft`.
    Raft(Bytes),
    /// A client's request or a question about the node, for the module `node`.
    Node(Bytes),
}

impl Payload {
    pub(crate) fn body(&self) -> &Bytes {
        match self {
            Payload::Raft(body) | Payload::Node(body) => body,
        }
    }
}

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
    pub(crate) fn check_request(self, target: NodeId, payload: &Payload) -> Result<(), PeerError> {
        let (bytes, max) = (payload.body().len(), self.max_body());
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
        payload: Payload,
        timeout: Duration,
    ) -> impl Future<Output = Result<Bytes, PeerError>> + Send;

    /// Whether a new connection to `target` is refused: its machine answers, and no process accepts connections there.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    fn is_refused(&self, target: NodeId, address: &str) -> impl Future<Output = bool> + Send;

    /// Closes every connection and waits until all tasks of this transport end. Later calls fail.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops only the wait. Call this again to wait once more.
    fn shutdown(&self) -> impl Future<Output = ()> + Send;
}

/// Serves the requests of one kind from other nodes.
pub trait Service: Send + Sync + 'static {
    /// Returns the answer to one request.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any await: the caller withdrew the request or its connection closed.
    fn serve(&self, from: NodeId, body: Bytes) -> impl Future<Output = Bytes> + Send;

    /// The other end closed the connection on which this node sent heartbeats and votes.
    fn disconnected(&self, _from: NodeId) {}
}

/// The services of a node, one for each kind of [`Payload`].
pub struct Services<R, N> {
    pub raft: R,
    pub node: N,
}

impl<R: Service, N: Service> Services<R, N> {
    pub(crate) async fn serve(&self, from: NodeId, payload: Payload) -> Bytes {
        match payload {
            Payload::Raft(body) => self.raft.serve(from, body).await,
            Payload::Node(body) => self.node.serve(from, body).await,
        }
    }

    pub(crate) fn disconnected(&self, from: NodeId) {
        self.raft.disconnected(from);
        self.node.disconnected(from);
    }
}

/// Accepts the connections of other nodes.
pub trait PeerListener: Send + Sync + 'static {
    /// Does `work`, and refuses each connection that arrives meanwhile. So the other nodes learn at once that their
    /// requests are not delivered.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`.
    fn closed_during<W: Future<Output: Send> + Send>(&self, work: W) -> impl Future<Output = W::Output> + Send;

    /// Serves callers until `stop`. Then it closes every connection and returns after all of its tasks have ended.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the listener. Open connections continue until `stop`.
    fn serve<R: Service, N: Service>(
        self,
        identity: PeerIdentity,
        incarnations: Arc<dyn Incarnations>,
        services: Services<R, N>,
        stop: CancellationToken,
    ) -> impl Future<Output = ()> + Send;
}

/// The reason why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// The request was not delivered.
    #[error("node {target} at {address} cannot be reached: {reason}")]
    NotSent { target: NodeId, address: String, reason: String },
    /// The request was not delivered: one of the two nodes refused the connection.
    #[error("node {target} at {address} and this node cannot connect: {reason}")]
    Refused { target: NodeId, address: String, reason: PeerRefusal },
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
