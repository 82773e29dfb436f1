//! Where a gate keeps the highest tokens.

use std::io;

use super::HighWater;

/// A gate's memory of the highest token of each resource.
///
/// A gate has one, asks it from one thread at a time, and stops for good after its first error: whether a mark is kept
/// that could not be written is unknown then.
pub trait HighWaterStore: Send + 'static {
    /// Every mark that is kept. Called once, when a gate is made. Names may repeat; the highest mark counts.
    fn recall(&mut self) -> io::Result<Vec<(String, HighWater)>>;

    /// Keeps a mark that has risen. **It returns when the mark is as durable as the resource itself**: a mark that is lost
    /// when the resource's data is not lets an old holder in again. May block; called off the async threads.
    fn remember(&mut self, resource: &str, mark: HighWater) -> io::Result<()>;
}

/// Keeps nothing: for a resource that is as short-lived as this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Volatile;

impl HighWaterStore for Volatile {
    fn recall(&mut self) -> io::Result<Vec<(String, HighWater)>> {
        Ok(Vec::new())
    }

    fn remember(&mut self, _resource: &str, _mark: HighWater) -> io::Result<()> {
        Ok(())
    }
}
