//! The durable state of a node: its log, its vote and its snapshots.
//!
//! The rest of the crate uses the trait [`Storage`]. [`DiskStorage`] writes to a disk and survives power cuts. The
//! module `sim` has an implementation in memory. Only this module names sled and bincode.
//!
//! This module does not know Raft: payloads are opaque bytes.

pub mod codec;
pub(crate) mod disk;
mod files;
mod probe;
pub(crate) mod record;
mod snapshot;
#[cfg(all(test, feature = "testing"))]
mod tests;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::types::NodeId;

pub(crate) use disk::describe_metrics;
pub use disk::{DiskStorage, Opened, Restoring};
pub use files::{DirectoryFiles, Files};
pub use probe::measure_fsync;
pub use snapshot::SnapshotWriter;

/// Maximum bytes in one chunk of a snapshot. Small, because sled writes and moves whole pages of sixteen values.
pub const SNAPSHOT_CHUNK_BYTES: usize = 4 << 10;
/// Maximum bytes in [`SnapshotManifest::meta`].
pub const MAX_SNAPSHOT_META_BYTES: usize = 16 << 10;

/// The owner of a data directory. The first start writes it, and every start checks it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub cluster: String,
    pub node: NodeId,
}

/// A log position, ordered by (term, index).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Position {
    pub term: u64,
    pub index: u64,
}

/// One log entry with an opaque payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    pub position: Position,
    pub payload: Bytes,
}

/// The last vote of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoteRecord {
    pub term: u64,
    pub candidate: Option<NodeId>,
    pub committed: bool,
}

/// The state that the store read from the disk when it opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    pub vote: Option<VoteRecord>,
    /// The last purged position. The log starts after it.
    pub purged: Option<Position>,
    /// The last committed position that reached the disk. It may lag behind the real one.
    pub committed: Option<Position>,
    /// The last position in the log, or `purged` if the log is empty.
    pub last: Option<Position>,
    pub snapshot: Option<SnapshotManifest>,
}

/// The description of a complete, verified snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotManifest {
    /// Unique on this node. A newer snapshot has a higher id.
    pub id: u64,
    /// Opaque bytes from the caller (position and membership).
    pub meta: Vec<u8>,
    pub chunks: u64,
    pub bytes: u64,
    /// crc32 of all bytes of the snapshot.
    pub crc: u32,
}

/// The callback of a write. The store calls it once, after the write is durable or has failed. It runs on the storage
/// thread and must return quickly.
pub type Done = Box<dyn FnOnce(Result<(), StorageError>) + Send + 'static>;

/// The durable log, vote and snapshots of one node.
///
/// The store queues writes and applies them to the disk in the order of the calls. It calls `done` after the device
/// has stored the write. Two kinds of calls wait for a disk: [`read_log`](Storage::read_log) of entries older than the
/// in-memory tail, and [`read_snapshot`](Storage::read_snapshot). The first error poisons the store: every later call
/// fails with it.
///
/// The queue has no bound here. The caller bounds it by its number of entries in flight.
pub trait Storage: Clone + Send + Sync + 'static {
    /// Whether a call can wait for a device. Callers then run large reads and writes on blocking threads.
    const BLOCKS: bool = true;

    /// The state that the store read when it opened.
    fn recovered(&self) -> Recovered;

    /// The purge floor and the last position, with queued writes included.
    fn log_bounds(&self) -> (Option<Position>, Option<Position>);

    /// The last vote, with queued writes included.
    fn vote(&self) -> Option<VoteRecord>;

    /// Whether the store holds no vote, entry, purge floor or snapshot: this node never took part in a cluster.
    fn is_empty(&self) -> bool {
        self.vote().is_none() && self.log_bounds() == (None, None) && self.snapshot().is_none()
    }

    /// Appends contiguous entries. The first one follows the last position (index 0 or 1 in an empty store).
    ///
    /// Reads return the entries as soon as this returns, before they are durable.
    fn append(&self, records: Vec<LogRecord>, done: Done);

    /// Removes every entry above `index` (`None`: all entries).
    fn truncate_after(&self, index: Option<u64>, done: Done);

    /// Removes every entry up to and including `upto`. The log then starts after `upto`, even if `upto` lies above the
    /// last entry.
    fn purge(&self, upto: Position, done: Done);

    /// Replaces the vote.
    fn save_vote(&self, vote: VoteRecord, done: Done);

    /// Queues the committed position. It becomes durable with a later sync, and no call waits for it.
    fn save_committed(&self, committed: Option<Position>);

    /// Reads entries with an index in `from..to`. It returns at least the first entry and stops before `max_bytes` of
    /// payload.
    ///
    /// # Errors
    ///
    /// [`StorageError::Purged`] if `from` is at or below the purge floor; otherwise the failure of the store.
    fn read_log(&self, from: u64, to: u64, max_bytes: usize) -> Result<Vec<LogRecord>, StorageError>;

    /// Whether [`read_log`](Storage::read_log) from this index on needs no disk.
    fn is_in_memory(&self, from: u64) -> bool;

    /// Starts a snapshot. Readers do not see it until its manifest is durable.
    ///
    /// # Errors
    ///
    /// The failure of the store, or [`StorageError::Closed`].
    fn begin_snapshot(&self) -> Result<SnapshotWriter<Self>, StorageError>
    where
        Self: Sized;

    /// Queues chunk `number` (at most [`SNAPSHOT_CHUNK_BYTES`]) of an unfinished snapshot.
    fn write_snapshot_chunk(&self, id: u64, number: u64, chunk: Bytes, done: Done);

    /// Writes the manifest after all chunks are durable. The snapshot then replaces every other one. If two snapshots
    /// are written at the same time, the last one whose manifest is queued stays.
    fn finish_snapshot(&self, manifest: SnapshotManifest, done: Done);

    /// Removes the chunks of an unfinished snapshot.
    fn abandon_snapshot(&self, id: u64);

    /// The newest complete snapshot.
    fn snapshot(&self) -> Option<SnapshotManifest>;

    /// Reads chunk `number` of the newest complete snapshot `id`.
    ///
    /// # Errors
    ///
    /// [`StorageError::SnapshotReplaced`] after a newer snapshot has replaced `id`; otherwise the failure of the store.
    fn read_snapshot(&self, id: u64, number: u64) -> Result<Bytes, StorageError>;

    /// Reads chunk `number` of an unfinished snapshot. The store must have called `done` for this chunk before.
    ///
    /// # Errors
    ///
    /// The chunk is missing or damaged, or the store has failed.
    fn read_unfinished_snapshot(&self, id: u64, number: u64) -> Result<Bytes, StorageError>;

    /// The age of the running commit. A disk that hangs reports no error, so this is the only sign of it.
    fn committing_for(&self) -> Option<Duration>;

    /// Becomes `Some` when the store is poisoned. The node then reports the error and stops.
    fn failure(&self) -> watch::Receiver<Option<StorageError>>;

    /// Writes all queued data and releases every file. Blocks. A store without files does nothing.
    fn close(&self);
}

/// An error of a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message explains the fields")]
pub enum StorageError {
    /// Another process uses the data directory.
    #[error(
        "data directory {} is in use by another process: stop that process, or give this node another directory",
        .dir.display()
    )]
    InUse { dir: PathBuf },

    /// An I/O operation failed.
    #[error("could not {action} {}: {cause}; {}", .path.display(), advice(*.kind))]
    Io { action: &'static str, path: PathBuf, kind: io::ErrorKind, cause: String },

    /// The data directory belongs to another node.
    #[error(
        "data directory {} belongs to node {} of cluster {:?}, not to node {} of cluster {:?}: \
         correct the configuration, or give this node another directory",
        .dir.display(), .found.node, .found.cluster, .expected.node, .expected.cluster
    )]
    ForeignIdentity { dir: PathBuf, found: Identity, expected: Identity },

    /// A later version wrote the data directory.
    #[error(
        "data directory {} was written in format {found}; this program supports formats up to {known}: \
         run the version that wrote it, or a newer one", .dir.display()
    )]
    NewerFormat { dir: PathBuf, found: u32, known: u32 },

    /// The data of the node is gone.
    #[error(
        "data directory {} was initialised for node {} of cluster {:?} but its data is gone ({what}). Starting empty \
         could lose votes and entries that the cluster counts on: restore the data, or remove this node from the \
         cluster and let it join again under a new id with an empty directory",
        .dir.display(), .identity.node, .identity.cluster
    )]
    Emptied { dir: PathBuf, identity: Identity, what: String },

    /// The file that identifies the node is gone.
    #[error(
        "data directory {} holds data but its file {} is missing: restore that file, or move the directory away and \
         let the node join again under a new id", .dir.display(), disk::directory::MARKER
    )]
    Unmarked { dir: PathBuf },

    /// A restore needs an empty directory.
    #[error("data directory {} is not empty: a restore needs an empty directory", .dir.display())]
    NotEmpty { dir: PathBuf },

    /// A restore did not finish.
    #[error(
        "a restore into data directory {} did not finish: empty the directory and restore the backup again",
        .dir.display()
    )]
    HalfRestored { dir: PathBuf },

    /// The data is damaged.
    #[error(
        "data directory {} is damaged: {what}. Keep a copy, then remove this node from the cluster \
         and let it join again under a new id with an empty directory", .dir.display()
    )]
    Corrupt { dir: PathBuf, what: String },

    /// A log entry does not follow the log.
    #[error("log entry {found} does not follow the log: expected index {expected}")]
    NotContiguous { expected: u64, found: u64 },

    /// A log entry is too large for the store.
    #[error("log entry {index} has {bytes} bytes: at most {max} are allowed")]
    EntryTooLarge { index: u64, bytes: usize, max: usize },

    /// The log no longer has the entry.
    #[error("log entry {index} was purged: the log starts after {floor}")]
    Purged { index: u64, floor: u64 },

    /// A newer snapshot has replaced the snapshot.
    #[error("snapshot {id} no longer exists: a newer snapshot has replaced it")]
    SnapshotReplaced { id: u64 },

    /// The snapshot lacks chunks.
    #[error("snapshot {id} has {found} chunks: its manifest expects {expected}")]
    SnapshotIncomplete { id: u64, expected: u64, found: u64 },

    /// The disk returned other bytes than were written.
    #[error("snapshot {id} reads back with {found} bytes that differ from the {expected} bytes that were written")]
    SnapshotDiffers { id: u64, expected: u64, found: u64 },

    /// A part of the snapshot is too large.
    #[error("the {what} of a snapshot has {bytes} bytes: at most {max} are allowed")]
    SnapshotTooLarge { what: &'static str, bytes: usize, max: usize },

    /// The store is closed.
    #[error("the store is closed")]
    Closed,
}

impl StorageError {
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>, error: &io::Error) -> StorageError {
        StorageError::Io { action, path: path.into(), kind: error.kind(), cause: error.to_string() }
    }
}

/// The advice to the operator that ends the message of an I/O error.
fn advice(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            "free some space on that disk and start the node again; nothing acknowledged is lost"
        }
        io::ErrorKind::ReadOnlyFilesystem => "mount it writable and start the node again; nothing acknowledged is lost",
        io::ErrorKind::PermissionDenied => "give the node's user access to it and start the node again",
        io::ErrorKind::NotFound => "check the path",
        _ => "check the disk and the system's log, then start the node again; nothing acknowledged is lost",
    }
}
