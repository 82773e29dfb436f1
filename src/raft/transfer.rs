//! Handing leadership on.
//!
//! openraft's leader stays in a transfer until its term ends, whether the target takes the leadership or not: it refuses
//! writes and confirmed reads, and sends no heartbeats. So the others elect one of themselves when its leadership lease
//! is over. Its call to the target can arrive late, and the other voters then elect the target at once, whatever they
//! promised. This node therefore reads nothing locally for the rest of the term.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::calls::to_the_end;
use super::handle::RaftHandle;
use crate::storage::Storage;
use crate::types::NodeId;

/// How often a hand-over of leadership is looked at.
const TRANSFER_POLL: Duration = Duration::from_millis(2);
/// Entries that a successor may lack when leadership is handed on: what is on its way at any moment under load.
const MAX_SUCCESSOR_LAG: u64 = 256;

/// Why leadership was not handed on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    #[error("this node is not the leader")]
    NotLeader,
    #[error("no other voter has the whole log")]
    NobodyCaughtUp,
    #[error(
        "node {to} did not take the leadership within {timeout:?}; another node can once the leadership lease is over"
    )]
    NotTaken { to: NodeId, timeout: Duration },
}

/// What this node knows of its transfers.
#[derive(Default)]
pub(super) struct Transfers {
    /// The last term in which a transfer began.
    term: Arc<AtomicU64>,
    /// One at a time: openraft would have both targets stand for election.
    turn: Mutex<()>,
}

impl Transfers {
    /// Whether a transfer began in this term, or may have.
    pub fn began_in(&self, term: u64) -> bool {
        self.term.load(Ordering::SeqCst) >= term
    }
}

impl<S: Storage> RaftHandle<S> {
    /// Gives leadership to the voter that is furthest, and waits until another node leads.
    pub async fn transfer_leadership(&self, timeout: Duration) -> Result<NodeId, TransferError> {
        let to = self.successor()?;
        self.transfer_leadership_to(to, timeout).await
    }

    /// Gives leadership to a voter, and waits until another node leads.
    pub async fn transfer_leadership_to(&self, to: NodeId, timeout: Duration) -> Result<NodeId, TransferError> {
        let _turn = self.transfers.turn.lock().await;
        if self.metrics.borrow_watched().state != ServerState::Leader {
            return Err(TransferError::NotLeader);
        }
        let deadline = Instant::now() + timeout;
        self.begin_transfer(to).await?;
        while Instant::now() < deadline {
            match self.leadership().leader {
                Some(leader) if leader != self.node => return Ok(leader),
                _ => tokio::time::sleep(TRANSFER_POLL).await,
            }
        }
        Err(TransferError::NotTaken { to, timeout })
    }

    async fn begin_transfer(&self, to: NodeId) -> Result<(), TransferError> {
        let (raft, term) = (self.raft.clone(), self.transfers.term.clone());
        // To its end, because the term has to be known again: until then it may be any.
        let begin = async move {
            term.store(u64::MAX, Ordering::SeqCst);
            raft.trigger().transfer_leader(to).await?;
            let now = raft.with_raft_state(|state| state.vote_ref().leader_id.term).await?;
            term.store(now, Ordering::SeqCst);
            Ok(())
        };
        to_the_end(begin).await.map_err(|_: openraft::errors::Fatal<_>| TransferError::NotLeader)
    }

    /// A voter that has the whole log: another one could not be elected, and nothing could be written meanwhile.
    fn successor(&self) -> Result<NodeId, TransferError> {
        let metrics = self.metrics.borrow_watched();
        let progress = metrics.replication.as_ref().ok_or(TransferError::NotLeader)?;
        let voters: BTreeSet<NodeId> = metrics.membership_config.voter_ids().collect();
        let behind = |matched: u64| metrics.last_log_index.unwrap_or_default().saturating_sub(matched);
        let others = progress.iter().filter(|(id, _)| **id != self.node && voters.contains(id));
        let lags = others.filter_map(|(id, matched)| matched.as_ref().map(|matched| (behind(matched.index), *id)));
        least_behind(lags).ok_or(TransferError::NobodyCaughtUp)
    }
}

/// The voter that lacks the fewest entries, if it lacks few enough.
fn least_behind(lags: impl Iterator<Item = (u64, NodeId)>) -> Option<NodeId> {
    lags.min().filter(|(behind, _)| *behind <= MAX_SUCCESSOR_LAG).map(|(_, id)| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn successor_is_the_voter_that_lacks_the_fewest_entries() {
        let successor = |lags: &[(u64, NodeId)]| least_behind(lags.iter().copied());
        assert_eq!(successor(&[(7, 1), (0, 2), (3, 3)]), Some(2));
        assert_eq!(successor(&[(MAX_SUCCESSOR_LAG, 3), (MAX_SUCCESSOR_LAG + 1, 1)]), Some(3));
        assert_eq!(successor(&[(MAX_SUCCESSOR_LAG + 1, 1)]), None);
        assert_eq!(successor(&[]), None);
    }
}
