//! Fencing at the resource: gates, the HTTP layer, stores of others, and the conformance test with what it catches.
//!
//! The tests of PostgreSQL need its server programs (Debian: `apt-get install postgresql`), those of Redis `redis-server`;
//! both are started and stopped by the tests. `docs/fencing.md` says more.

mod broken;
mod conformance;
mod cookbook;
mod gate;
mod journal;
mod layer;
mod postgres;
#[path = "../support/postgres.rs"]
mod postgres_server;
mod redis;
#[path = "../support/redis.rs"]
mod redis_server;
mod shelf;
mod token;
