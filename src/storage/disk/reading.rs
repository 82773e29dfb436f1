//! Reads entries: the newest from memory, older ones from the disk, while the storage thread changes both.

use std::fmt::Display;

use super::SharedStore;
use super::entries::{Damage, Entries};
use super::trees::Trees;
use crate::storage::{LogRecord, Position, StorageError};

/// The result of one read so far.
struct Page {
    records: Vec<LogRecord>,
    next: u64,
    bytes: usize,
    max_bytes: usize,
}

/// Entries below `to` are only on the disk.
struct Gap {
    to: u64,
    /// The truncations at the time of the check in memory.
    truncations: u64,
    /// The log was never purged.
    is_first: bool,
}

impl Page {
    /// Takes entries until the byte limit. Returns whether there is room for more.
    fn take_all(&mut self, entries: impl Iterator<Item = Result<LogRecord, Damage>>) -> Result<bool, Damage> {
        for entry in entries {
            let entry = entry?;
            self.bytes += entry.payload.len();
            if !self.records.is_empty() && self.bytes > self.max_bytes {
                return Ok(false);
            }
            self.next = entry.position.index + 1;
            self.records.push(entry);
        }
        Ok(true)
    }
}

impl SharedStore {
    pub fn read_log(&self, from: u64, to: u64, max_bytes: usize) -> Result<Vec<LogRecord>, StorageError> {
        let mut page = Page { records: Vec::new(), next: from, bytes: 0, max_bytes };
        while let Some(gap) = self.read_tail(&mut page, to)? {
            if !self.read_disk(&mut page, gap)? {
                break;
            }
        }
        Ok(page.records)
    }

    /// Fills the page from memory. Returns the gap that must be read from the disk first.
    fn read_tail(&self, page: &mut Page, to: u64) -> Result<Option<Gap>, StorageError> {
        let state = self.state.lock();
        state.check()?;
        let to = to.min(state.last.map_or(0, |last| last.index + 1));
        if page.next >= to {
            return Ok(None);
        }
        if let Some(floor) = state.floor.filter(|floor| page.next <= floor.index) {
            return Err(StorageError::Purged { index: page.next, floor: floor.index });
        }
        let memory_from = state.tail.first_index().unwrap_or(to).min(to);
        if page.next < memory_from {
            return Ok(Some(Gap { to: memory_from, truncations: state.truncations, is_first: state.floor.is_none() }));
        }
        let in_memory = (page.next..to).map_while(|index| state.tail.get(index)).cloned();
        page.take_all(in_memory.map(Ok)).map(|_| None).map_err(|damage| self.corrupt(damage))
    }

    /// Fills the page from the disk up to the end of the gap. Returns whether there is room for more.
    fn read_disk(&self, page: &mut Page, gap: Gap) -> Result<bool, StorageError> {
        let from = page.next;
        let read = |trees: &Trees| page.take_all(Entries::above(&trees.log, from.checked_sub(1), Some(gap.to)));
        let read = self.read(read)?;
        // A log may start at index 1, but a concurrent purge may also have removed only entry 0.
        let lacks_zero = from == 0 && page.records.first().is_none_or(|first| first.position.index != 0);
        if lacks_zero && self.state.lock().floor.is_some() {
            *page = Page { records: Vec::new(), next: 0, bytes: 0, max_bytes: page.max_bytes };
            return Ok(true);
        }
        match read {
            Ok(true) if page.next == 0 && gap.is_first => page.next = 1,
            Ok(true) if page.next < gap.to => return self.handle_unreadable(page.next, &gap, "it is missing"),
            Ok(room) => return Ok(room),
            Err(damage) => return self.handle_unreadable(page.next, &gap, damage),
        }
        Ok(true)
    }

    /// Handles an unreadable entry: a concurrent truncate or purge removed it, or the store is damaged.
    fn handle_unreadable(&self, index: u64, gap: &Gap, what: impl Display) -> Result<bool, StorageError> {
        let state = self.state.lock();
        state.check()?;
        let is_purged = state.floor.is_some_and(|floor| index <= floor.index);
        if is_purged || state.truncations != gap.truncations {
            return Ok(true);
        }
        drop(state);
        let error = self.corrupt(format!("log entry {index}: {what}"));
        self.poison(error.clone());
        Err(error)
    }

    /// The position of the entry with this index. An index below the log gives the floor; one above it, the last entry.
    pub fn position_at(&self, index: u64) -> Result<Option<Position>, StorageError> {
        let state = self.state.lock();
        let known = [state.floor.filter(|floor| index <= floor.index), state.last.filter(|last| index >= last.index)];
        let in_memory = || state.tail.get(index).map(|record| record.position);
        if let Some(position) = known.into_iter().flatten().next().or_else(in_memory) {
            return Ok(Some(position));
        }
        drop(state);
        Ok(self.read_log(index, index + 1, 0)?.first().map(|record| record.position))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use bytes::Bytes;

    use super::super::SledStorage;
    use super::*;
    use crate::storage::record::{PART_BYTES, log_key};
    use crate::storage::{Done, Identity, Storage, VoteRecord};

    const ENTRIES: u64 = 200;
    const ENTRY_BYTES: usize = 100_000;
    const LAST_PART: u32 = (ENTRY_BYTES / PART_BYTES) as u32;

    fn at(index: u64) -> Position {
        Position { term: 1, index }
    }

    fn wait(write: impl FnOnce(Done)) {
        let (done, durable) = mpsc::channel();
        write(Box::new(move |result| drop(done.send(result))));
        durable.recv().expect("each write is answered").expect("the disk takes it");
    }

    /// Opens a store, appends more entries than memory keeps, and looks up the first part of a read of all of them.
    fn reader_at_a_gap(dir: &std::path::Path) -> (SledStorage, Page, Gap) {
        let storage =
            SledStorage::open(dir, Identity { cluster: "test".to_owned(), node: 1 }).expect("an empty folder");
        let payload = Bytes::from(vec![7; ENTRY_BYTES]);
        let records = (0..ENTRIES).map(|index| LogRecord { position: at(index), payload: payload.clone() }).collect();
        wait(|done| storage.append(records, done));
        let mut page = Page { records: Vec::new(), next: 0, bytes: 0, max_bytes: usize::MAX };
        let gap = storage.shared().read_tail(&mut page, ENTRIES).expect("the store is whole");
        (storage, page, gap.expect("the first entries have left memory"))
    }

    #[test]
    fn entry_that_is_purged_while_it_is_read_is_no_damage() {
        // The read starts when this part is gone. Of entry 0, nothing is left then.
        for (upto, part) in [(0, LAST_PART), (1, 0), (5, 0), (40, 0)] {
            let dir = tempfile::tempdir().expect("a folder");
            let (storage, mut page, gap) = reader_at_a_gap(dir.path());
            wait(|done| storage.purge(at(upto), done));
            // The storage thread removes a part of the purged entries with each group.
            let is_there = |trees: &Trees| trees.log.contains_key(log_key(upto, part)).expect("readable");
            while storage.shared().read(is_there).expect("the store is open") {
                wait(|done| storage.save_vote(VoteRecord { term: 1, candidate: Some(1), committed: false }, done));
            }
            let only_zero = Gap { to: 1, ..gap };
            for gap in [gap, only_zero] {
                assert_eq!(storage.shared().read_disk(&mut page, gap), Ok(true), "purged up to {upto}");
                assert_eq!((page.records.len(), page.next), (0, 0));
            }
            let again = storage.read_log(0, ENTRIES, usize::MAX);
            assert_eq!(again, Err(StorageError::Purged { index: 0, floor: upto }));
            assert_eq!(*storage.failure().borrow(), None, "the store goes on");
        }
    }

    #[test]
    fn entry_that_is_cut_off_while_it_is_read_is_no_damage() {
        let dir = tempfile::tempdir().expect("a folder");
        let (storage, mut page, gap) = reader_at_a_gap(dir.path());
        wait(|done| storage.truncate_after(Some(3), done));
        assert_eq!(storage.shared().read_disk(&mut page, gap), Ok(true));
        assert_eq!(page.records.len(), 4);
        assert_eq!(storage.read_log(0, ENTRIES, usize::MAX).map(|records| records.len()), Ok(4));
        assert_eq!(*storage.failure().borrow(), None, "the store goes on");
    }

    #[test]
    fn entry_that_is_missing_stops_the_store() {
        for missing in [1, 5] {
            let dir = tempfile::tempdir().expect("a folder");
            let (storage, mut page, gap) = reader_at_a_gap(dir.path());
            let remove = |trees: &Trees| trees.log.remove(log_key(missing, 0)).expect("it is there");
            storage.shared().read(remove).expect("the store is open");
            let error = storage.shared().read_disk(&mut page, gap).expect_err("the log has a hole");
            assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
            assert_eq!(*storage.failure().borrow(), Some(error));
        }
    }
}
