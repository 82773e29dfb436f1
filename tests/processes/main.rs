//! Tests of real processes that are killed, paused and stopped, and that run out of disk space. The tests observe the
//! processes only from outside.
//!
//! All processes use loopback, with separate ports and folders per test. Every test ends without help and leaves no
//! process and no mount. `TENURE_KILLS`, `TENURE_READS`, `TENURE_PAUSES` and `TENURE_OVERLOAD` extend four of the
//! tests.

#[path = "../support/calm.rs"]
mod calm;
mod client;
mod cluster;
mod example;
mod figures;
mod flood;
mod mount;
#[cfg(feature = "otel")]
mod otlp;
#[path = "../support/plain_http.rs"]
mod plain_http;
mod port;
#[path = "../support/postgres.rs"]
mod postgres;
mod prober;
mod process;
mod slow;
#[path = "../support/steady.rs"]
mod steady;

mod access_tokens;
mod addresses;
mod audit;
mod auth;
mod bodies;
mod commands;
mod compat;
mod costs;
mod crashes;
mod dev;
mod directories;
mod disks;
mod distance;
mod doctor;
mod examples;
mod fenced;
mod formation;
mod formats;
mod hangups;
mod holders;
mod idle_clients;
mod json_errors;
mod members;
mod metrics;
mod open_files;
mod overload;
mod pauses;
mod probe;
mod restore;
mod returning;
mod shutdown;
mod strangers;
mod task_leases;
mod task_queue;
mod tls;
#[cfg(feature = "otel")]
mod traces;
mod waiters;
mod web_replicas;
