//! Reads log entries: the newest from memory, older ones from their parts on the disk, while the storage thread changes
//! both.

use std::fmt::Display;

use bytes::{Bytes, BytesMut};

use super::SharedStore;
use super::trees::Trees;
use crate::storage::record::{self, Kind, LogPartV1, RecordError, log_key, split_log_key};
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

/// An iterator over entries. It checks every record and that the entries are contiguous.
pub(super) struct Entries {
    iter: sled::Iter,
    next: Expected,
}

/// A decoded part.
struct Part {
    index: u64,
    number: u32,
    term: u64,
    parts: u32,
    payload: Bytes,
}

/// The index that the next entry must have.
enum Expected {
    /// Index 0 or 1: the start of a log that was never purged.
    Start,
    Index(u64),
}

impl Entries {
    /// Entries above `floor` and below `to`.
    pub fn above(log: &sled::Tree, floor: Option<u64>, to: Option<u64>) -> Entries {
        let from = floor.map_or(0, |floor| floor + 1);
        let iter = match to {
            Some(to) => log.range(log_key(from, 0)..log_key(to.max(from), 0)),
            None => log.range(log_key(from, 0)..),
        };
        Entries { iter, next: floor.map_or(Expected::Start, |floor| Expected::Index(floor + 1)) }
    }

    fn read(&mut self) -> Result<Option<LogRecord>, Damage> {
        let Some(first) = self.read_part()? else { return Ok(None) };
        let Part { index, term, parts, .. } = first;
        match self.next {
            Expected::Start if index > 1 => return Err(Damage::Gap { expected: 0, found: index }),
            Expected::Index(expected) if index != expected => return Err(Damage::Gap { expected, found: index }),
            _ => {}
        }
        if first.number != 0 {
            return Err(Damage::Part { index, expected: 0, found: first.number });
        }
        let payload = if parts <= 1 { first.payload } else { self.read_rest(first)? };
        self.next = Expected::Index(index + 1);
        Ok(Some(LogRecord { position: Position { term, index }, payload }))
    }

    fn read_rest(&mut self, first: Part) -> Result<Bytes, Damage> {
        let Part { index, term, parts, .. } = first;
        let mut payload = BytesMut::from(first.payload);
        for expected in 1..parts {
            let Some(part) = self.read_part()? else { return Err(Damage::Unfinished { index }) };
            if (part.index, part.number, part.term, part.parts) != (index, expected, term, parts) {
                return Err(Damage::Part { index, expected, found: part.number });
            }
            payload.extend_from_slice(&part.payload);
        }
        Ok(payload.freeze())
    }

    fn read_part(&mut self) -> Result<Option<Part>, Damage> {
        let Some(item) = self.iter.next() else { return Ok(None) };
        let (key, value) = item?;
        let Some((index, number)) = split_log_key(&key) else { return Err(Damage::Key(key.to_vec())) };
        let stored: LogPartV1 =
            record::unseal(Kind::LogPart, &key, &value).map_err(|error| Damage::Record { index, error })?;
        let payload = Bytes::copy_from_slice(stored.payload.0);
        Ok(Some(Part { index, number, term: stored.term, parts: stored.parts, payload }))
    }
}

impl Iterator for Entries {
    type Item = Result<LogRecord, Damage>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

/// Damage in the stored log.
#[derive(Debug, thiserror::Error)]
pub(super) enum Damage {
    #[error("{0}")]
    Sled(#[from] sled::Error),
    #[error("invalid log key {0:02x?}: expected 12 bytes")]
    Key(Vec<u8>),
    #[error("log entry {index} is {error}")]
    Record { index: u64, error: RecordError },
    #[error("the log has a gap: entry {expected} is missing, the next entry is {found}")]
    Gap { expected: u64, found: u64 },
    #[error("log entry {index} has part {found}: expected part {expected}")]
    Part { index: u64, expected: u32, found: u32 },
    #[error("log entry {index} is the last one and is incomplete")]
    Unfinished { index: u64 },
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::super::SledStorage;
    use super::*;
    use crate::storage::record::PART_BYTES;
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
