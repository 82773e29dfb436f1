//! Reads the segments of a log at the start, and separates a torn write from damage.
//!
//! The store writes a group only after the sync of the one before. So a power cut can tear only the last group: behind
//! the first invalid record there is no valid record of a later group. If there is one, a record in between is damaged
//! or missing, and the start is refused.

use std::collections::VecDeque;

use bytes::Bytes;

use super::index::{Location, LogIndex};
use super::segment::{
    HeaderError, Item, LogState, SEGMENT_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader, SegmentRecord, Start,
};
use super::tail::Tail;
use crate::storage::codec::DecodeError;
use crate::storage::{LogRecord, Position};

/// A segment of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub number: u64,
    pub salt: u64,
    /// The last position of the log before this segment.
    pub last_before: Option<Position>,
}

/// The log after the segments that were read.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    pub state: LogState,
    pub(super) index: LogIndex,
    pub(super) tail: Tail,
    pub segments: VecDeque<Segment>,
    /// The last whole group.
    pub group: u64,
    /// The end of the segment before the last one, or 0.
    pub previous_end: usize,
    /// The end of the last whole group in the last segment.
    pub end: usize,
    /// The bytes behind `end` up to here may be those of a torn group or of an earlier use of the file.
    pub dirty_end: usize,
    /// Whether the log ends with a clean close.
    pub is_closed: bool,
}

/// A reason why the log cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogDamage {
    #[error(transparent)]
    Newer(HeaderError),
    #[error("log segment {number:016x} has no valid header")]
    Header { number: u64 },
    #[error("log segment {number:016x} has the header of segment {found:016x}")]
    Number { number: u64, found: u64 },
    #[error("log segment {number:016x} has {bytes} bytes: expected {SEGMENT_BYTES}")]
    Size { number: u64, bytes: usize },
    #[error("log segment {number:016x} has no valid record at byte {offset}, but group {found} follows")]
    Hole { number: u64, offset: usize, found: u64 },
    #[error("log segment {number:016x} begins with group {found}: expected group {expected}")]
    FirstGroup { number: u64, found: u64, expected: u64 },
    #[error("log segment {number:016x} has group {found} at byte {offset}: expected group {expected}")]
    Group { number: u64, offset: usize, found: u64, expected: u64 },
    #[error("log segment {number:016x} has a record at byte {offset} with {error}")]
    Record { number: u64, offset: usize, error: DecodeError },
    #[error("log segment {number:016x} does not continue the one before it")]
    Start { number: u64 },
    #[error("log segment {number:016x} has a start record at byte {offset}")]
    Misplaced { number: u64, offset: usize },
    #[error("the log has a gap: entry {expected} is missing, the next entry is {found}")]
    Gap { expected: u64, found: u64 },
    #[error("log segment {number:016x} has a truncation at byte {offset} that removes no entry above the floor")]
    Truncation { number: u64, offset: u32 },
    #[error("log entry {index} has term {found} after term {term}")]
    Term { index: u64, found: u64, term: u64 },
    #[error("the log begins with segment {number:016x}: the ones before it are missing")]
    Begin { number: u64 },
}

impl Replay {
    /// Reads the next segment.
    pub fn read(&mut self, number: u64, bytes: &[u8]) -> Result<(), LogDamage> {
        let header = match SegmentHeader::decode(bytes) {
            Ok(header) if header.number == number => header,
            Ok(header) => return Err(LogDamage::Number { number, found: header.number }),
            Err(error @ HeaderError::Newer { .. }) => return Err(LogDamage::Newer(error)),
            Err(HeaderError::Invalid) => return Err(LogDamage::Header { number }),
        };
        if bytes.len() != SEGMENT_BYTES {
            return Err(LogDamage::Size { number, bytes: bytes.len() });
        }
        // Only the last segment may be without a group: a power cut tore the first one.
        if self.end == SEGMENT_HEADER_BYTES {
            return Err(LogDamage::Start { number });
        }
        let (found, expected) = (header.first_group, self.group.saturating_add(1));
        if self.segments.is_empty() {
            self.group = found.saturating_sub(1);
        } else if found != expected {
            return Err(LogDamage::FirstGroup { number, found, expected });
        }
        let last_before = self.state.last;
        self.segments.push_back(Segment { number, salt: header.salt, last_before });
        self.previous_end = self.end;
        self.end = SEGMENT_HEADER_BYTES;
        let mut offset = self.end;
        let mut group: Vec<(Item<'_>, Location)> = Vec::new();
        while let Some(record) = SegmentRecord::read(&bytes[offset..], header.salt, offset) {
            let expected = self.group.saturating_add(1);
            if record.group != expected {
                return Err(LogDamage::Group { number, offset, found: record.group, expected });
            }
            let item = record.item().map_err(|error| LogDamage::Record { number, offset, error })?;
            if matches!(item, Item::Start(_)) != (offset == SEGMENT_HEADER_BYTES) {
                return Err(LogDamage::Misplaced { number, offset });
            }
            group.push((item, Location { segment: number, offset: offset as u32, bytes: record.bytes as u32 }));
            offset += record.bytes;
            if record.is_last {
                for (item, location) in group.drain(..) {
                    self.apply(&item, location)?;
                }
                (self.group, self.end) = (record.group, offset);
            }
        }
        self.dirty_end = used_end(bytes);
        self.check_rest(number, header.salt, bytes)
    }

    /// Checks that no group follows the torn one. An earlier use of the file had another salt, and lower groups.
    fn check_rest(&self, number: u64, salt: u64, bytes: &[u8]) -> Result<(), LogDamage> {
        let torn = self.group.saturating_add(1);
        let later = torn.saturating_add(1)..=torn.saturating_add(SEGMENT_BYTES as u64);
        for offset in self.end..self.dirty_end {
            // The last bytes of a record can be zeros.
            let rest = &bytes[offset..];
            let is_later = SegmentRecord::claimed_group(rest).is_some_and(|group| later.contains(&group));
            if is_later && let Some(record) = SegmentRecord::read(rest, salt, offset) {
                return Err(LogDamage::Hole { number, offset: self.end, found: record.group });
            }
        }
        Ok(())
    }

    fn apply(&mut self, item: &Item<'_>, location: Location) -> Result<(), LogDamage> {
        match item {
            Item::Start(start) if self.segments.len() == 1 => {
                self.state = start.state;
                self.segments[0].last_before = start.state.last;
            }
            Item::Start(start) => {
                if *start != (Start { previous_end: self.previous_end as u32, state: self.state }) {
                    return Err(LogDamage::Start { number: location.segment });
                }
            }
            Item::Entry { position, payload } => {
                self.check_entry(*position)?;
                self.index.push(position.index, location);
                self.tail.push(LogRecord { position: *position, payload: Bytes::copy_from_slice(payload) });
                self.tail.mark_written(self.tail.newest_seq());
            }
            Item::Truncate(last) => {
                self.check_truncation(*last, location)?;
                self.index.truncate(last.map(|last| last.index));
                self.tail.truncate_after(last.map(|last| last.index));
            }
            Item::Floor(upto) => {
                self.index.purge(upto.index);
                self.tail.purge(upto.index);
            }
            Item::Vote(_) | Item::Committed(_) | Item::Close => {}
        }
        self.state.apply(item);
        self.is_closed = matches!(item, Item::Close);
        Ok(())
    }

    fn check_entry(&self, Position { term: found, index }: Position) -> Result<(), LogDamage> {
        let last = self.state.last;
        let expected = last.map_or(index.min(1), |last| last.index.saturating_add(1));
        if index != expected || Some(index) == last.map(|last| last.index) {
            return Err(LogDamage::Gap { expected, found: index });
        }
        match last {
            Some(last) if found < last.term => Err(LogDamage::Term { index, found, term: last.term }),
            _ => Ok(()),
        }
    }

    fn check_truncation(
        &self,
        to: Option<Position>,
        Location { segment, offset, .. }: Location,
    ) -> Result<(), LogDamage> {
        let [to, floor, last] = [to, self.state.floor, self.state.last].map(|at| at.map(|at| at.index));
        if floor <= to && to < last {
            return Ok(());
        }
        Err(LogDamage::Truncation { number: segment, offset })
    }

    /// Checks that the segments hold all entries above the floor.
    pub fn finish(&self) -> Result<(), LogDamage> {
        let LogState { last, floor, .. } = self.state;
        if self.end == SEGMENT_HEADER_BYTES && self.segments.len() == 1 && self.segments[0].number > 1 {
            return Err(LogDamage::Begin { number: self.segments[0].number });
        }
        if last == floor {
            return Ok(());
        }
        let expected = floor.map_or(0, |floor| floor.index.saturating_add(1));
        let found = self.index.first().unwrap_or_else(|| last.map_or(0, |last| last.index.saturating_add(1)));
        if found == expected || floor.is_none() && found == 1 {
            return Ok(());
        }
        Err(LogDamage::Gap { expected, found })
    }
}

/// The end of the bytes that are not zero.
fn used_end(bytes: &[u8]) -> usize {
    const BLOCK: usize = 4096;
    let blocks = bytes.chunks(BLOCK).rposition(|block| block != &[0; BLOCK][..block.len()]);
    let from = blocks.map_or(0, |block| block * BLOCK);
    let end = bytes.len().min(from + BLOCK);
    bytes[from..end].iter().rposition(|byte| *byte != 0).map_or(from, |last| from + last + 1)
}
