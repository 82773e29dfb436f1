//! The members of the cluster: its formation, the disk that each member joined with, changes of the members, and what
//! all members understand.

mod change;
mod form;
pub(in crate::node) mod join;
mod level;

pub use change::MemberRefusal;
