//! One running Raft member, as the node uses it: propose, read, see who leads, hand leadership on.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
use super::state_machine::{StateMachine, blocking};
use super::timings::Safeguards;
use super::types::{Applied, PeerInfo, Proposal, TypeConfig, position};
use super::{Log, RaftTimings};
use crate::clock::Clock;
use crate::peer::Transport;
use crate::storage::{Position, Storage};
use crate::types::NodeId;

/// Local reads trust an acknowledgement of a majority for this part of the leadership lease: the rest is for clocks
/// that run at different rates.
const LOCAL_READ_PERCENT: u32 = 70;
/// A step of the suspended time above this is a suspend, below it the two clocks were read a moment apart.
const SUSPEND_STEP: Duration = Duration::from_millis(5);
/// How often a hand-over of leadership is looked at.
const TRANSFER_POLL: Duration = Duration::from_millis(2);

pub struct RaftHandle<S: Storage> {
    node: NodeId,
    storage: S,
    raft: Raft<TypeConfig, StateMachine<S>>,
    replica: Replica,
    metrics: WatchReceiverOf<TypeConfig, RaftMetrics<TypeConfig>>,
    announced_commit: Arc<AtomicU64>,
    clock: Arc<dyn Clock>,
    timings: RaftTimings,
    safeguards: Safeguards,
    /// When the last acknowledgement was seen here first; kept only by a test that counts from there.
    seen: Mutex<Option<(InstantOf<TypeConfig>, Instant)>>,
    /// While leadership is handed on nothing is read locally: followers are told to elect another at once.
    handing_on: AtomicBool,
    suspend: Mutex<Suspend>,
}

/// The last suspend of this machine that a read noticed.
struct Suspend {
    total: Duration,
    noticed: Option<Instant>,
}

/// Who leads, as this member sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    pub term: u64,
    pub leader: Option<NodeId>,
}

/// Tells when the leadership may have changed.
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
    pub fn now(&mut self) -> Leadership {
        let metrics = self.metrics.borrow_and_update();
        let leader = seen_leader(metrics.id, metrics.state, metrics.current_leader);
        Leadership { term: metrics.vote.leader_id.term, leader }
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
pub enum ProposeError {
    /// Certainly not in the log.
    #[error("this node is not the leader")]
    NotLeader,
    /// It may be in the log of the next leader.
    #[error("{0}")]
    Unknown(String),
}

/// Why leadership was not handed on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandOnError {
    #[error("this node is not the leader")]
    NotLeader,
    #[error("no other voter has the whole log")]
    NobodyCaughtUp,
    #[error("node {to} did not take the leadership within {timeout:?}")]
    NotTaken { to: NodeId, timeout: Duration },
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
        let network = Network {
            transport,
            storage: storage.clone(),
            announced_commit: announced_commit.clone(),
            disk_timeout: timings.disk_timeout(),
        };
        let state_machine = StateMachine::new(replica.clone(), storage.clone());
        let raft = Raft::build(node, Arc::new(config), network, Log::new(node, storage.clone()), state_machine)
            .await
            .map_err(|error| error.to_string())?;
        replica.publish();
        let metrics = raft.metrics();
        let suspend = Mutex::new(Suspend { total: clock.suspended(), noticed: None });
        let handing_on = AtomicBool::new(false);
        let seen = Mutex::default();
        Ok(RaftHandle {
            node,
            storage,
            raft,
            replica,
            metrics,
            announced_commit,
            clock,
            timings,
            safeguards,
            seen,
            handing_on,
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
    pub async fn propose(&self, term: u64, proposal: Proposal) -> Result<(Position, Applied), ProposeError> {
        let (responder, complete) = ProgressResponder::complete_only();
        let raft = self.raft.clone();
        let write = async move { raft.write(proposal).with_leader(term).responder(responder).await };
        let sent = to_the_end(write).await;
        sent.map_err(|fatal| ProposeError::Unknown(fatal.to_string()))?;
        match complete.await {
            Ok(Ok(done)) => Ok((position(&done.log_id), done.data)),
            Ok(Err(ClientWriteError::ForwardToLeader(_))) => Err(ProposeError::NotLeader),
            Ok(Err(error)) => Err(ProposeError::Unknown(error.to_string())),
            Err(_) => Err(ProposeError::Unknown("Raft stopped".into())),
        }
    }

    /// Whether this node's memory may answer a read now, without asking anybody.
    ///
    /// It leads, a majority acknowledged that recently enough that nobody else can have been elected, and it has
    /// applied its own term's first entry and all that any follower can have been told is committed.
    pub fn may_read_locally(&self) -> bool {
        if self.handing_on.load(Ordering::SeqCst) {
            return false;
        }
        let (leads, term, acked) = {
            let metrics = self.metrics.borrow_watched();
            let leads = metrics.state == ServerState::Leader;
            (leads, metrics.current_term, metrics.last_quorum_acked.map(|acked| *acked))
        };
        if !self.safeguards.lease_on_read {
            return leads && self.has_applied_all(term);
        }
        let Some(acked) = acked.filter(|_| leads) else { return false };
        let age = if self.safeguards.lease_from_asking { acked.elapsed() } else { self.since_seen(acked) };
        age < self.local_read_age() && !self.suspended_since(age) && self.has_applied_all(term)
    }

    /// Waits until this node's memory may answer a read that arrived before the call. With `confirm`, by a round to a
    /// majority that starts after the call; otherwise a recent acknowledgement will do.
    pub async fn await_readable(&self, confirm: bool, timeout: Duration) -> Result<(), ProposeError> {
        let age = if confirm { Duration::ZERO } else { self.local_read_age() };
        let option = LinearizerOption::new(Some(age), true).with_wait_timeout(timeout);
        let raft = self.raft.clone();
        let confirm = async move {
            let linearizer = match raft.get_read_linearizer(option).await {
                Ok(linearizer) => linearizer,
                Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(_))) => {
                    return Err(ProposeError::NotLeader);
                }
                Err(error) => return Err(ProposeError::Unknown(error.to_string())),
            };
            match linearizer.try_await_ready(&raft, Some(timeout)).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(behind)) => Err(ProposeError::Unknown(format!("still applying: {behind}"))),
                Err(fatal) => Err(ProposeError::Unknown(fatal.to_string())),
            }
        };
        to_the_end(confirm).await
    }

    /// Whether this leader had the acknowledgement of a majority for something that it sent within `age`.
    pub fn heard_majority_within(&self, age: Duration) -> bool {
        let metrics = self.metrics.borrow_watched();
        let alone = metrics.membership_config.voter_ids().take(2).count() == 1;
        alone || metrics.last_quorum_acked.is_some_and(|acked| acked.elapsed() <= age)
    }

    pub fn leadership(&self) -> Leadership {
        let metrics = self.metrics.borrow_watched();
        let leader = seen_leader(metrics.id, metrics.state, metrics.current_leader);
        Leadership { term: metrics.current_term, leader }
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

    /// Gives leadership to the voter that is furthest, and waits until it leads.
    pub async fn hand_on(&self, timeout: Duration) -> Result<NodeId, HandOnError> {
        let to = self.successor()?;
        self.hand_on_to(to, timeout).await
    }

    /// Gives leadership to a voter, and waits until it leads.
    pub async fn hand_on_to(&self, to: NodeId, timeout: Duration) -> Result<NodeId, HandOnError> {
        self.handing_on.store(true, Ordering::SeqCst);
        let handed = self.transfer(to, timeout).await;
        self.handing_on.store(false, Ordering::SeqCst);
        handed
    }

    async fn transfer(&self, to: NodeId, timeout: Duration) -> Result<NodeId, HandOnError> {
        let deadline = Instant::now() + timeout;
        let raft = self.raft.clone();
        let transfer = async move { raft.trigger().transfer_leader(to).await };
        to_the_end(transfer).await.map_err(|_| HandOnError::NotLeader)?;
        while Instant::now() < deadline {
            match self.leadership().leader {
                Some(leader) if leader != self.node => return Ok(leader),
                _ => tokio::time::sleep(TRANSFER_POLL).await,
            }
        }
        Err(HandOnError::NotTaken { to, timeout })
    }

    /// A voter that has the whole log: another one could not be elected, and nothing could be written meanwhile.
    fn successor(&self) -> Result<NodeId, HandOnError> {
        let metrics = self.metrics.borrow_watched();
        let progress = metrics.replication.as_ref().ok_or(HandOnError::NotLeader)?;
        let voters: BTreeSet<NodeId> = metrics.membership_config.voter_ids().collect();
        let behind = |matched: u64| metrics.last_log_index.unwrap_or_default().saturating_sub(matched);
        progress
            .iter()
            .filter(|(id, _)| **id != self.node && voters.contains(id))
            .filter_map(|(id, matched)| matched.as_ref().map(|matched| (behind(matched.index), *id)))
            .min()
            .filter(|(behind, _)| *behind <= MAX_SUCCESSOR_LAG)
            .map(|(_, id)| id)
            .ok_or(HandOnError::NobodyCaughtUp)
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

    /// Whether the machine slept after an acknowledgement of this age was asked for: the clock that measured the age
    /// stood still meanwhile.
    fn suspended_since(&self, age: Duration) -> bool {
        let total = self.clock.suspended();
        let mut suspend = self.suspend.lock();
        if total > suspend.total + SUSPEND_STEP {
            suspend.noticed = Some(Instant::now());
        }
        suspend.total = total.max(suspend.total);
        suspend.noticed.is_some_and(|noticed| noticed.elapsed() <= age)
    }
}

/// Entries that a successor may lack when leadership is handed on: what is on its way at any moment under load.
const MAX_SUCCESSOR_LAG: u64 = 256;
