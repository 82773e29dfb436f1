//! A node: one member of the cluster, for the server and for programs that embed one.
//!
//! It takes requests ([`Request`]), passes them to the leader when it is not the leader itself, and tells what it
//! knows of the cluster. Everything it starts it also ends: after [`Node::shutdown`], and soon after its last handle was
//! dropped, no task, thread or file of it is left.
//!
//! A node belongs to the program that starts it. It installs no signal handler, no subscriber and no exporter, and keeps
//! nothing in statics: several nodes can run in one process.

mod builder;
mod contact;
mod health;
mod leader_term;
mod lifecycle;
mod membership;
mod metrics;
pub(crate) mod request;
mod status;
#[cfg(all(test, feature = "testing"))]
mod tests;
mod timekeeper;
mod watch;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::config::TtlPolicy;
use crate::peer::{TcpTransport, Transport};
use crate::raft::RaftHandle;
use crate::storage::{SledStorage, Storage};
use crate::types::NodeId;

pub use crate::service::Local;
pub use builder::NodeBuilder;
pub use health::{Health, NodeFailure};
pub use lifecycle::assemble::StartError;
#[cfg(feature = "testing")]
pub(crate) use lifecycle::assemble::{NodeConfig, Parts};
#[cfg(feature = "testing")]
pub use lifecycle::promise::exchange as exchange_promise;
#[cfg(feature = "testing")]
pub(crate) use membership::join::MemberRegistry;
#[cfg(feature = "testing")]
pub(crate) use request::read::look_up;
pub use request::route::Forward;
pub use request::{Answer, Consistency, Query, Request, RequestError, Response, Served};
pub use status::{ClusterStatus, Member, Role};
pub use watch::{Compacted, Watch, WatchEnd, WatchPosition};

use contact::LeaderContact;
use leader_term::LeaderClock;
use request::local_waits::LocalWaits;
use request::propose::Proposer;
use request::wait::WaitRegistry;
use watch::EventLog;

/// A running node. Clones are the same node.
///
/// It runs until [`shutdown`](Node::shutdown), or until its last clone is dropped: then everything of it ends by
/// itself, its files are closed, and the other nodes elect another leader as they would after a crash. Dropping it does
/// not wait for that; a start with the same directory is refused as in use until it is done. A [`WeakNode`] does not keep a
/// node alive, and neither do the routers and listeners of [`http`](crate::http).
///
/// ```no_run
/// use tenure::node::{Forward, Node};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let node = Node::builder("orders")
///     .id(1)
///     .member(1, "127.0.0.1:8001", "127.0.0.1:9001")
///     .member(2, "127.0.0.1:8002", "127.0.0.1:9002")
///     .member(3, "127.0.0.1:8003", "127.0.0.1:9003")
///     .data("data/1")
///     .start()
///     .await?;
/// // The API, in the program's own axum application.
/// let app = axum::Router::new().nest("/tenure", node.router());
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:8001").await?;
/// axum::serve(listener, app).await?;
/// node.shutdown().await;
/// # Ok(())
/// # }
/// ```
pub struct Node<S: Storage = SledStorage, T: Transport = TcpTransport> {
    pub(crate) inner: Arc<Inner<S, T>>,
    /// Shared by all handles and by nothing else: the node's own tasks have `inner` only, so that they do not keep it
    /// alive. A guest has none either.
    owner: Option<Arc<DropGuard>>,
}

/// A node, if it is still there. See [`Node::downgrade`].
pub struct WeakNode<S: Storage = SledStorage, T: Transport = TcpTransport> {
    inner: Weak<Inner<S, T>>,
    owner: Weak<DropGuard>,
}

pub(crate) struct Inner<S: Storage, T: Transport> {
    id: NodeId,
    cluster: String,
    ttl: TtlPolicy,
    timeouts: Timeouts,
    raft: Arc<RaftHandle<S>>,
    storage: S,
    transport: T,
    clock: LeaderClock,
    proposer: Proposer,
    waiting: Arc<WaitRegistry>,
    pub(crate) local_waits: Arc<LocalWaits>,
    history: Arc<EventLog>,
    contact: LeaderContact,
    /// New requests are refused.
    draining: AtomicBool,
    /// Ends everything.
    stop: CancellationToken,
    tasks: TaskTracker,
    /// Cancelled when nothing of the node is left.
    ended: CancellationToken,
    /// Why the node cannot go on, once it cannot.
    failure: tokio::sync::watch::Sender<Option<NodeFailure>>,
}

/// How long things may take before they are given up.
#[derive(Clone, Copy, Debug)]
struct Timeouts {
    /// A change that is not committed within this has an unknown outcome.
    request: Duration,
    /// Without a leader for this long, requests are refused.
    leaderless: Duration,
    /// For another node to take the leadership at a shutdown.
    transfer_leadership: Duration,
}

impl<S: Storage, T: Transport> Node<S, T> {
    pub fn id(&self) -> NodeId {
        self.inner.id
    }

    pub fn cluster_id(&self) -> &str {
        &self.inner.cluster
    }

    /// Which ttls requests to this node may ask for.
    pub fn ttl(&self) -> TtlPolicy {
        self.inner.ttl
    }

    /// The same node, without keeping it alive.
    pub fn downgrade(&self) -> WeakNode<S, T> {
        WeakNode {
            inner: Arc::downgrade(&self.inner),
            owner: self.owner.as_ref().map_or_else(Weak::new, Arc::downgrade),
        }
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
    pub async fn wait_failed(&self) -> NodeFailure {
        let mut failure = self.inner.failure.subscribe();
        // Taken out before anything is awaited again: what is borrowed here cannot move to another thread.
        let why = failure.wait_for(Option::is_some).await.ok().and_then(|failure| failure.clone());
        match why {
            Some(why) => why,
            None => std::future::pending().await,
        }
    }
}

impl<S: Storage, T: Transport> Clone for Node<S, T> {
    fn clone(&self) -> Self {
        Node { inner: self.inner.clone(), owner: self.owner.clone() }
    }
}

impl<S: Storage, T: Transport> WeakNode<S, T> {
    /// The node, unless its last handle was dropped.
    pub fn upgrade(&self) -> Option<Node<S, T>> {
        let owner = self.owner.upgrade()?;
        let inner = self.inner.upgrade()?;
        Some(Node { inner, owner: Some(owner) })
    }

    /// The node for somebody who asks it something: while the answer is waited for, which can take a day, the node can
    /// end, and the answer then says so.
    pub(crate) fn as_guest(&self) -> Option<Node<S, T>> {
        Some(Node { owner: None, ..self.upgrade()? })
    }
}

impl<S: Storage, T: Transport> Clone for WeakNode<S, T> {
    fn clone(&self) -> Self {
        WeakNode { inner: self.inner.clone(), owner: self.owner.clone() }
    }
}
