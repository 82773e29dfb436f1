//! Simulation: the disk and the files of a node in memory. Nothing of it is in a release build.

mod files;
mod rot;
mod storage;

pub use files::MemoryFiles;
pub use rot::Flip;
pub use storage::{Cut, MemoryStorage, SyncMode};
