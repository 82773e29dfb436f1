//! A snapshot as a stream of bytes: length-prefixed records, first a header, then one record for each name in name
//! order. The same state makes the same bytes on every replica.

use std::collections::BTreeMap;

use openraft::StoredMembership;
use serde::{Deserialize, Serialize};

use super::payload::{MembershipRecord, PayloadError};
use super::replica::State;
use super::types::{SnapshotMeta, log_id, position};
use crate::lease::{BadSnapshot, Rebuild, SnapshotHeader, StoredRecord};
use crate::storage::codec::{self, DecodeError};
use crate::storage::{Position, SnapshotManifest, SnapshotWriter, Storage, StorageError};
use crate::types::NodeId;

const FORMAT: u32 = 1;
/// Largest record, in bytes: one name with its longest queue stays below it.
const MAX_RECORD_BYTES: usize = 64 << 20;

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

/// Writes a view of the state. Blocks on the disk: not for async code.
pub fn write<S: Storage>(view: &State, writer: &mut SnapshotWriter<S>) -> Result<(), StorageError> {
    encode(view, |bytes| writer.push(bytes))
}

/// Hands out the bytes of a view of the state, piece by piece.
pub(crate) fn encode<E>(view: &State, mut take: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
    let header =
        Header { format: FORMAT, meta: Meta::of(view), joined: view.joined.clone(), machine: view.machine.header() };
    let mut bytes = Vec::new();
    push(&header, &mut bytes, &mut take)?;
    for record in view.machine.records() {
        push(&record, &mut bytes, &mut take)?;
    }
    Ok(())
}

fn push<T: Serialize, E>(
    record: &T,
    bytes: &mut Vec<u8>,
    take: &mut impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    bytes.clear();
    codec::encode_into(record, bytes);
    take(&(bytes.len() as u32).to_be_bytes())?;
    take(bytes)
}

/// Reads a snapshot's bytes as they come, in pieces of any size.
#[derive(Default)]
pub struct Reader {
    pending: Vec<u8>,
    begun: Option<Begun>,
}

struct Begun {
    meta: Meta,
    joined: BTreeMap<NodeId, u64>,
    machine: Rebuild,
}

impl Reader {
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        self.pending.extend_from_slice(bytes);
        let mut read = 0;
        while let Some(record) = next_record(&self.pending[read..])? {
            read += 4 + record.len();
            match &mut self.begun {
                None => self.begun = Some(begin(record)?),
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
        return Err(SnapshotError::RecordTooLong { bytes: length });
    }
    Ok(rest.get(..length))
}

fn begin(record: &[u8]) -> Result<Begun, SnapshotError> {
    // The format is the header's first field, so that it can be read whatever follows it.
    let format = record.first().copied().unwrap_or_default();
    if u32::from(format) != FORMAT {
        return Err(SnapshotError::Format { found: format.into() });
    }
    let header: Header = codec::decode(record, MAX_RECORD_BYTES)?;
    Ok(Begun { meta: header.meta, joined: header.joined, machine: Rebuild::new(header.machine)? })
}

/// A snapshot that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error(
        "snapshot of format {found}, and this build reads format {FORMAT}: run the build that wrote it, or a newer one"
    )]
    Format { found: u32 },
    #[error("the snapshot ends too soon")]
    Cut,
    #[error("the snapshot has a record of {bytes} bytes; at most {MAX_RECORD_BYTES} are allowed")]
    RecordTooLong { bytes: usize },
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
