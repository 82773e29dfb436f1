//! The stored form of the data: the keys of the trees, the parts of a log entry, and the format of a value.
//!
//! A value has a version, a kind, a checksum and a payload. The checksum is a crc32 over version, kind, key and payload.
//! It holds at most 4 KiB of a log entry, for two reasons. Large values go into separate files of sled, and these do not
//! survive a power cut. A page of sled has sixteen values and is written whole, so large values inflate a commit.
//!
//! The structs here are frozen: a change of shape needs a new version beside the old one. The golden bytes in the tests
//! detect a change. The checksum includes the key because a value under a wrong key is a lost value.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

#[cfg(test)]
use super::LogRecord;
use super::{MAX_SNAPSHOT_META_BYTES, SNAPSHOT_CHUNK_BYTES, codec};

// Keys of the tree `meta`.
pub(in crate::storage) const IDENTITY: &[u8] = b"identity";
pub(in crate::storage) const VOTE: &[u8] = b"vote";
pub(in crate::storage) const FLOOR: &[u8] = b"floor";
pub(in crate::storage) const COMMITTED: &[u8] = b"committed";
pub(in crate::storage) const SNAPSHOT: &[u8] = b"snapshot";

/// Maximum bytes of payload in one part of a log entry.
pub(in crate::storage) const PART_BYTES: usize = 4 << 10;
/// The key of a part: u64 index and u32 part. Big-endian, so that sled's key order is the order of the log.
const LOG_KEY_BYTES: usize = 12;
/// The newest record version that this program writes and reads.
pub(crate) const RECORD_VERSION: u8 = 1;
/// Version, kind and crc32.
pub(crate) const HEADER_BYTES: usize = 6;
/// Maximum bytes of a payload. The longest one is a manifest with 16 KiB from the caller.
const MAX_RECORD_BYTES: usize = 20 << 10;
/// Upper bound of the bytes that the numbers and lengths of any record take.
const FIXED_FIELD_BYTES: usize = 128;

// The largest record that this program writes must be readable.
const _: () = {
    assert!(MAX_SNAPSHOT_META_BYTES + FIXED_FIELD_BYTES <= MAX_RECORD_BYTES);
    assert!(SNAPSHOT_CHUNK_BYTES + FIXED_FIELD_BYTES <= MAX_RECORD_BYTES);
    assert!(PART_BYTES + FIXED_FIELD_BYTES <= MAX_RECORD_BYTES);
};

/// The kind of a record. Append-only: a number never changes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RecordKind {
    Identity = 1,
    Vote = 2,
    Floor = 3,
    Committed = 4,
    LogPart = 5,
    Manifest = 6,
    Chunk = 7,
}

/// The owner of the directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IdentityV1 {
    pub cluster: String,
    pub node: u64,
    pub incarnation: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VoteV1 {
    pub term: u64,
    pub candidate: Option<u64>,
    pub committed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PositionV1 {
    pub term: u64,
    pub index: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CommittedV1 {
    pub position: Option<PositionV1>,
}

/// One part of a log entry. Every part holds the number of parts, so that recovery detects a missing one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LogPartV1<'a> {
    pub term: u64,
    pub parts: u32,
    #[serde(borrow)]
    pub payload: Raw<'a>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ManifestV1<'a> {
    pub id: u64,
    #[serde(borrow)]
    pub meta: Raw<'a>,
    pub chunks: u64,
    pub bytes: u64,
    pub crc: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChunkV1<'a> {
    #[serde(borrow)]
    pub payload: Raw<'a>,
}

/// Bytes that serde writes and reads as one slice, not one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Raw<'a>(pub &'a [u8]);

/// The key of a snapshot chunk: id and number, big-endian, so that chunks are stored in order.
pub(in crate::storage) fn chunk_key(id: u64, number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&id.to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

/// The key of one part of a log entry.
pub(crate) fn log_key(index: u64, part: u32) -> [u8; LOG_KEY_BYTES] {
    let mut key = [0; LOG_KEY_BYTES];
    key[..8].copy_from_slice(&index.to_be_bytes());
    key[8..].copy_from_slice(&part.to_be_bytes());
    key
}

/// The index and the part of a log key, or `None` if it has another length.
pub(in crate::storage) fn split_log_key(key: &[u8]) -> Option<(u64, u32)> {
    let (index, part) = key.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*index), u32::from_be_bytes(part.try_into().ok()?)))
}

/// The number of parts of an entry. An empty entry has one part.
#[cfg(test)]
pub(in crate::storage) fn parts(record: &LogRecord) -> u32 {
    u32::try_from(record.payload.len().div_ceil(PART_BYTES).max(1)).expect("an entry is far below 64 TiB")
}

/// The payload of one part.
#[cfg(test)]
pub(in crate::storage) fn part_bytes(record: &LogRecord, part: u32) -> &[u8] {
    let start = part as usize * PART_BYTES;
    &record.payload[start..record.payload.len().min(start + PART_BYTES)]
}

/// The stored form of one part.
#[cfg(test)]
pub(crate) fn seal_part(record: &LogRecord, part: u32) -> Vec<u8> {
    let payload = part_bytes(record, part);
    let stored = LogPartV1 { term: record.position.term, parts: parts(record), payload: Raw(payload) };
    seal(RecordKind::LogPart, &log_key(record.position.index, part), &stored, payload.len())
}

/// The stored form of `payload` under `key`.
pub(crate) fn seal<T: Serialize>(kind: RecordKind, key: &[u8], payload: &T, payload_hint: usize) -> Vec<u8> {
    let mut record = Vec::with_capacity(HEADER_BYTES + 32 + payload_hint);
    record.extend_from_slice(&[RECORD_VERSION, kind as u8, 0, 0, 0, 0]);
    codec::encode_into(payload, &mut record);
    let crc = checksum(key, &record);
    record[2..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
    record
}

/// Checks the record that is stored under `key` and decodes its payload.
pub(crate) fn unseal<'a, T: Deserialize<'a>>(kind: RecordKind, key: &[u8], record: &'a [u8]) -> Result<T, RecordError> {
    let Some((header, payload)) = record.split_first_chunk::<HEADER_BYTES>() else {
        return Err(RecordError::Torn { bytes: record.len() });
    };
    // Check the version first: the layout of a newer record is unknown.
    if header[0] > RECORD_VERSION {
        return Err(RecordError::Newer { version: header[0] });
    }
    if header[0] == 0 {
        return Err(RecordError::Version { version: 0 });
    }
    let expected = u32::from_le_bytes([header[2], header[3], header[4], header[5]]);
    let found = checksum(key, record);
    if found != expected {
        return Err(RecordError::Checksum { expected, found });
    }
    if header[1] != kind as u8 {
        return Err(RecordError::Kind { expected: kind, found: header[1] });
    }
    codec::decode(payload, MAX_RECORD_BYTES).map_err(RecordError::Payload)
}

pub(crate) fn checksum(key: &[u8], record: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&record[..2]);
    crc.update(key);
    crc.update(&record[HEADER_BYTES..]);
    crc.finalize()
}

impl Serialize for Raw<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Raw<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Raw<'a>, D::Error> {
        struct Borrowed;
        impl<'de> de::Visitor<'de> for Borrowed {
            type Value = Raw<'de>;
            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("bytes")
            }
            fn visit_borrowed_bytes<E>(self, bytes: &'de [u8]) -> Result<Raw<'de>, E> {
                Ok(Raw(bytes))
            }
        }
        deserializer.deserialize_bytes(Borrowed)
    }
}

/// The reason why a stored record is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordError {
    #[error("a torn record of {bytes} bytes")]
    Torn { bytes: usize },
    #[error("a record of version {version}; this program supports versions up to {RECORD_VERSION}")]
    Newer { version: u8 },
    #[error("a record of version {version}, which never existed")]
    Version { version: u8 },
    #[error("a record with crc32 {found:08x}: expected {expected:08x}")]
    Checksum { expected: u32, found: u32 },
    #[error("a record of kind {found}: expected {expected:?} ({})", *expected as u8)]
    Kind { expected: RecordKind, found: u8 },
    #[error("a record with {0}")]
    Payload(codec::DecodeError),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn stored_record_bytes_are_frozen() {
        let position = PositionV1 { term: 3, index: 70_000 };
        let golden = [
            (
                hex(&seal(
                    RecordKind::Identity,
                    b"identity",
                    &IdentityV1 { cluster: "local".into(), node: 2, incarnation: 7 },
                    0,
                )),
                "010122a9483d056c6f63616c0207",
            ),
            (
                hex(&seal(RecordKind::Vote, b"vote", &VoteV1 { term: 9, candidate: Some(2), committed: true }, 0)),
                "0102964fe5cd09010201",
            ),
            (hex(&seal(RecordKind::Floor, b"floor", &position, 0)), "01037a5fb04303fc70110100"),
            (
                hex(&seal(RecordKind::Committed, b"committed", &CommittedV1 { position: Some(position) }, 0)),
                "01044600960b0103fc70110100",
            ),
            (
                hex(&seal(RecordKind::LogPart, b"k", &LogPartV1 { term: 3, parts: 1, payload: Raw(b"entry") }, 5)),
                "0105984d2007030105656e747279",
            ),
            (
                hex(&seal(
                    RecordKind::Manifest,
                    b"snapshot",
                    &ManifestV1 { id: 4, meta: Raw(b"m"), chunks: 2, bytes: 20_000, crc: 0xdead_beef },
                    1,
                )),
                "01060442c54704016d02fb204efcefbeadde",
            ),
            (hex(&seal(RecordKind::Chunk, b"c", &ChunkV1 { payload: Raw(b"chunk") }, 5)), "01070c480042056368756e6b"),
        ];
        for (found, expected) in golden {
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn record_reads_back_only_whole_under_its_key_and_kind() {
        let record = seal(RecordKind::LogPart, b"key", &LogPartV1 { term: 1, parts: 1, payload: Raw(b"payload") }, 7);
        let part: LogPartV1 = unseal(RecordKind::LogPart, b"key", &record).unwrap();
        assert_eq!(part.payload, Raw(b"payload"));

        assert!(matches!(unseal::<LogPartV1>(RecordKind::LogPart, b"kez", &record), Err(RecordError::Checksum { .. })));
        assert!(matches!(
            unseal::<ChunkV1>(RecordKind::Chunk, b"key", &record),
            Err(RecordError::Kind { found: 5, .. })
        ));
        for bytes in 0..record.len() {
            assert!(unseal::<LogPartV1>(RecordKind::LogPart, b"key", &record[..bytes]).is_err(), "{bytes} bytes");
        }
        for byte in 0..record.len() {
            for bit in 0..8 {
                let mut flipped = record.clone();
                flipped[byte] ^= 1 << bit;
                assert!(
                    unseal::<LogPartV1>(RecordKind::LogPart, b"key", &flipped).is_err(),
                    "bit {bit} of byte {byte}"
                );
            }
        }
        let mut newer = record;
        newer[0] = 2;
        assert_eq!(unseal::<LogPartV1>(RecordKind::LogPart, b"key", &newer), Err(RecordError::Newer { version: 2 }));
    }
}
