//! Opens a store: reads and checks every record of its directory, and starts the storage thread.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use parking_lot::{Condvar, Mutex, RwLock};
use rand::RngExt;
use serde::Deserialize;
use tokio::sync::watch;

use super::commit::{Committer, run_thread};
use super::directory::{self, Directory};
use super::index::LogIndex;
use super::log::SegmentLog;
use super::migration;
use super::replay::Replay;
use super::segment::LogState;
use super::segment_files::has_segments;
use super::tail::Tail;
use super::trees::{self, Trees};
use super::{DiskStorage, Handle, Opened, QueuedState, SharedStore};
use crate::rng::rng;
use crate::storage::record::{
    self, COMMITTED, ChunkV1, FLOOR, IDENTITY, IdentityV1, ManifestV1, RecordError, RecordKind, SNAPSHOT, VOTE,
};
use crate::storage::{Identity, Recovered, SnapshotManifest, StorageError};

/// A checked store.
struct CheckedStore {
    pub recovered: Recovered,
    /// The newest entries.
    pub tail: Tail,
    pub index: LogIndex,
    pub log: SegmentLog,
    pub next_snapshot_id: u64,
    /// Unreferenced snapshots that a power cut or a close left.
    pub unreferenced: Vec<u64>,
}

impl DiskStorage {
    /// Opens the store of this node, or creates it in an empty or missing directory.
    ///
    /// # Errors
    ///
    /// Another process uses the directory; it belongs to another node or cluster; a newer version wrote it; it lost its
    /// data; a record in it is damaged; an I/O error.
    pub fn open(dir: impl AsRef<Path>, identity: Identity) -> Result<DiskStorage, StorageError> {
        Ok(DiskStorage::open_or_create(dir, identity)?.storage)
    }

    /// Opens the store like [`open`](DiskStorage::open) and reports whether this is the node's first start.
    ///
    /// # Errors
    ///
    /// The errors of [`open`](DiskStorage::open).
    pub fn open_or_create(dir: impl AsRef<Path>, identity: Identity) -> Result<Opened, StorageError> {
        let directory = Directory::claim(dir.as_ref())?;
        directory.check_restored()?;
        DiskStorage::open_claimed(directory, identity)
    }

    pub(super) fn open_claimed(directory: Directory, identity: Identity) -> Result<Opened, StorageError> {
        let format = directory.check_marker(&identity)?;
        // Before sled opens: sled panics when it closes on a broken disk.
        let log = prepare_log(&directory, format)?;
        directory.prepare_store()?;
        let trees = trees::open(&directory)?;
        directory.sync_store()?;
        let data_path = directory.data_file();
        let data_file = File::options().read(true).write(true).open(&data_path);
        let data_file = data_file.map_err(|error| StorageError::io("open", data_path, &error))?;

        let recover = || recover(&directory, &trees, &data_file, &identity, format, log);
        let recovered = trees::catch_panic(&directory, recover);
        let (incarnation, found) = match recovered {
            Ok(recovered) => recovered,
            Err(error) => {
                trees::close(trees);
                return Err(error);
            }
        };
        let storage = DiskStorage::start(directory, trees, data_file, found)?;
        Ok(Opened { storage, is_new: format.is_none(), incarnation })
    }

    fn start(
        directory: Directory,
        trees: Trees,
        data_file: File,
        found: CheckedStore,
    ) -> Result<DiskStorage, StorageError> {
        let CheckedStore { recovered, tail, index, log, next_snapshot_id, unreferenced } = found;
        let shared = Arc::new(SharedStore {
            state: Mutex::new(QueuedState::new(&recovered, tail, index, next_snapshot_id)),
            wake: Condvar::new(),
            trees: RwLock::new(Some(trees.clone())),
            failure: watch::Sender::new(None),
            dir: directory.path().to_path_buf(),
            log_dir: directory.log(),
        });
        let mut committer = Committer::new(Arc::clone(&shared), trees, directory, data_file, log);
        committer.schedule_reclaims(unreferenced);
        let run = move || run_thread(committer);
        let dir = shared.dir.clone();
        let thread = thread::Builder::new().name("tenure-storage".to_string()).spawn(run);
        let thread = thread.map_err(|error| StorageError::io("start a thread for", dir, &error))?;
        let (thread_id, thread) = (thread.thread().id(), Mutex::new(Some(thread)));
        Ok(DiskStorage { handle: Arc::new(Handle { shared, recovered, thread_id, thread }) })
    }
}

/// Checks every record of sled, and on a first start writes the identity and the marker. Also returns the incarnation.
fn recover(
    directory: &Directory,
    trees: &Trees,
    data_file: &File,
    identity: &Identity,
    format: Option<u32>,
    log: Option<(SegmentLog, Replay)>,
) -> Result<(u64, CheckedStore), StorageError> {
    let mut incarnation = rng().random();
    match read_identity(directory, trees)? {
        Some((found, stored)) => {
            directory.check_identity(found, identity)?;
            incarnation = stored;
        }
        None if format.is_some() => {
            return Err(directory.emptied(identity, "the store holds no record of it".to_string()));
        }
        None => {}
    }
    check_meta_keys(directory, trees)?;
    if format.is_none() {
        // As for the log: only the identity can have been written.
        if holds_data(directory, trees)? {
            return Err(directory.unmarked());
        }
        trees::write_identity(directory, trees, data_file, identity, incarnation)?;
        directory.write_marker(identity)?;
    }
    let log = match log {
        Some(log) => log,
        None => {
            migration::migrate(directory, trees, identity)?;
            let replay = read_log(directory)?;
            (SegmentLog::resume(&directory.log(), &replay)?, replay)
        }
    };
    Ok((incarnation, check_all(directory, trees, data_file, log)?))
}

/// Creates the log of a new store, or checks the log of an old one. `None` if the log is still in sled.
fn prepare_log(directory: &Directory, format: Option<u32>) -> Result<Option<(SegmentLog, Replay)>, StorageError> {
    let dir = directory.log();
    match format {
        Some(1) => return Ok(None),
        None => {
            if !has_segments(&dir)? {
                // A first start makes the log durable before it creates sled's file. So this directory has lost its log.
                if directory::exists(&directory.data_file())? {
                    return Err(directory.unmarked());
                }
                SegmentLog::create(&dir)?;
            }
            directory::sync(directory.path())?;
        }
        Some(_) if !directory::exists(&dir)? => directory.name_migrated_log()?,
        Some(_) => {}
    }
    let replay = read_log(directory)?;
    // No open returns before the marker is durable. So without a marker, nothing can have been written.
    if format.is_none() && replay.state != LogState::default() {
        return Err(directory.unmarked());
    }
    Ok(Some((SegmentLog::resume(&dir, &replay)?, replay)))
}

fn read_log(directory: &Directory) -> Result<Replay, StorageError> {
    let replay = SegmentLog::read(directory, &directory.log())?;
    replay.ok_or_else(|| directory.corrupt("the log has no segment"))
}

/// Reads the identity record: the owner of the store and its incarnation.
fn read_identity(directory: &Directory, trees: &Trees) -> Result<Option<(Identity, u64)>, StorageError> {
    read_meta(directory, trees, RecordKind::Identity, IDENTITY, |stored: IdentityV1| {
        (Identity { cluster: stored.cluster, node: stored.node }, stored.incarnation)
    })
}

/// Whether sled holds any record besides the identity.
fn holds_data(directory: &Directory, trees: &Trees) -> Result<bool, StorageError> {
    let chunk = trees.snap.iter().next().transpose();
    let other = trees.meta.iter().keys().find(|key| key.as_ref().map_or(true, |key| key != IDENTITY));
    let found = chunk.and_then(|chunk| Ok(chunk.is_some() || other.transpose()?.is_some()));
    Ok(found.map_err(|error| directory.corrupt(error))? || migration::has_log(directory, trees)?)
}

/// Checks every record of sled.
fn check_all(
    directory: &Directory,
    trees: &Trees,
    data_file: &File,
    (log, mut replay): (SegmentLog, Replay),
) -> Result<CheckedStore, StorageError> {
    let snapshot = read_manifest(directory, trees)?;
    let (highest_id, unreferenced) = check_chunks(directory, trees, snapshot.as_ref())?;
    // The log has all that a migration leaves in sled.
    migration::remove_old_log(directory, trees, data_file)?;
    let LogState { last, floor, vote, committed } = replay.state;
    let recovered = Recovered { vote, purged: floor, committed, last, snapshot };
    let (tail, index) = (std::mem::take(&mut replay.tail), std::mem::take(&mut replay.index));
    Ok(CheckedStore { recovered, tail, index, log, next_snapshot_id: highest_id + 1, unreferenced })
}

/// Checks the snapshot's chunks against its manifest. Returns the highest id in the store, and the other snapshots,
/// which are unfinished or replaced.
fn check_chunks(
    directory: &Directory,
    trees: &Trees,
    manifest: Option<&SnapshotManifest>,
) -> Result<(u64, Vec<u64>), StorageError> {
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
        let chunk: ChunkV1 = record::unseal(RecordKind::Chunk, &key, &value)
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
    Ok((highest, others))
}

fn read_manifest(directory: &Directory, trees: &Trees) -> Result<Option<SnapshotManifest>, StorageError> {
    let Some(value) = trees.meta.get(SNAPSHOT).map_err(|error| directory.corrupt(error))? else { return Ok(None) };
    let stored: ManifestV1 = record::unseal(RecordKind::Manifest, SNAPSHOT, &value)
        .map_err(|error| record_error(directory, "the snapshot's manifest".to_string(), error))?;
    let (id, meta) = (stored.id, stored.meta.0.to_vec());
    Ok(Some(SnapshotManifest { id, meta, chunks: stored.chunks, bytes: stored.bytes, crc: stored.crc }))
}

pub(super) fn read_meta<S, T>(
    directory: &Directory,
    trees: &Trees,
    kind: RecordKind,
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

pub(super) fn newer(directory: &Directory, version: u8) -> StorageError {
    StorageError::NewerFormat {
        dir: directory.path().to_path_buf(),
        found: version.into(),
        known: record::RECORD_VERSION.into(),
    }
}

fn split_chunk_key(key: &[u8]) -> Option<(u64, u64)> {
    let (id, number) = key.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*id), u64::from_be_bytes(number.try_into().ok()?)))
}
