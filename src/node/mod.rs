//! A node: one member of the cluster, for the server and for programs that embed one.
//!
//! It takes requests ([`Request`]), passes them to the leader when it is not the leader itself, and tells what it
//! knows of the cluster. Everything it starts it also ends: after [`Node::shutdown`] no task, thread or file of it
//! is left.

mod contact;
mod health;
mod join;
mod lead;
mod leader;
mod meters;
mod promise;
mod proposer;
mod request;
mod route;
mod start;
mod status;
mod timekeeper;
mod waiting;
mod watch;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::peer::{TcpTransport, Transport};
use crate::raft::RaftHandle;
use crate::storage::{SledStorage, Storage};
use crate::types::NodeId;

pub use health::Health;
pub use request::{Answer, Consistency, Query, Request, RequestError, Response, Served};
pub use route::Forward;
#[cfg(feature = "testing")]
pub(crate) use start::Parts;
pub use start::{NodeConfig, StartError};
pub use status::{ClusterStatus, Member, Role};
pub use watch::{Compacted, Watch, WatchPosition};

use contact::Contact;
use lead::LeadClock;
use proposer::Proposer;
use waiting::Waiting;
use watch::History;

/// A running node. Clones are the same node.
pub struct Node<S: Storage = SledStorage, T: Transport = TcpTransport> {
    inner: Arc<Inner<S, T>>,
}

pub(crate) struct Inner<S: Storage, T: Transport> {
    id: NodeId,
    cluster: String,
    timeouts: Timeouts,
    raft: Arc<RaftHandle<S>>,
    storage: S,
    transport: T,
    clock: LeadClock,
    proposer: Proposer,
    waiting: Arc<Waiting>,
    history: Arc<History>,
    contact: Contact,
    /// New requests are refused.
    draining: AtomicBool,
    /// Ends everything.
    stop: CancellationToken,
    tasks: TaskTracker,
    /// Why the node cannot go on, once it cannot.
    failure: tokio::sync::watch::Sender<Option<String>>,
}

/// How long things may take before they are given up.
#[derive(Clone, Copy, Debug)]
struct Timeouts {
    /// A change that is not committed within this has an unknown outcome.
    request: Duration,
    /// Without a leader for this long, requests are refused.
    leaderless: Duration,
    /// For another node to take the leadership at a shutdown.
    hand_on: Duration,
}

impl<S: Storage, T: Transport> Node<S, T> {
    pub fn id(&self) -> NodeId {
        self.inner.id
    }

    pub fn cluster_id(&self) -> &str {
        &self.inner.cluster
    }

    /// Carries a request out, here or at the leader. Dropping the future of a waiting acquire gives up its place.
    pub async fn request(&self, request: Request, forward: Forward) -> Result<Response, RequestError> {
        self.inner.route(request, forward).await
    }

    /// Transitions as this replica applies them: behind `after`, or from now on.
    pub fn watch(&self, after: Option<WatchPosition>) -> Result<Watch, Compacted> {
        self.inner.history.watch(after)
    }

    #[cfg(feature = "testing")]
    pub(crate) fn raft(&self) -> &RaftHandle<S> {
        &self.inner.raft
    }

    /// Waits until the node cannot go on, and tells why. Pending for ever on a node that is well.
    pub async fn wait_failed(&self) -> String {
        let mut failure = self.inner.failure.subscribe();
        match failure.wait_for(Option::is_some).await {
            Ok(failure) => failure.clone().expect("waited for"),
            Err(_) => std::future::pending().await,
        }
    }
}

impl<S: Storage, T: Transport> Clone for Node<S, T> {
    fn clone(&self) -> Self {
        Node { inner: self.inner.clone() }
    }
}
