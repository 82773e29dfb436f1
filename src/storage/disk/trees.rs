//! Opens sled with settings that survive a power cut, and closes it.

use std::any::Any;
use std::fs::{File, TryLockError};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::directory::Directory;
use crate::storage::record::{self, IDENTITY, IdentityV1, RecordKind};
use crate::storage::{Identity, StorageError};

/// sled's unit of writing. A commit must stay far below it: tests measured a third of it as safe.
const SEGMENT_BYTES: usize = 8 << 20;
/// The limit of sled's page cache.
const CACHE_BYTES: u64 = 32 << 20;
/// Maximum wait until sled's threads release the data file of a closed store.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// An open sled database and its trees.
#[derive(Clone)]
pub(in crate::storage) struct Trees {
    /// Identity and snapshot manifest.
    pub meta: sled::Tree,
    /// Chunks of snapshots.
    pub snap: sled::Tree,
    pub db: sled::Db,
}

impl Trees {
    /// The total bytes of log that sled has written. sled's docs hide this API, so Cargo.toml pins the version of sled.
    pub fn written_lsn(&self) -> i64 {
        self.db.context.pagecache.log.stable_offset()
    }
}

/// Waits until sled's threads have released the data file. They may hold it for a moment after the last handle drops.
pub(in crate::storage) fn wait_for_release(directory: &Directory) {
    if !is_released_within(directory, RELEASE_TIMEOUT) {
        let file = directory.data_file();
        tracing::warn!(file = %file.display(), timeout = ?RELEASE_TIMEOUT, "sled has not released its data file: the next start of this node may fail");
    }
}

fn is_released_within(directory: &Directory, timeout: Duration) -> bool {
    let start = Instant::now();
    let Ok(data) = File::open(directory.data_file()) else { return true };
    while matches!(data.try_lock(), Err(TryLockError::WouldBlock)) {
        if start.elapsed() >= timeout {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    true
}

pub(in crate::storage) fn open(directory: &Directory) -> Result<Trees, StorageError> {
    let config = sled::Config::new()
        .path(directory.store())
        .segment_size(SEGMENT_BYTES)
        .cache_capacity(CACHE_BYTES)
        .use_compression(false)
        // No flusher thread: it would sync between group commits and hold sled's files during close.
        .flush_every_ms(None);
    let open = || {
        let db = config.open()?;
        let (meta, snap) = (db.open_tree("meta")?, db.open_tree("snap")?);
        Ok(Trees { meta, snap, db })
    };
    catch_panic(directory, || open().map_err(|error| sled_error(directory.path(), "open", error)))
}

/// Runs a read and turns a panic into [`StorageError::Corrupt`]: sled panics if a referenced page is missing.
pub(in crate::storage) fn catch_panic<T>(
    directory: &Directory,
    read: impl FnOnce() -> Result<T, StorageError>,
) -> Result<T, StorageError> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|panic| Err(directory.corrupt(panic_message(panic.as_ref()))))
}

/// Drops the sled handles. sled then writes its remaining buffers and panics if that fails. Ignore the panic: the store
/// has acknowledged none of these writes.
pub(in crate::storage) fn close(trees: Trees) {
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
    let value = record::seal(RecordKind::Identity, IDENTITY, &stored, 0);
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

pub(in crate::storage) fn panic_error(action: &'static str, dir: &Path, panic: &(dyn Any + Send)) -> StorageError {
    StorageError::io(action, dir, &io::Error::other(panic_message(panic)))
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("an unknown panic").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_data_file_is_not_released() {
        let dir = tempfile::tempdir().expect("a folder");
        let directory = Directory::claim(dir.path()).expect("an empty folder");
        assert!(is_released_within(&directory, Duration::ZERO), "there is no data file");
        directory.prepare_store().expect("a writable folder");
        let data = File::create(directory.data_file()).expect("a writable folder");
        data.lock().expect("no other handle has the lock");
        assert!(!is_released_within(&directory, Duration::from_millis(5)));
        drop(data);
        assert!(is_released_within(&directory, Duration::ZERO));
    }
}
