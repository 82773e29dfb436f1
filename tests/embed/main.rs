//! Embedded nodes: started by a builder, used in process, mounted in an application, and stopped without leaks.

mod access;
mod alone;
mod backups;
#[path = "../support/calm.rs"]
mod calm;
mod example;
mod guest;
mod leaks;
mod local;
mod members;
mod mounted;
#[path = "../support/plain_http.rs"]
mod plain_http;
#[path = "../processes/port.rs"]
mod port;
mod replica;
#[path = "../support/steady.rs"]
mod steady;
mod takeovers;
#[cfg(feature = "otlp")]
mod traces;
mod trio;
