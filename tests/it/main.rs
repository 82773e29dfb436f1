//! Tests over real sockets, one file for each subject.

mod api;
mod cluster;
mod document;
mod hostile;
mod listener;
mod remote;
#[path = "../support/served.rs"]
mod served;
#[path = "../support/steady.rs"]
mod steady;
