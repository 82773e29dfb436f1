//! The storage of a gate's marks.

use std::io;

use super::HighWater;

/// Stores the highest token of each resource for a gate.
///
/// A gate has one store and calls it from one thread at a time. After the first error the gate fails permanently,
/// because it does not know whether the store has kept the mark.
pub trait HighWaterStore: Send + 'static {
    /// Returns all stored marks. The gate calls it once, when it is created. If a name repeats, the highest mark
    /// counts.
    ///
    /// # Errors
    ///
    /// The store cannot read its marks. The gate is not created.
    fn recall(&mut self) -> io::Result<Vec<(String, HighWater)>>;

    /// Stores a higher mark. **It must return only when the mark is as durable as the resource's data.** If a crash
    /// loses the mark but not the data, the gate admits an old holder again. It may block: the gate calls it on a
    /// blocking thread.
    ///
    /// # Errors
    ///
    /// It is unknown whether the mark is stored. The gate then admits no token.
    fn remember(&mut self, resource: &str, mark: HighWater) -> io::Result<()>;
}

/// Stores nothing: for a resource whose data ends with this process.
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
