//! Whether a node can serve, and what it does about a store that cannot.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Inner, Node};
use crate::peer::{Refusal, Transport};
use crate::storage::Storage;

/// A leader whose disk has not finished a commit for this long gives its leadership away: it can apply nothing, and
/// its heartbeats, which need no disk, would keep everybody from electing another for as long as it lasts.
const STALL_HAND_ON: Duration = Duration::from_secs(2);
/// A node whose disk has not finished a commit for this long gives up: a restart, perhaps elsewhere, is what helps.
const STALL_FAIL: Duration = Duration::from_secs(30);
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Whether the node can serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Why a restart would help, if it would.
    pub failed: Option<String>,
    /// Why requests should go elsewhere for now, if they should.
    pub not_ready: Option<String>,
}

/// Why a node cannot go on. A restart is what helps, perhaps elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeFailure {
    /// The store failed: nothing is written to the data directory any more.
    #[error("{0}")]
    Storage(String),
    /// Raft stopped by an error, or panicked.
    #[error("{0}")]
    Raft(String),
    /// The disk has not finished a write for this long.
    #[error("the disk has not finished a write for {0:?}")]
    DiskStalled(Duration),
    /// Another node refuses this one: its data directory is not the one that it joined with.
    #[error(transparent)]
    Refused(Refusal),
}

impl<S: Storage, T: Transport> Node<S, T> {
    pub fn health(&self) -> Health {
        let inner = &self.inner;
        Health {
            failed: inner.failure.borrow().as_ref().map(ToString::to_string),
            not_ready: inner.not_ready().map(str::to_string),
        }
    }
}

impl<S: Storage, T: Transport> Inner<S, T> {
    fn not_ready(&self) -> Option<&'static str> {
        let recent = self.timeouts.leaderless;
        let hears_leader = self.contact.elapsed_ms().is_some_and(|ms| Duration::from_millis(ms) <= recent);
        let leads = self.clock.lead().is_some();
        if self.draining.load(Ordering::Relaxed) {
            Some("the node is shutting down")
        } else if self.stalled_for().is_some_and(|stalled| stalled >= STALL_HAND_ON) {
            Some("the disk does not finish a write")
        } else if self.raft.quorum_age().is_some() && self.raft.leads_for().is_none() {
            Some("this node leads, and no majority acknowledges it")
        } else if !(leads || hears_leader) {
            Some("no leader is known")
        } else if self.raft.leadership().leader.is_none_or(|leader| self.raft.member(leader).is_none()) {
            // Just joined: the log, which says where the leader is reached, is still on its way.
            Some("the leader's address is not known yet")
        } else {
            None
        }
    }

    fn stalled_for(&self) -> Option<Duration> {
        self.storage.committing_for()
    }

    /// A store that failed, or Raft stopped by an error, does not come back: the process has to end and say why.
    pub(super) async fn notice_failure(self: Arc<Self>) {
        let mut storage = self.storage.failure();
        let why = tokio::select! {
            biased;
            Ok(failure) = storage.wait_for(Option::is_some) => {
                NodeFailure::Storage(failure.as_ref().expect("waited for").to_string())
            }
            why = self.raft.stopped() => NodeFailure::Raft(why),
        };
        self.fail(why);
    }

    /// A disk that hangs says nothing, so it is watched.
    pub(super) async fn notice_stall(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            let stalled = self.stalled_for().unwrap_or_default();
            if stalled >= STALL_FAIL {
                return self.fail(NodeFailure::DiskStalled(stalled));
            }
            if stalled >= STALL_HAND_ON && self.clock.lead().is_some() {
                match self.raft.transfer_leadership(self.timeouts.transfer_leadership).await {
                    Ok(to) => tracing::warn!(to, ?stalled, "the disk hangs: leadership handed on"),
                    Err(error) => tracing::warn!(%error, ?stalled, "the disk hangs, and leadership was not handed on"),
                }
            }
        }
    }
}
