//! Reads and checks every record of a directory before the store opens.

use serde::Deserialize;

use super::directory::Directory;
use super::reading::{Damage, Entries};
use super::reclaim::Reclaim;
use super::tail::Tail;
use super::trees::Trees;
use crate::storage::record::{
    self, COMMITTED, ChunkV1, CommittedV1, FLOOR, IDENTITY, IdentityV1, Kind, ManifestV1, PositionV1, RecordError,
    SNAPSHOT, VOTE, VoteV1,
};
use crate::storage::{Identity, Position, Recovered, SnapshotManifest, StorageError, VoteRecord};

/// A checked store.
pub(super) struct CheckedStore {
    pub recovered: Recovered,
    /// The newest entries.
    pub tail: Tail,
    pub next_snapshot_id: u64,
    /// Unreferenced records that a power cut or a close left.
    pub leftovers: Vec<Reclaim>,
    /// Whether the last entry has only some of its parts: a power cut interrupted its write or its removal.
    pub unfinished_entry: bool,
}

/// Reads the identity record: the owner of the store and its incarnation.
pub(super) fn read_identity(directory: &Directory, trees: &Trees) -> Result<Option<(Identity, u64)>, StorageError> {
    read_meta(directory, trees, Kind::Identity, IDENTITY, |stored: IdentityV1| {
        (Identity { cluster: stored.cluster, node: stored.node }, stored.incarnation)
    })
}

/// Whether the store holds any record besides the identity.
pub(super) fn holds_data(directory: &Directory, trees: &Trees) -> Result<bool, StorageError> {
    let filled = |tree: &sled::Tree| tree.iter().next().transpose().map(|first| first.is_some());
    let in_meta = trees.meta.iter().keys().find(|key| key.as_ref().map_or(true, |key| key != IDENTITY));
    let found = filled(&trees.log).and_then(|log| Ok(log || filled(&trees.snap)? || in_meta.transpose()?.is_some()));
    found.map_err(|error| directory.corrupt(error))
}

/// Checks every record and that the log is contiguous from the floor.
pub(super) fn check_all(directory: &Directory, trees: &Trees) -> Result<CheckedStore, StorageError> {
    check_meta_keys(directory, trees)?;
    let vote = read_meta(directory, trees, Kind::Vote, VOTE, |stored: VoteV1| VoteRecord {
        term: stored.term,
        candidate: stored.candidate,
        committed: stored.committed,
    })?;
    let purged = read_meta(directory, trees, Kind::Floor, FLOOR, position)?;
    let committed =
        read_meta(directory, trees, Kind::Committed, COMMITTED, |stored: CommittedV1| stored.position.map(position))?;
    let snapshot = read_manifest(directory, trees)?;

    let mut tail = Tail::default();
    let (log_last, unfinished_entry) = check_log(directory, trees, purged, &mut tail)?;
    let (highest_id, mut leftovers) = check_chunks(directory, trees, snapshot.as_ref())?;
    leftovers.extend(purged.map(|floor| Reclaim::Log(floor.index)));

    let last = log_last.or(purged);
    let recovered = Recovered { vote, purged, committed: committed.flatten(), last, snapshot };
    Ok(CheckedStore { recovered, tail, next_snapshot_id: highest_id + 1, leftovers, unfinished_entry })
}

fn check_log(
    directory: &Directory,
    trees: &Trees,
    floor: Option<Position>,
    tail: &mut Tail,
) -> Result<(Option<Position>, bool), StorageError> {
    let mut last = None;
    let mut term = floor.map_or(0, |floor| floor.term);
    for entry in Entries::above(&trees.log, floor.map(|floor| floor.index), None) {
        match entry {
            Ok(entry) if entry.position.term < term => {
                let Position { term: found, index } = entry.position;
                return Err(directory.corrupt(format!("log entry {index} has term {found} after term {term}")));
            }
            Ok(entry) => {
                term = entry.position.term;
                last = Some(entry.position);
                tail.push(entry);
                tail.mark_written(tail.newest_seq());
            }
            // Safe to drop: the store acknowledges an append only with all parts of its entries, and a caller requested
            // any truncate that began to remove the entry.
            Err(Damage::Unfinished { .. }) => return Ok((last, true)),
            Err(Damage::Record { error: RecordError::Newer { version }, .. }) => return Err(newer(directory, version)),
            Err(damage) => return Err(directory.corrupt(damage)),
        }
    }
    Ok((last, false))
}

/// Checks the snapshot's chunks against its manifest. Returns the highest id in the store, and the other snapshots,
/// which are unfinished or replaced.
fn check_chunks(
    directory: &Directory,
    trees: &Trees,
    manifest: Option<&SnapshotManifest>,
) -> Result<(u64, Vec<Reclaim>), StorageError> {
    let mut highest = manifest.map_or(0, |manifest| manifest.id);
    let mut others: Vec<u64> = Vec::new();
    let (mut chunks, mut bytes, mut crc) = (0, 0, crc32fast::Hasher::new());
    for item in trees.snap.iter() {
        let (key, value) = item.map_err(|error| directory.corrupt(error))?;
        let Some((id, number)) = split_chunk_key(&key) else {
            return Err(
                directory.corrupt(format!("invalid snapshot key {key:02x?} of {} bytes: expected 16 bytes", key.len()))
            );
        };
        highest = highest.max(id);
        if manifest.is_none_or(|manifest| manifest.id != id) {
            if others.last() != Some(&id) {
                others.push(id);
            }
            continue;
        }
        if number != chunks {
            return Err(directory.corrupt(format!("chunk {chunks} of snapshot {id} is missing")));
        }
        let chunk: ChunkV1 = record::unseal(Kind::Chunk, &key, &value)
            .map_err(|error| record_error(directory, format!("chunk {number} of snapshot {id}"), error))?;
        chunks += 1;
        bytes += chunk.payload.0.len() as u64;
        crc.update(chunk.payload.0);
    }
    let crc = crc.finalize();
    if let Some(manifest) =
        manifest.filter(|manifest| (manifest.chunks, manifest.bytes, manifest.crc) != (chunks, bytes, crc))
    {
        return Err(directory.corrupt(format!(
            "snapshot {} has {chunks} chunks, {bytes} bytes and crc32 {crc:08x}: expected {}, {} and {:08x}",
            manifest.id, manifest.chunks, manifest.bytes, manifest.crc
        )));
    }
    Ok((highest, others.into_iter().map(Reclaim::Snapshot).collect()))
}

fn read_manifest(directory: &Directory, trees: &Trees) -> Result<Option<SnapshotManifest>, StorageError> {
    let Some(value) = trees.meta.get(SNAPSHOT).map_err(|error| directory.corrupt(error))? else { return Ok(None) };
    let stored: ManifestV1 = record::unseal(Kind::Manifest, SNAPSHOT, &value)
        .map_err(|error| record_error(directory, "the snapshot's manifest".to_string(), error))?;
    let (id, meta) = (stored.id, stored.meta.0.to_vec());
    Ok(Some(SnapshotManifest { id, meta, chunks: stored.chunks, bytes: stored.bytes, crc: stored.crc }))
}

fn read_meta<S, T>(
    directory: &Directory,
    trees: &Trees,
    kind: Kind,
    key: &[u8],
    read: impl FnOnce(S) -> T,
) -> Result<Option<T>, StorageError>
where
    S: for<'a> Deserialize<'a>,
{
    let Some(value) = trees.meta.get(key).map_err(|error| directory.corrupt(error))? else { return Ok(None) };
    let stored = record::unseal(kind, key, &value)
        .map_err(|error| record_error(directory, format!("the record {:?}", String::from_utf8_lossy(key)), error))?;
    Ok(Some(read(stored)))
}

/// Rejects unknown keys: a record that this program does not know may hold a guarantee that it would break.
fn check_meta_keys(directory: &Directory, trees: &Trees) -> Result<(), StorageError> {
    for key in trees.meta.iter().keys() {
        let key = key.map_err(|error| directory.corrupt(error))?;
        if ![IDENTITY, VOTE, FLOOR, COMMITTED, SNAPSHOT].contains(&&*key) {
            return Err(directory.corrupt(format!("an unknown record {:?}", String::from_utf8_lossy(&key))));
        }
    }
    Ok(())
}

fn record_error(directory: &Directory, what: String, error: RecordError) -> StorageError {
    match error {
        RecordError::Newer { version } => newer(directory, version),
        error => directory.corrupt(format!("{what} is {error}")),
    }
}

fn newer(directory: &Directory, version: u8) -> StorageError {
    StorageError::NewerFormat {
        dir: directory.path().to_path_buf(),
        found: version.into(),
        known: record::RECORD_VERSION.into(),
    }
}

fn position(stored: PositionV1) -> Position {
    Position { term: stored.term, index: stored.index }
}

fn split_chunk_key(key: &[u8]) -> Option<(u64, u64)> {
    let (id, number) = key.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*id), u64::from_be_bytes(number.try_into().ok()?)))
}
