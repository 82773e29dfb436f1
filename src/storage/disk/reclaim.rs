//! Removes purged log entries and the chunks of replaced or unfinished snapshots, a bounded part with each group.

use super::commit::{Committer, GROUP_ENTRIES};
use crate::storage::StorageError;
use crate::storage::record::{chunk_key, log_key};

/// Maximum bytes of values that one group removes: sled rewrites the pages that held them.
const RECLAIM_BYTES: usize = 128 << 10;
/// The limit of removes in a group with few entries. It is small, so that a large purge does not delay other writes.
const MIN_RECLAIM_REMOVES: usize = 64;

/// A removal of unreferenced records. A power cut may leave any part of them; the next open restarts the removal.
#[derive(Debug)]
pub(super) enum Reclaim {
    /// Entries up to and including this index, in ascending order.
    Log(u64),
    /// Chunks of this snapshot, in ascending order.
    Snapshot(u64),
}

impl Committer {
    /// Removes a bounded number of records. It removes up to twice as many as the group appends: the backlog shrinks.
    pub(super) fn reclaim_some(&mut self) -> Result<(), StorageError> {
        let limit = match self.group.writes {
            0 => GROUP_ENTRIES,
            _ => MIN_RECLAIM_REMOVES.max(2 * self.group.entries),
        };
        let (mut removed, mut bytes) = (0, 0);
        while let Some(reclaim) = self.reclaims.front() {
            let (tree, range) = match *reclaim {
                Reclaim::Log(upto) => (self.trees.log.clone(), log_key(0, 0).to_vec()..log_key(upto + 1, 0).to_vec()),
                Reclaim::Snapshot(id) => {
                    (self.trees.snap.clone(), chunk_key(id, 0).to_vec()..chunk_key(id + 1, 0).to_vec())
                }
            };
            for item in tree.range(range) {
                if removed >= limit || bytes >= RECLAIM_BYTES {
                    return Ok(());
                }
                let (key, value) = item.map_err(|error| self.failed("read", error))?;
                self.remove(&tree, &key)?;
                self.count_write(value.len())?;
                (removed, bytes) = (removed + 1, bytes + value.len());
            }
            self.reclaims.pop_front();
        }
        Ok(())
    }
}
