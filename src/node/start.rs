//! Starting and ending a node.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::contact::Contact;
use super::join::{self, Acquaintances};
use super::lead::LeadClock;
use super::meters::Transitions;
use super::promise;
use super::proposer::{self, Proposer, waiter_weight};
use super::route::Forwarding;
use super::timekeeper::Timekeeper;
use super::waiting::Waiting;
use super::watch::History;
use super::{Inner, Node, Timeouts};
use crate::clock::{Clock, SystemClock};
use crate::config::{LeaseSettings, MemberConfig, RaftTimings};
use crate::lease::{Command, Effects, Machine, WaiterId};
use crate::peer::{self, Identity, Incarnations, TcpTransport, Transport};
use crate::raft::{Observer, PeerInfo, RaftHandle, RaftService, Replica, Safeguards};
use crate::storage::{self, Opened, SledStorage, Storage, StorageError, measure_fsync};
use crate::types::NodeId;
use tokio::sync::mpsc;

/// Syncs that are timed at a start, to warn about a disk that is too slow for the timings.
const FSYNC_SAMPLES: usize = 20;
/// Longest wait for a change to be committed before its outcome is unknown.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of waiters in one command that keeps them waiting.
const KEEP_WAITING_BYTES: usize = 32 << 10;

/// What a node needs to know to start.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    pub cluster: String,
    pub id: NodeId,
    /// Every member that the cluster is formed with, this one included.
    pub members: Vec<MemberConfig>,
    pub data: PathBuf,
    pub raft: RaftTimings,
    pub lease: LeaseSettings,
}

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error(transparent)]
    Refused(#[from] peer::Refusal),
    #[error("Raft could not be restored: {0}")]
    Raft(String),
    #[error("node {0} is not among the members of its own configuration")]
    NotAMember(NodeId),
    #[error(
        "the file PROMISE in the data directory could not be read or written: {0}. If it is damaged, remove it once the \
         node has been down for longer than any leadership lease it was configured with"
    )]
    Promise(std::io::Error),
}

impl Node {
    /// Opens the data directory and starts. Returns when the node takes requests; it may not know a leader yet.
    ///
    /// On every start but the first it first keeps still for one leadership lease.
    pub async fn start(config: NodeConfig, listener: TcpListener) -> Result<Node, StartError> {
        let identity = storage::Identity { cluster: config.cluster.clone(), node: config.id };
        let dir = config.data.clone();
        let opened = tokio::task::spawn_blocking(move || SledStorage::open_or_create(dir, identity)).await;
        let Opened { storage, is_new, incarnation } = opened.expect("opening does not panic")?;
        let promise = config.raft.leadership_lease();
        let still = exchange_promise(&config, promise).await?;
        warn_of_slow_disk(&config).await;
        let known = Arc::new(Acquaintances::default());
        let identity = Identity { cluster: config.cluster.clone(), node: config.id, incarnation, promise };
        let transport = TcpTransport::new(identity.clone(), known.clone());
        let service = Arc::new(RaftService::new(storage.clone()));
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        tasks.spawn(peer::serve(listener, identity, known.clone(), service.clone(), stop.clone()));
        let safeguards = Safeguards::default();
        let parts = Parts { storage, transport, service, known, is_new, incarnation, still, safeguards, stop, tasks };
        let dir = config.data.clone();
        let node = Node::assemble(config, Arc::new(SystemClock), parts).await?;
        let renewed = tokio::task::spawn_blocking(move || promise::renew(&dir, promise)).await;
        renewed.expect("renewing does not panic").map_err(StartError::Promise)?;
        Ok(node)
    }

    /// Hands leadership on, ends everything, and closes the data directory. Takes at most a few leadership leases.
    pub async fn shutdown(&self) {
        self.end().await;
        self.inner.transport.shutdown().await;
        let storage = self.inner.storage.clone();
        tokio::task::spawn_blocking(move || storage.close()).await.expect("closing does not panic");
    }
}

/// What a node is made from: the system's parts, or a test's.
pub(crate) struct Parts<S: Storage, T: Transport> {
    storage: S,
    transport: T,
    service: Arc<RaftService<S, Forwarding<S, T>>>,
    known: Arc<Acquaintances>,
    is_new: bool,
    incarnation: u64,
    /// The longest promise that this node may have given and forgotten.
    still: Duration,
    safeguards: Safeguards,
    stop: CancellationToken,
    tasks: TaskTracker,
}

#[cfg(feature = "testing")]
impl<S: Storage, T: Transport> Parts<S, T> {
    pub fn new(
        storage: S,
        transport: T,
        service: Arc<RaftService<S, Forwarding<S, T>>>,
        is_new: bool,
        incarnation: u64,
        still: Duration,
    ) -> Parts<S, T> {
        Parts {
            storage,
            transport,
            service,
            known: Arc::default(),
            is_new,
            incarnation,
            still,
            safeguards: Safeguards::default(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }
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
        let Parts { storage, transport, service, known, is_new, incarnation, still, safeguards, stop, tasks } = parts;
        let members = members(&config)?;
        if !is_new && safeguards.quarantine {
            // A promise to the leader of the time before may still hold, and it is forgotten.
            tokio::time::sleep(config.raft.by_any_clock(still)).await;
        }
        if is_new && let Some(refusal) = join::ask(&transport, config.id, &config.members).await {
            return Err(refusal.into());
        }
        let (waiting, left) = Waiting::new();
        let history = Arc::new(History::new());
        let observer =
            Arc::new(Observers { waiting: waiting.clone(), history: history.clone(), transitions: Transitions::new() });
        let replica = Replica::new(config.lease.limits, observer);
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
        known.look_into(replica, raft.joined_in_log().await.map_err(StartError::Raft)?);
        let (proposer, jobs) = Proposer::new();
        let inner = Arc::new(Inner {
            id: config.id,
            cluster: config.cluster.clone(),
            timeouts: timeouts(&config.raft),
            raft: raft.clone(),
            storage,
            transport,
            clock: LeadClock::new(clock.clone()),
            proposer: proposer.clone(),
            waiting,
            history,
            contact: Contact::new(clock),
            draining: AtomicBool::new(false),
            stop,
            tasks,
            failure: tokio::sync::watch::Sender::new(None),
        });
        known.met(config.id, incarnation);
        inner.begin(&config, jobs, left, known.clone());
        service.open(raft.raft().clone(), Forwarding(inner.clone()));
        raft.run();
        let first = config.members.iter().map(|member| member.id).min();
        if is_new && first == Some(config.id) {
            raft.form(members).await.map_err(StartError::Raft)?;
        }
        inner.spawn(inner.clone().join(known, incarnation, config.members));
        Ok(Node { inner })
    }

    /// Refuses new requests, hands leadership on, and ends all tasks.
    pub(crate) async fn end(&self) {
        let inner = &self.inner;
        inner.draining.store(true, Ordering::Relaxed);
        if inner.clock.lead().is_some() {
            match inner.raft.hand_on(inner.timeouts.hand_on).await {
                Ok(to) => tracing::info!(to, "leadership handed on"),
                Err(error) => tracing::warn!(%error, "leadership not handed on: the others elect when its lease ends"),
            }
        }
        self.kill().await;
    }

    /// Ends all tasks, without a word to the other nodes.
    pub(crate) async fn kill(&self) {
        let inner = &self.inner;
        inner.stop.cancel();
        inner.raft.shutdown().await;
        inner.tasks.close();
        inner.tasks.wait().await;
    }
}

impl<S: Storage, T: Transport> Inner<S, T> {
    fn begin(
        self: &Arc<Self>,
        config: &NodeConfig,
        jobs: proposer::Jobs,
        left: mpsc::UnboundedReceiver<WaiterId>,
        known: Arc<Acquaintances>,
    ) {
        let stop = self.stop.clone();
        let run = proposer::run(jobs, self.raft.clone(), self.clock.clone(), self.proposer.clone(), stop.clone());
        self.tasks.spawn(run);
        let timekeeper = Timekeeper {
            node: self.id,
            raft: self.raft.clone(),
            clock: self.clock.clone(),
            proposer: self.proposer.clone(),
            known,
            limits: config.lease.limits,
            tick: Duration::from_millis(config.lease.tick_ms),
        };
        self.tasks.spawn(timekeeper.run(stop));
        self.spawn(self.clone().keep_waiting(Duration::from_millis(config.lease.limits.patience_ms / 4)));
        self.spawn(self.clone().leave_queues(left));
        self.spawn(self.clone().notice_failure());
        self.spawn(self.clone().notice_stall());
        self.spawn(self.clone().set_gauges());
    }

    /// Runs until the node stops.
    fn spawn(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = work => {}
            }
        });
    }

    /// Tells the log, while this node leads, that the requests it holds still wait.
    async fn keep_waiting(self: Arc<Self>, interval: Duration) {
        loop {
            tokio::time::sleep(interval).await;
            if self.clock.lead().is_none() {
                continue;
            }
            for waiters in split(self.waiting.ids()) {
                // What fails is repeated long before the patience ends.
                let _ = self.proposer.propose(Command::KeepWaiting { waiters }).await;
            }
        }
    }

    /// Gives up the places of requests that went away.
    async fn leave_queues(self: Arc<Self>, mut left: mpsc::UnboundedReceiver<WaiterId>) {
        while let Some(waiter) = left.recv().await {
            // What fails is forgotten when the patience ends.
            let _ = self.proposer.propose(Command::LeaveQueue { waiter }).await;
        }
    }
}

/// Those who are told of every applied entry.
struct Observers {
    waiting: Arc<Waiting>,
    history: Arc<History>,
    transitions: Transitions,
}

impl Observer for Observers {
    fn applied(&self, index: u64, effects: Effects, machine: &Machine) {
        self.transitions.count(&effects.transitions);
        self.waiting.applied(&effects, machine);
        self.history.applied(index, &effects.transitions);
    }

    fn replaced(&self, index: u64) {
        self.history.replaced(index);
    }
}

async fn exchange_promise(config: &NodeConfig, promise: Duration) -> Result<Duration, StartError> {
    let dir = config.data.clone();
    let exchanged = tokio::task::spawn_blocking(move || promise::exchange(&dir, promise)).await;
    exchanged.expect("exchanging does not panic").map_err(StartError::Promise)
}

fn members(config: &NodeConfig) -> Result<BTreeMap<NodeId, PeerInfo>, StartError> {
    let info = |member: &MemberConfig| PeerInfo { http: member.http.clone(), peer: member.peer.clone() };
    let members: BTreeMap<_, _> = config.members.iter().map(|member| (member.id, info(member))).collect();
    if members.contains_key(&config.id) { Ok(members) } else { Err(StartError::NotAMember(config.id)) }
}

fn timeouts(raft: &RaftTimings) -> Timeouts {
    let lease = raft.leadership_lease();
    Timeouts { request: REQUEST_TIMEOUT.max(lease * 3), leaderless: lease * 4, hand_on: lease * 2 }
}

fn split(ids: Vec<WaiterId>) -> Vec<Vec<WaiterId>> {
    let mut parts: Vec<Vec<WaiterId>> = Vec::new();
    let mut bytes = KEEP_WAITING_BYTES;
    for id in ids {
        bytes += waiter_weight(&id);
        if bytes > KEEP_WAITING_BYTES {
            parts.push(Vec::new());
            bytes = waiter_weight(&id);
        }
        parts.last_mut().expect("one was just pushed").push(id);
    }
    parts
}

async fn warn_of_slow_disk(config: &NodeConfig) {
    let dir = config.data.clone();
    let measured = tokio::task::spawn_blocking(move || measure_fsync(&dir, FSYNC_SAMPLES)).await;
    let Ok(Ok(mut samples)) = measured else { return };
    samples.sort();
    let slow = samples[samples.len() * 9 / 10];
    // A heartbeat's acknowledgement waits for the follower's disk, and its time-out is the heartbeat interval.
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
    use crate::testing::Cluster;

    #[tokio::test(start_paused = true)]
    async fn a_panic_inside_raft_is_a_failure_of_the_node() {
        let cluster = Cluster::start(1, RaftTimings::lan(), LeaseSettings::default()).await;
        cluster.leader().await;
        let node = cluster.node(1);
        assert_eq!(node.health().failed, None);
        let _ = node.raft().raft().external_request(|_| panic!("planted by a test")).await;
        let noticed = tokio::time::timeout(Duration::from_secs(1), node.wait_failed()).await;
        assert!(noticed.expect("it is noticed").contains("panicked"));
        assert!(node.health().failed.is_some(), "a restart would help");
    }
}
