//! Tests over real sockets, one file for each subject.

mod api;
mod listener;
mod remote;
