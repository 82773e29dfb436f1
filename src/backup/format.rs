//! The bytes of a backup.
//!
//! ```text
//! "TENUREB"  7 bytes, then the version: 1
//! header     length (u32) and Header
//! snapshot   the records of a Raft snapshot, each with its length (u32)
//! end        0xffffffff (u32), the number of bytes up to here (u64), crc32 of all bytes before (u32)
//! ```
//!
//! Numbers are big-endian. The forms are frozen: a new layout needs a new version.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::BackupError;
use crate::raft::State;
use crate::raft::snapshot::{self, SnapshotError, SnapshotReader};
use crate::storage::{Position, StorageError, codec};
use crate::types::{ClusterMs, NodeId};

const MAGIC: &[u8; 7] = b"TENUREB";
const VERSION: u8 = 1;
/// No record has this length.
const END: [u8; 4] = [0xff; 4];
/// Bytes from the end marker to the end of the file.
const TRAILER_BYTES: usize = 16;
const PREFIX_BYTES: u64 = 12;
/// Largest encoded header.
const MAX_HEADER_BYTES: usize = 64 << 10;
const BUFFER_BYTES: usize = 64 << 10;

/// The first record of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BackupHeader {
    pub cluster: String,
    /// The node that wrote the backup.
    pub node: NodeId,
    pub position: Position,
    pub cluster_ms: ClusterMs,
    /// Wall clock of that node, milliseconds since the Unix epoch.
    pub wall_ms: u64,
    pub freshness: Freshness,
}

/// The age of the state in a backup when it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Freshness {
    /// The leader wrote it and had confirmed its leadership before.
    Current,
    /// The state is at most this old.
    Stale { ms: u64 },
    /// The node had not caught up with a leader since its start.
    Unknown,
}

/// Writes a backup of this view.
pub(crate) fn encode(header: &BackupHeader, view: &State, out: &mut impl Write) -> io::Result<()> {
    let mut out = CheckedWriter { out, crc: crc32fast::Hasher::new(), bytes: 0 };
    out.write_all(MAGIC)?;
    out.write_all(&[VERSION])?;
    let record = codec::encode(header);
    out.write_all(&(record.len() as u32).to_be_bytes())?;
    out.write_all(&record)?;
    let mut failed = None;
    let encoded = snapshot::encode(view, |bytes| {
        out.write_all(bytes).map_err(|error| {
            failed = Some(error);
            StorageError::Closed
        })
    });
    if let Some(error) = failed {
        return Err(error);
    }
    encoded?;
    out.write_all(&END)?;
    let total = out.bytes + 8;
    out.write_all(&total.to_be_bytes())?;
    let crc = out.crc.clone().finalize();
    out.out.write_all(&crc.to_be_bytes())?;
    out.out.flush()
}

struct CheckedWriter<'w, W> {
    out: &'w mut W,
    crc: crc32fast::Hasher,
    bytes: u64,
}

impl<W: Write> Write for CheckedWriter<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.crc.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Reads and checks a backup: first the checksum of all bytes, then every record.
pub(crate) fn read(path: &Path) -> Result<(BackupHeader, State), BackupError> {
    read_with(path, SnapshotReader::default())
}

/// Checks a backup like [`read`], without the memory for its state.
pub(crate) fn verify(path: &Path) -> Result<(), BackupError> {
    read_with(path, SnapshotReader::checking()).map(drop)
}

fn read_with(path: &Path, reader: SnapshotReader) -> Result<(BackupHeader, State), BackupError> {
    let failed = |error| BackupError::io("read", path, error);
    let mut file = File::open(path).map_err(|error| BackupError::io("open", path, error))?;
    let bytes = file.metadata().map_err(failed)?.len();
    check_prefix(path, &mut file, bytes)?;
    let content = check_trailer(path, &mut file, bytes)?;
    file.seek(SeekFrom::Start(MAGIC.len() as u64 + 1)).map_err(failed)?;
    let mut content = BufReader::with_capacity(BUFFER_BYTES, file).take(content - MAGIC.len() as u64 - 1);
    let invalid = |source| BackupError::Invalid { file: path.to_owned(), source };
    let header = read_header(&mut content).map_err(failed)?.map_err(invalid)?;
    let state = read_state(&mut content, reader).map_err(failed)?.map_err(|error| invalid(error.into()))?;
    if (header.position, header.cluster_ms) != (state.position(), state.machine.now()) {
        return Err(invalid("its header has another position than its state".into()));
    }
    Ok((header, state))
}

fn check_prefix(path: &Path, file: &mut File, bytes: u64) -> Result<(), BackupError> {
    let mut prefix = [0; MAGIC.len() + 1];
    if bytes < PREFIX_BYTES + TRAILER_BYTES as u64 {
        return Err(BackupError::Truncated { file: path.to_owned(), bytes });
    }
    file.read_exact(&mut prefix).map_err(|error| BackupError::io("read", path, error))?;
    match prefix.split_last() {
        Some((&VERSION, magic)) if magic == MAGIC => Ok(()),
        Some((&found, magic)) if magic == MAGIC => {
            Err(BackupError::NewerFormat { file: path.to_owned(), found, known: VERSION })
        }
        _ => Err(BackupError::NotABackup { file: path.to_owned() }),
    }
}

/// Checks the end and the checksum. Returns the number of bytes before the end marker.
fn check_trailer(path: &Path, file: &mut File, bytes: u64) -> Result<u64, BackupError> {
    let failed = |error| BackupError::io("read", path, error);
    let content = bytes - TRAILER_BYTES as u64;
    let mut trailer = [0; TRAILER_BYTES];
    file.seek(SeekFrom::Start(content)).map_err(failed)?;
    file.read_exact(&mut trailer).map_err(failed)?;
    let (end, numbers) = trailer.split_at(END.len());
    let (total, crc) = numbers.split_at(8);
    if end != END || total != (bytes - 4).to_be_bytes() {
        return Err(BackupError::Truncated { file: path.to_owned(), bytes });
    }
    file.rewind().map_err(failed)?;
    let mut hasher = crc32fast::Hasher::new();
    let mut left = file.take(bytes - 4);
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match left.read(&mut buffer).map_err(failed)? {
            0 => break,
            read => hasher.update(&buffer[..read]),
        }
    }
    let (found, expected) = (hasher.finalize(), u32::from_be_bytes(crc.try_into().expect("four bytes")));
    if found != expected {
        return Err(BackupError::Damaged { file: path.to_owned(), found, expected });
    }
    Ok(content)
}

fn read_header(content: &mut impl Read) -> io::Result<Result<BackupHeader, Box<dyn std::error::Error + Send + Sync>>> {
    let mut length = [0; 4];
    content.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > MAX_HEADER_BYTES {
        return Ok(Err(format!("its header has {length} bytes: at most {MAX_HEADER_BYTES} are allowed").into()));
    }
    let mut record = vec![0; length];
    content.read_exact(&mut record)?;
    Ok(codec::decode(&record, MAX_HEADER_BYTES).map_err(Into::into))
}

fn read_state(content: &mut impl Read, mut reader: SnapshotReader) -> io::Result<Result<State, SnapshotError>> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = content.read(&mut buffer)?;
        if read == 0 {
            return Ok(reader.finish());
        }
        if let Err(error) = reader.push(&buffer[..read]) {
            return Ok(Err(error));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::lease::{Acquire, Batch, Command, Machine, Stamp};
    use crate::raft::{Joined, PeerInfo};
    use crate::token::FencingToken;
    use crate::types::{HolderId, LeaseName, Metadata, Ttl};

    /// A backup of a cluster with one held lease.
    fn backup() -> (BackupHeader, State, Vec<u8>) {
        let mut machine = Machine::new();
        let claim = Command::Acquire(Acquire {
            name: LeaseName::new("jobs").expect("valid"),
            holder: HolderId::new("a").expect("valid"),
            ttl: Ttl::millis(5_000).expect("valid"),
            wait_ms: None,
            lock_delay_ms: 0,
            limit: 1,
            metadata: Metadata::new([("k".to_owned(), "v".repeat(50))].into()).expect("it fits"),
        });
        let batch = Batch { stamp: Stamp { now: 7, wall_ms: 300 }, commands: vec![claim] };
        machine.apply(FencingToken { term: 1, index: 2 }, &batch);
        let mut state = State { machine, ..State::default() };
        let members = BTreeMap::from([(4, PeerInfo { http: "h".to_owned(), peer: "p".to_owned() })]);
        let position = Position { term: 1, index: 3 };
        state.restore(position, members, Joined { node: 4, incarnation: 5 }, 300, Some(9)).expect("restored");
        let (cluster, cluster_ms) = ("test".to_owned(), state.machine.now());
        let header =
            BackupHeader { cluster, node: 4, position, cluster_ms, wall_ms: 600, freshness: Freshness::Current };
        let mut bytes = Vec::new();
        encode(&header, &state, &mut bytes).expect("memory");
        (header, state, bytes)
    }

    fn read_bytes(bytes: &[u8]) -> Result<(BackupHeader, State), BackupError> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), bytes).expect("written");
        let read = read(file.path());
        assert_eq!(verify(file.path()).is_ok(), read.is_ok());
        read
    }

    #[test]
    fn backup_reads_back() {
        let (header, state, bytes) = backup();
        let (read_header, read_state) = read_bytes(&bytes).expect("readable");
        assert_eq!(read_header, header);
        assert_eq!(read_state.machine.header(), state.machine.header());
        assert!(read_state.machine.records().eq(state.machine.records()));
        assert_eq!((read_state.members(), read_state.joined), (state.members(), state.joined));
    }

    #[test]
    fn header_bytes_are_frozen() {
        let (_, _, bytes) = backup();
        let hex: String = bytes[..28].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "54454e55524542010000000d047465737404010307fb580200000000");
    }

    #[test]
    fn each_changed_byte_is_found() {
        let (_, _, bytes) = backup();
        for at in 0..bytes.len() {
            for bit in [1, 0x80] {
                let mut changed = bytes.clone();
                changed[at] ^= bit;
                let error = read_bytes(&changed).err().unwrap_or_else(|| panic!("byte {at} of {}", bytes.len()));
                assert!(error.to_string().contains("tmp"), "it names the file: {error}");
            }
        }
    }

    #[test]
    fn each_truncation_is_found() {
        let (_, _, bytes) = backup();
        for length in 0..bytes.len() {
            assert!(read_bytes(&bytes[..length]).is_err(), "{length} of {} bytes", bytes.len());
        }
        assert!(read_bytes(&[bytes.clone(), vec![0]].concat()).is_err(), "one byte more");
        assert!(read_bytes(&[bytes.clone(), bytes].concat()).is_err(), "twice");
    }

    #[test]
    fn newer_format_and_other_files_are_refused() {
        let (_, _, mut bytes) = backup();
        bytes[7] = 2;
        assert!(matches!(read_bytes(&bytes), Err(BackupError::NewerFormat { found: 2, .. })));
        assert!(matches!(read_bytes(&[b'x'; 100]), Err(BackupError::NotABackup { .. })));
        assert!(matches!(read_bytes(b""), Err(BackupError::Truncated { bytes: 0, .. })));
    }
}
