//! Tests over real sockets, one file per subject.

mod access;
mod api;
mod bodies;
#[path = "../support/calm.rs"]
mod calm;
mod cluster;
mod connections;
mod document;
mod hostile;
mod http_answers;
mod http_bounds;
mod lease_service;
mod listener;
mod members;
mod metrics;
mod newer_server;
mod permits;
#[path = "../support/plain_http.rs"]
mod plain_http;
mod remote;
#[path = "../support/served.rs"]
mod served;
mod shutdown;
#[path = "../support/steady.rs"]
mod steady;
mod three_nodes;
mod ui;
mod wait_limits;
