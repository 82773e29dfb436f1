//! One running Raft member, as the node uses it: propose, read, see who leads, hand leadership on.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use openraft::alias::{InstantOf, WatchReceiverOf};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ClientWriteError, InitializeError, LinearizableReadError, RaftError};
use openraft::impls::ProgressResponder;
use openraft::metrics::{RaftMetrics, RaftServerMetrics};
use openraft::{Instant as _, LinearizerOption, Raft, ServerState};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::calls::to_the_end;
use super::network::Network;
use super::payload::{self, Joined, MAX_ENTRY_BYTES};
use super::replica::Replica;
use super::sending::Sending;
use super::state_machine::{StateMachine, blocking};
use super::suspend::SuspendMeter;
use super::timings::Safeguards;
use super::transfer::Transfers;
use super::types::{Applied, PeerInfo, Proposal, TypeConfig, position};
use super::{Log, RaftTimings};
use crate::clock::Clock;
use crate::peer::Transport;
use crate::storage::{Position, Storage};
use crate::types::NodeId;

/// Local reads trust an acknowledgement of a majority for this part of the leadership lease: the rest is for clocks
/// that run at different rates.
const LOCAL_READ_PERCENT: u32 = 70;

pub struct RaftHandle<S: Storage> {
    pub(super) node: NodeId,
    storage: S,
    pub(super) raft: Raft<TypeConfig, StateMachine<S>>,
    replica: Replica,
    pub(super) metrics: WatchReceiverOf<TypeConfig, RaftMetrics<TypeConfig>>,
    announced_commit: Arc<AtomicU64>,
    timings: RaftTimings,
    safeguards: Safeguards,
    /// When the last acknowledgement was seen here first; kept only by a test that counts from there.
    seen: Mutex<Option<(InstantOf<TypeConfig>, Instant)>>,
    pub(super) transfers: Transfers,
    suspend: SuspendMeter,
}

/// Who leads, as this member sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CurrentLeader {
    pub term: u64,
    pub leader: Option<NodeId>,
}

/// Tells when the leadership may have changed, as Raft sees it: a leader that lost its majority counts as one here.
pub struct LeadershipWatch {
    metrics: WatchReceiverOf<TypeConfig, RaftServerMetrics<TypeConfig>>,
}

/// One member, as this node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberState {
    pub id: NodeId,
    pub info: PeerInfo,
    pub voter: bool,
    /// Entries behind the end of the leader's log; on the leader only.
    pub lag: Option<u64>,
    /// Since when the last message was sent that the member acknowledged; on the leader only.
    pub heard: Option<Duration>,
}

impl LeadershipWatch {
    pub fn now(&mut self) -> CurrentLeader {
        let metrics = self.metrics.borrow_and_update();
        let leader = seen_leader(metrics.id, metrics.state, metrics.current_leader);
        CurrentLeader { term: metrics.vote.leader_id.term, leader }
    }

    /// Waits for a change since the last look; for ever once Raft has stopped.
    pub async fn changed(&mut self) {
        if self.metrics.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

/// openraft takes the leader from the last vote, and so a leader that restarted for its own leader.
fn seen_leader(own: NodeId, state: ServerState, voted: Option<NodeId>) -> Option<NodeId> {
    voted.filter(|&leader| leader != own || state == ServerState::Leader)
}

/// Why a proposal has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// Certainly not in the log.
    #[error("this node is not the leader")]
    NotLeader,
    /// It may be in the log of the next leader.
    #[error("{0}")]
    Unknown(String),
}

impl<S: Storage> RaftHandle<S> {
    /// Restores the replica from the store; nothing runs before [`run`](Self::run).
    #[expect(clippy::too_many_arguments, reason = "the parts that a member is made of, from one caller")]
    pub async fn build<T: Transport>(
        node: NodeId,
        cluster: &str,
        timings: RaftTimings,
        safeguards: Safeguards,
        storage: S,
        transport: T,
        replica: Replica,
        clock: Arc<dyn Clock>,
    ) -> Result<RaftHandle<S>, String> {
        let config = timings.openraft_config(cluster, safeguards).map_err(|error| error.to_string())?;
        let announced_commit = Arc::new(AtomicU64::new(0));
        let sending = Sending::default();
        let network = Network {
            transport,
            storage: storage.clone(),
            announced_commit: announced_commit.clone(),
            sending: sending.clone(),
            disk_timeout: timings.disk_timeout(),
        };
        let state_machine = StateMachine::new(replica.clone(), storage.clone(), sending);
        let raft = Raft::build(node, Arc::new(config), network, Log::new(node, storage.clone()), state_machine)
            .await
            .map_err(|error| error.to_string())?;
        replica.publish();
        let metrics = raft.metrics();
        let suspend = SuspendMeter::new(clock);
        let seen = Mutex::default();
        Ok(RaftHandle {
            node,
            storage,
            raft,
            replica,
            metrics,
            announced_commit,
            timings,
            safeguards,
            seen,
            transfers: Transfers::default(),
            suspend,
        })
    }

    pub fn run(&self) {
        self.raft.run();
    }

    pub fn raft(&self) -> &Raft<TypeConfig, StateMachine<S>> {
        &self.raft
    }

    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// Forms the cluster, with this node among its voters. Once in a cluster's life; a node that belongs to a
    /// cluster already changes nothing.
    ///
    /// openraft appends the entry with the members, and after it saves its vote for itself. The store writes in that
    /// order: after a crash it holds nothing, and this can be called again, or the entry, and this node stands for
    /// election.
    pub async fn form(&self, members: BTreeMap<NodeId, PeerInfo>) -> Result<(), String> {
        let raft = self.raft.clone();
        match to_the_end(async move { raft.initialize(members).await }).await {
            Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Who joined by an entry that is in the log and not applied: it may be committed, and nobody here knows yet.
    pub async fn joined_in_log(&self) -> Result<Vec<Joined>, String> {
        let (_, last) = self.storage.log_bounds();
        let mut from = self.replica.read(|state| state.applied.map_or(0, |applied| applied.index + 1));
        let end = last.map_or(0, |last| last.index + 1);
        let mut joined = Vec::new();
        while from < end {
            let storage = self.storage.clone();
            let read =
                blocking::<S, _>(move || storage.read_log(from, end, MAX_ENTRY_BYTES).map_err(io::Error::other)).await;
            let records = read.map_err(|error| error.to_string())?;
            from = records.last().expect("at least the first").position.index + 1;
            for record in records {
                joined.extend(payload::joined(record).map_err(|error| error.to_string())?);
            }
        }
        Ok(joined)
    }

    /// Waits until the proposal is applied here. It goes into the log only if this node leads in `term`.
    pub async fn propose(&self, term: u64, proposal: Proposal) -> Result<(Position, Applied), WriteError> {
        let (responder, complete) = ProgressResponder::complete_only();
        let raft = self.raft.clone();
        let write = async move { raft.write(proposal).with_leader(term).responder(responder).await };
        let sent = to_the_end(write).await;
        sent.map_err(|fatal| WriteError::Unknown(fatal.to_string()))?;
        match complete.await {
            Ok(Ok(done)) => Ok((position(&done.log_id), done.data)),
            Ok(Err(ClientWriteError::ForwardToLeader(_))) => Err(WriteError::NotLeader),
            Ok(Err(error)) => Err(WriteError::Unknown(error.to_string())),
            Err(_) => Err(WriteError::Unknown("Raft stopped".into())),
        }
    }

    /// Whether this node's memory may answer a read now, without asking anybody.
    ///
    /// It leads, a majority acknowledged that recently enough that nobody else can have been elected, and it has
    /// applied its own term's first entry and all that any follower can have been told is committed.
    pub fn may_read_locally(&self) -> bool {
        let (leads, term, acked) = {
            let metrics = self.metrics.borrow_watched();
            let leads = metrics.state == ServerState::Leader;
            (leads, metrics.current_term, metrics.last_quorum_acked.map(|acked| *acked))
        };
        if self.transfers.began_in(term) {
            return false;
        }
        if !self.safeguards.lease_on_read {
            return leads && self.has_applied_all(term);
        }
        let Some(acked) = acked.filter(|_| leads) else { return false };
        let age = if self.safeguards.lease_from_asking { acked.elapsed() } else { self.since_seen(acked) };
        let was_awake = !self.safeguards.suspend_guard || self.suspend.suspended_within(age).is_zero();
        age < self.local_read_age() && was_awake && self.has_applied_all(term)
    }

    /// Waits until this node's memory may answer a read that arrived before the call: a majority acknowledges a message
    /// that is sent after the call, and what was committed before is applied.
    ///
    /// No earlier acknowledgement counts. openraft would compare its age with a clock that stands still while the
    /// machine is suspended; with an age of zero it compares nothing and starts a round.
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
                Ok(Err(behind)) => Err(WriteError::Unknown(format!("still applying: {behind}"))),
                Err(fatal) => Err(WriteError::Unknown(fatal.to_string())),
            }
        };
        to_the_end(confirm).await
    }

    /// How long ago this leader sent the last message that a majority acknowledged, with the time in which the machine
    /// was suspended. `None` where Raft does not lead, or has led for too short a time to know.
    pub fn quorum_age(&self) -> Option<Duration> {
        let acked = {
            let metrics = self.metrics.borrow_watched();
            if metrics.state != ServerState::Leader {
                return None;
            }
            if metrics.membership_config.voter_ids().take(2).count() == 1 {
                return Some(Duration::ZERO);
            }
            metrics.last_quorum_acked.map(|acked| *acked)?
        };
        let age = acked.elapsed();
        Some(age + self.suspend.suspended_within(age))
    }

    /// For how long this node still leads if no majority acknowledges anything more; `None` if it does not lead.
    ///
    /// openraft's leader never steps down for want of a majority.
    pub fn leads_for(&self) -> Option<Duration> {
        self.timings.isolation().checked_sub(self.quorum_age()?)
    }

    /// How long ago a message was sent to this member that it acknowledged; known to the leader only.
    pub fn heard_from(&self, node: NodeId) -> Option<Duration> {
        let metrics = self.metrics.borrow_watched();
        let heard = metrics.heartbeat.as_ref()?.get(&node)?.as_ref()?;
        Some(heard.elapsed())
    }

    /// Who leads. A leader that no majority has acknowledged for [`RaftTimings::isolation`] does not.
    pub fn leadership(&self) -> CurrentLeader {
        let (term, leader) = {
            let metrics = self.metrics.borrow_watched();
            (metrics.current_term, seen_leader(metrics.id, metrics.state, metrics.current_leader))
        };
        CurrentLeader { term, leader: leader.filter(|&leader| leader != self.node || self.leads_for().is_some()) }
    }

    pub fn watch_leadership(&self) -> LeadershipWatch {
        LeadershipWatch { metrics: self.raft.server_metrics() }
    }

    /// Waits until Raft has stopped for good, and tells why. A panic leaves no word: then only its metrics end.
    pub async fn stopped(&self) -> String {
        let mut metrics = self.raft.server_metrics();
        while metrics.changed().await.is_ok() {}
        let said = self.metrics.borrow_watched().running_state.as_ref().err().map(ToString::to_string);
        said.unwrap_or_else(|| "Raft panicked, and stderr says where".to_owned())
    }

    /// Where a member is reached.
    pub fn member(&self, node: NodeId) -> Option<PeerInfo> {
        let metrics = self.metrics.borrow_watched();
        metrics.membership_config.membership().get_node(&node).cloned()
    }

    /// All members, and on the leader how far each is behind and how long ago it was heard from.
    pub fn members(&self) -> Vec<MemberState> {
        let metrics = self.metrics.borrow_watched();
        let voters: BTreeSet<NodeId> = metrics.membership_config.voter_ids().collect();
        let last = metrics.last_log_index.unwrap_or_default();
        let state = |(&id, info): (&NodeId, &PeerInfo)| {
            let matched = metrics.replication.as_ref().and_then(|progress| progress.get(&id)).cloned().flatten();
            let heard = metrics.heartbeat.as_ref().and_then(|heard| heard.get(&id)).cloned().flatten();
            MemberState {
                id,
                info: info.clone(),
                voter: voters.contains(&id),
                lag: metrics.replication.as_ref().map(|_| last.saturating_sub(matched.map_or(0, |at| at.index))),
                heard: heard.map(|at| at.elapsed()),
            }
        };
        metrics.membership_config.nodes().map(state).collect()
    }

    pub async fn shutdown(&self) {
        if let Err(error) = self.raft.shutdown().await {
            tracing::warn!(%error, "Raft did not end cleanly");
        }
    }

    fn local_read_age(&self) -> Duration {
        self.timings.leadership_lease() * LOCAL_READ_PERCENT / 100
    }

    /// How long ago an acknowledgement was first seen, which is later than when it was asked for.
    fn since_seen(&self, acked: InstantOf<TypeConfig>) -> Duration {
        let mut seen = self.seen.lock();
        if seen.is_none_or(|(known, _)| known != acked) {
            *seen = Some((acked, Instant::now()));
        }
        seen.map_or(Duration::ZERO, |(_, since)| since.elapsed())
    }

    fn has_applied_all(&self, term: u64) -> bool {
        let announced = self.announced_commit.load(Ordering::SeqCst);
        self.replica.read(|state| {
            state.applied.is_some_and(|applied| applied.leader_id.term == term && applied.index >= announced)
        })
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use crate::config::LeaseSettings;
    use crate::lease::{Batch, Command, Stamp};
    use crate::testing::Cluster;

    /// A leader whose memory may answer a read.
    async fn leader(cluster: &Cluster) -> NodeId {
        let leader = cluster.leader().await;
        while !cluster.node(leader).raft().may_read_locally() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        leader
    }

    #[tokio::test(start_paused = true)]
    async fn local_read_waits_for_what_was_announced_as_committed() {
        let cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
        let leader = leader(&cluster).await;
        let raft = cluster.node(leader).raft();
        let term = raft.leadership().term;
        let applied = || raft.replica.read(|state| state.applied.map_or(0, |applied| applied.index));
        // A follower may apply an entry, and show it, before this leader has.
        let tick = Batch { stamp: Stamp { now: 0, wall_ms: 0 }, commands: vec![Command::Tick] };
        raft.announced_commit.fetch_max(applied() + 1, Ordering::SeqCst);
        assert!(!raft.may_read_locally(), "a follower may be ahead");
        while applied() < raft.announced_commit.load(Ordering::SeqCst) {
            raft.propose(term, Proposal::leases(&tick)).await.expect("it leads");
        }
        assert!(raft.may_read_locally(), "it has applied all of it");
        cluster.shutdown().await;
    }

    #[tokio::test(start_paused = true)]
    async fn local_read_waits_for_an_entry_of_its_own_term() {
        let cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
        let leader = leader(&cluster).await;
        let raft = cluster.node(leader).raft();
        let term = raft.leadership().term;
        assert!(raft.has_applied_all(term));
        assert!(!raft.has_applied_all(term + 1), "earlier leaders may have committed more than is applied here");
        cluster.shutdown().await;
    }

    /// Openraft may act on the call as soon as it has it, long before the call returns.
    #[tokio::test(start_paused = true)]
    async fn local_read_is_refused_from_the_call_of_a_transfer_on() {
        let cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
        let leader = leader(&cluster).await;
        let raft = cluster.node(leader).raft();
        let to = cluster.ids().find(|id| *id != leader).expect("there are three");
        let mut transfer = Box::pin(raft.transfer_leadership_to(to, Duration::from_secs(5)));
        assert!(futures_util::poll!(&mut transfer).is_pending(), "the call is made");
        assert!(!raft.may_read_locally(), "the next leader may be elected from now on");
        (&mut transfer).await.expect("it is handed on");
        drop(transfer);
        cluster.shutdown().await;
    }
}
