//! The members of a cluster: how they form it, and with which disk each joined.

mod form;
pub(in crate::node) mod join;
