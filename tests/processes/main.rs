//! Real processes, killed, paused, stopped and starved of their disks, and seen from outside only.
//!
//! Everything is on loopback, on ports and in folders of each test's own. Every test ends by itself and leaves no
//! process and no mount behind. `TENURE_KILLS`, `TENURE_READS`, `TENURE_PAUSES` and `TENURE_OVERLOAD` make four of
//! them longer.

mod client;
mod cluster;
mod example;
mod figures;
mod flood;
mod mount;
mod port;
#[path = "../support/postgres.rs"]
mod postgres;
mod prober;
mod process;
mod slow;
#[path = "../support/steady.rs"]
mod steady;

mod bodies;
mod commands;
mod crashes;
mod crowd;
mod dev;
mod directories;
mod disks;
mod examples;
mod fenced;
mod formation;
mod hangups;
mod holders;
mod open_files;
mod overload;
mod pauses;
mod returning;
mod shutdown;
mod strangers;
mod waiters;
