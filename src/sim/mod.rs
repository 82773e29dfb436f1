//! Simulation: the disk, the files, the network and the time of a node, in memory. Release builds do not contain it.

mod clock;
mod cluster;
mod files;
pub mod instant;
mod network;
mod rot;
mod storage;
pub mod time;

pub use clock::{ManualClock, SuspendedClock, TokioClock};
pub use cluster::{Cluster, ForNode, Setup, TestNode};
pub use files::MemoryFiles;
pub use network::{MemoryListener, MemoryTransport, NetworkFaults, Switchboard};
pub use rot::Flip;
pub use storage::{Cut, MemoryStorage, SyncMode};
pub use time::NodeTime;
