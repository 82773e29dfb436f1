//! The node's interface to its Raft member: proposals, reads, the formation of the cluster, and the leader and members
//! that it knows.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use openraft::alias::WatchReceiverOf;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ClientWriteError, InitializeError, LinearizableReadError, RaftError};
use openraft::impls::ProgressResponder;
use openraft::metrics::{RaftMetrics, RaftServerMetrics};
use openraft::{AsyncRuntime, Instant as _, LinearizerOption, Raft, ServerState};

use super::RaftTimings;
use super::freshness::{AnnouncedCommits, LeaderContact};
use super::log::{self, Joined, Log, MAX_ENTRY_BYTES};
use super::network::{Network, OutgoingSnapshots};
use super::quorum::Quorum;
use super::runtime::Runtime;
use super::service::RaftService;
use super::state_machine::{Replica, StateMachine, blocking};
use super::times::{EntryTimes, TimesReader};
use super::transfer::Transfers;
use super::types::{Applied, PeerInfo, Proposal, TypeConfig, position};
use crate::clock::Clock;
use crate::peer::Transport;
use crate::storage::{Position, Storage};
use crate::types::NodeId;

/// For this part of the leadership lease, local reads rely on an acknowledgement of a majority. The rest allows for
/// clocks with different rates.
const LOCAL_READ_PERCENT: u32 = 70;

pub struct RaftHandle<S: Storage> {
    pub(super) node: NodeId,
    storage: S,
    pub(super) raft: Raft<TypeConfig, StateMachine<S>>,
    replica: Replica,
    pub(super) metrics: WatchReceiverOf<TypeConfig, RaftMetrics<TypeConfig>>,
    announced: Arc<AnnouncedCommits>,
    pub timings: RaftTimings,
    pub(super) transfers: Transfers,
    /// Held during a change of the members.
    pub(super) changing: Arc<tokio::sync::Mutex<()>>,
    pub(super) quorum: Quorum,
    pub(super) contact: Arc<LeaderContact>,
    times: EntryTimes,
}

/// Why a proposal has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The proposal is certainly not in the log.
    #[error("this node is not the leader")]
    NotLeader,
    /// The proposal may be in the next leader's log.
    #[error("{0}")]
    Unknown(String),
}

impl<S: Storage> RaftHandle<S> {
    /// Restores the replica from the store. Raft starts only with [`run`](Self::run).
    ///
    /// # Errors
    ///
    /// The timings are invalid, or the stored state cannot be read.
    pub async fn build<T: Transport>(
        node: NodeId,
        cluster: &str,
        timings: RaftTimings,
        storage: S,
        transport: T,
        replica: Replica,
        clock: Arc<dyn Clock>,
    ) -> Result<RaftHandle<S>, Box<dyn Error + Send + Sync>> {
        let config = timings.openraft_config(cluster)?;
        let announced = Arc::new(AnnouncedCommits::new(clock.clone()));
        let sending = OutgoingSnapshots::default();
        let quorum = Arc::new(OnceLock::new());
        let network = Network {
            transport,
            storage: storage.clone(),
            replica: replica.clone(),
            announced: announced.clone(),
            sending: sending.clone(),
            quorum: quorum.clone(),
            disk_timeout: timings.disk_timeout(),
        };
        let log = Log::new(node, storage.clone());
        let times = log.times.clone();
        let mut state_machine = StateMachine::new(replica.clone(), storage.clone(), sending);
        state_machine.times = times.clone();
        let raft = Raft::build(node, Arc::new(config), network, log, state_machine).await?;
        replica.publish();
        let metrics = raft.metrics();
        let of_network = Quorum::new(metrics.clone(), clock.clone(), &timings);
        quorum.set(of_network).ok().expect("nothing else sets it");
        let quorum = Quorum::new(metrics.clone(), clock.clone(), &timings);
        Ok(RaftHandle {
            node,
            storage,
            raft,
            replica,
            metrics,
            announced,
            timings,
            transfers: Transfers::default(),
            changing: Arc::default(),
            quorum,
            contact: Arc::new(LeaderContact::new(clock)),
            times,
        })
    }

    pub fn run(&self) {
        self.raft.run();
    }

    /// Returns the service that answers the Raft calls of other nodes.
    pub fn service(&self) -> RaftService<S> {
        RaftService::new(self.raft.clone(), self.storage.clone(), self.replica.clone(), self.contact.clone())
    }

    #[cfg(feature = "testing")]
    pub fn raft(&self) -> &Raft<TypeConfig, StateMachine<S>> {
        &self.raft
    }

    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// Records the times of log entries until the reader is dropped.
    pub fn record_times(&self) -> TimesReader {
        self.times.record()
    }

    /// Forms the cluster once, with this node as a voter. On a node that already belongs to a cluster, it has no
    /// effect.
    ///
    /// openraft appends the membership entry before it saves its vote for itself, and the store writes in that order.
    /// After a crash, the store is either empty or has the entry. If it is empty, the node can form the cluster again.
    /// If it has the entry, the node stands for election.
    pub async fn form(&self, members: BTreeMap<NodeId, PeerInfo>) -> Result<(), String> {
        let raft = self.raft.clone();
        match run_to_completion(async move { raft.initialize(members).await }).await {
            Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The joins in log entries that are not applied. Such an entry may be committed although this node does not know
    /// it yet.
    pub async fn joined_in_log(&self) -> Result<Vec<Joined>, Box<dyn Error + Send + Sync>> {
        let (_, last) = self.storage.log_bounds();
        let mut from = self.replica.read(|state| state.applied.map_or(0, |applied| applied.index + 1));
        let end = last.map_or(0, |last| last.index + 1);
        let mut joined = Vec::new();
        while from < end {
            let storage = self.storage.clone();
            let read =
                blocking::<S, _>(move || storage.read_log(from, end, MAX_ENTRY_BYTES).map_err(io::Error::other)).await;
            let records = read?;
            from = records.last().expect("a read of the log returns at least one entry").position.index + 1;
            for record in records {
                joined.extend(log::joined(record)?);
            }
        }
        Ok(joined)
    }

    /// Appends the proposal if this node leads in `term`, and waits until this node has applied it.
    ///
    /// # Errors
    ///
    /// After [`WriteError::NotLeader`] the proposal is certainly not in the log. After [`WriteError::Unknown`] it may
    /// be.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the proposal may still be committed.
    pub async fn propose(&self, term: u64, proposal: Proposal) -> Result<(Position, Applied), WriteError> {
        let (responder, complete) = ProgressResponder::complete_only();
        let raft = self.raft.clone();
        let write = async move { raft.write(proposal).with_leader(term).responder(responder).await };
        let sent = run_to_completion(write).await;
        sent.map_err(|fatal| WriteError::Unknown(fatal.to_string()))?;
        match complete.await {
            Ok(Ok(done)) => Ok((position(&done.log_id), done.data)),
            Ok(Err(ClientWriteError::ForwardToLeader(_))) => Err(WriteError::NotLeader),
            Ok(Err(error)) => Err(WriteError::Unknown(error.to_string())),
            Err(_) => Err(WriteError::Unknown("Raft stopped".into())),
        }
    }

    /// Whether this node may answer a read from memory now, without contacting other nodes.
    ///
    /// This requires that the node leads, and that a majority acknowledged it so recently that no other leader can
    /// exist. It must also have applied the first entry of its term, and all entries that it announced as committed.
    pub fn may_read_locally(&self) -> bool {
        let (leads, term, acked) = {
            let metrics = self.metrics.borrow_watched();
            let leads = metrics.state == ServerState::Leader;
            (leads, metrics.current_term, metrics.last_quorum_acked.map(|acked| *acked))
        };
        if self.transfers.began_in(term) {
            return false;
        }
        let Some(acked) = acked.filter(|_| leads) else { return false };
        // The age counts from the moment when this node sent the message, so no follower's promise ends earlier. The
        // clock of the age stops during a suspend.
        let age = acked.elapsed();
        let not_suspended = self.quorum.suspended_within(age).is_zero();
        age < self.local_read_age() && not_suspended && self.has_applied_all(term)
    }

    /// Waits until this node may answer, from memory, a read that arrived before the call.
    ///
    /// The node sends a message after the call, a majority acknowledges it, and the node applies all entries that were
    /// committed before. Earlier acknowledgements do not count: openraft would measure their age with a clock that
    /// stops during a suspend. With a maximum age of zero, openraft always starts a new round.
    ///
    /// # Cancel safety
    ///
    /// A spawned task completes the round. Dropping the future has no other effect.
    pub async fn await_readable(&self, timeout: Duration) -> Result<(), WriteError> {
        let option = LinearizerOption::new(Some(Duration::ZERO), true).with_wait_timeout(timeout);
        let raft = self.raft.clone();
        let confirm = async move {
            let linearizer = match raft.get_read_linearizer(option).await {
                Ok(linearizer) => linearizer,
                Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(_))) => {
                    return Err(WriteError::NotLeader);
                }
                Err(error) => return Err(WriteError::Unknown(error.to_string())),
            };
            match linearizer.try_await_ready(&raft, Some(timeout)).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(behind)) => Err(WriteError::Unknown(format!(
                    "this node has not applied all committed entries in time: {behind}"
                ))),
                Err(fatal) => Err(WriteError::Unknown(fatal.to_string())),
            }
        };
        run_to_completion(confirm).await
    }

    /// Waits until Raft has stopped, and returns the reason. After a panic there is no reason: only the metrics channel
    /// closes.
    pub async fn stopped(&self) -> String {
        let mut metrics = self.raft.server_metrics();
        while metrics.changed().await.is_ok() {}
        let reason = self.metrics.borrow_watched().running_state.as_ref().err().map(ToString::to_string);
        reason.unwrap_or_else(|| "Raft panicked: stderr has the location".to_owned())
    }

    pub async fn shutdown(&self) {
        if let Err(error) = self.raft.shutdown().await {
            tracing::warn!(%error, "Raft did not stop cleanly");
        }
    }

    fn local_read_age(&self) -> Duration {
        self.timings.leadership_lease() * LOCAL_READ_PERCENT / 100
    }

    fn has_applied_all(&self, term: u64) -> bool {
        let announced = self.announced.highest();
        self.replica.read(|state| {
            state.applied.is_some_and(|applied| applied.leader_id.term == term && applied.index >= announced)
        })
    }
}

/// The leader and the term that this member knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CurrentLeader {
    pub term: u64,
    pub leader: Option<NodeId>,
}

/// Reports possible changes of the leadership in Raft. Here, a leader that lost its majority still counts as the
/// leader.
pub struct LeadershipWatch {
    metrics: WatchReceiverOf<TypeConfig, RaftServerMetrics<TypeConfig>>,
}

/// Notifies of each report of Raft, such as an acknowledgement of a majority. Under load there are many.
pub struct ReportWatch {
    metrics: WatchReceiverOf<TypeConfig, RaftMetrics<TypeConfig>>,
}

impl ReportWatch {
    pub fn mark_seen(&mut self) {
        self.metrics.borrow_and_update();
    }

    /// Waits for a report since the last call of [`mark_seen`](Self::mark_seen). After Raft has stopped, it never returns.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no report.
    pub async fn changed(&mut self) {
        if self.metrics.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

/// This node's knowledge of one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberProgress {
    pub id: NodeId,
    pub info: PeerInfo,
    pub voter: bool,
    /// Number of entries that the member lacks. Only the leader knows it.
    pub lag: Option<u64>,
    /// Time since the leader sent the last message that the member acknowledged. Only the leader knows it.
    pub heard: Option<Duration>,
}

impl LeadershipWatch {
    pub fn now(&mut self) -> CurrentLeader {
        let metrics = self.metrics.borrow_and_update();
        let leader = observed_leader(metrics.id, metrics.state, metrics.current_leader);
        CurrentLeader { term: metrics.vote.leader_id.term, leader }
    }

    /// Waits for a change since the last call of [`now`](Self::now). After Raft has stopped, it never returns.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no change.
    pub async fn changed(&mut self) {
        if self.metrics.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

/// openraft derives the leader from the last vote, so a restarted leader would report itself as the leader.
fn observed_leader(own: NodeId, state: ServerState, voted: Option<NodeId>) -> Option<NodeId> {
    voted.filter(|&leader| leader != own || state == ServerState::Leader)
}

impl<S: Storage> RaftHandle<S> {
    /// As [`Quorum::age`].
    pub fn quorum_age(&self) -> Option<Duration> {
        self.quorum.age()
    }

    /// As [`Quorum::leads_for`].
    pub fn leads_for(&self) -> Option<Duration> {
        self.quorum.leads_for()
    }

    /// Time since the leader sent the last message that this member acknowledged. Only the leader knows it.
    pub fn heard_from(&self, node: NodeId) -> Option<Duration> {
        let metrics = self.metrics.borrow_watched();
        let heard = metrics.heartbeat.as_ref()?.get(&node)?.as_ref()?;
        Some(heard.elapsed())
    }

    /// Time since this node accepted a leader's append or heartbeat. `None` if it accepted none since its start.
    pub fn last_contact(&self) -> Option<Duration> {
        self.contact.elapsed()
    }

    /// On the leader, time since it sent the last message that a majority acknowledged. On other nodes as
    /// [`last_contact`](Self::last_contact).
    pub fn contact_age(&self) -> Option<Duration> {
        self.quorum_age().or_else(|| self.last_contact())
    }

    /// Upper bound of the age of this node's state. Below level
    /// [`DATED_APPENDS`](super::level::FeatureLevel::DATED_APPENDS) it lacks the time of a leader's message on its way, and
    /// after a transfer up to a leadership lease. `None` if the state was not complete since the start of the node.
    pub fn state_age(&self) -> Option<Duration> {
        let applied = self.replica.read(|state| state.applied);
        let index = applied.map_or(0, |applied| applied.index);
        // With the first entry of its term, a leader has applied all entries of earlier ones.
        let term = applied.map(|applied| applied.leader_id.term);
        match term.and_then(|term| self.quorum.age_in(term)) {
            Some(quorum_age) => {
                let applied_age = self.announced.applied_age(index).or_else(|| self.contact.state_age(index));
                applied_age.map(|age| age.max(quorum_age))
            }
            None => self.contact.state_age(index),
        }
    }

    /// Waits until another node than `leader` leads.
    pub async fn other_leader(&self, leader: NodeId) {
        let mut leadership = self.watch_leadership();
        while leadership.now().leader.is_none_or(|now| now == leader) {
            leadership.changed().await;
        }
    }

    /// The current leader. A leader that no majority has acknowledged for
    /// [`isolation`](crate::config::RaftTimings::isolation) does not count.
    pub fn leadership(&self) -> CurrentLeader {
        let (term, leader) = {
            let metrics = self.metrics.borrow_watched();
            (metrics.current_term, observed_leader(metrics.id, metrics.state, metrics.current_leader))
        };
        CurrentLeader { term, leader: leader.filter(|&leader| leader != self.node || self.leads_for().is_some()) }
    }

    /// Stands for election now. Without effect if the leadership lease has not expired on this node, or on a majority of
    /// the voters.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the election may still begin.
    pub async fn stand_for_election(&self) {
        let raft = self.raft.clone();
        if let Err(error) = run_to_completion(async move { raft.trigger().elect(true).await }).await {
            tracing::debug!(%error, "Raft stopped before an election");
        }
    }

    pub fn watch_leadership(&self) -> LeadershipWatch {
        LeadershipWatch { metrics: self.raft.server_metrics() }
    }

    pub fn watch_reports(&self) -> ReportWatch {
        ReportWatch { metrics: self.raft.metrics() }
    }

    /// The addresses of a member.
    pub fn member(&self, node: NodeId) -> Option<PeerInfo> {
        let metrics = self.metrics.borrow_watched();
        metrics.membership_config.membership().get_node(&node).cloned()
    }

    /// All members. On the leader, with the lag and the last contact of each.
    pub fn members(&self) -> Vec<MemberProgress> {
        let metrics = self.metrics.borrow_watched();
        let voters: BTreeSet<NodeId> = metrics.membership_config.voter_ids().collect();
        let last = metrics.last_log_index.unwrap_or_default();
        let state = |(&id, info): (&NodeId, &PeerInfo)| {
            let matched = metrics.replication.as_ref().and_then(|progress| progress.get(&id)).cloned().flatten();
            let heard = metrics.heartbeat.as_ref().and_then(|heard| heard.get(&id)).cloned().flatten();
            MemberProgress {
                id,
                info: info.clone(),
                voter: voters.contains(&id),
                lag: metrics.replication.as_ref().map(|_| last.saturating_sub(matched.map_or(0, |at| at.index))),
                heard: heard.map(|at| at.elapsed()),
            }
        };
        metrics.membership_config.nodes().map(state).collect()
    }
}

/// Runs a call to completion. If the caller drops the future, a spawned task continues the call.
///
/// The first call that finds openraft's core stopped awaits the core's task for all callers. If that call is dropped,
/// every later call panics (openraft 0.10.0-alpha.37, `RaftInner::join_core_task`). A disconnecting client or a node
/// that shuts down would drop it.
pub async fn run_to_completion<F>(call: F) -> F::Output
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    RunToCompletion(Some(Box::pin(call))).await
}

struct RunToCompletion<F>(Option<Pin<Box<F>>>)
where
    F: Future<Output: Send + 'static> + Send + 'static;

impl<F> Future for RunToCompletion<F>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // After a panic the slot stays empty, so `drop` does not spawn the failed call again.
        let mut call = self.0.take().expect("a completed future is not polled again");
        let polled = call.as_mut().poll(context);
        if polled.is_pending() {
            self.0 = Some(call);
        }
        polled
    }
}

impl<F> Drop for RunToCompletion<F>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    fn drop(&mut self) {
        // Without a runtime, Raft has already stopped.
        if let Some(call) = self.0.take()
            && tokio::runtime::Handle::try_current().is_ok()
        {
            drop(Runtime::spawn(call));
        }
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use crate::config::LeaseSettings;
    use crate::lease::{Batch, Command, Stamp};
    use crate::testing::Cluster;

    /// Waits for a leader that may answer reads from memory.
    async fn leader(cluster: &Cluster) -> NodeId {
        let leader = cluster.leader().await;
        while !cluster.node(leader).raft().may_read_locally() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        leader
    }

    #[tokio::test(start_paused = true)]
    async fn confirmed_read_waits_for_all_committed_entries() {
        let cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
        let node = cluster.node(leader(&cluster).await).clone();
        let raft = node.raft();
        let (resume, resumed) = tokio::sync::oneshot::channel::<()>();
        let stall = raft.raft.external_state_machine_request(move |_| Box::pin(async move { _ = resumed.await }));
        stall.await.expect("Raft runs");
        let (term, writer) = (raft.leadership().term, node.clone());
        let tick = Batch { stamp: Stamp { now: 0, wall_ms: 0 }, commands: vec![Command::Tick] };
        let write = tokio::spawn(async move { writer.raft().propose(term, Proposal::leases(&tick)).await });
        tokio::time::sleep(Duration::from_millis(20)).await;
        let mut read = Box::pin(raft.await_readable(Duration::from_secs(5)));
        let early = tokio::time::timeout(Duration::from_millis(100), &mut read).await;
        assert!(early.is_err(), "a follower may show an entry that this node has not applied: {early:?}");
        resume.send(()).expect("the state machine waits");
        assert_eq!(read.await, Ok(()));
        let (at, _) = write.await.expect("no panic").expect("the node leads");
        assert!(raft.replica.read(|state| state.applied.is_some_and(|applied| applied.index >= at.index)));
        cluster.shutdown().await;
    }

    #[tokio::test(start_paused = true)]
    async fn local_read_waits_for_the_announced_commit_index() {
        let cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
        let leader = leader(&cluster).await;
        let raft = cluster.node(leader).raft();
        let term = raft.leadership().term;
        let applied = || raft.replica.read(|state| state.applied.map_or(0, |applied| applied.index));
        // A follower may apply and show an entry before the leader applies it.
        let tick = Batch { stamp: Stamp { now: 0, wall_ms: 0 }, commands: vec![Command::Tick] };
        raft.announced.announce(applied() + 1, applied());
        assert!(!raft.may_read_locally(), "a follower may have applied more");
        while applied() < raft.announced.highest() {
            raft.propose(term, Proposal::leases(&tick)).await.expect("the node leads");
        }
        assert!(raft.may_read_locally(), "the leader has applied all announced entries");
        cluster.shutdown().await;
    }

    #[tokio::test(start_paused = true)]
    async fn local_read_waits_for_an_entry_of_its_term() {
        let cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
        let leader = leader(&cluster).await;
        let raft = cluster.node(leader).raft();
        let term = raft.leadership().term;
        assert!(raft.has_applied_all(term));
        assert!(
            !raft.has_applied_all(term + 1),
            "earlier leaders may have committed entries that this node has not applied"
        );
        cluster.shutdown().await;
    }

    /// openraft may act on the call long before the call returns.
    #[tokio::test(start_paused = true)]
    async fn transfer_call_ends_local_reads_at_once() {
        let cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
        let leader = leader(&cluster).await;
        let raft = cluster.node(leader).raft();
        let to = cluster.ids().find(|id| *id != leader).expect("the cluster has three nodes");
        let mut transfer = Box::pin(raft.transfer_leadership_to(to, Duration::from_secs(5)));
        assert!(futures_util::poll!(&mut transfer).is_pending(), "the transfer has started");
        assert!(!raft.may_read_locally(), "another node may now win an election");
        (&mut transfer).await.expect("the transfer succeeds");
        drop(transfer);
        cluster.shutdown().await;
    }
}
