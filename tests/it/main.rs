//! Tests over real sockets, one file for each subject.

mod api;
mod bodies;
mod cluster;
mod details;
mod document;
mod hostile;
mod listener;
mod remote;
mod sentences;
#[path = "../support/served.rs"]
mod served;
#[path = "../support/steady.rs"]
mod steady;
mod trio;
