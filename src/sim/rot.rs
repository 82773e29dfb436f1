//! Bit rot for the in-memory store. It keeps no bytes, so this module encodes an entry like the store on disk, flips
//! one bit, and decodes the result like the store on disk.

use super::storage::MemoryStorage;
use crate::storage::disk::segment::{Item, RecordBatch, SEGMENT_HEADER_BYTES, SegmentRecord};
use crate::storage::{LogRecord, Storage};

/// One bit of the stored log: the number of the entry from the first one, and the bit in that entry. Values beyond the
/// end wrap around.
#[derive(Clone, Copy, Debug)]
pub struct Flip {
    pub entry: usize,
    pub bit: usize,
}

impl MemoryStorage {
    /// Flips one bit, and returns the entry that a starting node would decode, or the error that it would report.
    /// `None` if the log has no entry.
    pub fn flipped(&self, flip: Flip) -> Option<Result<LogRecord, String>> {
        let (floor, last) = self.log_bounds();
        let from = floor.map_or(0, |floor| floor.index + 1);
        let records = self.read_log(from, last?.index + 1, usize::MAX).ok()?;
        let record = records.get(flip.entry % records.len().max(1))?;
        Some(decode_flipped(record, flip.bit))
    }
}

fn decode_flipped(record: &LogRecord, bit: usize) -> Result<LogRecord, String> {
    const SALT: u64 = 7;
    let mut batch = RecordBatch::default();
    batch.push(&Item::Entry { position: record.position, payload: &record.payload });
    let mut stored = batch.seal(SALT, SEGMENT_HEADER_BYTES, 1).to_vec();
    let bit = bit % (stored.len() * 8);
    stored[bit / 8] ^= 1 << (bit % 8);
    let read = SegmentRecord::read(&stored, SALT, SEGMENT_HEADER_BYTES).ok_or("no valid record")?;
    match read.item().map_err(|error| error.to_string())? {
        Item::Entry { position, payload } => {
            Ok(LogRecord { position, payload: bytes::Bytes::copy_from_slice(payload) })
        }
        other => Err(format!("no entry but {other:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::SyncMode;
    use crate::storage::Position;

    #[test]
    fn each_flipped_bit_is_detected() {
        let disk = MemoryStorage::new(SyncMode::Inline);
        assert!(disk.flipped(Flip { entry: 0, bit: 0 }).is_none(), "the log is empty");
        let payload = bytes::Bytes::from_static(b"acknowledged payload!");
        let record = LogRecord { position: Position { term: 3, index: 1 }, payload };
        disk.append(vec![record], Box::new(|done| done.expect("written")));
        for bit in 0..400 {
            let found = disk.flipped(Flip { entry: 0, bit }).expect("the log has an entry");
            assert!(found.is_err(), "flipped bit {bit} was not detected: {found:?}");
        }
    }
}
