//! A disk that changes by itself, for the store in memory: it keeps no bytes, so they are made as the store on a disk makes
//! them, spoiled, and read as that one reads them.

use super::storage::MemoryStorage;
use crate::storage::disk::entries;
use crate::storage::record::{self, Kind, LogPartV1, RecordError};
use crate::storage::{LogRecord, Storage};

/// A bit of a log that is stored: of which entry, counted from the first, and where in it. Both go round.
#[derive(Clone, Copy, Debug)]
pub struct Flip {
    pub entry: usize,
    pub bit: usize,
}

impl MemoryStorage {
    /// What a start on this log finds if one bit of it is flipped: why it is refused, or what it would take for the entry.
    /// `None` if there is no entry.
    pub fn flipped(&self, flip: Flip) -> Option<Result<LogRecord, String>> {
        let (floor, last) = self.log_bounds();
        let from = floor.map_or(0, |floor| floor.index + 1);
        let records = self.read_log(from, last?.index + 1, usize::MAX).ok()?;
        let record = records.get(flip.entry % records.len().max(1))?;
        Some(reread(record, flip.bit).map_err(|error| error.to_string()))
    }
}

fn reread(record: &LogRecord, bit: usize) -> Result<LogRecord, RecordError> {
    let mut stored = entries::seal(record, 0);
    let bit = bit % (stored.len() * 8);
    stored[bit / 8] ^= 1 << (bit % 8);
    let key = entries::key(record.position.index, 0);
    let read: LogPartV1 = record::unseal(Kind::LogPart, &key, &stored)?;
    let position = crate::storage::Position { term: read.term, ..record.position };
    Ok(LogRecord { position, payload: bytes::Bytes::copy_from_slice(read.payload.0) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::SyncMode;
    use crate::storage::Position;

    #[test]
    fn whichever_bit_is_flipped_it_is_found() {
        let disk = MemoryStorage::new(SyncMode::Inline);
        assert!(disk.flipped(Flip { entry: 0, bit: 0 }).is_none(), "nothing is stored");
        let payload = bytes::Bytes::from_static(b"what was acknowledged");
        let record = LogRecord { position: Position { term: 3, index: 1 }, payload };
        disk.append(vec![record], Box::new(|done| done.expect("written")));
        for bit in 0..400 {
            let found = disk.flipped(Flip { entry: 0, bit }).expect("there is an entry");
            assert!(found.is_err(), "bit {bit} was not missed: {found:?}");
        }
    }
}
