//! Removal of log entries and snapshot chunks that the store no longer needs, a bounded part with each group.

use super::commit::{Committer, GROUP_ENTRIES};
use super::entries;
use super::layout::chunk_key;
use crate::storage::StorageError;

/// Most bytes of what is not needed any more that go in one group: sled writes the pages that they leave anew.
const SWEEP_BYTES: usize = 128 << 10;
/// Fewest removes of what is not needed any more in one group, so that a big purge delays nobody for long.
const SWEEP_AT_LEAST: usize = 64;

/// Removal of what nothing refers to any more. A power cut may leave any part of it: opening starts it again.
#[derive(Debug)]
pub(super) enum Sweep {
    /// Entries up to and with this index, ascending.
    Log(u64),
    /// Chunks of this snapshot, ascending.
    Snapshot(u64),
}

impl Committer {
    /// Removes a bounded part of what is not needed, faster than this group added to it.
    pub(super) fn sweep_some(&mut self) -> Result<(), StorageError> {
        let most = match self.group.writes {
            0 => GROUP_ENTRIES,
            _ => SWEEP_AT_LEAST.max(2 * self.group.entries),
        };
        let (mut removed, mut bytes) = (0, 0);
        while let Some(sweep) = self.sweeps.front() {
            let (tree, range) = match *sweep {
                Sweep::Log(upto) => {
                    (self.trees.log.clone(), entries::key(0, 0).to_vec()..entries::key(upto + 1, 0).to_vec())
                }
                Sweep::Snapshot(id) => {
                    (self.trees.snap.clone(), chunk_key(id, 0).to_vec()..chunk_key(id + 1, 0).to_vec())
                }
            };
            for item in tree.range(range) {
                if removed >= most || bytes >= SWEEP_BYTES {
                    return Ok(());
                }
                let (key, value) = item.map_err(|error| self.failed("read", error))?;
                self.remove(&tree, &key)?;
                self.count_write(value.len())?;
                (removed, bytes) = (removed + 1, bytes + value.len());
            }
            self.sweeps.pop_front();
        }
        Ok(())
    }
}
