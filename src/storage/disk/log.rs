//! The log in preallocated segments of 4 MiB: `log/NUMBER.log`.
//!
//! A group of records lies in one segment and is durable after one write and one sync. A segment is written once with
//! zeros, so that a sync changes no metadata of the file. When the floor has passed a segment, a later one uses its file
//! again.
//!
//! A file with a number as its name always has the header of this number: the store writes a header under the name
//! `new`, syncs it, renames the file and syncs the directory. Before that, it syncs the rename of a file that it uses
//! again.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::directory::{self, Directory};
use super::index::{Location, LogIndex, SegmentFile};
use super::replay::{LogDamage, Replay, Segment};
use super::segment::{
    HeaderError, Item, LogState, MAX_ENTRY_BYTES, RecordBatch, SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SEGMENT_VERSION,
    Start,
};
use super::segment_files::{
    NEW, activate, create_new, list, open, read_file, remove, rename, segment_path, sync_data, write,
};
use crate::storage::StorageError;

/// Maximum purged segments that wait for their next use. The store removes more.
const SPARE_SEGMENTS: usize = 4;
/// A start writes at least one sector behind the log, so that a failing disk refuses it.
const PROBE_BYTES: usize = 512;

/// The log and its active segment. Only the storage thread has it.
#[derive(Debug)]
pub(super) struct SegmentLog {
    dir: PathBuf,
    file: Arc<File>,
    /// All segments. The last one is active.
    segments: VecDeque<Segment>,
    /// The end of the segment before the active one, or 0.
    previous_end: usize,
    /// The end of the last durable group in the active segment.
    end: usize,
    /// The last durable group.
    group: u64,
    /// The state after the last durable group.
    state: LogState,
    has_new: bool,
    is_closed: bool,
    /// The active segment, if no group in it was published.
    unpublished: Option<SegmentFile>,
}

/// The records of a group, and their effect on the log.
#[derive(Debug)]
pub(super) struct LogGroup {
    batch: RecordBatch,
    state: LogState,
    changes: Vec<LogChange>,
}

#[derive(Debug)]
enum LogChange {
    /// `start` is the place in the batch.
    Entry {
        index: u64,
        start: usize,
        bytes: usize,
    },
    Truncate(Option<u64>),
    Purge(u64),
}

/// The place of a durable group.
#[derive(Debug)]
pub(super) struct GroupPlace {
    segment: u64,
    offset: usize,
    /// The file of the segment, with its first group.
    opened: Option<SegmentFile>,
}

impl LogGroup {
    pub fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }

    /// The state after the group.
    pub fn state(&self) -> LogState {
        self.state
    }

    pub fn push(&mut self, item: &Item<'_>) {
        let (start, bytes) = self.batch.push(item);
        self.state.apply(item);
        match item {
            Item::Entry { position, .. } => self.changes.push(LogChange::Entry { index: position.index, start, bytes }),
            Item::Truncate(last) => self.changes.push(LogChange::Truncate(last.map(|last| last.index))),
            Item::Floor(upto) => self.changes.push(LogChange::Purge(upto.index)),
            Item::Start(_) | Item::Vote(_) | Item::Committed(_) | Item::Close => {}
        }
    }

    /// Adds the durable group to the index.
    pub fn publish(&mut self, mut place: GroupPlace, index: &mut LogIndex) {
        place.opened.take().into_iter().for_each(|file| index.add_file(file));
        for change in self.changes.drain(..) {
            match change {
                LogChange::Entry { index: entry, start, bytes } => {
                    let offset = (place.offset + start) as u32;
                    index.push(entry, Location { segment: place.segment, offset, bytes: bytes as u32 });
                }
                LogChange::Truncate(last) => index.truncate(last),
                LogChange::Purge(upto) => index.purge(upto),
            }
        }
    }
}

impl SegmentLog {
    /// Creates an empty log in a directory that is missing or has no segment.
    pub fn create(dir: &Path) -> Result<SegmentLog, StorageError> {
        if !dir.exists() {
            DirBuilder::new().mode(0o700).create(dir).map_err(|error| StorageError::io("create", dir, &error))?;
        }
        create_new(dir)?;
        let (file, segment) = activate(dir, 1, 1, None)?;
        let replay = Replay { segments: [segment].into(), end: SEGMENT_HEADER_BYTES, ..Replay::default() };
        Ok(SegmentLog::new(dir, file, &replay))
    }

    /// Reads the newest segments without a gap in their numbers. `None` if there is no segment.
    pub fn read(directory: &Directory, dir: &Path) -> Result<Option<Replay>, StorageError> {
        // A process that was killed may have left names that are not durable.
        directory::sync(dir)?;
        let numbers = list(dir)?;
        let Some(newest) = numbers.last() else { return Ok(None) };
        let skipped =
            numbers.len() - numbers.iter().rev().zip((0..=*newest).rev()).take_while(|(a, b)| *a == b).count();
        let (mut replay, mut earlier) = (Replay::default(), None);
        for &number in &numbers[skipped..] {
            let (file, bytes) = read_file(&segment_path(dir, number))?;
            let mut read = replay.read(number, &bytes);
            if let Err(damage) = read {
                // The segments before this one do not matter if the floor is above their entries.
                replay = Replay::default();
                read = replay.read(number, &bytes);
                earlier = earlier.or(Some(damage));
            }
            match read {
                Ok(()) => {
                    let salt = replay.segments.back().expect("it was read").salt;
                    replay.index.add_file(SegmentFile { number, salt, file: Arc::new(file) });
                }
                Err(newer @ LogDamage::Newer(_)) => return Err(refused(directory, newer)),
                Err(damage) if number == *newest => return Err(refused(directory, earlier.unwrap_or(damage))),
                Err(_) => replay = Replay::default(),
            }
        }
        replay.finish().map_err(|damage| refused(directory, earlier.unwrap_or(damage)))?;
        Ok(Some(replay))
    }

    /// Continues a log that was read.
    ///
    /// It overwrites a torn group with zeros: the records of this group could follow a shorter new one.
    pub fn resume(dir: &Path, replay: &Replay) -> Result<SegmentLog, StorageError> {
        let active = replay.segments.back().expect("a log that was read has a segment");
        for old in list(dir)?.into_iter().filter(|number| *number < replay.segments[0].number) {
            remove(&segment_path(dir, old))?;
        }
        let path = segment_path(dir, active.number);
        let file = Arc::new(open(&path)?);
        let zeros_end = replay.dirty_end.max(replay.end + PROBE_BYTES).min(SEGMENT_BYTES);
        let zeros = vec![0; zeros_end - replay.end];
        write(&file, &path, &zeros, replay.end)?;
        sync_data(&file, &path)?;
        let mut log = SegmentLog::new(dir, file, replay);
        directory::drop_cached_pages(&dir.join(NEW))?;
        log.has_new = fs::metadata(dir.join(NEW)).is_ok_and(|new| new.len() == SEGMENT_BYTES as u64);
        if !log.has_new && log.purged() == 0 {
            create_new(dir)?;
            log.has_new = true;
        }
        Ok(log)
    }

    fn new(dir: &Path, file: Arc<File>, replay: &Replay) -> SegmentLog {
        let active = replay.segments.back().expect("a log has an active segment");
        let unpublished = SegmentFile { number: active.number, salt: active.salt, file: Arc::clone(&file) };
        SegmentLog {
            dir: dir.to_path_buf(),
            file,
            segments: replay.segments.clone(),
            previous_end: replay.previous_end,
            end: replay.end,
            group: replay.group,
            state: replay.state,
            has_new: false,
            is_closed: replay.is_closed,
            unpublished: Some(unpublished),
        }
    }

    /// An empty group behind the last durable one.
    pub fn group(&self) -> LogGroup {
        LogGroup { batch: RecordBatch::default(), state: self.state, changes: Vec::new() }
    }

    /// Makes a group durable.
    ///
    /// It never retries a failed sync: the kernel may have dropped the pages that it could not write, and a second sync
    /// would report success without them.
    pub fn write(&mut self, group: &LogGroup) -> Result<GroupPlace, StorageError> {
        if self.end + group.batch.len() > SEGMENT_BYTES {
            self.start_segment()?;
        }
        let mut batch = RecordBatch::default();
        if self.end == SEGMENT_HEADER_BYTES {
            batch.push(&Item::Start(Start { previous_end: self.previous_end as u32, state: self.state }));
        }
        let (segment, offset) = (self.active().number, self.end + batch.len());
        batch.append(&group.batch);
        if self.end + batch.len() > SEGMENT_BYTES {
            let (index, bytes) = (group.state.last.map_or(0, |last| last.index), batch.len());
            return Err(StorageError::EntryTooLarge { index, bytes, max: MAX_ENTRY_BYTES });
        }
        let next_group = self.group + 1;
        let path = segment_path(&self.dir, self.active().number);
        let bytes = batch.seal(self.active().salt, self.end, next_group);
        write(&self.file, &path, bytes, self.end)?;
        sync_data(&self.file, &path)?;
        self.end += bytes.len();
        (self.group, self.state, self.is_closed) = (next_group, group.state, false);
        Ok(GroupPlace { segment, offset, opened: self.unpublished.take() })
    }

    /// Writes that the store was closed after all groups.
    pub fn close(&mut self) -> Result<(), StorageError> {
        if !self.is_closed {
            let mut group = self.group();
            group.push(&Item::Close);
            self.write(&group)?;
            self.is_closed = true;
        }
        Ok(())
    }

    /// Whether [`trim`](Self::trim) would remove a segment.
    pub fn has_excess(&self) -> bool {
        self.purged() > SPARE_SEGMENTS
    }

    /// Removes purged segments that no later segment needs, the oldest first.
    pub fn trim(&mut self) -> Result<(), StorageError> {
        for _ in SPARE_SEGMENTS..self.purged() {
            let oldest = self.segments.pop_front().expect("a purged segment is one of all");
            remove(&segment_path(&self.dir, oldest.number))?;
        }
        Ok(())
    }

    fn active(&self) -> &Segment {
        self.segments.back().expect("a log has an active segment")
    }

    /// The number of segments whose entries are all below the floor.
    fn purged(&self) -> usize {
        let floor = self.state.floor.map(|floor| floor.index);
        let is_purged = |next: &&Segment| next.last_before.map(|last| last.index) <= floor;
        self.segments.iter().skip(1).take_while(is_purged).count()
    }

    fn start_segment(&mut self) -> Result<(), StorageError> {
        if !self.has_new && self.purged() > 0 {
            let oldest = self.segments.pop_front().expect("a purged segment is one of all");
            rename(&segment_path(&self.dir, oldest.number), &self.dir.join(NEW))?;
            // The next header must not reach this file under its old name.
            directory::sync(&self.dir)?;
        } else if !self.has_new {
            create_new(&self.dir)?;
        }
        self.has_new = false;
        let (file, segment) = activate(&self.dir, self.active().number + 1, self.group + 1, self.state.last)?;
        self.unpublished = Some(SegmentFile { number: segment.number, salt: segment.salt, file: Arc::clone(&file) });
        (self.previous_end, self.end, self.file) = (self.end, SEGMENT_HEADER_BYTES, file);
        self.segments.push_back(segment);
        Ok(())
    }
}

fn refused(directory: &Directory, damage: LogDamage) -> StorageError {
    match damage {
        LogDamage::Newer(HeaderError::Newer { version }) => {
            StorageError::NewerFormat { dir: directory.path().to_path_buf(), found: version, known: SEGMENT_VERSION }
        }
        damage => directory.corrupt(damage),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{Position, VoteRecord};

    /// A directory with an empty log.
    struct Folder {
        _dir: tempfile::TempDir,
        directory: Directory,
    }

    impl Folder {
        fn new() -> (Folder, SegmentLog) {
            let dir = tempfile::tempdir().expect("a folder");
            let directory = Directory::claim(dir.path()).expect("an empty folder");
            let log = SegmentLog::create(&directory.log()).expect("a writable folder");
            (Folder { _dir: dir, directory }, log)
        }

        fn read(&self) -> Result<Replay, String> {
            let replay = SegmentLog::read(&self.directory, &self.directory.log());
            replay.map(|replay| replay.expect("the log has a segment")).map_err(|error| error.to_string())
        }

        fn resume(&self) -> SegmentLog {
            SegmentLog::resume(&self.directory.log(), &self.read().expect("readable")).expect("writable")
        }

        fn change(&self, number: u64, change: impl FnOnce(&mut [u8])) {
            let path = segment_path(&self.directory.log(), number);
            let mut bytes = fs::read(&path).expect("readable");
            change(&mut bytes);
            fs::write(path, bytes).expect("written");
        }
    }

    /// All votes below 128 have records of the same length.
    fn vote(term: u64) -> Item<'static> {
        Item::Vote(VoteRecord { term, candidate: Some(1), committed: false })
    }

    /// Writes a group and returns its end.
    fn write<'a>(log: &mut SegmentLog, items: impl IntoIterator<Item = Item<'a>>) -> usize {
        let mut group = log.group();
        items.into_iter().for_each(|item| group.push(&item));
        SegmentLog::write(log, &group).expect("written");
        log.end
    }

    fn term(replay: &Replay) -> Option<u64> {
        replay.state.vote.map(|vote| vote.term)
    }

    fn at(index: u64) -> Position {
        Position { term: 1, index }
    }

    /// Appends entries of 1 MiB, of which a segment has three.
    fn append(log: &mut SegmentLog, indices: std::ops::Range<u64>) {
        let payload = vec![7; 1 << 20];
        for index in indices {
            write(log, [Item::Entry { position: at(index), payload: &payload }]);
        }
    }

    #[test]
    fn torn_group_is_dropped_and_overwritten() {
        let (folder, mut log) = Folder::new();
        let end = write(&mut log, [vote(1)]);
        write(&mut log, [vote(2), vote(3), vote(4)]);
        folder.change(1, |bytes| bytes[end] ^= 1);
        let replay = folder.read().expect("only the last group is torn");
        assert_eq!((term(&replay), replay.end), (Some(1), end));
        // The new group has the number and the length of the first torn record. The others must not follow it.
        let mut log = folder.resume();
        write(&mut log, [vote(5)]);
        assert_eq!(folder.read().as_ref().map(term), Ok(Some(5)));
        write(&mut log, [vote(6)]);
        assert_eq!(folder.read().as_ref().map(term), Ok(Some(6)));
    }

    #[test]
    fn group_without_its_last_record_is_dropped() {
        let (folder, mut log) = Folder::new();
        let end = write(&mut log, [vote(1)]);
        let next = write(&mut log, [vote(2), vote(3)]);
        folder.change(1, |bytes| bytes[(end + next) / 2..next].fill(0));
        assert_eq!(folder.read().as_ref().map(term), Ok(Some(1)));
    }

    #[test]
    fn damage_before_a_later_group_is_refused() {
        let (folder, mut log) = Folder::new();
        let end = write(&mut log, [vote(1)]);
        write(&mut log, [vote(2)]);
        write(&mut log, [vote(3), vote(4)]);
        folder.change(1, |bytes| bytes[end + 20] ^= 1);
        let refused = folder.read().expect_err("group 2 is damaged");
        let expected = format!("log segment 0000000000000001 has no valid record at byte {end}, but group 3 follows");
        assert!(refused.contains(&expected), "{refused}");
    }

    /// The last byte of an uncommitted vote is 0, like the byte behind it.
    #[test]
    fn damage_before_a_last_group_that_ends_with_zeros_is_refused() {
        let (folder, mut log) = Folder::new();
        let start = write(&mut log, [vote(1)]);
        let end = write(&mut log, [vote(2)]);
        let last = write(&mut log, [vote(3)]);
        folder.change(1, |bytes| assert_eq!(bytes[last - 1..=last], [0, 0]));
        for byte in start..end {
            folder.change(1, |bytes| bytes[byte] ^= 1);
            let refused = folder.read().expect_err("group 2 is damaged");
            assert!(refused.contains("but group 3 follows"), "byte {byte}: {refused}");
            folder.change(1, |bytes| bytes[byte] ^= 1);
        }
        assert_eq!(folder.read().as_ref().map(term), Ok(Some(3)));
    }

    /// A power cut tore the first group of the new segment, so only its header follows the damage.
    #[test]
    fn damage_before_a_torn_segment_is_refused() {
        let (folder, mut log) = Folder::new();
        append(&mut log, 0..4);
        let end = log.previous_end;
        folder.change(2, |bytes| bytes[SEGMENT_HEADER_BYTES] ^= 1);
        assert_eq!(folder.read().map(|replay| replay.state.last), Ok(Some(at(2))), "control: group 4 is torn");
        folder.change(1, |bytes| bytes[end - 1] ^= 1);
        let refused = folder.read().expect_err("the last group of segment 1 is damaged");
        assert!(refused.contains("log segment 0000000000000002 begins with group 4: expected group 3"), "{refused}");
    }

    #[test]
    fn damage_of_a_purged_segment_is_ignored() {
        for byte in [3, SEGMENT_HEADER_BYTES + 3, 1 << 20, 3 << 20] {
            let (folder, mut log) = Folder::new();
            append(&mut log, 0..7);
            folder.change(1, |bytes| bytes[byte] ^= 1);
            folder.read().expect_err("its entries are needed");
            write(&mut log, [Item::Floor(at(1))]);
            folder.read().expect_err("one of its entries is needed");
            write(&mut log, [Item::Floor(at(3)), vote(9)]);
            let replay = folder.read().unwrap_or_else(|error| panic!("byte {byte}: {error}"));
            assert_eq!((replay.state, replay.index.first()), (log.state, Some(4)));
            append(&mut folder.resume(), 7..8);
            assert_eq!(folder.read().map(|replay| replay.state.last), Ok(Some(at(7))));
        }
    }

    #[test]
    fn damage_before_a_later_segment_is_refused() {
        let (folder, mut log) = Folder::new();
        append(&mut log, 0..5);
        assert_eq!(log.segments.len(), 2);
        let end = log.previous_end;
        folder.change(1, |bytes| bytes[end - 1] ^= 1);
        let refused = folder.read().expect_err("the last group of segment 1 is damaged");
        assert!(refused.contains("log segment 0000000000000002 begins with group 4: expected group 3"), "{refused}");
    }

    #[test]
    fn log_of_several_segments_reads_back() {
        let (folder, mut log) = Folder::new();
        write(&mut log, [vote(1), Item::Committed(Some(at(3)))]);
        append(&mut log, 0..10);
        write(&mut log, [Item::Truncate(Some(at(6))), Item::Floor(at(1))]);
        append(&mut log, 7..9);
        log.close().expect("writable");
        let replay = folder.read().expect("it is whole");
        let expected = LogState { last: Some(at(8)), floor: Some(at(1)), committed: Some(at(3)), ..log.state };
        assert_eq!((replay.state, replay.is_closed, term(&replay)), (expected, true, Some(1)));
        assert_eq!((replay.index.first(), replay.index.len()), (Some(2), 7));
        assert_eq!(replay.segments, log.segments);
    }

    /// Groups of an earlier use have the same lengths and places as those of the next one.
    #[test]
    fn record_of_an_earlier_use_is_not_valid() {
        let (folder, mut log) = Folder::new();
        append(&mut log, 0..7);
        write(&mut log, [Item::Floor(at(5))]);
        assert_eq!(log.purged(), 2);
        append(&mut log, 7..10);
        assert_eq!((log.active().number, log.segments[0].number), (4, 2), "segment 1 is used again");
        for first in 10..12 {
            let replay = folder.read().expect("the old records are not valid");
            assert_eq!(replay.state.last, Some(at(first - 1)));
            append(&mut log, first..first + 1);
        }
    }

    /// The segment also has an entry above the floor, so the store must keep it.
    #[test]
    fn segment_with_a_needed_entry_is_kept() {
        let (folder, mut log) = Folder::new();
        append(&mut log, 0..7);
        write(&mut log, [Item::Floor(at(1))]);
        assert_eq!(log.purged(), 0);
        append(&mut log, 7..10);
        let replay = folder.read().expect("it is whole");
        assert_eq!((replay.index.first(), replay.segments[0].number), (Some(2), 1));
    }

    #[test]
    fn segment_without_a_group_is_used() {
        let (folder, mut log) = Folder::new();
        append(&mut log, 0..3);
        log.start_segment().expect("writable");
        drop(log);
        let replay = folder.read().expect("a power cut may leave this");
        assert_eq!((replay.segments.len(), replay.end, replay.state.last), (2, SEGMENT_HEADER_BYTES, Some(at(2))));
        append(&mut folder.resume(), 3..7);
        assert_eq!(folder.read().map(|replay| replay.state.last), Ok(Some(at(6))));

        let (folder, mut log) = Folder::new();
        append(&mut log, 0..3);
        log.start_segment().expect("writable");
        remove(&segment_path(&log.dir, 1)).expect("removed");
        let refused = folder.read().expect_err("the first segment is missing");
        assert!(
            refused.contains("the log begins with segment 0000000000000002: the ones before it are missing"),
            "{refused}"
        );
    }

    #[test]
    fn older_segments_behind_a_gap_are_removed() {
        let (folder, mut log) = Folder::new();
        append(&mut log, 0..10);
        write(&mut log, [Item::Floor(at(8))]);
        assert_eq!(log.segments.len(), 4);
        remove(&segment_path(&log.dir, 2)).expect("removed");
        let replay = folder.read().expect("the floor is above the missing segment");
        assert_eq!(replay.segments.iter().map(|segment| segment.number).collect::<Vec<_>>(), [3, 4]);
        drop(folder.resume());
        assert_eq!(list(&log.dir), Ok(vec![3, 4]));
    }

    #[test]
    fn file_under_a_wrong_number_is_refused() {
        let (folder, mut log) = Folder::new();
        append(&mut log, 0..5);
        fs::copy(segment_path(&log.dir, 1), segment_path(&log.dir, 3)).expect("copied");
        let refused = folder.read().expect_err("it is segment 1");
        let expected = "log segment 0000000000000003 has the header of segment 0000000000000001";
        assert!(refused.contains(expected), "{refused}");
        fs::write(segment_path(&log.dir, 3), vec![0; SEGMENT_BYTES]).expect("written");
        let refused = folder.read().expect_err("it has no header");
        assert!(refused.contains("log segment 0000000000000003 has no valid header"), "{refused}");
    }
}
