//! Start and shutdown of a node.

pub(in crate::node) mod shutdown;
pub(in crate::node) mod start;
pub(in crate::node) mod tasks;
pub(in crate::node) mod vote_lease;
