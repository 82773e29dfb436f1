//! Assembly and start of a node.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::net::TcpListener;

use crate::clock::{Clock, SystemClock};
use crate::config::{LeaseSettings, MemberConfig, Problems, RaftTimings, TtlPolicy};
use crate::node::contact::LeaderContact;
use crate::node::leader_term::LeaderClock;
use crate::node::lifecycle::promise;
use crate::node::lifecycle::shutdown::Lifecycle;
use crate::node::lifecycle::tasks::ObserverFanout;
use crate::node::membership::join::{self, MemberRegistry};
use crate::node::metrics::TransitionCounters;
use crate::node::request::propose::Proposer;
use crate::node::request::route::Forwarding;
use crate::node::request::wait::WaitRegistry;
use crate::node::watch::EventLog;
use crate::node::{Inner, Node, Timeouts};
use crate::peer::{self, Identity, Incarnations, TcpTransport, Transport};
use crate::raft::{Observer, RaftHandle, RaftService, Replica, Safeguards, blocking};
use crate::storage::{self, DirectoryFiles, Files, Opened, SledStorage, Storage, StorageError, measure_fsync};
use crate::time;
use crate::types::NodeId;

/// Number of fsync calls timed at a start, to warn about a disk that is too slow for the timings.
const FSYNC_SAMPLES: usize = 20;
/// A change that is not committed within this time has an unknown outcome.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The checked settings of a node.
#[derive(Clone, Debug)]
pub(crate) struct NodeConfig {
    pub cluster: String,
    pub id: NodeId,
    /// All members that form the cluster, including this node.
    pub members: Vec<MemberConfig>,
    pub data: PathBuf,
    pub raft: RaftTimings,
    pub lease: LeaseSettings,
    /// The ttls that this node accepts in requests.
    pub ttl: TtlPolicy,
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
    /// A peer refuses this node.
    #[error(transparent)]
    Refused(#[from] peer::Refusal),
    /// Raft cannot restore its state from the store.
    #[error("cannot restore Raft: {0}")]
    Raft(String),
    /// The node cannot read or write the file `PROMISE`.
    #[error(
        "cannot read or write the file PROMISE in the data directory. If it is damaged, remove it after the node has \
         been down for longer than any leadership lease it was configured with"
    )]
    Promise(#[source] std::io::Error),
}

impl Node {
    /// Opens the data directory and starts the node. See [`NodeBuilder::start`](crate::node::NodeBuilder::start).
    ///
    /// A failed start returns its error after all resources are released. A dropped start releases them in the
    /// background.
    pub(in crate::node) async fn start(config: NodeConfig, listener: TcpListener) -> Result<Node, StartError> {
        let identity = storage::Identity { cluster: config.cluster.clone(), node: config.id };
        let dir = config.data.clone();
        let opened = tokio::task::spawn_blocking(move || SledStorage::open_or_create(dir, identity)).await;
        let Opened { storage, is_new, incarnation } = opened.expect("opening the store does not panic")?;
        let promise = config.raft.leadership_lease();
        let identity = Identity { cluster: config.cluster.clone(), node: config.id, incarnation, promise };
        let known = Arc::new(MemberRegistry::default());
        let transport = TcpTransport::new(identity.clone(), known.clone());
        let lifecycle = Lifecycle::begin(storage.clone(), transport.clone());
        let ended = lifecycle.ended.clone();
        let started = async {
            warn_if_disk_is_slow(&config).await;
            let service = Arc::new(RaftService::new(storage.clone()));
            lifecycle.tasks.spawn(peer::serve(
                listener,
                identity,
                known.clone(),
                service.clone(),
                lifecycle.stop.clone(),
            ));
            let safeguards = Safeguards::default();
            let files = Arc::new(DirectoryFiles(config.data.clone()));
            let parts = Parts {
                storage,
                transport,
                service,
                known,
                is_new,
                incarnation,
                files,
                safeguards,
                test_observer: None,
                lifecycle,
            };
            Node::assemble(config, Arc::new(SystemClock), parts).await
        };
        let started = started.await;
        if started.is_err() {
            ended.cancelled().await;
        }
        started
    }
}

/// The components that a node is assembled from: of the system, or of a test.
pub(crate) struct Parts<S: Storage, T: Transport> {
    storage: S,
    transport: T,
    service: Arc<RaftService<S, Forwarding<S, T>>>,
    known: Arc<MemberRegistry>,
    is_new: bool,
    incarnation: u64,
    /// The files in the data directory outside the store.
    files: Arc<dyn Files>,
    safeguards: Safeguards,
    /// An observer of applied entries, for tests only.
    test_observer: Option<Arc<dyn Observer>>,
    lifecycle: Lifecycle<S>,
}

#[cfg(feature = "testing")]
impl<S: Storage, T: Transport> Parts<S, T> {
    pub fn new(
        storage: S,
        transport: T,
        service: Arc<RaftService<S, Forwarding<S, T>>>,
        known: Arc<MemberRegistry>,
        files: Arc<dyn Files>,
        is_new: bool,
        incarnation: u64,
    ) -> Parts<S, T> {
        let lifecycle = Lifecycle::begin(storage.clone(), transport.clone());
        let safeguards = Safeguards::default();
        Parts {
            storage,
            transport,
            service,
            known,
            is_new,
            incarnation,
            files,
            safeguards,
            test_observer: None,
            lifecycle,
        }
    }

    pub fn tapped(mut self, test_observer: Option<Arc<dyn Observer>>) -> Parts<S, T> {
        self.test_observer = test_observer;
        self
    }

    pub fn without(mut self, safeguards: Safeguards) -> Parts<S, T> {
        self.safeguards = safeguards;
        self
    }
}

impl<S: Storage, T: Transport> Node<S, T> {
    pub(crate) async fn assemble(
        config: NodeConfig,
        clock: Arc<dyn Clock>,
        parts: Parts<S, T>,
    ) -> Result<Node<S, T>, StartError> {
        let Parts {
            storage,
            transport,
            service,
            known,
            is_new,
            incarnation,
            files,
            safeguards,
            test_observer,
            lifecycle,
        } = parts;
        let promise = config.raft.leadership_lease();
        let still = exchange_promise::<S>(files.clone(), promise).await?;
        if !is_new && safeguards.quarantine {
            // Before the restart, this node may have promised a leader not to vote for another one. The promise is only
            // in memory, so it is lost and may still be in force.
            time::sleep(config.raft.by_any_clock(still)).await;
        }
        if storage.is_empty()
            && let Some(refusal) = join::ask(&transport, config.id, &config.members).await
        {
            return Err(refusal.into());
        }
        let (waits, left) = WaitRegistry::new();
        let events = Arc::new(EventLog::new(lifecycle.stop.clone()));
        let observer = Arc::new(ObserverFanout {
            waits: waits.clone(),
            events: events.clone(),
            transitions: TransitionCounters::new(),
            test_observer,
        });
        let replica = Replica::new(observer);
        let raft = RaftHandle::build(
            config.id,
            &config.cluster,
            config.raft,
            safeguards,
            storage.clone(),
            transport.clone(),
            replica.clone(),
            clock.clone(),
        );
        let raft = Arc::new(raft.await.map_err(StartError::Raft)?);
        let is_first = lifecycle.raft.set(raft.clone()).is_ok();
        assert!(is_first, "a lifecycle has one Raft");
        known.look_into(replica, raft.joined_in_log().await.map_err(StartError::Raft)?);
        let (proposer, jobs) = Proposer::new();
        let inner = Arc::new(Inner {
            id: config.id,
            cluster: config.cluster.clone(),
            ttl: config.ttl,
            timeouts: timeouts(&config.raft),
            raft: raft.clone(),
            storage,
            transport,
            clock: LeaderClock::new(clock.clone()),
            proposer: proposer.clone(),
            waits,
            local_waits: Arc::default(),
            events,
            contact: LeaderContact::new(clock),
            draining: AtomicBool::new(false),
            stop: lifecycle.stop,
            tasks: lifecycle.tasks,
            ended: lifecycle.ended,
            failure: tokio::sync::watch::Sender::new(None),
        });
        known.observe(config.id, incarnation);
        inner.begin(&config, jobs, left, known.clone());
        service.open(raft.raft().clone(), Forwarding(inner.clone()));
        raft.run();
        inner.spawn(inner.clone().form(config.members.clone()));
        inner.spawn(inner.clone().join(known, incarnation, config.members));
        renew_promise::<S>(files, promise).await?;
        Ok(Node { inner, owner: Some(Arc::new(lifecycle.owner)) })
    }
}

/// Returns the longest promise that this node may have given before its restart.
async fn exchange_promise<S: Storage>(files: Arc<dyn Files>, promise: Duration) -> Result<Duration, StartError> {
    blocking::<S, _>(move || promise::exchange(&*files, promise)).await.map_err(StartError::Promise)
}

async fn renew_promise<S: Storage>(files: Arc<dyn Files>, promise: Duration) -> Result<(), StartError> {
    blocking::<S, _>(move || promise::renew(&*files, promise)).await.map_err(StartError::Promise)
}

fn timeouts(raft: &RaftTimings) -> Timeouts {
    let lease = raft.leadership_lease();
    Timeouts { request: REQUEST_TIMEOUT.max(lease * 3), leaderless: lease * 4, transfer_leadership: lease * 2 }
}

async fn warn_if_disk_is_slow(config: &NodeConfig) {
    let dir = config.data.clone();
    let measured = tokio::task::spawn_blocking(move || measure_fsync(&dir, FSYNC_SAMPLES)).await;
    let Ok(Ok(mut samples)) = measured else { return };
    samples.sort();
    let slow = samples[samples.len() * 9 / 10];
    // A follower syncs its disk before it acknowledges a heartbeat. The acknowledgement times out after one interval.
    let bound = Duration::from_millis(config.raft.heartbeat_interval_ms) / 2;
    if slow > bound {
        tracing::warn!(
            fsync_p90 = ?slow, bound = ?bound,
            "this disk is slow for the timings: expect needless elections; choose longer timings in [raft]"
        );
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use crate::node::NodeFailure;
    use crate::testing::Cluster;

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
}
