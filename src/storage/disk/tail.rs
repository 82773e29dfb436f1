//! The newest log entries in memory: those that are still on their way to the disk, and as many older ones as fit.

use std::collections::VecDeque;

use crate::storage::LogRecord;

/// Most bytes of entries that are kept once the disk has them.
pub(super) const TAIL_BYTES: usize = 16 << 20;
/// What an entry costs besides its payload.
const ENTRY_OVERHEAD_BYTES: usize = 96;

/// The end of the log, contiguous. Every entry that is not in it has been written.
///
/// Entries are told apart by a sequence number rather than by their index: after a truncate the same index is written
/// again, and an entry must not be dropped because its predecessor of that index has reached the disk.
#[derive(Debug, Default)]
pub(super) struct Tail {
    entries: VecDeque<(u64, LogRecord)>,
    bytes: usize,
    next_seq: u64,
    written: u64,
}

impl Tail {
    /// Takes an entry. Its sequence number is one above that of the entry before.
    pub fn push(&mut self, record: LogRecord) {
        self.next_seq += 1;
        self.bytes += cost(&record);
        self.entries.push_back((self.next_seq, record));
    }

    /// The sequence number of the newest entry ever pushed.
    pub fn newest_seq(&self) -> u64 {
        self.next_seq
    }

    /// Everything up to this sequence number has been written: what is too much may go.
    pub fn written(&mut self, seq: u64) {
        self.written = self.written.max(seq);
        while self.bytes > TAIL_BYTES && self.entries.front().is_some_and(|(seq, _)| *seq <= self.written) {
            self.pop_front();
        }
    }

    pub fn truncate_after(&mut self, index: Option<u64>) {
        while self.entries.back().is_some_and(|(_, last)| index.is_none_or(|index| last.position.index > index)) {
            let (_, record) = self.entries.pop_back().expect("there is a last one");
            self.bytes -= cost(&record);
        }
    }

    pub fn purge(&mut self, upto: u64) {
        while self.entries.front().is_some_and(|(_, first)| first.position.index <= upto) {
            self.pop_front();
        }
    }

    pub fn first_index(&self) -> Option<u64> {
        self.entries.front().map(|(_, record)| record.position.index)
    }

    pub fn get(&self, index: u64) -> Option<&LogRecord> {
        let offset = index.checked_sub(self.first_index()?)?;
        self.entries.get(usize::try_from(offset).ok()?).map(|(_, record)| record)
    }

    fn pop_front(&mut self) {
        if let Some((_, record)) = self.entries.pop_front() {
            self.bytes -= cost(&record);
        }
    }
}

fn cost(record: &LogRecord) -> usize {
    record.payload.len() + ENTRY_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::storage::Position;

    fn entry(index: u64, bytes: usize) -> LogRecord {
        LogRecord { position: Position { term: 1, index }, payload: Bytes::from(vec![0; bytes]) }
    }

    #[test]
    fn what_is_written_goes_once_there_is_too_much() {
        let mut tail = Tail::default();
        (0..40).for_each(|index| tail.push(entry(index, 1 << 20)));
        assert_eq!(tail.first_index(), Some(0), "nothing is written yet");
        tail.written(10);
        assert_eq!(tail.first_index(), Some(10));
        tail.written(40);
        assert_eq!(tail.first_index(), Some(25), "15 entries and their overhead fit");
    }

    #[test]
    fn an_index_that_is_written_again_is_kept_until_it_is_written_itself() {
        let mut tail = Tail::default();
        (0..10).for_each(|index| tail.push(entry(index, 1)));
        tail.truncate_after(Some(4));
        (5..30).for_each(|index| tail.push(entry(index, 1 << 20)));
        tail.written(10);
        assert_eq!(tail.first_index(), Some(5), "the first ten pushed are written, not indices up to ten");
        assert_eq!(tail.newest_seq(), 35);
    }

    #[test]
    fn both_ends_can_be_cut() {
        let mut tail = Tail::default();
        (1..=10).for_each(|index| tail.push(entry(index, 1)));
        tail.purge(3);
        tail.truncate_after(Some(7));
        assert_eq!((tail.first_index(), tail.get(3), tail.get(8)), (Some(4), None, None));
        assert_eq!(tail.get(7).map(|record| record.position.index), Some(7));
        tail.truncate_after(None);
        assert_eq!((tail.first_index(), tail.bytes), (None, 0));
    }
}
