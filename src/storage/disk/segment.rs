//! The format of a log segment: a header, and records in groups.
//!
//! ```text
//! header     magic | version u32 | number u64 | first group u64 | salt u64 | crc32, in the first 512 bytes
//! record     crc32 | len u32 | group u64 | kind u8 | body of `len` bytes
//! ```
//!
//! Numbers are little-endian. The crc32 of a record also covers the salt of the segment and the offset of the record. The
//! salt is random for each use of a file, so a record of an earlier use is never valid. The highest bit of the kind marks
//! the last record of a group.
//!
//! The bodies are frozen like the records of sled: the golden bytes in the tests detect a change.

use serde::{Deserialize, Serialize};

use crate::storage::record::{CommittedV1, PositionV1, Raw, VoteV1};
use crate::storage::{Position, VoteRecord, codec};

/// The size of each segment.
pub(crate) const SEGMENT_BYTES: usize = 4 << 20;
/// The header has one sector, which a device writes whole.
pub(crate) const SEGMENT_HEADER_BYTES: usize = 512;
/// The newest version of a segment that this program writes and reads.
pub(crate) const SEGMENT_VERSION: u32 = 1;
/// Maximum payload of one entry. The rest of a segment holds its header, its first record and a committed position.
pub(crate) const MAX_ENTRY_BYTES: usize = SEGMENT_BYTES - (4 << 10);

pub(crate) const RECORD_HEADER_BYTES: usize = 17;
const MAGIC: &[u8; 8] = b"tenurlog";
const HEADER_FIELDS: usize = 36;
const LAST_OF_GROUP: u8 = 0x80;

/// The kind of a record. Append-only: a number never changes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum SegmentRecordKind {
    Start = 1,
    Entry = 2,
    Truncate = 3,
    Floor = 4,
    Vote = 5,
    Committed = 6,
    Close = 7,
}

/// The content of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Item<'a> {
    /// The first record of a segment: the state before it.
    Start(Start),
    Entry {
        position: Position,
        payload: &'a [u8],
    },
    /// The log ends at this position. Later entries are removed.
    Truncate(Option<Position>),
    /// The log is purged up to this position.
    Floor(Position),
    Vote(VoteRecord),
    Committed(Option<Position>),
    /// The store was closed after all groups before. So damage of the last group is no torn write.
    Close,
}

/// The state before a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Start {
    /// The end of the previous segment in bytes, or 0 in the first one.
    pub previous_end: u32,
    pub state: LogState,
}

/// All that the log holds besides the payloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogState {
    pub last: Option<Position>,
    pub floor: Option<Position>,
    pub vote: Option<VoteRecord>,
    pub committed: Option<Position>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct StartV1 {
    previous_end: u32,
    last: Option<PositionV1>,
    floor: Option<PositionV1>,
    vote: Option<VoteV1>,
    committed: Option<PositionV1>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct EntryV1<'a> {
    term: u64,
    index: u64,
    #[serde(borrow)]
    payload: Raw<'a>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct TruncateV1 {
    last: Option<PositionV1>,
}

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub number: u64,
    /// The number of the first group. So a lost end of the segment before shows even if this group is torn.
    pub first_group: u64,
    pub salt: u64,
}

/// A record with a valid checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentRecord<'a> {
    pub group: u64,
    pub is_last: bool,
    /// The number of bytes with the header.
    pub bytes: usize,
    kind: u8,
    body: &'a [u8],
}

/// The records of one group before their place in a segment is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecordBatch {
    bytes: Vec<u8>,
    starts: Vec<usize>,
}

/// The reason why a segment cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeaderError {
    #[error("version {version} of a segment: this program supports versions up to {SEGMENT_VERSION}")]
    Newer { version: u32 },
    #[error("no valid header")]
    Invalid,
}

impl LogState {
    pub fn apply(&mut self, item: &Item<'_>) {
        match item {
            Item::Start(_) | Item::Close => {}
            Item::Entry { position, .. } => self.last = Some(*position),
            Item::Truncate(last) => self.last = *last,
            Item::Floor(upto) => {
                self.floor = Some(*upto);
                if self.last.is_none_or(|last| last.index <= upto.index) {
                    self.last = self.floor;
                }
            }
            Item::Vote(vote) => self.vote = Some(*vote),
            Item::Committed(position) => self.committed = *position,
        }
    }
}

impl SegmentHeader {
    pub fn encode(self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&SEGMENT_VERSION.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.number.to_le_bytes());
        bytes[20..28].copy_from_slice(&self.first_group.to_le_bytes());
        bytes[28..HEADER_FIELDS].copy_from_slice(&self.salt.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..HEADER_FIELDS]);
        bytes[HEADER_FIELDS..HEADER_FIELDS + 4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<SegmentHeader, HeaderError> {
        let Some(header) = bytes.get(..HEADER_FIELDS + 4) else { return Err(HeaderError::Invalid) };
        let (fields, crc) = header.split_at(HEADER_FIELDS);
        if !fields.starts_with(MAGIC) || crc != crc32fast::hash(fields).to_le_bytes() {
            return Err(HeaderError::Invalid);
        }
        match u32_at(fields, 8) {
            SEGMENT_VERSION => Ok(SegmentHeader {
                number: u64_at(fields, 12),
                first_group: u64_at(fields, 20),
                salt: u64_at(fields, 28),
            }),
            version if version > SEGMENT_VERSION => Err(HeaderError::Newer { version }),
            _ => Err(HeaderError::Invalid),
        }
    }
}

impl<'a> SegmentRecord<'a> {
    /// The record at the start of `bytes`, which lies at `offset` of a segment. `None` if it is not whole or not valid.
    pub fn read(bytes: &'a [u8], salt: u64, offset: usize) -> Option<SegmentRecord<'a>> {
        let header = bytes.get(..RECORD_HEADER_BYTES)?;
        let kind = header[16] & !LAST_OF_GROUP;
        if !(SegmentRecordKind::Start as u8..=SegmentRecordKind::Close as u8).contains(&kind) {
            return None;
        }
        let end = RECORD_HEADER_BYTES.checked_add(u32_at(header, 4) as usize)?;
        let checked = bytes.get(4..end)?;
        if u32_at(header, 0) != checksum(salt, offset, checked) {
            return None;
        }
        let (group, is_last) = (u64_at(header, 8), header[16] & LAST_OF_GROUP != 0);
        Some(SegmentRecord { group, is_last, bytes: end, kind, body: &bytes[RECORD_HEADER_BYTES..end] })
    }

    /// The group that the bytes name, without a check. A scan skips most offsets by it.
    pub fn claimed_group(bytes: &[u8]) -> Option<u64> {
        Some(u64_at(bytes.get(..RECORD_HEADER_BYTES)?, 8))
    }

    pub fn item(&self) -> Result<Item<'a>, codec::DecodeError> {
        let position = |stored: PositionV1| Position { term: stored.term, index: stored.index };
        Ok(match self.kind {
            kind if kind == SegmentRecordKind::Start as u8 => {
                let stored: StartV1 = self.decode()?;
                let state = LogState {
                    last: stored.last.map(position),
                    floor: stored.floor.map(position),
                    vote: stored.vote.map(vote),
                    committed: stored.committed.map(position),
                };
                Item::Start(Start { previous_end: stored.previous_end, state })
            }
            kind if kind == SegmentRecordKind::Entry as u8 => {
                let stored: EntryV1 = self.decode()?;
                let position = Position { term: stored.term, index: stored.index };
                Item::Entry { position, payload: stored.payload.0 }
            }
            kind if kind == SegmentRecordKind::Truncate as u8 => {
                Item::Truncate(self.decode::<TruncateV1>()?.last.map(position))
            }
            kind if kind == SegmentRecordKind::Floor as u8 => Item::Floor(position(self.decode()?)),
            kind if kind == SegmentRecordKind::Vote as u8 => Item::Vote(vote(self.decode()?)),
            kind if kind == SegmentRecordKind::Committed as u8 => {
                Item::Committed(self.decode::<CommittedV1>()?.position.map(position))
            }
            _ => {
                self.decode::<()>()?;
                Item::Close
            }
        })
    }

    fn decode<T: Deserialize<'a>>(&self) -> Result<T, codec::DecodeError> {
        codec::decode(self.body, SEGMENT_BYTES)
    }
}

impl RecordBatch {
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Appends a record. Returns its start in the batch and its length.
    pub fn push(&mut self, item: &Item<'_>) -> (usize, usize) {
        let start = self.bytes.len();
        self.starts.push(start);
        self.bytes.extend_from_slice(&[0; RECORD_HEADER_BYTES]);
        let kind = encode(item, &mut self.bytes);
        self.complete(start, kind as u8)
    }

    fn complete(&mut self, start: usize, kind: u8) -> (usize, usize) {
        let len = self.bytes.len() - start;
        let body = u32::try_from(len - RECORD_HEADER_BYTES).expect("a segment has a few MiB");
        self.bytes[start + 4..start + 8].copy_from_slice(&body.to_le_bytes());
        self.bytes[start + 16] = kind;
        (start, len)
    }

    /// Appends all records of another batch.
    pub fn append(&mut self, other: &RecordBatch) {
        let shift = self.bytes.len();
        self.bytes.extend_from_slice(&other.bytes);
        self.starts.extend(other.starts.iter().map(|start| start + shift));
    }

    /// Completes the records as a group at `offset` of a segment.
    pub fn seal(&mut self, salt: u64, offset: usize, group: u64) -> &[u8] {
        let ends = self.starts.iter().skip(1).copied().chain([self.bytes.len()]);
        for (&start, end) in self.starts.iter().zip(ends) {
            let record = &mut self.bytes[start..end];
            record[8..16].copy_from_slice(&group.to_le_bytes());
            if Some(&start) == self.starts.last() {
                record[16] |= LAST_OF_GROUP;
            }
            let crc = checksum(salt, offset + start, &record[4..]);
            record[..4].copy_from_slice(&crc.to_le_bytes());
        }
        &self.bytes
    }
}

fn encode(item: &Item<'_>, bytes: &mut Vec<u8>) -> SegmentRecordKind {
    let stored = |position: &Position| PositionV1 { term: position.term, index: position.index };
    let vote = |vote: &VoteRecord| VoteV1 { term: vote.term, candidate: vote.candidate, committed: vote.committed };
    match item {
        Item::Start(Start { previous_end, state }) => {
            let start = StartV1 {
                previous_end: *previous_end,
                last: state.last.as_ref().map(stored),
                floor: state.floor.as_ref().map(stored),
                vote: state.vote.as_ref().map(vote),
                committed: state.committed.as_ref().map(stored),
            };
            codec::encode_into(&start, bytes);
            SegmentRecordKind::Start
        }
        Item::Entry { position, payload } => {
            let entry = EntryV1 { term: position.term, index: position.index, payload: Raw(payload) };
            codec::encode_into(&entry, bytes);
            SegmentRecordKind::Entry
        }
        Item::Truncate(last) => {
            codec::encode_into(&TruncateV1 { last: last.as_ref().map(stored) }, bytes);
            SegmentRecordKind::Truncate
        }
        Item::Floor(upto) => {
            codec::encode_into(&stored(upto), bytes);
            SegmentRecordKind::Floor
        }
        Item::Vote(record) => {
            codec::encode_into(&vote(record), bytes);
            SegmentRecordKind::Vote
        }
        Item::Committed(position) => {
            codec::encode_into(&CommittedV1 { position: position.as_ref().map(stored) }, bytes);
            SegmentRecordKind::Committed
        }
        Item::Close => SegmentRecordKind::Close,
    }
}

fn vote(stored: VoteV1) -> VoteRecord {
    VoteRecord { term: stored.term, candidate: stored.candidate, committed: stored.committed }
}

/// The crc32 of a record at `offset` of a segment with this salt.
pub(crate) fn checksum(salt: u64, offset: usize, record: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&salt.to_le_bytes());
    crc.update(&(offset as u64).to_le_bytes());
    crc.update(record);
    crc.finalize()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn at(term: u64, index: u64) -> Position {
        Position { term, index }
    }

    fn items() -> [Item<'static>; 7] {
        let vote = VoteRecord { term: 9, candidate: Some(2), committed: true };
        let state =
            LogState { last: Some(at(3, 70_000)), floor: Some(at(2, 60_000)), vote: Some(vote), committed: None };
        [
            Item::Start(Start { previous_end: 4_000_000, state }),
            Item::Entry { position: at(3, 70_000), payload: b"entry" },
            Item::Truncate(Some(at(3, 7))),
            Item::Floor(at(3, 70_000)),
            Item::Vote(vote),
            Item::Committed(Some(at(3, 70_000))),
            Item::Close,
        ]
    }

    #[test]
    fn stored_log_bytes_are_frozen() {
        let header = SegmentHeader { number: 2, first_group: 5, salt: 0x0102_0304_0506_0708 };
        assert_eq!(
            hex(&header.encode()[..40]),
            "74656e75726c6f670100000002000000000000000500000000000000080706050403020111f3e7bb"
        );
        assert!(header.encode()[40..].iter().all(|byte| *byte == 0));
        let golden = [
            "336cc3f417000000050000000000000081fc00093d000103fc701101000102fb60ea010901020100",
            "9fb5cff10c00000005000000000000008203fc7011010005656e747279",
            "b1e205b603000000050000000000000083010307",
            "f29d69a90600000005000000000000008403fc70110100",
            "ccd8400d0400000005000000000000008509010201",
            "3accb027070000000500000000000000860103fc70110100",
            "dbe9b70a00000000050000000000000087",
        ];
        let found = items().map(|item| {
            let mut batch = RecordBatch::default();
            batch.push(&item);
            hex(batch.seal(7, 512, 5))
        });
        assert_eq!(found, golden);
    }

    #[test]
    fn group_reads_back_only_whole_with_its_salt_and_offset() {
        let mut batch = RecordBatch::default();
        for item in items() {
            batch.push(&item);
        }
        let bytes = batch.seal(7, 512, 5).to_vec();
        let mut start = 0;
        for (n, item) in items().into_iter().enumerate() {
            let record = SegmentRecord::read(&bytes[start..], 7, 512 + start).expect("it is valid");
            assert_eq!((record.item(), record.group, record.is_last), (Ok(item), 5, n == 6));
            assert_eq!(SegmentRecord::read(&bytes[start..], 8, 512 + start), None, "another salt");
            assert_eq!(SegmentRecord::read(&bytes[start..], 7, 513 + start), None, "another offset");
            for end in 0..record.bytes {
                assert_eq!(SegmentRecord::read(&bytes[start..start + end], 7, 512 + start), None, "{end} bytes");
            }
            for bit in 0..8 * record.bytes {
                let mut flipped = bytes[start..].to_vec();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(SegmentRecord::read(&flipped, 7, 512 + start), None, "bit {bit}");
            }
            start += record.bytes;
        }
        assert_eq!(start, bytes.len());
    }

    #[test]
    fn header_of_a_newer_version_is_named() {
        let header = SegmentHeader { number: 2, first_group: 5, salt: 3 };
        assert_eq!(SegmentHeader::decode(&header.encode()), Ok(header));
        assert_eq!(SegmentHeader::decode(&[0; SEGMENT_HEADER_BYTES]), Err(HeaderError::Invalid));
        assert_eq!(SegmentHeader::decode(&header.encode()[..39]), Err(HeaderError::Invalid));
        let mut newer = header.encode();
        newer[8] = 2;
        assert_eq!(SegmentHeader::decode(&newer), Err(HeaderError::Invalid), "its checksum is wrong");
        let crc = crc32fast::hash(&newer[..HEADER_FIELDS]);
        newer[HEADER_FIELDS..HEADER_FIELDS + 4].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(SegmentHeader::decode(&newer), Err(HeaderError::Newer { version: 2 }));
    }
}
