//! Changes of the voter set, for tests. The product has no operation for it.

use std::collections::BTreeSet;

use super::handle::RaftHandle;
use super::handle::run_to_completion;
use crate::storage::Storage;
use crate::types::NodeId;

impl<S: Storage> RaftHandle<S> {
    /// Makes exactly these members voters through joint consensus. The other members become learners.
    pub async fn set_voters(&self, voters: BTreeSet<NodeId>) -> Result<(), String> {
        let raft = self.raft().clone();
        let change = async move { raft.change_membership(voters, true).await };
        run_to_completion(change).await.map(drop).map_err(|error| error.to_string())
    }

    /// The voters that this member knows.
    pub fn voters(&self) -> BTreeSet<NodeId> {
        self.members().into_iter().filter(|member| member.voter).map(|member| member.id).collect()
    }
}
