//! Elections, groups, placement and semaphores, with a real node and its listener.

mod cluster;
mod election;
mod fake_elections;
mod fake_shards;
mod faking;
mod group;
mod placement;
mod semaphore;
#[path = "../support/served.rs"]
mod served;
mod shards;
#[path = "../support/steady.rs"]
mod steady;
