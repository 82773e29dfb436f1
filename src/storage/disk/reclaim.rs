//! Removes the chunks of replaced or unfinished snapshots, a bounded part with each group.

use super::commit::{Committer, GROUP_ENTRIES};
use crate::storage::StorageError;
use crate::storage::record::chunk_key;

/// Maximum bytes of values that one group removes: sled rewrites the pages that held them.
const RECLAIM_BYTES: usize = 128 << 10;
/// Maximum chunks that a group with other writes removes. A group writes fewer, so the backlog shrinks.
const RECLAIM_REMOVES: usize = 64;
/// A store that is never idle removes chunks with each group of this number.
const RECLAIM_EVERY: usize = 16;

impl Committer {
    /// Removes a bounded number of chunks in ascending order. A power cut may leave any part of them; the next open
    /// restarts the removal.
    ///
    /// Writes of sled need a sync of their own. So most groups that write only the log remove nothing.
    pub(super) fn reclaim_some(&mut self) -> Result<(), StorageError> {
        let limit = match self.group.writes {
            0 => GROUP_ENTRIES,
            _ if self.group.has_sled_writes || self.groups_since_removal >= RECLAIM_EVERY => RECLAIM_REMOVES,
            _ => {
                self.groups_since_removal += 1;
                return Ok(());
            }
        };
        self.groups_since_removal = 0;
        let snap = self.trees.snap.clone();
        let (mut removed, mut bytes) = (0, 0);
        while let Some(id) = self.reclaims.front() {
            for item in snap.range(chunk_key(*id, 0)..chunk_key(*id + 1, 0)) {
                if removed >= limit || bytes >= RECLAIM_BYTES {
                    return Ok(());
                }
                let (key, value) = item.map_err(|error| self.failed("read", error))?;
                self.group.has_sled_writes = true;
                snap.remove(&key).map_err(|error| self.failed("write", error))?;
                self.count_write(value.len())?;
                (removed, bytes) = (removed + 1, bytes + value.len());
            }
            self.reclaims.pop_front();
        }
        Ok(())
    }
}
