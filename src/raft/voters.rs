//! Changing who votes, for tests: the product has no way to ask for it.

use std::collections::BTreeSet;

use super::calls::to_the_end;
use super::handle::RaftHandle;
use crate::storage::Storage;
use crate::types::NodeId;

impl<S: Storage> RaftHandle<S> {
    /// Has exactly these members vote, by way of both majorities; the others stay, without a vote.
    pub async fn set_voters(&self, voters: BTreeSet<NodeId>) -> Result<(), String> {
        let raft = self.raft().clone();
        let change = async move { raft.change_membership(voters, true).await };
        to_the_end(change).await.map(drop).map_err(|error| error.to_string())
    }

    /// Who votes, as this member sees it.
    pub fn voters(&self) -> BTreeSet<NodeId> {
        self.members().into_iter().filter(|member| member.voter).map(|member| member.id).collect()
    }
}
