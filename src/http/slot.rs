//! The place of a node that may not have started yet.

use std::sync::{Arc, OnceLock};

use crate::node::Node;

/// Where a listener finds its node. The listener can serve before the node has started: health is answered, and
/// everything else is told to wait.
#[derive(Clone, Default)]
pub struct NodeSlot(Arc<OnceLock<Node>>);

impl NodeSlot {
    /// The slot of a node that is still to start.
    pub fn empty() -> NodeSlot {
        NodeSlot::default()
    }

    /// Fills the slot. A slot is filled once: a second node is ignored.
    pub fn fill(&self, node: Node) {
        let _ = self.0.set(node);
    }

    pub fn get(&self) -> Option<&Node> {
        self.0.get()
    }
}

impl From<Node> for NodeSlot {
    fn from(node: Node) -> NodeSlot {
        let slot = NodeSlot::empty();
        slot.fill(node);
        slot
    }
}
