//! Reads log entries: the newest from memory, older ones from their segments, while the storage thread changes both.

use std::io;
use std::os::unix::fs::FileExt;

use bytes::Bytes;

use super::SharedStore;
use super::index::{Location, SegmentFile};
use super::segment::{Item, SegmentRecord};
use super::segment_files::segment_path;
use crate::storage::{LogRecord, Position, StorageError};

/// The result of one read so far.
struct EntryPage {
    records: Vec<LogRecord>,
    next: u64,
    bytes: usize,
    max_bytes: usize,
}

/// Entries that only the disk has, in one segment.
struct Gap {
    file: SegmentFile,
    entries: Vec<(u64, Location)>,
}

/// The reason why an entry cannot be read.
#[derive(Debug, thiserror::Error)]
enum Unreadable {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it has no valid record")]
    Record,
    #[error("it is missing")]
    Missing,
}

impl EntryPage {
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
        self.records.is_empty() || self.bytes <= self.max_bytes
    }
}

impl Gap {
    fn read(&self) -> Result<Vec<LogRecord>, Unreadable> {
        let (Some((_, first)), Some((_, last))) = (self.entries.first(), self.entries.last()) else {
            return Err(Unreadable::Missing);
        };
        let from = first.offset as usize;
        let mut bytes = vec![0; (last.offset + last.bytes) as usize - from];
        self.file.file.read_exact_at(&mut bytes, from as u64)?;
        let read = |(index, location): &(u64, Location)| {
            let offset = location.offset as usize;
            let record = SegmentRecord::read(&bytes[offset - from..], self.file.salt, offset);
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
        let mut page = EntryPage { records: Vec::new(), next: from, bytes: 0, max_bytes };
        while let Some(gap) = self.read_tail(&mut page, to)? {
            if !self.read_disk(&mut page, &gap)? {
                break;
            }
        }
        Ok(page.records)
    }

    /// Fills the page from memory. Returns the gap that must be read from the disk first.
    fn read_tail(&self, page: &mut EntryPage, to: u64) -> Result<Option<Gap>, StorageError> {
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
        let file = entries.first().and_then(|(_, location)| state.index.file(location.segment)).cloned();
        match file {
            Some(file) => Ok(Some(Gap { file, entries })),
            None => {
                drop(state);
                Err(self.damaged(page.next, &Unreadable::Missing))
            }
        }
    }

    /// Fills the page from the disk up to the end of the gap. Returns whether there is room for more.
    fn read_disk(&self, page: &mut EntryPage, gap: &Gap) -> Result<bool, StorageError> {
        match gap.read() {
            Ok(entries) => Ok(page.take_all(entries)),
            Err(unreadable) => self.handle_unreadable(page.next, gap, unreadable),
        }
    }

    /// Handles an unreadable entry: the log has removed it meanwhile and its segment is used again, or the store is
    /// damaged.
    fn handle_unreadable(&self, index: u64, gap: &Gap, what: Unreadable) -> Result<bool, StorageError> {
        let state = self.state.lock();
        state.check()?;
        if state.index.run(index).next() != gap.entries.first().copied() {
            return Ok(true);
        }
        drop(state);
        match what {
            Unreadable::Io(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                let error = StorageError::io("read", segment_path(&self.log_dir, gap.file.number), &error);
                self.poison(error.clone());
                Err(error)
            }
            what => Err(self.damaged(index, &what)),
        }
    }

    /// Fails the store, because an entry is damaged.
    fn damaged(&self, index: u64, what: &Unreadable) -> StorageError {
        let error = self.corrupt(format!("log entry {index}: {what}"));
        self.poison(error.clone());
        error
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
    use std::fs::{self, File};
    use std::path::Path;
    use std::sync::{Arc, mpsc};

    use super::super::DiskStorage;
    use super::super::segment::{SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader};
    use super::*;
    use crate::storage::record::chunk_key;
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

    fn append(storage: &DiskStorage, indices: std::ops::Range<u64>) {
        let payload = Bytes::from(vec![7; ENTRY_BYTES]);
        let records = indices.map(|index| LogRecord { position: at(index), payload: payload.clone() }).collect();
        wait(|done| storage.append(records, done));
    }

    /// Opens a store, appends more entries than memory keeps, and looks up the first part of a read of all of them.
    fn reader_at_a_gap(dir: &Path) -> (DiskStorage, EntryPage, Gap) {
        let storage =
            DiskStorage::open(dir, Identity { cluster: "test".to_owned(), node: 1 }).expect("an empty folder");
        append(&storage, 0..ENTRIES);
        let mut page = EntryPage { records: Vec::new(), next: 0, bytes: 0, max_bytes: usize::MAX };
        let gap = storage.shared().read_tail(&mut page, ENTRIES).expect("the store is whole");
        (storage, page, gap.expect("the first entries have left memory"))
    }

    fn first_segment(dir: &Path) -> std::path::PathBuf {
        segment_path(&dir.join("log"), 1)
    }

    fn header(file: &File) -> SegmentHeader {
        let mut header = [0; SEGMENT_HEADER_BYTES];
        file.read_exact_at(&mut header, 0).expect("readable");
        SegmentHeader::decode(&header).expect("a header")
    }

    #[test]
    fn entry_that_is_purged_while_it_is_read_is_no_damage() {
        let dir = tempfile::tempdir().expect("a folder");
        let (storage, mut page, gap) = reader_at_a_gap(dir.path());
        // The store uses the purged files again.
        for round in 1..20 {
            wait(|done| storage.purge(at(ENTRIES * round - 1), done));
            append(&storage, ENTRIES * round..ENTRIES * (round + 1));
        }
        assert_ne!(header(&gap.file.file).number, 1);
        let floor = storage.log_bounds().0.expect("purged").index;
        assert_eq!(storage.shared().read_disk(&mut page, &gap), Ok(true));
        assert_eq!((page.records.len(), page.next), (0, 0));
        assert_eq!(storage.read_log(0, ENTRIES, usize::MAX), Err(StorageError::Purged { index: 0, floor }));
        assert_eq!(*storage.failure().borrow(), None, "the store goes on");
    }

    #[test]
    fn record_of_a_later_use_is_not_read() {
        let dir = tempfile::tempdir().expect("a folder");
        let (storage, _, mut gap) = reader_at_a_gap(dir.path());
        assert!(gap.read().is_ok());
        gap.file.salt ^= 1;
        let found = gap.read();
        assert!(matches!(found, Err(Unreadable::Record)), "{found:?}");
        storage.close();
    }

    #[test]
    fn first_entry_is_returned_whatever_its_size() {
        let dir = tempfile::tempdir().expect("a folder");
        let (storage, _, _) = reader_at_a_gap(dir.path());
        for (max_bytes, count) in [(0, 1), (ENTRY_BYTES - 1, 1), (ENTRY_BYTES, 1), (2 * ENTRY_BYTES, 2)] {
            let read = storage.read_log(0, 3, max_bytes).map(|records| records.len());
            assert_eq!(read, Ok(count), "{max_bytes} bytes");
        }
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

    /// The segment of the removed entries can be used again although the floor is below them.
    #[test]
    fn removed_entry_that_is_not_readable_is_no_damage() {
        let dir = tempfile::tempdir().expect("a folder");
        let (storage, mut page, gap) = reader_at_a_gap(dir.path());
        wait(|done| storage.truncate_after(None, done));
        fs::write(first_segment(dir.path()), vec![0; SEGMENT_BYTES]).expect("written");
        assert_eq!(storage.shared().read_disk(&mut page, &gap), Ok(true));
        assert_eq!(storage.read_log(0, ENTRIES, usize::MAX), Ok(Vec::new()));
        assert_eq!(*storage.failure().borrow(), None, "the store goes on");
    }

    #[test]
    fn damaged_entry_stops_the_store() {
        type Change = fn(&Path);
        let changes: [Change; 2] = [
            |path| {
                let file = File::options().write(true).open(path).expect("it exists");
                file.set_len(200_000).expect("cut");
            },
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
            let error = storage.shared().read_disk(&mut page, &gap).expect_err("the entry is damaged");
            assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
            assert_eq!(*storage.failure().borrow(), Some(error));
        }
    }

    /// A disk that fails to read is not a damaged directory.
    #[test]
    fn failed_read_names_the_file_and_its_cause() {
        let dir = tempfile::tempdir().expect("a folder");
        let (storage, mut page, mut gap) = reader_at_a_gap(dir.path());
        // The kernel cannot read a directory.
        gap.file.file = Arc::new(File::open(dir.path()).expect("a folder"));
        let error = storage.shared().read_disk(&mut page, &gap).expect_err("it cannot be read");
        let path = first_segment(dir.path());
        assert!(error.to_string().starts_with(&format!("could not read {}", path.display())), "{error}");
        assert!(matches!(error, StorageError::Io { .. }), "{error}");
        assert_eq!(*storage.failure().borrow(), Some(error));
    }

    /// Otherwise a leader would send the same part of a snapshot for ever, and say nothing.
    #[test]
    fn damaged_snapshot_stops_the_store_when_it_is_read() {
        let changes: [fn(&sled::Tree, &[u8; 16]); 2] = [
            |chunks, key| drop(chunks.remove(key).expect("removed")),
            |chunks, key| drop(chunks.insert(key, &b"no chunk"[..]).expect("written")),
        ];
        for change in changes {
            let dir = tempfile::tempdir().expect("a folder");
            let identity = Identity { cluster: "test".to_owned(), node: 1 };
            let storage = DiskStorage::open(dir.path(), identity).expect("an empty folder");
            let mut writer = storage.begin_snapshot().expect("the store is whole");
            writer.push(&[7; 1000]).expect("the disk takes it");
            let manifest = writer.finish_blocking(Vec::new()).expect("the disk takes it");
            assert_eq!(storage.read_snapshot(manifest.id, 0).as_deref(), Ok(&[7; 1000][..]));
            storage.shared().read(|trees| change(&trees.snap, &chunk_key(manifest.id, 0))).expect("open");
            let error = storage.read_snapshot(manifest.id, 0).expect_err("the chunk is damaged");
            assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
            assert_eq!(*storage.failure().borrow(), Some(error));
        }
    }
}
