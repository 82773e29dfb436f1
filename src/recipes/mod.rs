//! Recipes on top of leases: leader election, group membership and semaphores.

pub mod election;
pub mod group;
pub mod semaphore;
