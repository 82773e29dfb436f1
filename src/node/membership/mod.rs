//! Cluster formation, and the incarnation of the disk that each member joined with.

mod form;
pub(in crate::node) mod join;

pub(in crate::node) use form::store_state_call;
