//! A node: one member of the cluster, for the server and for programs that embed one.
//!
//! [`Node::builder`] starts a node. A program uses its leases with [`Node::leases`], serves its HTTP API with
//! [`Node::router`] or [`http`](crate::http), and reads its state with [`Node::status`] and [`Node::health`].
//! [`Node::watch`] delivers the events of leases. A node forwards requests to the leader if another node leads.
//!
//! After [`Node::shutdown`], and soon after the last handle is dropped, no task, thread or open file of the node is
//! left.
//!
//! A node belongs to the program that starts it. It installs no signal handler, no subscriber and no exporter. It keeps
//! no state in statics, so several nodes can run in one process.

mod backup;
mod builder;
mod failover;
mod health;
mod leader;
mod lifecycle;
mod membership;
mod metrics;
#[allow(missing_docs, reason = "public for tests only")]
pub(crate) mod request;
mod status;
#[cfg(all(test, feature = "testing", feature = "tls"))]
mod tests;
mod watch;

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio_util::sync::DropGuard;

use crate::access::{Access, Caller, Need};
use crate::config::TtlPolicy;
use crate::peer::{TcpTransport, Transport};
use crate::raft::{FeatureLevel, RaftHandle};
use crate::storage::{DiskStorage, Storage};
use crate::tls::NodeTls;
use crate::types::NodeId;

pub use crate::peer::PeerRefusal;
pub use crate::service::Local;
pub use crate::storage::StorageError;
pub use crate::types::{Consistency, Role};
pub use builder::NodeBuilder;
pub use health::{Health, NodeFailure};
pub use lifecycle::start::StartError;
#[cfg(feature = "testing")]
pub(crate) use lifecycle::start::{NodeConfig, NodeParts};
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use lifecycle::vote_lease::exchange as exchange_vote_lease;
#[cfg(not(feature = "testing"))]
pub(crate) use membership::MemberRefusal;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use membership::MemberRefusal;
#[cfg(feature = "testing")]
pub(crate) use membership::join::MemberRegistry;
pub use metrics::describe_metrics;
#[cfg(feature = "testing")]
pub(crate) use request::read::look_up;
pub use status::{ClusterStatus, LeaderChange, MemberStatus};

#[cfg(feature = "testing")]
#[doc(hidden)]
pub use request::route::Forward;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use request::{Answer, Query, Request, RequestError, Response, Served};
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use watch::{Compacted, Watch, WatchEnd, WatchPosition};

#[cfg(not(feature = "testing"))]
pub(crate) use request::route::Forward;
#[cfg(not(feature = "testing"))]
pub(crate) use request::{Answer, Query, Request, RequestError, Response, Served};
#[cfg(not(feature = "testing"))]
pub(crate) use watch::{Compacted, Watch, WatchEnd, WatchPosition};

use backup::Backups;
use leader::LeaderClock;
use lifecycle::shutdown::Lifecycle;
use request::propose::Proposer;
use request::wait::{LocalWaits, WaitRegistry};
use watch::EventLog;

/// A handle of a running node. Clones are handles of the same node.
///
/// The node runs until [`shutdown`](Node::shutdown), or until its last handle is dropped. In the latter case it stops
/// in the background and closes its files, and the other nodes elect a leader as after a crash. Until its files are
/// closed, a start with the same directory fails with the error that the directory is in use. A [`WeakNode`] does not
/// keep a node alive, and neither do the routers and listeners of [`http`](crate::http).
///
/// # Examples
///
/// ```no_run
/// use tenure::node::Node;
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
pub struct Node<S: Storage = DiskStorage, T: Transport = TcpTransport> {
    pub(crate) inner: Arc<NodeCore<S, T>>,
    /// Keeps the node alive. The node's tasks hold only `inner`, so they do not keep the node alive. `None` in a handle
    /// from [`WeakNode::upgrade_for_request`].
    owner: Option<Arc<DropGuard>>,
}

/// A handle that does not keep its node alive. See [`Node::downgrade`].
pub struct WeakNode<S: Storage = DiskStorage, T: Transport = TcpTransport> {
    inner: Weak<NodeCore<S, T>>,
    owner: Weak<DropGuard>,
}

pub(crate) struct NodeCore<S: Storage, T: Transport> {
    settings: NodeSettings,
    raft: Arc<RaftHandle<S>>,
    storage: S,
    transport: T,
    pub(crate) requests: Requests,
    backups: Backups,
    contacts: status::Contacts,
    disks: status::Disks,
    leader_changes: status::LeaderChanges,
    lifecycle: Lifecycle<S>,
    tls: Option<NodeTls>,
}

struct NodeSettings {
    id: NodeId,
    cluster: String,
    /// The ttls that this node accepts in requests.
    ttl: TtlPolicy,
    may_be_reached: bool,
    /// The highest level that this node supports.
    feature_level: FeatureLevel,
    timeouts: Timeouts,
}

/// The requests in progress, and the events that they cause.
pub(crate) struct Requests {
    clock: LeaderClock,
    proposer: Proposer,
    waits: Arc<WaitRegistry>,
    pub(crate) local_waits: Arc<LocalWaits>,
    events: Arc<EventLog>,
    /// Held while the leader changes access control.
    access_changes: Arc<tokio::sync::Mutex<()>>,
    /// The feature level that the leader of a term supports. See
    /// [`forward_level`](NodeCore::forward_level).
    leader_level: parking_lot::Mutex<Option<((NodeId, u64), FeatureLevel)>>,
}

#[derive(Clone, Copy, Debug)]
struct Timeouts {
    /// A change that is not committed within this time has an unknown outcome.
    request: Duration,
    /// The node refuses a request after it has known no leader for this time.
    leaderless: Duration,
    /// Longest wait for another node to take over the leadership.
    transfer_leadership: Duration,
}

impl<S: Storage, T: Transport> Node<S, T> {
    /// Returns the member id of this node.
    pub fn id(&self) -> NodeId {
        self.inner.settings.id
    }

    /// Returns the name of the cluster.
    pub fn cluster_id(&self) -> &str {
        &self.inner.settings.cluster
    }

    /// Returns the ttls that this node accepts in requests.
    pub fn ttl(&self) -> TtlPolicy {
        self.inner.settings.ttl
    }

    /// Returns a handle that does not keep the node alive.
    pub fn downgrade(&self) -> WeakNode<S, T> {
        WeakNode {
            inner: Arc::downgrade(&self.inner),
            owner: self.owner.as_ref().map_or_else(Weak::new, Arc::downgrade),
        }
    }

    /// The transitions that this replica applies: those after `after`, or new ones without it. Programs use
    /// [`watch`](Node::watch) instead.
    ///
    /// # Errors
    ///
    /// `Compacted` if this node no longer keeps every transition after `after`.
    #[doc(hidden)]
    pub fn transitions(&self, after: Option<WatchPosition>) -> Result<Watch, Compacted> {
        self.inner.requests.events.watch(after)
    }

    /// The state of access control at this node.
    pub(crate) fn access_state(&self) -> Access {
        self.inner.access()
    }

    pub(crate) fn authorize(&self, caller: &Caller, need: &Need<'_>) -> Result<(), RequestError> {
        self.inner.authorize(caller, need).map(|_| ())
    }

    pub(crate) fn access_changes(&self) -> tokio::sync::watch::Receiver<Access> {
        self.inner.raft.replica().access()
    }

    #[cfg(feature = "testing")]
    pub(crate) fn raft(&self) -> &RaftHandle<S> {
        &self.inner.raft
    }

    /// Waits until the node fails permanently, and returns the failure. Never returns on a healthy node.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect on the node.
    pub async fn wait_failed(&self) -> NodeFailure {
        let mut failure = self.inner.lifecycle.failure.subscribe();
        // The borrowed value is not `Send`, so it must be cloned before the next await.
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
    /// Returns a handle that keeps the node alive, or `None` after the last such handle is dropped.
    pub fn upgrade(&self) -> Option<Node<S, T>> {
        let owner = self.owner.upgrade()?;
        let inner = self.inner.upgrade()?;
        Some(Node { inner, owner: Some(owner) })
    }

    /// Returns a handle for one request, which does not keep the node alive. A request can wait for a day. If the node
    /// stops meanwhile, the request fails.
    pub(crate) fn upgrade_for_request(&self) -> Option<Node<S, T>> {
        Some(Node { owner: None, ..self.upgrade()? })
    }
}

impl<S: Storage, T: Transport> Clone for WeakNode<S, T> {
    fn clone(&self) -> Self {
        WeakNode { inner: self.inner.clone(), owner: self.owner.clone() }
    }
}
