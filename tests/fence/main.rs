//! Tests of the fencing check: gates, the HTTP layer, PostgreSQL, Redis, and the conformance test with planted bugs.
//!
//! The tests start and stop their own servers. They need the PostgreSQL server programs (Debian:
//! `apt-get install postgresql`) and `redis-server`. See `docs/fencing.md`.

mod broken;
mod conformance;
mod cookbook;
mod gate;
mod journal;
mod layer;
#[path = "../support/plain_http.rs"]
mod plain_http;
mod postgres;
#[path = "../support/postgres.rs"]
mod postgres_server;
mod redis;
#[path = "../support/redis.rs"]
mod redis_server;
mod shelf;
mod token;
