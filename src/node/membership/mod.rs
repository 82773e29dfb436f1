//! The members of the cluster: its formation, the disk that each member joined with, and changes of the members.

mod change;
mod form;
pub(in crate::node) mod join;

pub use change::MemberRefusal;
pub(in crate::node) use form::store_state_call;
