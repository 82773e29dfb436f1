//! The place of a node that may not have started yet, or may be gone.

use std::sync::{Arc, OnceLock};

use super::refusal::HttpProblem;
use crate::api::Code;
use crate::node::{Node, WeakNode};

/// Where a listener finds its node. The listener can serve before the node has started: health is answered, and
/// everything else is told to wait.
///
/// It does not keep the node alive, and neither do requests under way. Once the last handle of the node is dropped, requests are refused as shutting down.
#[derive(Clone, Default)]
pub struct NodeRef(Arc<OnceLock<WeakNode>>);

impl NodeRef {
    /// The slot of a node that is still to start.
    pub fn empty() -> NodeRef {
        NodeRef::default()
    }

    /// Fills the slot. A slot is filled once: a second node is ignored.
    pub fn fill(&self, node: &Node) {
        let _ = self.0.set(node.downgrade());
    }

    /// The node, if it has started and is still there.
    pub(super) fn get(&self) -> Option<Node> {
        self.0.get()?.as_guest()
    }

    /// The node, or why there is none.
    pub(super) fn require(&self) -> Result<Node, HttpProblem> {
        let started = self.0.get().ok_or_else(|| HttpProblem::new(Code::NotReady, "the node is starting"))?;
        started.as_guest().ok_or_else(|| HttpProblem::new(Code::ShuttingDown, "the node was dropped by its program"))
    }
}

impl From<&Node> for NodeRef {
    fn from(node: &Node) -> NodeRef {
        let node_ref = NodeRef::empty();
        node_ref.fill(node);
        node_ref
    }
}
