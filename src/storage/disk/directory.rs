//! The data directory: its lock, its owner, and the durability of the files around sled's data.
//!
//! ```text
//! data/1/            0700
//!   LOCK             locked while a process uses the directory
//!   TENURE           the marker: this directory is initialised for this node (the cluster may not exist yet)
//!   RESTORING        a restore has begun and not finished
//!   log/             segments of the log, and `new` for the next one
//!   log.new/         only during a migration from format 1
//!   store/           sled: db, conf, blobs/ (always empty), snap.*
//! ```
//!
//! sled opens an emptied directory as a new database without an error. The marker lies outside of sled and is durable
//! before the first open returns. So a node whose data is gone cannot start as a new node and forget its votes.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::segment_files;
use crate::storage::{Identity, StorageError};

/// The file name of the marker.
pub(in crate::storage) const MARKER: &str = "TENURE";
const MARKER_TEMPORARY: &str = "TENURE.new";
const LOCK: &str = "LOCK";
const RESTORING: &str = "RESTORING";
/// The directory that a file system creates at its root.
const LOST_AND_FOUND: &str = "lost+found";
const STORE: &str = "store";
const LOG: &str = "log";
const MIGRATED_LOG: &str = "log.new";
/// The format that this program writes: a log of segments. It also reads format 1, whose log is in sled.
pub(crate) const FORMAT: u32 = 2;

/// A data directory that this process has locked.
#[derive(Debug)]
pub(in crate::storage) struct Directory {
    path: PathBuf,
    lock: File,
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Closing the file is not enough: a child process between fork and exec holds a copy of the descriptor.
        let _ = self.lock.unlock();
    }
}

impl Directory {
    /// Claims an empty directory for a restore. Until [`end_restore`](Self::end_restore) every start refuses the
    /// directory: a store without a vote, a log and a snapshot could form a second cluster.
    pub fn begin_restore(path: &Path) -> Result<Directory, StorageError> {
        if path.exists() {
            check_empty(path)?;
        }
        let directory = Directory::claim(path)?;
        check_empty(&directory.path)?;
        let marker = directory.path.join(RESTORING);
        let created = File::create(&marker).and_then(|file| file.sync_all());
        created.map_err(|error| StorageError::io("write", marker, &error))?;
        sync(&directory.path)?;
        Ok(directory)
    }

    /// Ends a restore. The directory must be durable.
    pub fn end_restore(&self) -> Result<(), StorageError> {
        let marker = self.path.join(RESTORING);
        fs::remove_file(&marker).map_err(|error| StorageError::io("remove", marker, &error))?;
        sync(&self.path)
    }

    pub fn check_restored(&self) -> Result<(), StorageError> {
        match exists(&self.path.join(RESTORING))? {
            true => Err(StorageError::HalfRestored { dir: self.path.clone() }),
            false => Ok(()),
        }
    }

    /// Creates the directory if it is missing, and locks it.
    pub fn claim(path: &Path) -> Result<Directory, StorageError> {
        let path = std::path::absolute(path).map_err(|error| StorageError::io("find", path, &error))?;
        create(&path)?;
        let lock_path = path.join(LOCK);
        let lock = File::options().create(true).truncate(false).write(true).open(&lock_path);
        let lock = lock.map_err(|error| StorageError::io("open", &lock_path, &error))?;
        match lock.try_lock() {
            Ok(()) => Ok(Directory { path, lock }),
            Err(TryLockError::WouldBlock) => Err(StorageError::InUse { dir: path }),
            Err(TryLockError::Error(error)) => Err(StorageError::io("lock", lock_path, &error)),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory of sled's files.
    pub fn store(&self) -> PathBuf {
        self.path.join(STORE)
    }

    /// sled's data file.
    pub fn data_file(&self) -> PathBuf {
        self.store().join("db")
    }

    /// The directory of the log's segments.
    pub fn log(&self) -> PathBuf {
        self.path.join(LOG)
    }

    /// The log that a migration writes.
    pub fn migrated_log(&self) -> PathBuf {
        self.path.join(MIGRATED_LOG)
    }

    /// Gives a migrated log its name.
    pub fn name_migrated_log(&self) -> Result<(), StorageError> {
        let from = self.migrated_log();
        fs::rename(&from, self.log()).map_err(|error| StorageError::io("rename", &from, &error))?;
        sync(&self.path)
    }

    /// Returns the format if the directory was initialised for `expected`, or `None`. It is an error if it was
    /// initialised for another node, or if its data is gone.
    pub fn check_marker(&self, expected: &Identity) -> Result<Option<u32>, StorageError> {
        let path = self.path.join(MARKER);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StorageError::io("read", path, &error)),
        };
        let Some((format, found)) = parse_marker(&text) else {
            let what = format!("{} has no readable format, cluster and node: {text:?}", path.display());
            return Err(StorageError::Corrupt { dir: self.path.clone(), what });
        };
        if format > FORMAT {
            return Err(StorageError::NewerFormat { dir: self.path.clone(), found: format, known: FORMAT });
        }
        self.check_identity(found, expected)?;
        let data = self.data_file();
        let bytes = match fs::metadata(&data) {
            Ok(found) => found.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(StorageError::io("read", data, &error)),
        };
        if bytes == 0 {
            return Err(self.emptied(expected, format!("{} is missing or empty", data.display())));
        }
        // A power cut between the marker of format 2 and the rename leaves only the migrated log.
        let logs = [self.log(), self.migrated_log()];
        if format > 1
            && !segment_files::has_segments(&logs[0])?
            && (exists(&logs[0])? || !segment_files::has_segments(&logs[1])?)
        {
            return Err(self.emptied(expected, format!("{} is missing or empty", logs[0].display())));
        }
        Ok(Some(format))
    }

    pub fn check_identity(&self, found: Identity, expected: &Identity) -> Result<(), StorageError> {
        if found == *expected {
            return Ok(());
        }
        Err(StorageError::ForeignIdentity { dir: self.path.clone(), found, expected: expected.clone() })
    }

    pub fn emptied(&self, identity: &Identity, what: String) -> StorageError {
        StorageError::Emptied { dir: self.path.clone(), identity: identity.clone(), what }
    }

    pub fn unmarked(&self) -> StorageError {
        StorageError::Unmarked { dir: self.path.clone() }
    }

    pub fn corrupt(&self, what: impl ToString) -> StorageError {
        StorageError::Corrupt { dir: self.path.clone(), what: what.to_string() }
    }

    /// Prepares the directory for sled: repairs files that a crash left half-written, and drops unsynced cached pages.
    pub fn prepare_store(&self) -> Result<(), StorageError> {
        let store = self.store();
        if !store.exists() {
            DirBuilder::new().mode(0o700).create(&store).map_err(|error| StorageError::io("create", &store, &error))?;
        }
        for item in fs::read_dir(&store).map_err(|error| StorageError::io("list", &store, &error))? {
            let path = item.map_err(|error| StorageError::io("list", &store, &error))?.path();
            if path.extension().is_some_and(|extension| extension == "generating") {
                finish_page_table(&path)?;
            }
        }
        remove_torn_settings(&store.join("conf"))?;
        sync(&store)?;
        drop_cached_pages(&self.data_file())
    }

    /// Syncs the files that sled created and the directories with their names.
    pub fn sync_store(&self) -> Result<(), StorageError> {
        let store = self.store();
        for path in [&store.join("db"), &store.join("conf"), &store.join("blobs"), &store, &self.path] {
            sync(path)?;
        }
        sync_names(&self.path)
    }

    /// Writes the marker durably. After that, opening rejects an empty store in this directory.
    pub fn write_marker(&self, identity: &Identity) -> Result<(), StorageError> {
        let (temporary, path) = (self.path.join(MARKER_TEMPORARY), self.path.join(MARKER));
        let write = || {
            let mut file = File::create(&temporary)?;
            file.write_all(marker_text(identity).as_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary, &path)
        };
        write().map_err(|error| StorageError::io("write", &path, &error))?;
        sync(&self.path)
    }
}

#[cfg(test)]
thread_local! {
    /// The files whose cached pages this thread has dropped.
    static DROPPED: std::cell::RefCell<Vec<PathBuf>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Drops the cached pages of a file. After a failed sync, the kernel can hold pages that it marks as clean but that are
/// not on the disk. The store treats all data that it reads at opening as durable, so the reads must reach the disk.
pub(super) fn drop_cached_pages(path: &Path) -> Result<(), StorageError> {
    let data = match File::options().read(true).write(true).open(path) {
        Ok(data) => data,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(StorageError::io("open", path, &error)),
    };
    // First write the dirty pages of a killed process: they are valid.
    data.sync_all().map_err(|error| StorageError::io("sync", path, &error))?;
    #[cfg(target_os = "linux")]
    rustix::fs::fadvise(&data, 0, None, rustix::fs::Advice::DontNeed)
        .map_err(|error| StorageError::io("drop the cached pages of", path, &error.into()))?;
    #[cfg(test)]
    DROPPED.with_borrow_mut(|dropped| dropped.push(path.to_owned()));
    Ok(())
}

/// Completes or undoes the page table that sled was writing when it was interrupted.
///
/// sled writes the page table to `snap.*.generating`, syncs it and renames it. Then it wipes the segments that the
/// table does not need, although recovery without the table may need them.
///
/// Keep a whole table: a power cut may have lost the rename but not the wipes. Remove a torn table: sled never synced
/// it, so it has wiped nothing yet. It would take the torn file for the newest table and fail to open.
///
/// This needs a file system whose `fsync` of a new file also makes its name durable, as on Linux.
fn finish_page_table(path: &Path) -> Result<(), StorageError> {
    // A killed process can leave a table that only the cache has.
    drop_cached_pages(path)?;
    let bytes = fs::read(path).map_err(|error| StorageError::io("read", path, &error))?;
    // The table, its length (8 bytes), and its checksum (4 bytes).
    let is_whole = bytes.len() > 12 && is_checksum(&bytes[..bytes.len() - 12], &bytes[bytes.len() - 4..]);
    let finished = if is_whole { fs::rename(path, path.with_extension("")) } else { fs::remove_file(path) };
    finished.map_err(|error| StorageError::io("rename or remove", path, &error))
}

/// Removes torn settings. sled writes its settings once, at the first open, and does not sync them. It fails to open
/// with torn settings, but writes missing ones again. Tenure's settings are constant.
fn remove_torn_settings(path: &Path) -> Result<(), StorageError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(StorageError::io("read", path, &error)),
    };
    if bytes.split_last_chunk::<4>().is_some_and(|(settings, checksum)| is_checksum(settings, checksum)) {
        return Ok(());
    }
    fs::remove_file(path).map_err(|error| StorageError::io("remove", path, &error))
}

fn is_checksum(bytes: &[u8], checksum: &[u8]) -> bool {
    crc32fast::hash(bytes).to_le_bytes() == checksum
}

/// Creates a directory with mode 0700 and its missing ancestors. [`sync_store`](Directory::sync_store) makes them durable.
fn create(path: &Path) -> Result<(), StorageError> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(parent).map_err(|error| StorageError::io("create", parent, &error))?;
    DirBuilder::new().mode(0o700).create(path).map_err(|error| StorageError::io("create", path, &error))
}

/// Syncs the directories above `path` on its file system, except those that this process may not open. An earlier start
/// may have created them, and ended before it had synced them.
fn sync_names(path: &Path) -> Result<(), StorageError> {
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev());
    let own = device(path).map_err(|error| StorageError::io("read", path, &error))?;
    for directory in path.ancestors().skip(1) {
        match File::open(directory) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            _ if device(directory).is_ok_and(|device| device != own) => break,
            _ => sync(directory)?,
        }
    }
    Ok(())
}

/// Whether a file exists. A failing disk does not count as a missing file.
pub(super) fn exists(path: &Path) -> Result<bool, StorageError> {
    path.try_exists().map_err(|error| StorageError::io("read", path, &error))
}

fn check_empty(path: &Path) -> Result<(), StorageError> {
    for item in fs::read_dir(path).map_err(|error| StorageError::io("list", path, &error))? {
        let name = item.map_err(|error| StorageError::io("list", path, &error))?.file_name();
        if name != LOCK && name != LOST_AND_FOUND {
            return Err(StorageError::NotEmpty { dir: path.to_path_buf() });
        }
    }
    Ok(())
}

pub(super) fn sync(path: &Path) -> Result<(), StorageError> {
    let synced = File::open(path).and_then(|file| file.sync_all());
    synced.map_err(|error| StorageError::io("sync", path, &error))
}

pub(crate) fn marker_text(identity: &Identity) -> String {
    let cluster = serde_json::to_string(&identity.cluster).expect("every string has a JSON form");
    format!(
        "# A tenure node keeps its data here. Do not change or remove this file:\n\
         # it tells a directory that lost its data from a new one.\n\
         format = {FORMAT}\ncluster = {cluster}\nnode = {}\n",
        identity.node
    )
}

pub(crate) fn parse_marker(text: &str) -> Option<(u32, Identity)> {
    let value = |name: &str| {
        text.lines().filter_map(|line| line.split_once(" = ")).find(|(found, _)| *found == name).map(|(_, value)| value)
    };
    let cluster = serde_json::from_str(value("cluster")?).ok()?;
    let identity = Identity { cluster, node: value("node")?.parse().ok()? };
    Some((value("format")?.parse().ok()?, identity))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use bytes::Bytes;

    use super::*;
    use crate::storage::{DiskStorage, LogRecord, Position, Storage};

    /// After a failed sync, the kernel can show pages that are not on the disk.
    #[test]
    fn start_drops_cached_pages_of_the_log_and_the_data_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = || {
            let identity = Identity { cluster: "test".to_string(), node: 1 };
            DiskStorage::open(folder.path(), identity).unwrap_or_else(|error| panic!("{error}"))
        };
        let storage = open();
        // Each of them takes most of a segment.
        for index in 0..3 {
            let entry = LogRecord { position: Position { term: 1, index }, payload: Bytes::from(vec![7; 3 << 20]) };
            let (done, durable) = mpsc::channel();
            storage.append(vec![entry], Box::new(move |result| drop(done.send(result))));
            durable.recv().expect("the store runs every callback").expect("durable");
        }
        storage.close();
        let log = fs::read_dir(folder.path().join(LOG)).expect("readable");
        let mut files: Vec<PathBuf> = log.map(|item| item.expect("readable").path()).collect();
        assert!(files.len() >= 3, "control: a log of several segments: {files:?}");
        files.push(folder.path().join(STORE).join("db"));
        DROPPED.set(Vec::new());
        let storage = open();
        let dropped = DROPPED.take();
        let trusted: Vec<&PathBuf> = files.iter().filter(|file| !dropped.contains(file)).collect();
        assert!(trusted.is_empty(), "read from the cache: {trusted:?}");
        storage.close();
    }

    /// A copy of the descriptor keeps a lock, as that of a child process between fork and exec does.
    #[test]
    fn lock_ends_with_its_directory_although_a_child_has_a_copy() {
        let folder = tempfile::tempdir().expect("a folder");
        let directory = Directory::claim(folder.path()).expect("not in use");
        let copy = directory.lock.try_clone().expect("a copy of the descriptor");
        assert!(matches!(Directory::claim(folder.path()), Err(StorageError::InUse { .. })), "control: it is locked");
        drop(directory);
        Directory::claim(folder.path()).expect("no longer in use");
        drop(copy);
    }

    #[test]
    fn marker_text_reads_back() {
        let identity = Identity { cluster: "a \"b\"\nc = d".to_string(), node: 7 };
        let text = marker_text(&identity);
        assert_eq!(text.lines().nth(2), Some("format = 2"));
        assert_eq!(parse_marker(&text), Some((2, identity)));
        assert_eq!(parse_marker(""), None);
        assert_eq!(parse_marker("format = 1\ncluster = \"x\"\n"), None);
    }
}
