//! Leadership transfers.
//!
//! openraft's leader remains in a transfer until its term ends, even if the target never takes the leadership. It
//! refuses writes and confirmed reads, and sends no heartbeats. So the other nodes hold an election when the leadership
//! lease expires. If the leader's call reaches the target late, the voters elect the target at once, despite the leases
//! that they granted. Therefore this node answers no local reads for the rest of the term.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use openraft::{Instant as _, ServerState};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::Instant;

use super::handle::RaftHandle;
use super::handle::run_to_completion;
use crate::storage::Storage;
use crate::types::NodeId;

/// Interval between two checks for the new leader.
const TRANSFER_POLL: Duration = Duration::from_millis(2);
/// Most entries that a successor may lack at a transfer. Under load, about as many are always in flight.
const MAX_SUCCESSOR_LAG: u64 = 256;

/// The reason for a failed leadership transfer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    #[error("this node is not the leader")]
    NotLeader,
    #[error("no other voter is within {MAX_SUCCESSOR_LAG} entries of the end of the log")]
    NoCaughtUpVoter,
    #[error(
        "node {to} did not take the leadership within {timeout:?}; another node can take it after the leadership lease"
    )]
    NotTaken { to: NodeId, timeout: Duration },
}

/// The transfers that this node began.
#[derive(Default)]
pub(super) struct Transfers {
    /// The last term in which a transfer began, or `u64::MAX` while the term is unknown.
    term: Arc<AtomicU64>,
    /// Held during a transfer. With two transfers at once, openraft would make both targets stand for election.
    in_progress: Arc<Mutex<()>>,
}

impl Transfers {
    /// Whether a transfer began, or may have begun, in this term.
    pub fn began_in(&self, term: u64) -> bool {
        self.term.load(Ordering::SeqCst) >= term
    }
}

impl<S: Storage> RaftHandle<S> {
    /// Transfers leadership to the voter that lacks the fewest entries, and waits until another node leads.
    ///
    /// # Errors
    ///
    /// This node does not lead, no voter is close enough to the end of the log, or no other node leads within
    /// `timeout`.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped after the transfer began, the transfer continues.
    pub async fn transfer_leadership(&self, timeout: Duration) -> Result<NodeId, TransferError> {
        let voters = self.current_membership().voters;
        self.transfer_leadership_among(&voters, timeout).await
    }

    /// Transfers leadership to the one of these voters that lacks the fewest entries. Otherwise as
    /// [`transfer_leadership`](Self::transfer_leadership).
    pub async fn transfer_leadership_among(
        &self,
        voters: &BTreeSet<NodeId>,
        timeout: Duration,
    ) -> Result<NodeId, TransferError> {
        let to = self.successor(voters)?;
        self.transfer_leadership_to(to, timeout).await
    }

    /// Transfers leadership to a voter, and waits until another node leads. Otherwise as
    /// [`transfer_leadership`](Self::transfer_leadership).
    pub async fn transfer_leadership_to(&self, to: NodeId, timeout: Duration) -> Result<NodeId, TransferError> {
        let deadline = Instant::now() + timeout;
        // Raft's core does not respond while it waits for the disk.
        let begun = tokio::time::timeout_at(deadline, self.begin_transfer(to)).await;
        let _in_progress = begun.unwrap_or(Err(TransferError::NotTaken { to, timeout }))?;
        while Instant::now() < deadline {
            match self.leadership().leader {
                Some(leader) if leader != self.node => return Ok(leader),
                _ => tokio::time::sleep(TRANSFER_POLL).await,
            }
        }
        Err(TransferError::NotTaken { to, timeout })
    }

    /// Returns the lock of the transfer. If the future is dropped in between, the lock is free when the transfer has begun.
    async fn begin_transfer(&self, to: NodeId) -> Result<OwnedMutexGuard<()>, TransferError> {
        let in_progress = self.transfers.in_progress.clone().lock_owned().await;
        if self.metrics.borrow_watched().state != ServerState::Leader {
            return Err(TransferError::NotLeader);
        }
        let (raft, term) = (self.raft.clone(), self.transfers.term.clone());
        // This must complete: the stored term stays unknown until the last step.
        let begin = async move {
            term.store(u64::MAX, Ordering::SeqCst);
            raft.trigger().transfer_leader(to).await?;
            let now = raft.with_raft_state(|state| state.vote_ref().leader_id.term).await?;
            term.store(now, Ordering::SeqCst);
            Ok(in_progress)
        };
        run_to_completion(begin).await.map_err(|_: openraft::errors::Fatal<_>| TransferError::NotLeader)
    }

    /// A voter with an almost complete log. A voter that lags could not win the election, and no write could succeed
    /// until another node did. Neither could a dead one: a voter that this leader has not heard lately comes last. A new
    /// leader has heard none.
    fn successor(&self, voters: &BTreeSet<NodeId>) -> Result<NodeId, TransferError> {
        let metrics = self.metrics.borrow_watched();
        let progress = metrics.replication.as_ref().ok_or(TransferError::NotLeader)?;
        let behind = |matched: u64| metrics.last_log_index.unwrap_or_default().saturating_sub(matched);
        let others = progress.iter().filter(|(id, _)| **id != self.node);
        let is_silent = |id: &NodeId| {
            let heard = metrics.heartbeat.as_ref().and_then(|heard| heard.get(id)).and_then(Option::as_ref);
            heard.is_none_or(|at| at.elapsed() > self.timings.leadership_lease())
        };
        let lags = others
            .filter_map(|(id, matched)| matched.as_ref().map(|matched| (is_silent(id), behind(matched.index), *id)));
        best_successor(voters, lags).ok_or(TransferError::NoCaughtUpVoter)
    }
}

/// Of the voters that lack at most [`MAX_SUCCESSOR_LAG`] entries, the one that lacks the fewest, if possible one that is not
/// silent.
fn best_successor(voters: &BTreeSet<NodeId>, members: impl Iterator<Item = (bool, u64, NodeId)>) -> Option<NodeId> {
    let can_lead = |(_, behind, id): &(bool, u64, NodeId)| *behind <= MAX_SUCCESSOR_LAG && voters.contains(id);
    members.filter(can_lead).min().map(|(_, _, id)| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn successor_is_the_voter_that_lacks_the_fewest_entries() {
        let voters = BTreeSet::from([1, 2, 3]);
        let successor =
            |lags: &[(u64, NodeId)]| best_successor(&voters, lags.iter().map(|(behind, id)| (false, *behind, *id)));
        assert_eq!(successor(&[(7, 1), (0, 2), (3, 3)]), Some(2));
        assert_eq!(successor(&[(MAX_SUCCESSOR_LAG, 3), (MAX_SUCCESSOR_LAG + 1, 1)]), Some(3));
        assert_eq!(successor(&[(MAX_SUCCESSOR_LAG + 1, 1)]), None);
        assert_eq!(successor(&[]), None);
        let learner = 4;
        assert_eq!(successor(&[(0, learner), (7, 2)]), Some(2));
        assert_eq!(successor(&[(0, learner)]), None, "a learner cannot lead");
    }

    #[test]
    fn silent_voter_is_the_last_choice() {
        let voters = BTreeSet::from([1, 2]);
        let successor = |lags: &[(bool, u64, NodeId)]| best_successor(&voters, lags.iter().copied());
        assert_eq!(successor(&[(true, 0, 1), (false, MAX_SUCCESSOR_LAG, 2)]), Some(2));
        assert_eq!(successor(&[(true, 0, 1), (false, MAX_SUCCESSOR_LAG + 1, 2)]), Some(1));
        assert_eq!(successor(&[(true, 7, 1), (true, 0, 2)]), Some(2));
    }
}
