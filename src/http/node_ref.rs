//! A reference to a node that may not have started yet, or may be dropped.

use std::sync::{Arc, OnceLock};

use super::response::HttpProblem;
use crate::api::Code;
use crate::node::{Node, WeakNode};

/// A listener's reference to its node.
///
/// The listener can serve before the node has started: `/livez` succeeds, and other requests fail with `not_ready`.
///
/// A `NodeRef` does not keep the node alive, and neither do requests in progress. When the last handle of the node is
/// dropped, requests fail with `shutting_down`.
#[derive(Clone, Default)]
pub struct NodeRef(Arc<OnceLock<WeakNode>>);

impl NodeRef {
    /// Creates a reference to a node that has not started yet.
    pub fn empty() -> NodeRef {
        NodeRef::default()
    }

    /// Sets the node. Only the first call has an effect.
    pub fn fill(&self, node: &Node) {
        let _ = self.0.set(node.downgrade());
    }

    /// The node, if it has started and is not dropped.
    pub(super) fn get(&self) -> Option<Node> {
        self.0.get()?.as_guest()
    }

    /// The node, or a problem that says why there is none.
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
