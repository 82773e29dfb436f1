//! The data directory: who may use it, whose it is, and what must be on the disk around sled's files.
//!
//! ```text
//! data/1/            0700
//!   LOCK             held while a process uses the directory
//!   TENURE           the marker: this directory has been initialised, for this node; not that a cluster was formed
//!   store/           sled: db, conf, blobs/ (always empty), snap.*
//! ```
//!
//! sled opens an emptied directory as a new database without a word. The marker is outside of sled, and durable before
//! the first open returns, so that a node whose data is gone does not start as one that never promised anything.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::storage::{Identity, StorageError};

/// The marker's file name.
pub(in crate::storage) const MARKER: &str = "TENURE";
const MARKER_TEMPORARY: &str = "TENURE.new";
const LOCK: &str = "LOCK";
const STORE: &str = "store";
/// The newest format this program reads and writes.
pub(crate) const FORMAT: u32 = 1;

/// A data directory that this process, and no other, uses.
#[derive(Debug)]
pub(in crate::storage) struct Directory {
    path: PathBuf,
    lock: File,
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Closing the file would do, but for a child that is being started at this moment: until it runs its program it
        // has a copy of every file.
        let _ = self.lock.unlock();
    }
}

impl Directory {
    /// Creates the directory where it is missing, and takes its lock.
    pub fn claim(path: &Path) -> Result<Directory, StorageError> {
        let path = std::path::absolute(path).map_err(|error| StorageError::io("find", path, &error))?;
        create_durably(&path)?;
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

    /// Where sled's files are.
    pub fn store(&self) -> PathBuf {
        self.path.join(STORE)
    }

    /// sled's data file.
    pub fn data_file(&self) -> PathBuf {
        self.store().join("db")
    }

    /// Whether this directory was initialised for `expected`; an error when it was for somebody else, or when what was
    /// initialised is gone.
    pub fn check_marker(&self, expected: &Identity) -> Result<bool, StorageError> {
        let path = self.path.join(MARKER);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(StorageError::io("read", path, &error)),
        };
        let Some((format, found)) = parse_marker(&text) else {
            let what = format!("{} is not readable: {text:?}", path.display());
            return Err(StorageError::Corrupt { dir: self.path.clone(), what });
        };
        if format > FORMAT {
            return Err(StorageError::NewerFormat { dir: self.path.clone(), found: format, known: FORMAT });
        }
        self.check_identity(found, expected)?;
        let data = self.data_file();
        if fs::metadata(&data).map_or(0, |data| data.len()) == 0 {
            return Err(self.emptied(expected, format!("{} is missing or empty", data.display())));
        }
        Ok(true)
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

    pub fn corrupt(&self, what: impl ToString) -> StorageError {
        StorageError::Corrupt { dir: self.path.clone(), what: what.to_string() }
    }

    /// Makes ready for sled: what would stop it from opening, or lie to it, goes.
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
        self.forget_unsynced_pages()
    }

    /// After a failed sync the kernel can hold pages in memory that it takes for clean and the disk does not have.
    /// What is read at opening counts as durable from then on, so it has to come from the disk.
    fn forget_unsynced_pages(&self) -> Result<(), StorageError> {
        let path = self.data_file();
        let data = match File::options().read(true).write(true).open(&path) {
            Ok(data) => data,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(StorageError::io("open", path, &error)),
        };
        // First write out what a killed process left behind in good order.
        data.sync_all().map_err(|error| StorageError::io("sync", &path, &error))?;
        #[cfg(target_os = "linux")]
        rustix::fs::fadvise(&data, 0, None, rustix::fs::Advice::DontNeed)
            .map_err(|error| StorageError::io("drop the cached pages of", &path, &error.into()))?;
        Ok(())
    }

    /// Makes everything around the data durable: the files that sled created and their names.
    pub fn sync_store(&self) -> Result<(), StorageError> {
        let store = self.store();
        for path in [&store.join("db"), &store.join("conf"), &store.join("blobs"), &store, &self.path] {
            sync(path)?;
        }
        self.path.parent().map_or(Ok(()), sync)
    }

    /// Writes the marker. From then on an empty store in this directory is refused.
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

/// Finishes what sled began when it was opened, or undoes it.
///
/// sled writes its table of pages to `snap.*.generating`, syncs it and renames it; then it wipes the segments that the
/// table does not need, which the log without the table may need very much. So a whole one must be kept: its new name may
/// have been lost with the power while the wiping was not. A torn one was never synced, so nothing was wiped yet; sled
/// would take it for the newest table and give up on it.
///
/// This relies on a file system whose `fsync` of a new file keeps the file's name, too, as those of Linux do.
fn finish_page_table(path: &Path) -> Result<(), StorageError> {
    let bytes = fs::read(path).map_err(|error| StorageError::io("read", path, &error))?;
    // The table, its length in 8 bytes, and its checksum.
    let is_whole = bytes.len() > 12 && is_checksum(&bytes[..bytes.len() - 12], &bytes[bytes.len() - 4..]);
    let finished = if is_whole { fs::rename(path, path.with_extension("")) } else { fs::remove_file(path) };
    finished.map_err(|error| StorageError::io("rename or remove", path, &error))
}

/// sled writes its settings once, when it is first opened, and syncs nothing. Torn ones make it give up; without any it
/// writes them again, and ours are always the same.
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

/// Creates a directory for its owner only, and the ones above it where they are missing, each durable in its parent.
fn create_durably(path: &Path) -> Result<(), StorageError> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = path.parent().unwrap_or(Path::new("/"));
    create_ancestors(parent)?;
    DirBuilder::new().mode(0o700).create(path).map_err(|error| StorageError::io("create", path, &error))?;
    sync(parent)
}

fn create_ancestors(path: &Path) -> Result<(), StorageError> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = path.parent().unwrap_or(Path::new("/"));
    create_ancestors(parent)?;
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(StorageError::io("create", path, &error)),
        _ => sync(parent),
    }
}

fn sync(path: &Path) -> Result<(), StorageError> {
    let synced = File::open(path).and_then(|file| file.sync_all());
    synced.map_err(|error| StorageError::io("sync", path, &error))
}

pub(crate) fn marker_text(identity: &Identity) -> String {
    let cluster = serde_json::to_string(&identity.cluster).expect("text has a JSON form");
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
    use super::*;

    #[test]
    fn the_marker_is_text_that_reads_back() {
        let identity = Identity { cluster: "a \"b\"\nc = d".to_string(), node: 7 };
        let text = marker_text(&identity);
        assert_eq!(text.lines().nth(2), Some("format = 1"));
        assert_eq!(parse_marker(&text), Some((1, identity)));
        assert_eq!(parse_marker(""), None);
        assert_eq!(parse_marker("format = 1\ncluster = \"x\"\n"), None);
    }
}
