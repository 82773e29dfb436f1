//! Changes of the members, through joint consensus.
//!
//! A change of the voters takes two log entries. In the first, the *joint* configuration, the old and the new voters both
//! need a majority. The second has the new voters alone. openraft proposes the second entry only in the call that proposed
//! the first one. If its leader stops in between, the next leader calls [`complete_change`](RaftHandle::complete_change).

use std::collections::{BTreeMap, BTreeSet};

use openraft::ChangeMembers;
use openraft::Precondition;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ChangeMembershipError, ClientWriteError, RaftError};
use tokio::sync::OwnedMutexGuard;

use super::handle::{RaftHandle, run_to_completion};
use super::types::{CommittedLeaderId, LogId, PeerInfo, Stored, TypeConfig, position};
use crate::storage::{Position, Storage};
use crate::types::NodeId;

/// A change of the members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipChange {
    /// Adds a node that receives the log and does not vote.
    AddLearner(NodeId, PeerInfo),
    /// Makes a learner a voter.
    Promote(NodeId),
    /// Removes a voter or a learner.
    Remove(NodeId),
    /// Removes a voter and makes a learner a voter, in one step.
    Replace { old: NodeId, new: NodeId },
    /// Changes the addresses of a member.
    SetAddresses(NodeId, PeerInfo),
}

/// Why a change of the members was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// Certainly not made.
    #[error("this node is not the leader")]
    NotLeader,
    /// Certainly not made.
    #[error("another change of the members is in progress")]
    InProgress,
    /// Certainly not made.
    #[error("{0}")]
    Refused(String),
    /// The change may be made, or may be completed by the next leader.
    #[error("{0}")]
    Unknown(String),
}

/// The latest membership in the log of this node. It may not be committed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CurrentMembership {
    /// All voters. During a change of the voters: the old and the new ones.
    pub voters: BTreeSet<NodeId>,
    /// The voters after the change. `None` if the voters do not change at present.
    pub next_voters: Option<BTreeSet<NodeId>>,
    /// All members, with their addresses.
    pub nodes: BTreeMap<NodeId, PeerInfo>,
}

impl<S: Storage> RaftHandle<S> {
    pub fn current_membership(&self) -> CurrentMembership {
        let stored = self.stored_membership();
        let membership = stored.membership();
        let configs = membership.get_joint_config();
        CurrentMembership {
            voters: membership.voter_ids().collect(),
            next_voters: configs.last().filter(|_| configs.len() > 1).cloned(),
            nodes: membership.nodes().map(|(id, info)| (*id, info.clone())).collect(),
        }
    }

    /// The log position of the latest membership in the log of this node. Each change has another one.
    pub fn membership_position(&self) -> Option<Position> {
        self.stored_membership().log_id().as_ref().map(position)
    }

    /// Whether the last change is not complete: it is not committed, or its second entry is missing. A change that is not
    /// committed may be lost.
    pub fn is_changing(&self) -> bool {
        let metrics = self.metrics.borrow_watched();
        let (committed, current) = (&metrics.committed_membership_config, &metrics.membership_config);
        committed.log_id() != current.log_id() || current.membership().get_joint_config().len() > 1
    }

    /// Makes a change, if this node leads in `term`, makes no other change, and has made none since the caller
    /// [read](Self::membership_position) `decided_at`. The caller decided on the change with the members at that position.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the change continues.
    pub async fn change_members(
        &self,
        term: u64,
        decided_at: Option<Position>,
        change: MembershipChange,
    ) -> Result<(), ChangeError> {
        let guard = self.changing.clone().try_lock_owned().map_err(|_| ChangeError::InProgress)?;
        if self.membership_position() != decided_at {
            return Err(ChangeError::InProgress);
        }
        let is_learner = |id: NodeId| !self.current_membership().voters.contains(&id);
        let change = match change {
            MembershipChange::AddLearner(id, info) => ChangeMembers::AddNodes(BTreeMap::from([(id, info)])),
            MembershipChange::Promote(id) => ChangeMembers::AddVoterIds(BTreeSet::from([id])),
            MembershipChange::Remove(id) if is_learner(id) => ChangeMembers::RemoveNodes(BTreeSet::from([id])),
            MembershipChange::Remove(id) => ChangeMembers::RemoveVoters(BTreeSet::from([id])),
            MembershipChange::Replace { old, new } => {
                let mut voters = self.current_membership().voters;
                voters.remove(&old);
                voters.insert(new);
                ChangeMembers::ReplaceAllVoters(voters)
            }
            MembershipChange::SetAddresses(id, info) => ChangeMembers::SetNodes(BTreeMap::from([(id, info)])),
        };
        self.change(term, change, guard).await
    }

    /// Completes a change of the voters that an earlier leader began, if there is one.
    ///
    /// # Errors
    ///
    /// As [`change_members`](Self::change_members). [`ChangeError::InProgress`] while this node itself makes a change.
    pub async fn complete_change(&self, term: u64) -> Result<(), ChangeError> {
        let guard = self.changing.clone().try_lock_owned().map_err(|_| ChangeError::InProgress)?;
        // openraft reduces the joint configuration to its last voters, and these do not change.
        self.change(term, ChangeMembers::AddVoterIds(BTreeSet::new()), guard).await
    }

    /// Makes a change while it holds the lock of changes.
    async fn change(
        &self,
        term: u64,
        change: ChangeMembers<NodeId, PeerInfo>,
        guard: OwnedMutexGuard<()>,
    ) -> Result<(), ChangeError> {
        let before = self.membership_position();
        let leader = Precondition::CommittedLeaderId { committed_leader_id: CommittedLeaderId::from(term) };
        let raft = self.raft.clone();
        let changed = run_to_completion(async move {
            // The second entry is proposed in this call, so no other change may begin before its end.
            let _guard = guard;
            // A removed voter does not stay as a learner.
            raft.change_membership_if(change, false, [leader]).await
        });
        let error = match changed.await {
            Ok(made) => {
                self.shows_committed(&made.log_id).await;
                return Ok(());
            }
            Err(error) => error,
        };
        // An error of the second entry looks like one of the first.
        let is_appended = self.membership_position() != before;
        Err(change_error(error, is_appended))
    }

    /// Waits until the metrics show the commit of a change, shortly after its answer. The next change depends on them.
    async fn shows_committed(&self, change: &LogId) {
        let mut metrics = self.metrics.clone();
        while metrics.borrow_watched().committed_membership_config.log_id().as_ref() < Some(change) {
            if metrics.changed().await.is_err() {
                return;
            }
        }
    }

    fn stored_membership(&self) -> Stored {
        (*self.metrics.borrow_watched().membership_config).clone()
    }
}

fn change_error(error: RaftError<TypeConfig, ClientWriteError<TypeConfig>>, is_appended: bool) -> ChangeError {
    match error {
        error if is_appended => ChangeError::Unknown(format!("the change began and is not complete: {error}")),
        RaftError::APIError(ClientWriteError::ForwardToLeader(_) | ClientWriteError::PreconditionFailed(_)) => {
            ChangeError::NotLeader
        }
        RaftError::APIError(ClientWriteError::ChangeMembershipError(ChangeMembershipError::InProgress(_))) => {
            ChangeError::InProgress
        }
        RaftError::APIError(ClientWriteError::ChangeMembershipError(error)) => ChangeError::Refused(error.to_string()),
        error => ChangeError::Unknown(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use openraft::errors::ForwardToLeader;

    use super::*;

    /// The next leader completes a change whose first entry is committed.
    #[test]
    fn begun_change_has_an_unknown_outcome() {
        let error = || RaftError::APIError(ClientWriteError::ForwardToLeader(ForwardToLeader::empty()));
        assert!(matches!(change_error(error(), true), ChangeError::Unknown(_)));
        assert!(matches!(change_error(error(), false), ChangeError::NotLeader));
    }
}
