//! Reads the stored log entries from their parts.

use bytes::{Bytes, BytesMut};

use crate::storage::record::{self, Kind, LogPartV1, RecordError, log_key, split_log_key};
use crate::storage::{LogRecord, Position};

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
