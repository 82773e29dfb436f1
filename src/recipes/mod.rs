//! Recipes built on leases: electing a leader, groups of processes, semaphores.

pub mod election;
pub mod group;
pub mod semaphore;
