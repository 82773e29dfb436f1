//! Changes of the members of a cluster.

use serde::{Deserialize, Serialize};

use super::NodeId;

/// A change of the members of a cluster. The leader makes one change at a time.
///
/// Nodes exchange it, so the fields of a variant never change, and new variants go at the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum MemberChange {
    /// Adds a node. It receives the log, asks to become a voter when it has caught up, and votes from then on.
    Add {
        /// An id that no node of this cluster ever had.
        id: NodeId,
        /// `host:port` of the public listener, as clients reach it.
        http: String,
        /// `host:port` of the peer listener, as other nodes reach it.
        peer: String,
    },
    /// Makes a member that has caught up a voter.
    Promote {
        /// The member.
        id: NodeId,
    },
    /// Removes a member for good. A leader first transfers its leadership.
    Remove {
        /// The member.
        id: NodeId,
        /// Removes it even if no majority of the other voters is healthy. The cluster then stops until a majority of
        /// them returns.
        force: bool,
    },
    /// Removes a voter and makes another member a voter, in one step. Succeeds without a change if the node was removed
    /// already and the other member is a voter: an earlier attempt can have completed.
    Replace {
        /// The voter to remove.
        old: NodeId,
        /// A member that has caught up.
        new: NodeId,
    },
    /// Changes the addresses of a member.
    Update {
        /// The member.
        id: NodeId,
        /// `host:port` of the public listener, as clients reach it.
        http: String,
        /// `host:port` of the peer listener, as other nodes reach it.
        peer: String,
    },
}

impl MemberChange {
    /// The member that the change is about. Of a replacement: the old one.
    pub fn id(&self) -> NodeId {
        match self {
            MemberChange::Add { id, .. }
            | MemberChange::Promote { id }
            | MemberChange::Remove { id, .. }
            | MemberChange::Replace { old: id, .. }
            | MemberChange::Update { id, .. } => *id,
        }
    }
}
