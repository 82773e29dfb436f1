//! The newest log entries in memory: all unwritten ones, and as many written ones as fit.

use std::collections::VecDeque;

use crate::storage::LogRecord;

/// Maximum bytes of the tail while it holds written entries. Unwritten entries can exceed it.
pub(super) const TAIL_BYTES: usize = 16 << 20;
/// The memory of an entry besides its payload.
const ENTRY_OVERHEAD_BYTES: usize = 96;

/// The contiguous end of the log. Every entry outside of it is written.
///
/// A sequence number identifies an entry, not its index: after a truncate, the log reuses an index. The tail must not
/// drop the new entry because the old entry with the same index has reached the disk.
#[derive(Debug, Default)]
pub(super) struct Tail {
    entries: VecDeque<(u64, LogRecord)>,
    bytes: usize,
    next_seq: u64,
    written_seq: u64,
}

impl Tail {
    /// Appends an entry with the next sequence number.
    pub fn push(&mut self, record: LogRecord) {
        self.next_seq += 1;
        self.bytes += cost(&record);
        self.entries.push_back((self.next_seq, record));
    }

    /// The sequence number of the last pushed entry, even if a truncate has removed it.
    pub fn newest_seq(&self) -> u64 {
        self.next_seq
    }

    /// Marks the entries up to `seq` as written, and drops written entries above [`TAIL_BYTES`].
    pub fn mark_written(&mut self, seq: u64) {
        self.written_seq = self.written_seq.max(seq);
        while self.bytes > TAIL_BYTES && self.entries.front().is_some_and(|(seq, _)| *seq <= self.written_seq) {
            self.pop_front();
        }
    }

    pub fn truncate_after(&mut self, index: Option<u64>) {
        while self.entries.back().is_some_and(|(_, last)| index.is_none_or(|index| last.position.index > index)) {
            let (_, record) = self.entries.pop_back().expect("the loop condition found a last entry");
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
    fn tail_drops_written_entries_above_its_limit() {
        let mut tail = Tail::default();
        (0..40).for_each(|index| tail.push(entry(index, 1 << 20)));
        assert_eq!(tail.first_index(), Some(0), "no entry is written yet");
        tail.mark_written(10);
        assert_eq!(tail.first_index(), Some(10));
        tail.mark_written(40);
        assert_eq!(tail.first_index(), Some(25), "15 entries and their overhead fit");
    }

    #[test]
    fn rewritten_index_stays_until_its_new_entry_is_written() {
        let mut tail = Tail::default();
        (0..10).for_each(|index| tail.push(entry(index, 1)));
        tail.truncate_after(Some(4));
        (5..30).for_each(|index| tail.push(entry(index, 1 << 20)));
        tail.mark_written(10);
        assert_eq!(tail.first_index(), Some(5), "the first ten pushed entries are written, not the indices up to ten");
        assert_eq!(tail.newest_seq(), 35);
    }

    #[test]
    fn tail_truncates_and_purges_its_ends() {
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
