//! Where a node keeps what it must not forget: its log, its vote and its snapshots.
//!
//! [`Storage`] is what the rest of the crate knows. [`SledStorage`] keeps it on a disk, safe against power cuts;
//! The module `sim` has a twin in memory. Nothing outside this module
//! names sled or bincode.
//!
//! This module does not know Raft: payloads are bytes whose meaning is the caller's.

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

pub use disk::{Opened, SledStorage};
pub use files::{DirectoryFiles, Files};
pub use probe::measure_fsync;
pub use snapshot::SnapshotWriter;

/// Most bytes in one chunk of a snapshot. Small, because sled writes and moves pages of sixteen values as a whole.
pub const SNAPSHOT_CHUNK_BYTES: usize = 4 << 10;
/// Most bytes in what the caller says about a snapshot.
pub const MAX_SNAPSHOT_META_BYTES: usize = 16 << 10;

/// Whose data a directory holds. Written at the first start and checked at every start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub cluster: String,
    pub node: NodeId,
}

/// A log position. Order is (term, index).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Position {
    pub term: u64,
    pub index: u64,
}

/// One log entry. The payload is opaque here.
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

/// What was read back at opening.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    pub vote: Option<VoteRecord>,
    /// The last position that was purged: the log starts after it.
    pub purged: Option<Position>,
    /// The last committed position that reached the disk; may lag behind what was committed.
    pub committed: Option<Position>,
    /// The last position in the log, or `purged` when it is empty.
    pub last: Option<Position>,
    pub snapshot: Option<SnapshotManifest>,
}

/// A complete, checked snapshot on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotManifest {
    /// Unique among this node's snapshots, rising.
    pub id: u64,
    /// What the caller says about it (position, membership): opaque here.
    pub meta: Vec<u8>,
    pub chunks: u64,
    pub bytes: u64,
    /// crc32 of all its bytes.
    pub crc: u32,
}

/// Called once, when what it was given with is durable or has failed: on the store's own thread, so it must be quick.
pub type Done = Box<dyn FnOnce(Result<(), StorageError>) + Send + 'static>;

/// A durable log, vote and snapshot store of one node.
///
/// Writes are queued and reach the disk in the order of the calls; `done` is called after the device has them.
/// None of the calls waits for a disk except [`read_log`](Storage::read_log) of entries older than the in-memory
/// tail and [`read_snapshot`](Storage::read_snapshot). The first error poisons the store: every later call fails
/// with it.
///
/// The queue is bounded by its caller, who has at most so many entries under way.
pub trait Storage: Clone + Send + Sync + 'static {
    /// Whether a call can wait for a device: then what reads or writes much is kept off the threads that run tasks.
    const BLOCKS: bool = true;

    /// What was found at opening.
    fn recovered(&self) -> Recovered;

    /// The purged floor and the last position, counting what is queued.
    fn log_bounds(&self) -> (Option<Position>, Option<Position>);

    /// The last vote, counting what is queued.
    fn vote(&self) -> Option<VoteRecord>;

    /// Whether there is no vote, no entry, nothing purged and no snapshot: this node never took part in a cluster.
    fn is_empty(&self) -> bool {
        self.vote().is_none() && self.log_bounds() == (None, None) && self.snapshot().is_none()
    }

    /// Appends contiguous entries, the first of them right after the last position (index 0 or 1 in an empty store).
    /// They can be read when this returns; `done` is called once they are durable.
    fn append(&self, records: Vec<LogRecord>, done: Done);

    /// Removes every entry above `index` (`None`: all entries).
    fn truncate_after(&self, index: Option<u64>, done: Done);

    /// Removes every entry up to and with `upto`, which may lie above the last one: the log then starts after it.
    fn purge(&self, upto: Position, done: Done);

    fn save_vote(&self, vote: VoteRecord, done: Done);

    /// Notes the committed position. Durable at some later sync; not waited for.
    fn save_committed(&self, committed: Option<Position>);

    /// Entries with an index in `from..to`, the first of them at least, stopping before `max_bytes` of payload.
    fn read_log(&self, from: u64, to: u64, max_bytes: usize) -> Result<Vec<LogRecord>, StorageError>;

    /// Starts a snapshot. Nothing of it is seen until its manifest is durable.
    fn begin_snapshot(&self) -> Result<SnapshotWriter<Self>, StorageError>
    where
        Self: Sized;

    /// Queues chunk `number` (at most [`SNAPSHOT_CHUNK_BYTES`]) of a snapshot that is being written.
    fn write_snapshot_chunk(&self, id: u64, number: u64, chunk: Bytes, done: Done);

    /// Writes the manifest after all chunks are durable; from then on this is the snapshot, and any other goes. Of two
    /// that are written at the same time the one that finishes last stays.
    fn finish_snapshot(&self, manifest: SnapshotManifest, done: Done);

    /// Removes the chunks of an unfinished snapshot.
    fn abandon_snapshot(&self, id: u64);

    /// The newest complete snapshot.
    fn snapshot(&self) -> Option<SnapshotManifest>;

    /// Chunk `number` of the newest complete snapshot `id`; an error once a newer snapshot has replaced it.
    fn read_snapshot(&self, id: u64, number: u64) -> Result<Bytes, StorageError>;

    /// Chunk `number` of a snapshot that is being written, once it was reported as written.
    fn read_unfinished_snapshot(&self, id: u64, number: u64) -> Result<Bytes, StorageError>;

    /// For how long the present commit has been at the disk: a disk that hangs reports nothing else.
    fn committing_for(&self) -> Option<Duration>;

    /// Becomes `Some` when the store is poisoned. The node then says why, and stops.
    fn failure(&self) -> watch::Receiver<Option<StorageError>>;

    /// Writes what is queued, and releases every file. Blocks; a store that has none goes on as before.
    fn close(&self);
}

/// Why the store did not open, answer or write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StorageError {
    #[error("data directory {} is in use by another process: stop that one, or give this node a directory of its own", .dir.display())]
    InUse { dir: PathBuf },

    #[error("could not {action} {}: {cause}; {}", .path.display(), advice(*.kind))]
    Io { action: &'static str, path: PathBuf, kind: io::ErrorKind, cause: String },

    #[error(
        "data directory {} belongs to node {} of cluster {:?}, not to node {} of cluster {:?}: \
         correct the configuration, or give this node a directory of its own",
        .dir.display(), .found.node, .found.cluster, .expected.node, .expected.cluster
    )]
    ForeignIdentity { dir: PathBuf, found: Identity, expected: Identity },

    #[error(
        "data directory {} was written in format {found}; this program knows up to format {known}: \
         run the version that wrote it, or a newer one", .dir.display()
    )]
    NewerFormat { dir: PathBuf, found: u32, known: u32 },

    #[error(
        "data directory {} was initialised for node {} of cluster {:?} but its data is gone ({what}). Starting empty \
         could lose what the cluster was promised: put the data back, or remove this node from the cluster and let it \
         join again under a new id with an empty directory", .dir.display(), .identity.node, .identity.cluster
    )]
    Emptied { dir: PathBuf, identity: Identity, what: String },

    #[error(
        "data directory {} holds data but its file {} is missing: put that file back, or move the directory away and \
         let the node join again under a new id", .dir.display(), disk::directory::MARKER
    )]
    Unmarked { dir: PathBuf },

    #[error(
        "data directory {} is damaged: {what}. Keep a copy, then remove this node from the cluster \
         and let it join again under a new id with an empty directory", .dir.display()
    )]
    Corrupt { dir: PathBuf, what: String },

    #[error("an entry with index {found} does not follow the log, which continues at {expected}")]
    NotContiguous { expected: u64, found: u64 },

    #[error("log entry {index} was purged: the log starts after {floor}")]
    Purged { index: u64, floor: u64 },

    #[error("snapshot {id} is not there any more: a newer one has replaced it")]
    SnapshotReplaced { id: u64 },

    #[error("snapshot {id} has {found} chunks where its manifest says {expected}")]
    SnapshotIncomplete { id: u64, expected: u64, found: u64 },

    #[error("snapshot {id} reads back with {found} bytes that differ from the {expected} bytes that were written")]
    SnapshotDiffers { id: u64, expected: u64, found: u64 },

    #[error("{bytes} bytes where a snapshot's {what} has at most {max}")]
    SnapshotTooLarge { what: &'static str, bytes: usize, max: usize },

    #[error("the store is closed")]
    Closed,
}

impl StorageError {
    fn io(action: &'static str, path: impl Into<PathBuf>, error: &io::Error) -> StorageError {
        StorageError::Io { action, path: path.into(), kind: error.kind(), cause: error.to_string() }
    }
}

/// What an operator can do about an I/O error.
fn advice(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            "free some space on that disk and start the node again; nothing acknowledged is lost"
        }
        io::ErrorKind::ReadOnlyFilesystem => "mount it writable and start the node again; nothing acknowledged is lost",
        io::ErrorKind::PermissionDenied => "give the node's user the right to it and start the node again",
        io::ErrorKind::NotFound => "check the path",
        _ => "check the disk and the system's log, then start the node again; nothing acknowledged is lost",
    }
}
