//! Health of a node, and its reaction to a failed or stalled store.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::{Node, NodeCore};
use crate::peer::{PeerRefusal, Transport};
use crate::storage::{Storage, StorageError};
use crate::types::DiskState;

/// A leader transfers its leadership after its disk has not finished a commit for this long. It can apply nothing, but
/// its heartbeats need no disk and would prevent an election for as long as the stall lasts.
const STALL_TRANSFER: Duration = Duration::from_secs(2);
/// A node fails after its disk has not finished a commit for this long. It needs a restart, perhaps on another machine.
const STALL_FAIL: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Most late timers in a row before the stall watch looks at the disk nevertheless.
const MAX_LATE_POLLS: u32 = 4;

/// The health of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// The permanent failure that requires a restart, if there is one.
    pub failed: Option<String>,
    /// The reason to send requests to another node for now, if there is one.
    pub not_ready: Option<String>,
}

/// A permanent failure of a node. The node needs a restart, perhaps on another machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeFailure {
    /// The store failed. It writes nothing more to the data directory.
    #[error(transparent)]
    Storage(StorageError),
    /// Raft stopped with an error or panicked.
    #[error("{0}")]
    Raft(String),
    /// The disk has not finished a write for this long, which is at least 30 s.
    #[error("the disk has not finished a write for {0:?}")]
    DiskStalled(Duration),
    /// The cluster refuses this node: it removed the node, or the data directory is not the one that the node joined
    /// with.
    #[error(transparent)]
    Refused(PeerRefusal),
}

impl<S: Storage, T: Transport> Node<S, T> {
    /// Returns whether this node has failed, and whether it can serve requests now.
    pub fn health(&self) -> Health {
        let inner = &self.inner;
        Health {
            failed: inner.lifecycle.failure.borrow().as_ref().map(ToString::to_string),
            not_ready: inner.not_ready().map(str::to_string),
        }
    }
}

impl<S: Storage, T: Transport> NodeCore<S, T> {
    fn not_ready(&self) -> Option<&'static str> {
        if self.lifecycle.draining.load(Ordering::Relaxed) {
            Some("the node is shutting down")
        } else if self.disk_state() == DiskState::Stalled {
            Some("the disk is stalled: a write is not finished")
        } else if self.raft.quorum_age().is_some() && self.raft.leads_for().is_none() {
            Some("this node is the leader, but no majority acknowledges it")
        } else if !self.hears_leader() {
            Some("no leader is known")
        } else if self.raft.leadership().leader.is_none_or(|leader| self.raft.member(leader).is_none()) {
            // A new member learns the leader's address from the log, which it has not received yet.
            Some("the leader's address is not known yet")
        } else if self.raft.state_age().is_none_or(|age| age > self.settings.timeouts.leaderless) {
            Some("this node has not caught up with the leader")
        } else {
            None
        }
    }

    /// Whether this node leads, or has heard from a leader recently.
    pub(super) fn hears_leader(&self) -> bool {
        let recent = self.settings.timeouts.leaderless;
        let leads = self.requests.clock.leader_term().is_some();
        leads || self.raft.last_contact().is_some_and(|elapsed| elapsed <= recent)
    }

    pub(super) fn disk_state(&self) -> DiskState {
        let is_stalled = self.stalled_for().is_some_and(|stalled| stalled >= STALL_TRANSFER);
        if is_stalled { DiskState::Stalled } else { DiskState::Ok }
    }

    fn stalled_for(&self) -> Option<Duration> {
        self.storage.committing_for()
    }

    /// Waits for a failure of the store or of Raft. Neither recovers, so the process must exit with the reason.
    pub(super) async fn notice_failure(self: Arc<Self>) {
        let mut storage = self.storage.failure();
        let why = tokio::select! {
            biased;
            Ok(failure) = storage.wait_for(Option::is_some) => {
                NodeFailure::Storage(failure.clone().expect("wait_for returned a failure"))
            }
            why = self.raft.stopped() => NodeFailure::Raft(why),
        };
        self.lifecycle.fail(why);
    }

    /// Polls the age of the oldest unfinished commit: a stalled disk reports no error.
    pub(super) async fn notice_stall(self: Arc<Self>) {
        // Without a successor, each transfer of the stall fails at once.
        let mut is_logged = false;
        loop {
            // If a timer is late, the process may have been stopped: a commit that the disk has finished meanwhile is not
            // recorded yet. A node whose timers are always late must fail, too.
            for _ in 0..MAX_LATE_POLLS {
                let began = Instant::now();
                tokio::time::sleep(POLL_INTERVAL).await;
                if began.elapsed() < 2 * POLL_INTERVAL {
                    break;
                }
            }
            let stalled = self.stalled_for().unwrap_or_default();
            if stalled >= STALL_FAIL {
                return self.lifecycle.fail(NodeFailure::DiskStalled(stalled));
            }
            is_logged &= stalled >= STALL_TRANSFER;
            if stalled >= STALL_TRANSFER && self.requests.clock.leader_term().is_some() {
                let timeout = self.settings.timeouts.transfer_leadership.min(STALL_FAIL - stalled);
                match self.raft.transfer_leadership(timeout).await {
                    Ok(to) => tracing::warn!(to, ?stalled, "disk stalled: leadership transferred"),
                    Err(error) if !is_logged => {
                        tracing::warn!(%error, ?stalled, "disk stalled: leadership transfer failed");
                        is_logged = true;
                    }
                    Err(_) => {}
                }
            }
        }
    }
}

#[cfg(all(test, feature = "testing", feature = "cli"))]
mod tests {
    use super::*;
    use crate::config::{LeaseSettings, RaftTimings};
    use crate::lease::Acquire;
    use crate::node::{Forward, Request};
    use crate::telemetry::tests::capture;
    use crate::testing::{Cluster, SyncMode};
    use crate::types::{HolderId, LeaseName, Metadata, Ttl};

    /// While a lease is held, the leader writes an entry every second.
    fn claim() -> Request {
        Request::Acquire(Acquire {
            name: LeaseName::new("job").expect("valid"),
            holder: HolderId::new("a").expect("valid"),
            ttl: Ttl::millis(600_000).expect("valid"),
            wait_ms: None,
            lock_delay_ms: 0,
            limit: 1,
            metadata: Metadata::default(),
        })
    }

    /// The cluster has no other node that could lead.
    #[tokio::test(start_paused = true)]
    async fn failed_transfers_of_one_stall_are_logged_once() {
        let cluster = Cluster::start(1, RaftTimings::lan(), LeaseSettings::default()).await;
        let leader = cluster.leader().await;
        let node = cluster.node(leader);
        node.request(claim(), Forward::Never).await.expect("answered");
        let (written, _logged_here) = capture();
        cluster.hang_disk(leader);
        let failed = tokio::time::timeout(2 * STALL_FAIL, node.wait_failed()).await.expect("the disk hangs");
        assert!(matches!(failed, NodeFailure::DiskStalled(_)), "{failed}");
        let lines = written.text();
        assert_eq!(lines.matches("leadership transfer failed").count(), 1, "{lines}");
    }

    #[tokio::test(start_paused = true)]
    async fn failed_transfer_of_each_stall_is_logged() {
        let cluster = Cluster::start(1, RaftTimings::lan(), LeaseSettings::default()).await;
        let leader = cluster.leader().await;
        let (node, disk) = (cluster.node(leader), cluster.disk(leader));
        node.request(claim(), Forward::Never).await.expect("answered");
        let (written, _logged_here) = capture();
        for stalls in 1..=2 {
            cluster.hang_disk(leader);
            tokio::time::sleep(3 * STALL_TRANSFER).await;
            disk.set_mode(SyncMode::Inline);
            disk.sync();
            tokio::time::sleep(4 * POLL_INTERVAL).await;
            node.request(claim(), Forward::Never).await.expect("the disk writes again");
            let lines = written.text();
            assert_eq!(lines.matches("leadership transfer failed").count(), stalls, "{lines}");
        }
        cluster.shutdown().await;
    }
}
