//! sled, opened the way that survives a power cut, and let go of.

use std::any::Any;
use std::fs::{File, TryLockError};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::directory::Directory;
use super::layout::IDENTITY;
use crate::storage::record::{self, IdentityV1, Kind};
use crate::storage::{Identity, StorageError};

/// sled's unit of writing. A group commit must stay far below it; a third of it is what was measured as safe.
const SEGMENT_BYTES: usize = 8 << 20;
/// sled's own cache. The newest entries have one in front of it, the tail.
const CACHE_BYTES: u64 = 32 << 20;
/// How long sled's threads may take to let go of the data file when the store is closed.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// sled, opened.
#[derive(Clone)]
pub(in crate::storage) struct Trees {
    /// Log entries in parts.
    pub log: sled::Tree,
    /// Identity, vote, purge floor, committed position, snapshot manifest.
    pub meta: sled::Tree,
    /// Chunks of snapshots.
    pub snap: sled::Tree,
    pub db: sled::Db,
}

impl Trees {
    /// Up to where sled has written its log, in bytes since ever. Hidden in sled's documentation; its version is pinned.
    pub fn written_lsn(&self) -> i64 {
        self.db.context.pagecache.log.stable_offset()
    }
}

/// Waits until sled's own threads, which may still hold on to it for a moment, have let go of the data file.
pub(in crate::storage) fn wait_for_release(directory: &Directory) {
    let start = Instant::now();
    let Ok(data) = File::open(directory.data_file()) else { return };
    while matches!(data.try_lock(), Err(TryLockError::WouldBlock)) && start.elapsed() < RELEASE_TIMEOUT {
        thread::sleep(Duration::from_millis(1));
    }
}

pub(in crate::storage) fn open(directory: &Directory) -> Result<Trees, StorageError> {
    let config = sled::Config::new()
        .path(directory.store())
        .segment_size(SEGMENT_BYTES)
        .cache_capacity(CACHE_BYTES)
        .use_compression(false)
        // No flusher: it would sync in between, and hold sled's files when we close them.
        .flush_every_ms(None);
    let open = || {
        let db = config.open()?;
        let (log, meta, snap) = (db.open_tree("log")?, db.open_tree("meta")?, db.open_tree("snap")?);
        Ok(Trees { log, meta, snap, db })
    };
    reading(directory, || open().map_err(|error| sled_error(directory.path(), "open", error)))
}

/// Reads what a directory holds. sled panics where pages are missing that others lead to: that is damage, too.
pub(in crate::storage) fn reading<T>(
    directory: &Directory,
    read: impl FnOnce() -> Result<T, StorageError>,
) -> Result<T, StorageError> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|panic| Err(directory.corrupt(panic_message(panic.as_ref()))))
}

/// Lets go of the store. sled writes what is left then, and panics when that fails: nobody was promised any of it.
pub(in crate::storage) fn let_go(trees: Trees) {
    let _ = catch_unwind(AssertUnwindSafe(|| drop(trees)));
}

pub(in crate::storage) fn write_identity(
    directory: &Directory,
    trees: &Trees,
    data_file: &File,
    identity: &Identity,
    incarnation: u64,
) -> Result<(), StorageError> {
    let stored = IdentityV1 { cluster: identity.cluster.clone(), node: identity.node, incarnation };
    let value = record::seal(Kind::Identity, IDENTITY, &stored, 0);
    let written = trees.meta.insert(IDENTITY, value).and_then(|_| trees.db.flush());
    written.map_err(|error| sled_error(directory.path(), "write to", error))?;
    data_file.sync_data().map_err(|error| StorageError::io("sync", directory.data_file(), &error))
}

pub(in crate::storage) fn sled_error(dir: &Path, action: &'static str, error: sled::Error) -> StorageError {
    match error {
        sled::Error::Io(error) => StorageError::io(action, dir, &error),
        error => StorageError::Corrupt { dir: dir.to_path_buf(), what: error.to_string() },
    }
}

pub(in crate::storage) fn panicked(action: &'static str, dir: &Path, panic: &(dyn Any + Send)) -> StorageError {
    StorageError::io(action, dir, &io::Error::other(panic_message(panic)))
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("an unknown panic").to_string()
}
