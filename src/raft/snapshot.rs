//! A snapshot as a stream of bytes: length-prefixed records, first a header, then the records of each name in name
//! order. The same state makes the same bytes on every replica. No record is large, however much a name keeps.

use std::collections::BTreeMap;

use openraft::StoredMembership;
use serde::{Deserialize, Serialize};

use super::payload::{MembershipRecord, PayloadError};
use super::replica::State;
use super::types::{SnapshotMeta, log_id, position};
use crate::lease::{BadSnapshot, Rebuild, SnapshotHeader, SnapshotHeaderV1, StoredRecord};
use crate::storage::codec::{self, DecodeError};
use crate::storage::{Position, SnapshotManifest, SnapshotWriter, Storage, StorageError};
use crate::types::NodeId;

/// The format that is written. Format 1 is read, too.
const FORMAT: u32 = 2;
/// Largest record that is written, in bytes: far above one part of a name.
const MAX_WRITTEN_BYTES: usize = 1 << 20;
/// Largest record that is read, in bytes: format 1 wrote a name into one record, however much it kept.
const MAX_RECORD_BYTES: usize = 512 << 20;

/// What openraft passes around as a snapshot.
pub enum SnapshotData<S: Storage> {
    /// Complete, in a store: this node's own, but for tests that pass it to another node by hand.
    Stored { store: S, manifest: SnapshotManifest },
    /// Received from a peer, read and checked; its manifest is written when openraft accepts it. Written sooner, a
    /// snapshot from a deposed leader could replace a newer one whose log is already purged.
    Received { writer: SnapshotWriter<S>, state: Box<State> },
}

/// Position and membership of a snapshot: what the store keeps beside it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    pub last: Option<Position>,
    pub membership_at: Option<Position>,
    pub membership: MembershipRecord,
}

#[derive(Serialize, Deserialize)]
struct Header {
    format: u32,
    meta: Meta,
    joined: BTreeMap<NodeId, u64>,
    machine: SnapshotHeader,
}

#[derive(Serialize, Deserialize)]
struct HeaderV1 {
    format: u32,
    meta: Meta,
    joined: BTreeMap<NodeId, u64>,
    machine: SnapshotHeaderV1,
}

impl Meta {
    pub fn of(state: &State) -> Meta {
        Meta {
            last: state.applied.as_ref().map(position),
            membership_at: state.membership.log_id().as_ref().map(position),
            membership: MembershipRecord::from(state.membership.membership()),
        }
    }

    pub fn snapshot_meta(self) -> Result<SnapshotMeta, PayloadError> {
        let membership = self.membership.membership()?;
        Ok(SnapshotMeta {
            last_log_id: self.last.map(log_id),
            last_membership: StoredMembership::new(self.membership_at.map(log_id), membership),
        })
    }
}

/// Writes a view of the state, reads back what the store has of it, and checks that it can be loaded. Blocks on the
/// disk: not for async code.
///
/// # Errors
///
/// The log must not be purged: this is no snapshot of the view.
pub fn write<S: Storage>(view: &State, writer: &mut SnapshotWriter<S>) -> Result<(), SnapshotError> {
    encode(view, |bytes| writer.push(bytes))?;
    let mut reader = Reader::checking();
    writer.read_back(|bytes| reader.push(bytes))?;
    let read = reader.finish()?;
    if Meta::of(&read) != Meta::of(view) || read.machine.applied() != view.machine.applied() {
        return Err(SnapshotError::OtherState);
    }
    Ok(())
}

/// Hands out the bytes of a view of the state, piece by piece.
pub(crate) fn encode(
    view: &State,
    mut take: impl FnMut(&[u8]) -> Result<(), StorageError>,
) -> Result<(), SnapshotError> {
    let header =
        Header { format: FORMAT, meta: Meta::of(view), joined: view.joined.clone(), machine: view.machine.header() };
    let mut bytes = Vec::new();
    push(&header, &mut bytes, &mut take)?;
    for record in view.machine.records() {
        push(&record, &mut bytes, &mut take)?;
    }
    Ok(())
}

fn push<T: Serialize>(
    record: &T,
    bytes: &mut Vec<u8>,
    take: &mut impl FnMut(&[u8]) -> Result<(), StorageError>,
) -> Result<(), SnapshotError> {
    bytes.clear();
    codec::encode_into(record, bytes);
    if bytes.len() > MAX_WRITTEN_BYTES {
        return Err(SnapshotError::RecordTooLong { bytes: bytes.len(), max: MAX_WRITTEN_BYTES });
    }
    take(&(bytes.len() as u32).to_be_bytes())?;
    Ok(take(bytes)?)
}

/// Reads a snapshot's bytes as they come, in pieces of any size.
#[derive(Default)]
pub struct Reader {
    pending: Vec<u8>,
    begun: Option<Begun>,
    checks_only: bool,
}

struct Begun {
    meta: Meta,
    joined: BTreeMap<NodeId, u64>,
    machine: Rebuild,
}

impl Reader {
    /// Checks everything and keeps no names: the state that it ends with has none.
    pub fn checking() -> Reader {
        Reader { checks_only: true, ..Reader::default() }
    }

    pub fn push(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        self.pending.extend_from_slice(bytes);
        let mut read = 0;
        while let Some(record) = next_record(&self.pending[read..])? {
            read += 4 + record.len();
            match &mut self.begun {
                None => self.begun = Some(begin(record, self.checks_only)?),
                Some(begun) => begun.machine.push(codec::decode::<StoredRecord>(record, MAX_RECORD_BYTES)?)?,
            }
        }
        self.pending.drain(..read);
        Ok(())
    }

    pub fn finish(self) -> Result<State, SnapshotError> {
        let Begun { meta, joined, machine } = self.begun.ok_or(SnapshotError::Cut)?;
        if !self.pending.is_empty() {
            return Err(SnapshotError::Cut);
        }
        let meta = meta.snapshot_meta()?;
        let machine = machine.finish()?;
        Ok(State { machine, applied: meta.last_log_id, membership: meta.last_membership, joined })
    }
}

/// Reads a stored snapshot back into a state.
pub fn load<S: Storage>(storage: &S, manifest: &SnapshotManifest) -> Result<State, SnapshotError> {
    let mut reader = Reader::default();
    for number in 0..manifest.chunks {
        reader.push(&storage.read_snapshot(manifest.id, number)?)?;
    }
    reader.finish()
}

fn next_record(bytes: &[u8]) -> Result<Option<&[u8]>, SnapshotError> {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    if length > MAX_RECORD_BYTES {
        return Err(SnapshotError::RecordTooLong { bytes: length, max: MAX_RECORD_BYTES });
    }
    Ok(rest.get(..length))
}

fn begin(record: &[u8], checks_only: bool) -> Result<Begun, SnapshotError> {
    // The format is the header's first field, so that it can be read whatever follows it.
    let (meta, joined, machine) = match record.first().copied().unwrap_or_default() {
        1 => {
            let HeaderV1 { meta, joined, machine, .. } = codec::decode(record, MAX_WRITTEN_BYTES)?;
            (meta, joined, machine.try_into()?)
        }
        2 => {
            let Header { meta, joined, machine, .. } = codec::decode(record, MAX_WRITTEN_BYTES)?;
            (meta, joined, machine)
        }
        found => return Err(SnapshotError::Format { found: found.into() }),
    };
    let mut machine = Rebuild::new(machine)?;
    if checks_only {
        machine.keep_nothing();
    }
    Ok(Begun { meta, joined, machine })
}

/// A snapshot that cannot be read, or that was written and does not read back.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error(
        "snapshot of format {found}, and this build reads formats 1 to {FORMAT}: run the build that wrote it, or a newer one"
    )]
    Format { found: u32 },
    #[error("the snapshot ends too soon")]
    Cut,
    #[error("the snapshot has a record of {bytes} bytes; at most {max} are allowed")]
    RecordTooLong { bytes: usize, max: usize },
    #[error("the snapshot reads back as that of another state")]
    OtherState,
    #[error("the thread that wrote the snapshot ended: {0}")]
    Interrupted(std::io::Error),
    #[error(transparent)]
    Contents(#[from] BadSnapshot),
    #[error("the snapshot cannot be read: {0}")]
    Undecodable(#[from] DecodeError),
    #[error("the snapshot has a membership that cannot be: {0}")]
    Membership(#[from] PayloadError),
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl From<SnapshotError> for std::io::Error {
    fn from(error: SnapshotError) -> std::io::Error {
        std::io::Error::other(error)
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use crate::lease::snapshot::old;
    use crate::lease::{Acquire, Batch, Command, Lease, Machine, Outcome, PART_BYTES, Stamp};
    use crate::sim::MemoryStorage;
    use crate::storage::SNAPSHOT_CHUNK_BYTES;
    use crate::token::FencingToken;
    use crate::types::{HolderId, LeaseName, MAX_LIMIT, Metadata, Ttl};

    fn name() -> LeaseName {
        LeaseName::new("pool").expect("valid")
    }

    fn acquire(holder: String, metadata_bytes: usize) -> Command {
        let metadata = [("k".to_string(), "v".repeat(metadata_bytes))].into();
        Command::Acquire(Acquire {
            name: name(),
            holder: HolderId::new(holder).expect("valid"),
            ttl: Ttl::Infinite,
            wait_ms: None,
            lock_delay_ms: 0,
            limit: MAX_LIMIT,
            metadata: Metadata::new(metadata).expect("it fits"),
        })
    }

    fn apply(machine: &mut Machine, command: Command) -> (FencingToken, Outcome) {
        let index = machine.applied().map_or(1, |last| last.index + 1);
        let position = FencingToken { term: 1, index };
        let (mut outcomes, _) = machine.apply(position, &Batch { stamp: Stamp::default(), commands: vec![command] });
        (position, outcomes.remove(0))
    }

    fn add_ended(machine: &mut Machine, count: u32) {
        for number in 0..count {
            let (token, _) = apply(machine, acquire(format!("ended-{number}"), 4_000));
            let holder = HolderId::new(format!("ended-{number}")).expect("valid");
            apply(machine, Command::Release { name: name(), holder, token });
        }
    }

    fn add_held(machine: &mut Machine, count: u32) {
        for number in 0..count {
            let (_, outcome) = apply(machine, acquire(format!("held-{number}"), 4_000));
            assert!(matches!(outcome, Outcome::Held { .. }), "{outcome:?}");
        }
    }

    fn state_of(machine: Machine) -> State {
        State { machine, applied: None, membership: Default::default(), joined: BTreeMap::from([(2, 7)]) }
    }

    /// Written to a store and loaded from there.
    fn assert_reads_back(machine: Machine) {
        let (storage, state) = (MemoryStorage::default(), state_of(machine));
        let mut writer = storage.begin_snapshot().expect("it begins");
        write(&state, &mut writer).expect("written, and checked");
        let manifest = writer.finish_blocking(Vec::new()).expect("finished");
        let read = load(&storage, &manifest).expect("what was written can be read");
        assert_eq!(read.machine.header(), state.machine.header());
        assert!(read.machine.records().eq(state.machine.records()));
        assert_eq!(read.machine.counts(), state.machine.counts());
    }

    #[test]
    fn largest_name_reads_back() {
        let mut machine = Machine::new();
        add_ended(&mut machine, MAX_LIMIT);
        add_held(&mut machine, MAX_LIMIT);
        assert_eq!(machine.counts().held, u64::from(MAX_LIMIT));
        let mut largest = 0;
        let encoded = encode(&state_of(machine.clone()), |bytes| {
            largest = largest.max(bytes.len());
            Ok(())
        });
        encoded.expect("it is encoded");
        assert!((PART_BYTES - 8_192..=PART_BYTES + 1_024).contains(&largest), "a record has {largest} bytes");
        assert_reads_back(machine);
    }

    /// One record of more than 64 MiB, which format 1 wrote and could not read.
    #[test]
    fn oversized_record_of_format_1_is_read() {
        let mut machine = Machine::new();
        add_ended(&mut machine, MAX_LIMIT);
        let (_, before) = old::snapshot(&machine);
        add_held(&mut machine, MAX_LIMIT);
        let (header, mut records) = old::snapshot(&machine);
        old::put_back_ended(&mut records[0], &before[0]);
        let header = HeaderV1 { format: 1, meta: Meta::default(), joined: BTreeMap::new(), machine: header };
        let (header, record) = (codec::encode(&header), codec::encode(&records[0]));
        assert!(record.len() > 64 << 20, "{} bytes", record.len());
        let mut reader = Reader::default();
        for record in [header, record] {
            reader.push(&(record.len() as u32).to_be_bytes()).expect("a length");
            record.chunks(SNAPSHOT_CHUNK_BYTES).for_each(|chunk| reader.push(chunk).expect("readable"));
        }
        let mut machine = reader.finish().expect("whole").machine;
        assert_eq!((machine.counts().held, machine.counts().ended), (u64::from(MAX_LIMIT), u64::from(MAX_LIMIT)));
        // The next entry that changes the name brings it within its bounds.
        let (held, _) = machine.holders(&name());
        let Lease { name, holder, token, .. } = held[0].clone();
        let (_, outcome) = apply(&mut machine, Command::Release { name, holder, token });
        assert_eq!(outcome, Outcome::Released(true));
        assert!(machine.counts().ended < u64::from(MAX_LIMIT) / 2, "{:?}", machine.counts());
        assert_reads_back(machine);
    }

    #[test]
    fn records_above_what_is_read_are_refused() {
        Reader::default().push(&(MAX_RECORD_BYTES as u32).to_be_bytes()).expect("a record at the bound may begin");
        let mut reader = Reader::default();
        let refused = reader.push(&(MAX_RECORD_BYTES as u32 + 1).to_be_bytes()).expect_err("too long");
        assert!(matches!(refused, SnapshotError::RecordTooLong { max: MAX_RECORD_BYTES, .. }), "{refused}");
        let unread = Reader::default().push(&[0, 0, 0, 1, 3]).expect_err("format 3");
        assert!(matches!(unread, SnapshotError::Format { found: 3 }));
    }

    #[test]
    fn header_bytes_are_frozen() {
        let mut machine = Machine::new();
        apply(&mut machine, Command::Tick);
        let mut bytes = Vec::new();
        let encoded = encode(&state_of(machine), |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        });
        encoded.expect("it is encoded");
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "0000002302000000000102070200010101fc80841e00fb102710fcc0270900fb1027fb10270000");
    }
}
