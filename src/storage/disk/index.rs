//! The places of the durable log entries in the segments.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;

/// The place of the record of one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Location {
    pub segment: u64,
    pub offset: u32,
    /// The length of the record.
    pub bytes: u32,
}

/// The open file of a segment. A reader that still has it when a later segment uses the file again finds no record with
/// this salt.
#[derive(Clone, Debug)]
pub(super) struct SegmentFile {
    pub number: u64,
    pub salt: u64,
    pub file: Arc<File>,
}

/// The places of contiguous entries, and the files with them. It can lack the first entries of the log while the log is
/// replayed.
#[derive(Debug, Default)]
pub(super) struct LogIndex {
    first: u64,
    locations: VecDeque<Location>,
    files: VecDeque<SegmentFile>,
}

impl LogIndex {
    pub fn push(&mut self, index: u64, location: Location) {
        if self.locations.is_empty() {
            self.first = index;
        }
        debug_assert_eq!(index, self.first + self.locations.len() as u64);
        self.locations.push_back(location);
    }

    /// Removes all entries behind the new last one.
    pub fn truncate(&mut self, last: Option<u64>) {
        let kept = last.map_or(0, |last| last.saturating_add(1).saturating_sub(self.first));
        self.locations.truncate(usize::try_from(kept).unwrap_or(usize::MAX));
    }

    pub fn purge(&mut self, upto: u64) {
        let purged = upto.saturating_add(1).saturating_sub(self.first).min(self.locations.len() as u64);
        self.locations.drain(..purged as usize);
        self.first += purged;
        self.close_unused();
    }

    /// Adds the file of the next segment.
    pub fn add_file(&mut self, file: SegmentFile) {
        if self.files.back().is_none_or(|last| last.number != file.number) {
            self.files.push_back(file);
            self.close_unused();
        }
    }

    /// Closes the files before the first entry. The last file stays.
    fn close_unused(&mut self) {
        let first = self.locations.front().map_or(u64::MAX, |first| first.segment);
        while self.files.len() > 1 && self.files[0].number < first {
            self.files.pop_front();
        }
    }

    pub fn file(&self, segment: u64) -> Option<&SegmentFile> {
        self.files.iter().find(|file| file.number == segment)
    }

    pub fn first(&self) -> Option<u64> {
        (!self.locations.is_empty()).then_some(self.first)
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.locations.len()
    }

    /// The places of entries from `index` in the same segment as this one, in order.
    pub fn run(&self, index: u64) -> impl Iterator<Item = (u64, Location)> {
        let skipped = index.checked_sub(self.first).map_or(usize::MAX, |skipped| skipped as usize);
        let run = (index..).zip(self.locations.iter().copied().skip(skipped));
        let segment = self.locations.get(skipped).map(|location| location.segment);
        run.take_while(move |(_, location)| Some(location.segment) == segment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(segment: u64, offset: u32) -> Location {
        Location { segment, offset, bytes: 7 }
    }

    #[test]
    fn index_truncates_and_purges_its_ends() {
        let mut index = LogIndex::default();
        (5..15).for_each(|n| index.push(n, location(n / 10, n as u32)));
        assert_eq!(index.run(7).map(|(index, _)| index).collect::<Vec<_>>(), [7, 8, 9], "one segment");
        assert_eq!(index.run(4).count(), 0);
        index.purge(6);
        index.truncate(Some(12));
        assert_eq!((index.first(), index.len()), (Some(7), 6));
        assert_eq!(index.run(10).map(|(_, location)| location.offset).collect::<Vec<_>>(), [10, 11, 12]);
        index.truncate(Some(3));
        assert_eq!((index.first(), index.len(), index.run(4).count()), (None, 0, 0));
        index.push(4, location(2, 0));
        index.purge(20);
        assert_eq!((index.first, index.len()), (5, 0));
        index.push(21, location(2, 0));
        index.truncate(None);
        assert_eq!(index.first(), None);
    }

    #[test]
    fn index_keeps_the_files_of_its_entries_and_the_last_one() {
        let file = |number| SegmentFile { number, salt: 7, file: Arc::new(tempfile::tempfile().expect("a file")) };
        let numbers = |index: &LogIndex| index.files.iter().map(|file| file.number).collect::<Vec<_>>();
        let mut index = LogIndex::default();
        for n in 1..40 {
            index.add_file(file(n / 10));
            index.push(n, location(n / 10, n as u32));
        }
        assert_eq!(numbers(&index), [0, 1, 2, 3]);
        index.purge(19);
        assert_eq!(numbers(&index), [2, 3]);
        index.add_file(file(3));
        index.add_file(file(4));
        assert_eq!(numbers(&index), [2, 3, 4]);
        assert_eq!(index.file(3).map(|file| file.number), Some(3));
        assert!(index.file(1).is_none());
        index.purge(100);
        assert_eq!(numbers(&index), [4]);
    }
}
