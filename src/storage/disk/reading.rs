//! Reads log entries: the newest from memory, older ones from their segments, while the storage thread changes both.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use bytes::Bytes;

use super::SharedStore;
use super::index::Location;
use super::log::segment_path;
use super::segment::{Header, Item, Record, SEGMENT_HEADER_BYTES};
use crate::storage::{LogRecord, Position, StorageError};

/// The result of one read so far.
struct Page {
    records: Vec<LogRecord>,
    next: u64,
    bytes: usize,
    max_bytes: usize,
}

/// Entries that only the disk has, in one segment.
struct Gap {
    segment: u64,
    entries: Vec<(u64, Location)>,
}

/// The reason why an entry cannot be read.
#[derive(Debug, thiserror::Error)]
enum Unreadable {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("its segment has another header")]
    Header,
    #[error("it has no valid record")]
    Record,
    #[error("it is missing")]
    Missing,
}

impl Page {
    /// Takes entries until the byte limit. Returns whether there is room for more.
    fn take_all(&mut self, entries: impl IntoIterator<Item = LogRecord>) -> bool {
        for entry in entries {
            self.bytes += entry.payload.len();
            if !self.records.is_empty() && self.bytes > self.max_bytes {
                return false;
            }
            self.next = entry.position.index + 1;
            self.records.push(entry);
        }
        true
    }
}

impl Gap {
    fn read(&self, file: &File) -> Result<Vec<LogRecord>, Unreadable> {
        let (Some((_, first)), Some((_, last))) = (self.entries.first(), self.entries.last()) else {
            return Err(Unreadable::Missing);
        };
        let mut header = [0; SEGMENT_HEADER_BYTES];
        file.read_exact_at(&mut header, 0)?;
        let header = Header::decode(&header).ok().filter(|header| header.number == self.segment);
        let salt = header.ok_or(Unreadable::Header)?.salt;
        let from = first.offset as usize;
        let mut bytes = vec![0; (last.offset + last.bytes) as usize - from];
        file.read_exact_at(&mut bytes, from as u64)?;
        let read = |(index, location): &(u64, Location)| {
            let offset = location.offset as usize;
            let record = Record::read(&bytes[offset - from..], salt, offset);
            // The file may have been used again since the look into the index.
            match record.and_then(|record| record.item().ok()) {
                Some(Item::Entry { position, payload }) if position.index == *index => {
                    Ok(LogRecord { position, payload: Bytes::copy_from_slice(payload) })
                }
                _ => Err(Unreadable::Record),
            }
        };
        self.entries.iter().map(read).collect()
    }
}

impl SharedStore {
    pub fn read_log(&self, from: u64, to: u64, max_bytes: usize) -> Result<Vec<LogRecord>, StorageError> {
        let mut page = Page { records: Vec::new(), next: from, bytes: 0, max_bytes };
        while let Some(gap) = self.read_tail(&mut page, to)? {
            if !self.read_disk(&mut page, &gap)? {
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
        // A log that was never purged may start at index 1.
        let starts_at = state.index.first().unwrap_or(memory_from);
        if page.next == 0 && state.floor.is_none() && starts_at.min(memory_from) == 1 {
            page.next = 1;
        }
        if page.next >= memory_from {
            let in_memory = (page.next..to).map_while(|index| state.tail.get(index)).cloned();
            page.take_all(in_memory);
            return Ok(None);
        }
        let (mut bytes, max_bytes) = (page.bytes, page.max_bytes);
        let fits = |(_, location): &(u64, Location)| {
            let has_room = bytes <= max_bytes;
            bytes = bytes.saturating_add(location.bytes as usize);
            has_room
        };
        let run = state.index.run(page.next).take_while(|(index, _)| *index < memory_from);
        let entries: Vec<_> = run.take_while(fits).collect();
        let segment = entries.first().map_or(0, |(_, location)| location.segment);
        Ok(Some(Gap { segment, entries }))
    }

    /// Fills the page from the disk up to the end of the gap. Returns whether there is room for more.
    fn read_disk(&self, page: &mut Page, gap: &Gap) -> Result<bool, StorageError> {
        let file = File::open(segment_path(&self.log_dir, gap.segment));
        self.take_from(page, gap, file)
    }

    fn take_from(&self, page: &mut Page, gap: &Gap, file: io::Result<File>) -> Result<bool, StorageError> {
        match file.map_err(Unreadable::Io).and_then(|file| gap.read(&file)) {
            Ok(entries) => Ok(page.take_all(entries)),
            Err(damage) => self.handle_unreadable(page.next, &damage),
        }
    }

    /// Handles an unreadable entry: it was purged meanwhile and its segment is used again, or the store is damaged.
    fn handle_unreadable(&self, index: u64, what: &Unreadable) -> Result<bool, StorageError> {
        let state = self.state.lock();
        state.check()?;
        if state.floor.is_some_and(|floor| index <= floor.index) {
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
    use std::fs;
    use std::path::Path;
    use std::sync::mpsc;

    use super::super::SledStorage;
    use super::*;
    use crate::storage::{Done, Identity, Storage};

    const ENTRIES: u64 = 200;
    const ENTRY_BYTES: usize = 100_000;

    fn at(index: u64) -> Position {
        Position { term: 1, index }
    }

    fn wait(write: impl FnOnce(Done)) {
        let (done, durable) = mpsc::channel();
        write(Box::new(move |result| drop(done.send(result))));
        durable.recv().expect("each write is answered").expect("the disk takes it");
    }

    fn append(storage: &SledStorage, indices: std::ops::Range<u64>) {
        let payload = Bytes::from(vec![7; ENTRY_BYTES]);
        let records = indices.map(|index| LogRecord { position: at(index), payload: payload.clone() }).collect();
        wait(|done| storage.append(records, done));
    }

    /// Opens a store, appends more entries than memory keeps, and looks up the first part of a read of all of them.
    fn reader_at_a_gap(dir: &Path) -> (SledStorage, Page, Gap) {
        let storage =
            SledStorage::open(dir, Identity { cluster: "test".to_owned(), node: 1 }).expect("an empty folder");
        append(&storage, 0..ENTRIES);
        let mut page = Page { records: Vec::new(), next: 0, bytes: 0, max_bytes: usize::MAX };
        let gap = storage.shared().read_tail(&mut page, ENTRIES).expect("the store is whole");
        (storage, page, gap.expect("the first entries have left memory"))
    }

    fn first_segment(dir: &Path) -> std::path::PathBuf {
        segment_path(&dir.join("log"), 1)
    }

    #[test]
    fn entry_that_is_purged_while_it_is_read_is_no_damage() {
        let dir = tempfile::tempdir().expect("a folder");
        let (storage, mut page, gap) = reader_at_a_gap(dir.path());
        let opened = File::open(first_segment(dir.path())).expect("the first segment");
        wait(|done| storage.purge(at(ENTRIES - 1), done));
        // The store uses the purged files again.
        for round in 1.. {
            append(&storage, ENTRIES * round..ENTRIES * (round + 1));
            wait(|done| storage.purge(at(ENTRIES * (round + 1) - 1), done));
            let mut header = [0; SEGMENT_HEADER_BYTES];
            opened.read_exact_at(&mut header, 0).expect("readable");
            if Header::decode(&header).is_ok_and(|header| header.number != 1) || round > 20 {
                break;
            }
        }
        let salt = |file: &File| {
            let mut header = [0; SEGMENT_HEADER_BYTES];
            file.read_exact_at(&mut header, 0).expect("readable");
            Header::decode(&header).expect("a header")
        };
        let floor = storage.log_bounds().0.expect("purged").index;
        // The reader opened the file before it was used again, or it looks for the file after that.
        let shared = storage.shared();
        let again = opened.try_clone();
        assert_eq!(shared.take_from(&mut page, &gap, again), Ok(true), "{:?}", salt(&opened));
        assert_eq!(shared.read_disk(&mut page, &gap), Ok(true));
        assert_eq!((page.records.len(), page.next), (0, 0));
        assert_eq!(storage.read_log(0, ENTRIES, usize::MAX), Err(StorageError::Purged { index: 0, floor }));
        assert_eq!(*storage.failure().borrow(), None, "the store goes on");
    }

    #[test]
    fn record_of_a_later_use_is_not_read() {
        let dir = tempfile::tempdir().expect("a folder");
        let (storage, mut page, gap) = reader_at_a_gap(dir.path());
        storage.close();
        // The header is that of the first use, and the records are those of a later one.
        let path = first_segment(dir.path());
        let mut bytes = fs::read(&path).expect("readable");
        let second = fs::read(segment_path(&dir.path().join("log"), 2)).expect("readable");
        bytes[SEGMENT_HEADER_BYTES..].copy_from_slice(&second[SEGMENT_HEADER_BYTES..]);
        fs::write(&path, bytes).expect("written");
        let found = gap.read(&File::open(&path).expect("it exists"));
        assert!(matches!(found, Err(Unreadable::Record)), "{found:?}");
        assert!(storage.shared().read_disk(&mut page, &gap).is_err());
    }

    #[test]
    fn entry_that_is_cut_off_while_it_is_read_is_no_damage() {
        let dir = tempfile::tempdir().expect("a folder");
        let (storage, mut page, gap) = reader_at_a_gap(dir.path());
        wait(|done| storage.truncate_after(Some(3), done));
        // The segment still has the entries: the read is as old as its look into the index.
        assert_eq!(storage.shared().read_disk(&mut page, &gap), Ok(true));
        assert_eq!(page.records.len(), gap.entries.len());
        assert_eq!(storage.read_log(0, ENTRIES, usize::MAX).map(|records| records.len()), Ok(4));
        assert_eq!(*storage.failure().borrow(), None, "the store goes on");
    }

    #[test]
    fn entry_that_is_missing_stops_the_store() {
        type Change = fn(&Path);
        let changes: [Change; 2] = [
            |path| fs::remove_file(path).expect("removed"),
            |path| {
                let mut bytes = fs::read(path).expect("readable");
                bytes[300_000] ^= 1;
                fs::write(path, bytes).expect("written");
            },
        ];
        for change in changes {
            let dir = tempfile::tempdir().expect("a folder");
            let (storage, mut page, gap) = reader_at_a_gap(dir.path());
            change(&first_segment(dir.path()));
            let error = storage.shared().read_disk(&mut page, &gap).expect_err("the log has a hole");
            assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
            assert_eq!(*storage.failure().borrow(), Some(error));
        }
    }
}
