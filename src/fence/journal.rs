//! A file of marks, for resources whose data outlives the process.
//!
//! ```text
//! "tenure fences 1\n"     16 bytes: file type and format version
//! crc32   u32 LE          of the rest of the record
//! length  u16 LE          of the name
//! token   u64 LE          the integer form
//! name                    UTF-8
//! ...
//! ```
//!
//! The journal appends a mark and calls `fdatasync` before the mark counts. It syncs each record before it writes the
//! next one, so only the last record can be torn. A torn record was never acknowledged, and the journal drops it.
//! Damage at any other place is an error.
//!
//! The journal rewrites the whole file when it opens it, and when the file has grown too large. It writes a new file,
//! calls `fsync`, renames the file, and calls `fsync` on the directory. This has three effects:
//!
//! - It removes a torn record.
//! - It removes lower marks of the same resource.
//! - It makes the marks durable that were read. After a failed sync, the kernel may return bytes that the disk does not
//!   have.
//!
//! Limitation: a durable last record that is corrupted later looks like a torn record.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::resources::MAX_RESOURCE_BYTES;
use super::{HighWater, HighWaterStore};

const HEADER: &[u8] = b"tenure fences 1\n";
/// Size of the checksum, length and token of a record.
const FIXED_BYTES: usize = 4 + 2 + 8;
const MAX_RECORD_BYTES: usize = FIXED_BYTES + MAX_RESOURCE_BYTES;
/// The journal rewrites the file when it has grown by this many bytes, or by its initial size if that is more.
const MIN_GROWTH_BYTES: u64 = 1 << 20;

/// A [`HighWaterStore`] in the file `path`. One process at a time can open it.
///
/// The journal also uses the files `path.lock` and, during a rewrite, `path.new`. If `path` is a symbolic link, these
/// are beside its target, which must exist.
///
/// Keep the file on the same disk as the resource's data, and restore both together. If the marks are older than the
/// data, the gate admits old holders. If the file is missing, the journal creates it without marks.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    recalled: Vec<(String, HighWater)>,
    /// Bytes appended since the last rewrite.
    grown: u64,
    /// The value of `grown` that causes a rewrite.
    max_growth: u64,
    _lock: LockFile,
}

/// A lock that is held until drop. It needs its own file, because a rewrite replaces the journal's file.
#[derive(Debug)]
struct LockFile(File);

impl Drop for LockFile {
    /// Unlocks explicitly: between `fork` and `exec`, a child process shares the open file, and a close here would not
    /// release the lock before the `exec`. If the unlock fails, the close is the fallback.
    fn drop(&mut self) {
        drop(self.0.unlock());
    }
}

pub(crate) type Kept = BTreeMap<String, HighWater>;

impl Journal {
    /// Reads the marks, or creates a new file if there is none. The directory must exist.
    ///
    /// # Errors
    ///
    /// The file is in use or damaged, or an I/O operation has failed.
    pub fn open(path: &Path) -> Result<Journal, OpenError> {
        let mut path = std::path::absolute(path).map_err(|error| OpenError::io("find", path, error))?;
        if path.is_symlink() {
            // A rewrite would replace the link, and a lock beside the link would not lock the file.
            path = fs::canonicalize(&path).map_err(|error| OpenError::io("read", &path, error))?;
        }
        let lock = lock(&path)?;
        let marks = match fs::read(&path) {
            Ok(bytes) => parse(&bytes).map_err(|what| OpenError::Damaged { path: path.clone(), what })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Kept::new(),
            Err(error) => return Err(OpenError::io("read", &path, error)),
        };
        let (file, bytes) = replace(&path, &marks).map_err(|error| OpenError::io("write", &path, error))?;
        let max_growth = bytes.max(MIN_GROWTH_BYTES);
        Ok(Journal { path, file, recalled: marks.into_iter().collect(), grown: 0, max_growth, _lock: lock })
    }

    pub(super) fn take_recalled(&mut self) -> Vec<(String, HighWater)> {
        std::mem::take(&mut self.recalled)
    }

    fn append(&mut self, resource: &str, mark: HighWater) -> io::Result<()> {
        let record = record(resource, mark);
        self.file.write_all(&record)?;
        self.file.sync_data()?;
        self.grown += record.len() as u64;
        Ok(())
    }

    fn compact(&mut self) -> io::Result<()> {
        let marks = parse(&fs::read(&self.path)?).map_err(io::Error::other)?;
        let (file, bytes) = replace(&self.path, &marks)?;
        (self.file, self.grown, self.max_growth) = (file, 0, bytes.max(MIN_GROWTH_BYTES));
        Ok(())
    }
}

impl HighWaterStore for Journal {
    fn recall(&mut self) -> io::Result<Vec<(String, HighWater)>> {
        Ok(self.take_recalled())
    }

    fn remember(&mut self, resource: &str, mark: HighWater) -> io::Result<()> {
        let mut stored = self.append(resource, mark);
        if stored.is_ok() && self.grown > self.max_growth {
            stored = self.compact();
        }
        stored.map_err(|error| io::Error::other(format!("cannot write {}: {error}", self.path.display())))
    }
}

/// Locks the journal for this process.
fn lock(path: &Path) -> Result<LockFile, OpenError> {
    let lock_path = with_suffix(path, ".lock");
    let lock = File::options().create(true).truncate(false).write(true).open(&lock_path);
    let lock = lock.map_err(|error| OpenError::io("open", &lock_path, error))?;
    match lock.try_lock() {
        Ok(()) => Ok(LockFile(lock)),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse { path: path.to_owned() }),
        Err(TryLockError::Error(error)) => Err(OpenError::io("lock", &lock_path, error)),
    }
}

/// Writes the marks to a new file and renames it over the old one. The old file is complete until the rename.
fn replace(path: &Path, marks: &Kept) -> io::Result<(File, u64)> {
    let bytes = whole(marks);
    let new = with_suffix(path, ".new");
    let mut file = File::create(&new)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()?;
    Ok((file, bytes.len() as u64))
}

/// The content of a file with exactly these marks.
pub(crate) fn whole(marks: &Kept) -> Vec<u8> {
    let mut bytes = HEADER.to_vec();
    for (resource, mark) in marks {
        bytes.extend(record(resource, *mark));
    }
    bytes
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn record(resource: &str, mark: HighWater) -> Vec<u8> {
    let length = u16::try_from(resource.len()).expect("a resource name has at most MAX_RESOURCE_BYTES");
    let mut bytes = vec![0; 4];
    bytes.extend(length.to_le_bytes());
    bytes.extend(mark.as_u64().to_le_bytes());
    bytes.extend(resource.as_bytes());
    let checksum = crc32fast::hash(&bytes[4..]);
    bytes[..4].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Returns the highest mark of each resource, or a description of the damage.
pub(crate) fn parse(bytes: &[u8]) -> Result<Kept, String> {
    let Some(mut rest) = bytes.strip_prefix(HEADER) else {
        let start = String::from_utf8_lossy(&bytes[..bytes.len().min(HEADER.len())]).into_owned();
        return Err(format!("it starts with {start:?}: expected {:?}", String::from_utf8_lossy(HEADER)));
    };
    let mut marks = Kept::new();
    while let Some((resource, mark, after)) = parse_record(rest) {
        let highest = marks.entry(resource.to_owned()).or_default();
        *highest = mark.max(*highest);
        rest = after;
    }
    // The rest is empty or one torn record. A longer rest, or a valid record in it, means that the invalid record was
    // followed by others. It was therefore complete and acknowledged, and its mark is lost.
    let torn = rest.len() <= MAX_RECORD_BYTES && (1..rest.len()).all(|skip| parse_record(&rest[skip..]).is_none());
    if !torn {
        return Err(format!(
            "the record at byte {} is invalid, and further records follow it",
            bytes.len() - rest.len()
        ));
    }
    Ok(marks)
}

fn parse_record(bytes: &[u8]) -> Option<(&str, HighWater, &[u8])> {
    let (checksum, rest) = bytes.split_first_chunk::<4>()?;
    let (length, _) = rest.split_first_chunk::<2>()?;
    let end = FIXED_BYTES - 4 + usize::from(u16::from_le_bytes(*length));
    let (body, after) = rest.split_at_checked(end)?;
    if crc32fast::hash(body) != u32::from_le_bytes(*checksum) {
        return None;
    }
    let token = u64::from_le_bytes(body[2..10].try_into().expect("the slice has eight bytes"));
    let resource = std::str::from_utf8(&body[10..]).ok()?;
    Some((resource, HighWater::try_from(token).ok()?, after))
}

/// The journal cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another gate uses the file.
    #[error(
        "{} is in use by another gate, and only one process can open it: stop the other gate or use another file",
        path.display()
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// Marks are lost, so the gate would admit old holders.
    #[error(
        "{} is damaged: {what}; restore it together with the resource's data, or stop every old holder and remove the file",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damage.
        what: String,
    },
    /// An I/O operation failed.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// The operation.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

impl OpenError {
    fn io(doing: &'static str, path: &Path, source: io::Error) -> OpenError {
        OpenError::Io { doing, path: path.to_owned(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(value: u64) -> HighWater {
        HighWater::try_from(value).expect("63 bits")
    }

    fn file(store: &[(&str, u64)]) -> Vec<u8> {
        store.iter().fold(HEADER.to_vec(), |mut bytes, (name, value)| {
            bytes.extend(record(name, mark(*value)));
            bytes
        })
    }

    #[test]
    fn truncated_file_loses_at_most_its_last_record() {
        let (one, two) = (file(&[("a", 1)]), file(&[("a", 1), ("bb", i64::MAX as u64)]));
        for cut in HEADER.len()..one.len() {
            assert_eq!(parse(&two[..cut]).expect("torn"), Kept::new());
        }
        for cut in one.len()..two.len() {
            assert_eq!(parse(&two[..cut]).expect("torn"), Kept::from([("a".into(), mark(1))]));
        }
        assert_eq!(parse(&two).expect("the file is complete")["bb"], mark(i64::MAX as u64));
        (0..HEADER.len()).for_each(|cut| assert!(parse(&two[..cut]).is_err(), "a journal always has its header"));
    }

    #[test]
    fn bit_flip_before_the_last_record_is_an_error() {
        let complete = file(&[("a", 1), ("b", 2), ("a", 3)]);
        let last = complete.len() - record("a", mark(3)).len();
        for bit in 0..last * 8 {
            let mut flipped = complete.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(parse(&flipped).is_err(), "bit {bit}");
        }
        assert_eq!(MAX_RECORD_BYTES, 526, "checksum, length, token and the longest name");
        let mut overgrown = complete;
        overgrown.extend([0; MAX_RECORD_BYTES + 1]);
        assert!(parse(&overgrown).is_err(), "more than one record can be torn");
    }

    /// A copy of the descriptor keeps a lock, as that of a child process between fork and exec does.
    #[test]
    fn lock_ends_with_its_journal_although_a_child_has_a_copy() {
        let folder = tempfile::tempdir().expect("create a directory");
        let path = folder.path().join("marks");
        let locked = lock(&path).expect("not in use");
        let copy = locked.0.try_clone().expect("a copy of the descriptor");
        assert!(matches!(lock(&path), Err(OpenError::InUse { .. })), "control: it is locked");
        drop(locked);
        lock(&path).expect("no longer in use");
        drop(copy);
    }

    /// After a sync of the directory that fails, the open file can be one that no name leads to.
    #[test]
    fn mark_is_not_stored_if_a_rewrite_fails() {
        let folder = tempfile::tempdir().expect("create a directory");
        let path = folder.path().join("marks");
        let mut journal = Journal::open(&path).expect("create a journal");
        journal.max_growth = 1;
        fs::create_dir(with_suffix(&path, ".new")).expect("create a directory in the place of the new file");
        let error = journal.remember("a", mark(1)).expect_err("the rewrite fails");
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    }

    #[test]
    fn rewritten_file_grows_again_before_the_next_rewrite() {
        let folder = tempfile::tempdir().expect("create a directory");
        let path = folder.path().join("marks");
        let mut journal = Journal::open(&path).expect("create a journal");
        let size = || fs::metadata(&path).expect("the file exists").len();
        let record = record("a", mark(1)).len() as u64;
        let mut value = 0;
        let mut remember = |journal: &mut Journal| {
            value += 1;
            journal.max_growth = 10 * record;
            journal.remember("a", mark(value)).expect("store the mark");
        };
        for rewrites in 1..=3 {
            // The file has no more than one record after a rewrite.
            let before = size();
            for appended in 1..=10 {
                remember(&mut journal);
                assert_eq!(size(), before + appended * record, "before rewrite {rewrites}");
            }
            remember(&mut journal);
            assert_eq!(size(), HEADER.len() as u64 + record, "rewrite {rewrites}");
        }
    }

    #[test]
    fn large_file_grows_by_its_size_before_a_rewrite() {
        let folder = tempfile::tempdir().expect("create a directory");
        let path = folder.path().join("marks");
        let marks: Kept = (0..4000).map(|number| (format!("{number:0>500}"), mark(1))).collect();
        let bytes = whole(&marks);
        let size = bytes.len() as u64;
        assert!(size > MIN_GROWTH_BYTES, "{size} bytes");
        fs::write(&path, bytes).expect("write the file");
        let mut journal = Journal::open(&path).expect("open the journal");
        assert_eq!(journal.max_growth, size, "after the opening");
        journal.max_growth = 1;
        journal.remember(&format!("{:0>500}", 0), mark(2)).expect("store the mark");
        assert_eq!((journal.grown, journal.max_growth), (0, size), "after a rewrite");
    }

    #[test]
    fn rewrites_bound_the_file_and_keep_all_marks() {
        let folder = tempfile::tempdir().expect("create a directory");
        let path = folder.path().join("marks");
        let mut journal = Journal::open(&path).expect("create a journal");
        journal.max_growth = 200;
        for value in 1..=100 {
            journal.remember("often", mark(value)).expect("store the mark");
            journal.remember(&format!("resource {}", value % 3), mark(value)).expect("store the mark");
            let bytes = fs::metadata(&path).expect("the file exists").len();
            assert!(bytes < MIN_GROWTH_BYTES);
            journal.max_growth = journal.max_growth.min(200);
            assert!(bytes < 600, "{bytes} bytes");
        }
        drop(journal);
        let recalled =
            Journal::open(&path).expect("open the journal").recall().expect("the marks were read at opening");
        let expected = [("often", 100), ("resource 0", 99), ("resource 1", 100), ("resource 2", 98)];
        assert_eq!(recalled, expected.map(|(name, value)| (name.to_owned(), mark(value))));
    }
}
