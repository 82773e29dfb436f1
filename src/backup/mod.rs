//! Backups: files with the state of a cluster, and the restore of a new cluster from one.
//!
//! [`Node::save_backup`](crate::node::Node::save_backup) writes a file, [`inspect`] checks one, and
//! [`NodeBuilder::restore`](crate::node::NodeBuilder::restore) starts a new cluster from one.
//!
//! | file | noun |
//! |---|---|
//! | `format` | the bytes of a backup |
//! | `file` | a file that appears complete or not at all |
//! | `position` | the position of a restored cluster, above everything that was granted |
//! | `restore` | the store of the first node of a new cluster |
//! | `folder` | the folder of scheduled backups |

mod file;
mod folder;
mod format;
mod position;
mod restore;
#[cfg(all(test, feature = "testing"))]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::api::Timestamp;
use crate::raft::State;
use crate::storage::StorageError;
use crate::types::NodeId;

pub(crate) use file::NewFile;
pub(crate) use folder::Folder;
pub(crate) use format::{BackupHeader, Freshness, encode, read, verify};
pub use position::PositionError;
#[cfg(feature = "testing")]
pub(crate) use restore::check;
pub use restore::{LostHolders, RestoreError, RestoreOptions, Restored};
pub(crate) use restore::{Target, restore};

/// The content of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BackupInfo {
    /// The name of the cluster.
    pub cluster_id: String,
    /// The node that wrote the backup.
    pub node: NodeId,
    /// The Raft term of the last log entry.
    pub term: u64,
    /// The index of the last log entry.
    pub applied: u64,
    /// Cluster time in milliseconds.
    pub cluster_time_ms: u64,
    /// The wall-clock time of the backup.
    pub at: Timestamp,
    /// Whether the leader wrote it and had confirmed its leadership before.
    pub current: bool,
    /// The maximum age of the state in milliseconds, if a node wrote it without the leader and knew its age.
    pub stale_ms: Option<u64>,
    /// The ids of the members.
    pub members: Vec<NodeId>,
    /// Number of names, also of ended leases.
    pub names: u64,
    /// Number of held leases. A counted lease counts once for each holder.
    pub held: u64,
    /// Number of waiters.
    pub waiting: u64,
    /// Size of the file in bytes.
    pub bytes: u64,
}

/// Reads a backup, verifies its checksum and decodes all records.
///
/// # Errors
///
/// The file cannot be read, is no backup, is truncated or damaged, or a newer version wrote it.
pub fn inspect(file: impl AsRef<Path>) -> Result<BackupInfo, BackupError> {
    let file = file.as_ref();
    let (header, state) = read(file)?;
    info(file, header, &state)
}

/// Describes the backup in this file.
pub(crate) fn info(file: &Path, header: BackupHeader, state: &State) -> Result<BackupInfo, BackupError> {
    let bytes = std::fs::metadata(file).map_err(|error| BackupError::io("read", file, error))?.len();
    let counts = state.machine.counts();
    Ok(BackupInfo {
        cluster_id: header.cluster,
        node: header.node,
        term: header.position.term,
        applied: header.position.index,
        cluster_time_ms: header.cluster_ms,
        at: Timestamp::from_millis(header.wall_ms),
        current: header.freshness == Freshness::Current,
        stale_ms: match header.freshness {
            Freshness::Stale { ms } => Some(ms),
            Freshness::Current | Freshness::Unknown => None,
        },
        members: state.members().into_iter().collect(),
        names: state.machine.header().names,
        held: counts.held,
        waiting: counts.waiting,
        bytes,
    })
}

/// An error of a backup.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message explains the fields")]
pub enum BackupError {
    /// An I/O operation failed.
    #[error("cannot {action} {}", .file.display())]
    Io { action: &'static str, file: PathBuf, source: io::Error },
    /// The file exists.
    #[error("{} exists: choose another name, or overwrite it with --force", .file.display())]
    Exists { file: PathBuf },
    /// The file is no backup.
    #[error("{} is no backup of Tenure", .file.display())]
    NotABackup { file: PathBuf },
    /// A newer version wrote the file.
    #[error("{} has format {found}: this version reads format {known}; use a newer one", .file.display())]
    NewerFormat { file: PathBuf, found: u8, known: u8 },
    /// The file does not end as a backup does.
    #[error("{} is truncated: it has {bytes} bytes and no valid end", .file.display())]
    Truncated { file: PathBuf, bytes: u64 },
    /// The checksum is wrong.
    #[error("{} is damaged: its checksum is {found:08x}, expected {expected:08x}", .file.display())]
    Damaged { file: PathBuf, found: u32, expected: u32 },
    /// The content is invalid.
    #[error("{} has invalid content", .file.display())]
    Invalid { file: PathBuf, source: Box<dyn std::error::Error + Send + Sync> },
    /// The node cannot write a backup now.
    #[error("the node cannot write a backup")]
    Refused { source: Box<dyn std::error::Error + Send + Sync> },
}

impl BackupError {
    fn io(action: &'static str, file: &Path, source: io::Error) -> BackupError {
        BackupError::Io { action, file: file.to_owned(), source }
    }
}

impl From<StorageError> for RestoreError {
    fn from(error: StorageError) -> RestoreError {
        RestoreError::Storage(error)
    }
}
