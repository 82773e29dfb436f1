//! The start of a node in three stages. Each stage consumes the value of the one before.
//!
//! 1. [`open`]: the parts of the node, and the vote lease in the file `PROMISE`.
//! 2. [`OpenNode::restore`]: the quarantine, Raft with its replica, and the disks of the members.
//! 3. [`RestoredNode::serve`]: the peer listener, the tasks, and requests.
//!
//! The parts come from the data directory or from the simulation.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::DropGuard;

use crate::clock::{Clock, SystemClock};
use crate::config::{BackupSchedule, LeaseSettings, MemberConfig, Problems, RaftTimings, TtlPolicy};
use crate::lease::WaiterId;
use crate::node::backup::Backups;
use crate::node::leader::LeaderClock;
use crate::node::lifecycle::shutdown::Lifecycle;
use crate::node::lifecycle::vote_lease;
use crate::node::membership::join::{self, MemberRegistry};
use crate::node::metrics::TransitionCounters;
use crate::node::request::call::NodeService;
use crate::node::request::propose::{JobReceiver, Proposer};
use crate::node::request::wait::WaitRegistry;
use crate::node::watch::EventLog;
use crate::node::{Node, NodeCore, NodeSettings, Requests, Timeouts};
use crate::peer::{self, Incarnations, PeerIdentity, PeerListener, Services, TcpTransport, Transport};
use crate::raft::{ApplyObserver, FeatureLevel, RaftHandle, Replica, blocking};
use crate::storage::{self, DirectoryFiles, DiskStorage, Files, Opened, Storage, StorageError, measure_fsync};
use crate::time::{self, inherit_time};
use crate::tls::{NodeTls, TlsError};
use crate::types::NodeId;

/// Number of disk syncs that a start times.
const FSYNC_SAMPLES: usize = 20;
/// A start times no further sync after this time.
const FSYNC_LONGEST: Duration = Duration::from_secs(5);
/// A change that is not committed within this time has an unknown outcome.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The checked settings of a node.
#[derive(Clone, Debug)]
pub(crate) struct NodeConfig {
    pub cluster: String,
    pub id: NodeId,
    /// All members that form the cluster, including this node.
    pub members: Vec<MemberConfig>,
    /// This node joins an existing cluster: it never forms one.
    pub join: bool,
    pub data: PathBuf,
    pub raft: RaftTimings,
    pub lease: LeaseSettings,
    /// The ttls that this node accepts in requests.
    pub ttl: TtlPolicy,
    /// Whether members may have addresses that other machines reach.
    pub may_be_reached: bool,
    /// The schedule of backups, if there is one.
    pub backup: Option<BackupSchedule>,
    /// The highest feature level that this node supports. Lower in tests with members of two releases.
    pub feature_level: FeatureLevel,
}

/// An error that prevents a node from starting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// All invalid settings. The node has bound and opened nothing.
    #[error("a node cannot start with these settings:\n{0}")]
    Invalid(Problems),
    /// The node cannot bind its peer address.
    #[error("cannot listen for other nodes on {address}")]
    Listen {
        /// The peer address.
        address: String,
        /// The error.
        source: std::io::Error,
    },
    /// The node cannot open its data directory.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The certificates cannot be used.
    #[error("cannot use TLS")]
    Tls(#[from] TlsError),
    /// A peer refuses this node.
    #[error(transparent)]
    Refused(#[from] peer::PeerRefusal),
    /// Raft cannot restore its state from the store.
    #[error("cannot restore Raft")]
    Raft(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The file `PROMISE` is damaged.
    #[error(
        "the file PROMISE in the data directory is damaged: remove it after the node has been down for longer than any \
         leadership lease it was configured with"
    )]
    VoteLease(#[source] std::io::Error),
}

/// The parts of a node that its environment supplies: the system, or the simulation.
pub(crate) struct NodeParts<S: Storage, T: Transport> {
    pub storage: S,
    pub transport: T,
    /// The identity and the registry of the transport.
    pub identity: PeerIdentity,
    pub known: Arc<MemberRegistry>,
    /// No node has started on this data directory before.
    pub is_new: bool,
    /// The files in the data directory outside the store.
    pub files: Arc<dyn Files>,
    pub clock: Arc<dyn Clock>,
    /// The observers of applied entries outside the node.
    pub observers: Vec<Arc<dyn ApplyObserver>>,
    /// The certificates, to keep them current.
    pub tls: Option<NodeTls>,
}

impl NodeConfig {
    fn peers(&self) -> impl Iterator<Item = (NodeId, &str)> {
        self.members.iter().map(|member| (member.id, member.peer.as_str()))
    }

    /// The identity of this node with this data directory.
    pub(crate) fn identity(&self, incarnation: u64) -> PeerIdentity {
        let vote_lease = self.raft.leadership_lease();
        PeerIdentity { cluster: self.cluster.clone(), node: self.id, incarnation, vote_lease }
    }
}

impl NodeParts<DiskStorage, TcpTransport> {
    /// Opens the data directory, or creates it.
    pub(in crate::node) async fn on_disk(config: &NodeConfig, tls: Option<NodeTls>) -> Result<Self, StartError> {
        let own = config.clone();
        let opened = tokio::task::spawn_blocking(move || open_store(&own)).await;
        let Opened { storage, is_new, incarnation } = opened.expect("opening the store does not panic")?;
        let (identity, known) = (config.identity(incarnation), Arc::new(MemberRegistry::default()));
        Ok(NodeParts {
            storage,
            transport: TcpTransport::new(identity.clone(), known.clone(), tls.clone()),
            identity,
            known,
            is_new,
            files: Arc::new(DirectoryFiles(config.data.clone())),
            clock: Arc::new(SystemClock),
            observers: Vec::new(),
            tls,
        })
    }
}

impl<S: Storage, T: Transport> Node<S, T> {
    /// Starts a node from its parts.
    ///
    /// A failed start returns its error after all resources are released. A dropped start releases them in the
    /// background.
    pub(crate) async fn start<L: PeerListener>(
        config: NodeConfig,
        parts: NodeParts<S, T>,
        listener: L,
    ) -> Result<Node<S, T>, StartError> {
        let (lifecycle, owner) = Lifecycle::begin(parts.storage.clone(), parts.transport.clone());
        let ended = lifecycle.ended.clone();
        let started = async {
            let restored = async { open(config, parts, lifecycle, owner).await?.restore().await };
            listener.closed_during(restored).await?.serve(listener).await
        };
        let started = started.await;
        if started.is_err() {
            ended.cancelled().await;
        }
        started
    }
}

/// A node whose data directory is open. It takes part in nothing yet.
struct OpenNode<S: Storage, T: Transport> {
    config: NodeConfig,
    parts: NodeParts<S, T>,
    lifecycle: Lifecycle<S>,
    owner: DropGuard,
    /// The longest vote lease that this node may have given before this start.
    vote_lease_left: Duration,
}

/// A node with the state of its store. It does not answer other nodes yet, and Raft does not run.
struct RestoredNode<S: Storage, T: Transport> {
    config: NodeConfig,
    identity: PeerIdentity,
    known: Arc<MemberRegistry>,
    files: Arc<dyn Files>,
    inner: Arc<NodeCore<S, T>>,
    jobs: JobReceiver,
    left: mpsc::UnboundedReceiver<WaiterId>,
    owner: DropGuard,
}

/// Stage 1: records the vote lease that this node will give.
async fn open<S: Storage, T: Transport>(
    config: NodeConfig,
    parts: NodeParts<S, T>,
    lifecycle: Lifecycle<S>,
    owner: DropGuard,
) -> Result<OpenNode<S, T>, StartError> {
    let (files, vote_lease) = (parts.files.clone(), parts.identity.vote_lease);
    let exchanged = blocking::<S, _>(move || vote_lease::exchange(&*files, vote_lease)).await;
    let vote_lease_left = exchanged.map_err(|error| vote_lease_error(&config, error))?;
    Ok(OpenNode { config, parts, lifecycle, owner, vote_lease_left })
}

fn vote_lease_error(config: &NodeConfig, error: io::Error) -> StartError {
    match error.kind() {
        io::ErrorKind::InvalidData => StartError::VoteLease(error),
        _ => StorageError::io("read or write", config.data.join(vote_lease::FILE), &error).into(),
    }
}

impl<S: Storage, T: Transport> OpenNode<S, T> {
    /// Stage 2: waits until earlier vote leases are over, and restores the state from the store.
    async fn restore(self) -> Result<RestoredNode<S, T>, StartError> {
        let OpenNode { config, parts, lifecycle, owner, vote_lease_left } = self;
        let NodeParts { storage, transport, identity, known, is_new, files, clock, observers, tls } = parts;
        if !is_new {
            // Before the restart, this node may have promised a leader not to vote for another one. The vote lease is only
            // in memory, so it is lost and may still be in force.
            time::sleep(config.raft.by_any_clock(vote_lease_left)).await;
        }
        if storage.is_empty()
            && let Some(refusal) = join::ask(&transport, config.id, config.peers()).await
        {
            return Err(refusal.into());
        }
        if let Some(tls) = &tls {
            lifecycle.spawn(tls.clone().keep_current());
        }
        let (waits, left) = WaitRegistry::new();
        let events = Arc::new(EventLog::new(lifecycle.stop.clone()));
        let own: [Arc<dyn ApplyObserver>; 3] = [Arc::new(TransitionCounters::new()), waits.clone(), events.clone()];
        let replica = Replica::new(own.into_iter().chain(observers).collect(), config.feature_level);
        let raft = RaftHandle::build(
            config.id,
            &config.cluster,
            config.raft,
            storage.clone(),
            transport.clone(),
            replica.clone(),
            clock.clone(),
        );
        let raft = Arc::new(raft.await.map_err(StartError::Raft)?);
        let is_first = lifecycle.raft.set(raft.clone()).is_ok();
        assert!(is_first, "a lifecycle has one Raft");
        known.load(replica, raft.joined_in_log().await.map_err(StartError::Raft)?);
        known.observe(config.id, identity.incarnation);
        let (proposer, jobs) = Proposer::new();
        let inner = NodeCore {
            settings: NodeSettings::new(&config),
            raft,
            storage,
            transport,
            requests: Requests {
                clock: LeaderClock::new(clock),
                proposer,
                waits,
                local_waits: Arc::default(),
                events,
                access_changes: Default::default(),
                leader_level: Default::default(),
            },
            backups: Backups::default(),
            contacts: Default::default(),
            disks: Default::default(),
            leader_changes: Default::default(),
            lifecycle,
            tls,
        };
        let inner = Arc::new(inner);
        Ok(RestoredNode { config, identity, known, files, inner, jobs, left, owner })
    }
}

impl<S: Storage, T: Transport> RestoredNode<S, T> {
    /// Stage 3: answers other nodes, runs Raft and the tasks, and accepts requests.
    async fn serve(self, listener: impl PeerListener) -> Result<Node<S, T>, StartError> {
        let RestoredNode { config, identity, known, files, inner, jobs, left, owner } = self;
        let (incarnation, vote_lease) = (identity.incarnation, identity.vote_lease);
        inner.begin(&config, jobs, left, known.clone());
        let services = Services { raft: inner.raft.service(), node: NodeService(inner.clone()) };
        let serve = listener.serve(identity, known.clone(), services, inner.lifecycle.stop.clone());
        inner.lifecycle.tasks.spawn(inherit_time(serve));
        inner.raft.run();
        if !config.join {
            inner.lifecycle.spawn(inner.clone().form(config.members.clone()));
        }
        inner.lifecycle.spawn(inner.clone().keep_feature_level());
        inner.lifecycle.spawn(inner.clone().join(known, incarnation, config.members.clone()));
        let renewed = blocking::<S, _>(move || vote_lease::renew(&*files, vote_lease)).await;
        renewed.map_err(|error| vote_lease_error(&config, error))?;
        Ok(Node { inner, owner: Some(Arc::new(owner)) })
    }
}

impl NodeSettings {
    fn new(config: &NodeConfig) -> NodeSettings {
        let lease = config.raft.leadership_lease();
        let (request, leaderless, transfer_leadership) = (REQUEST_TIMEOUT.max(lease * 3), lease * 4, lease * 2);
        let timeouts = Timeouts { request, leaderless, transfer_leadership };
        let NodeConfig { id, ttl, may_be_reached, feature_level, .. } = *config;
        NodeSettings { id, cluster: config.cluster.clone(), ttl, may_be_reached, feature_level, timeouts }
    }
}

/// Opens the store, and warns if its disk is too slow for the timings.
fn open_store(config: &NodeConfig) -> Result<Opened, StorageError> {
    let owner = storage::Identity { cluster: config.cluster.clone(), node: config.id };
    let opened = DiskStorage::open_or_create(&config.data, owner)?;
    let measured = measure_fsync(&config.data, FSYNC_SAMPLES, FSYNC_LONGEST);
    if let Some((slow, bound)) = measured.ok().and_then(|syncs| slow_syncs(&syncs, &config.raft)) {
        tracing::warn!(
            fsync_p90 = ?slow, bound = ?bound,
            "this disk is slow for the timings: expect needless elections; choose longer timings in [raft]"
        );
    }
    Ok(opened)
}

/// The 90th percentile of syncs in ascending order, and its bound, if it is above the bound.
fn slow_syncs(syncs: &[Duration], timings: &RaftTimings) -> Option<(Duration, Duration)> {
    // A follower syncs its disk before it acknowledges a heartbeat. The acknowledgement times out after one interval.
    let bound = Duration::from_millis(timings.heartbeat_interval_ms) / 2;
    let slow = syncs[syncs.len() * 9 / 10];
    (slow > bound).then_some((slow, bound))
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::node::NodeFailure;
    use crate::testing::Cluster;

    /// A directory has the place of the file, so that it cannot be written.
    #[tokio::test]
    async fn start_that_cannot_write_its_promise_names_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let start = async || {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let node = Node::builder("test").id(1).member(1, "127.0.0.1:1", "127.0.0.1:2").data(folder.path());
            node.peer_listener(listener).start().await
        };
        start().await.expect("the first start").shutdown().await;
        std::fs::create_dir(folder.path().join("PROMISE.new")).expect("created");
        let failed = start().await.err().expect("the file cannot be written").to_string();
        let expected = format!("could not read or write {}: ", folder.path().join("PROMISE").display());
        assert!(failed.starts_with(&expected), "{failed}");
        assert!(failed.ends_with("then start the node again; nothing acknowledged is lost"), "{failed}");
    }

    #[test]
    fn disk_is_slow_if_more_than_a_tenth_of_its_syncs_take_half_a_heartbeat_interval() {
        let timings = RaftTimings { heartbeat_interval_ms: 80, ..RaftTimings::lan() };
        let [fast, bound, slow] = [1, 40, 41].map(Duration::from_millis);
        let all = |count: usize, longest: Duration| [vec![fast; 20 - count], vec![longest; count]].concat();
        assert_eq!(slow_syncs(&all(2, slow), &timings), Some((slow, bound)));
        assert_eq!(slow_syncs(&all(2, bound), &timings), None);
        assert_eq!(slow_syncs(&all(1, slow), &timings), None);
        assert_eq!(slow_syncs(&[slow], &timings), Some((slow, bound)));
    }

    #[tokio::test(start_paused = true)]
    async fn raft_panic_fails_the_node() {
        let cluster = Cluster::start(1, RaftTimings::lan(), LeaseSettings::default()).await;
        cluster.leader().await;
        let node = cluster.node(1);
        assert_eq!(node.health().failed, None);
        let _ = node.raft().raft().external_request(|_| panic!("planted by a test")).await;
        let noticed = tokio::time::timeout(Duration::from_secs(1), node.wait_failed()).await;
        assert!(matches!(noticed.expect("the node fails"), NodeFailure::Raft(why) if why.contains("panicked")));
        assert!(node.health().failed.is_some(), "the failure is permanent");
    }

    #[tokio::test(start_paused = true)]
    async fn first_failure_is_kept() {
        let cluster = Cluster::start(1, RaftTimings::lan(), LeaseSettings::default()).await;
        let node = cluster.node(1);
        let lasted = Duration::from_secs(30);
        node.inner.lifecycle.fail(NodeFailure::DiskStalled(lasted));
        node.inner.lifecycle.fail(NodeFailure::Raft("later".to_owned()));
        assert_eq!(node.wait_failed().await, NodeFailure::DiskStalled(lasted));
        assert_eq!(node.health().failed.as_deref(), Some("the disk has not finished a write for 30s"));
    }
}
