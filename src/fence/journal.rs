//! Marks in a file, for resources whose data outlives the process.
//!
//! ```text
//! "tenure fences 1\n"     16 bytes: what this is, and its format
//! crc32   u32 LE          of the rest of the record
//! length  u16 LE          of the name
//! token   u64 LE          the integer form
//! name                    UTF-8
//! ...
//! ```
//!
//! A mark is appended and `fdatasync`ed before it counts. Each record is synced before the next is written, so only the
//! last can be torn, and a torn one was never acknowledged: it is dropped. Damage anywhere else is refused.
//!
//! Opening writes the whole file anew (new file, `fsync`, rename, `fsync` of the directory), and so does growing. That
//! ends what is torn, drops marks that were overtaken, and makes durable what was read: after a failed sync the kernel may
//! show bytes that the disk does not have.
//!
//! What it cannot see: a last record that was durable and rotted later looks like a torn one.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::resources::MAX_RESOURCE_BYTES;
use super::{HighWater, HighWaterStore};

const HEADER: &[u8] = b"tenure fences 1\n";
/// Checksum, length and token.
const FIXED_BYTES: usize = 4 + 2 + 8;
const MAX_RECORD_BYTES: usize = FIXED_BYTES + MAX_RESOURCE_BYTES;
/// The file is written anew when it has grown by this many bytes, or by its own size if that is more.
const MIN_GROWTH_BYTES: u64 = 1 << 20;

/// Marks in the file `path`, with `path.lock` and for moments `path.new` beside it. One process at a time.
///
/// Keep it on the disk that has the resource's data, and restore both together: marks that are older than the data let
/// old holders in. A file that is missing is a new one.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    recalled: Vec<(String, HighWater)>,
    /// Bytes appended since the file was written anew.
    grown: u64,
    /// How many of them are allowed.
    growth: u64,
    _lock: Lock,
}

/// Held until dropped. A file of its own, because the journal's is replaced.
#[derive(Debug)]
struct Lock(File);

impl Drop for Lock {
    /// Closing the file would not do: a child process that is just being started has it, too, until it runs its program,
    /// and would keep the lock for that long. If this fails, closing is what is left.
    fn drop(&mut self) {
        drop(self.0.unlock());
    }
}

pub(crate) type Kept = BTreeMap<String, HighWater>;

impl Journal {
    /// Reads the marks, or begins a new file if there is none. The directory must be there.
    pub fn open(path: &Path) -> Result<Journal, OpenError> {
        let path = std::path::absolute(path).map_err(|error| OpenError::io("find", path, error))?;
        let lock = claim(&path)?;
        let kept = match fs::read(&path) {
            Ok(bytes) => parse(&bytes).map_err(|what| OpenError::Damaged { path: path.clone(), what })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Kept::new(),
            Err(error) => return Err(OpenError::io("read", &path, error)),
        };
        let (file, bytes) = replace(&path, &kept).map_err(|error| OpenError::io("write", &path, error))?;
        let growth = bytes.max(MIN_GROWTH_BYTES);
        Ok(Journal { path, file, recalled: kept.into_iter().collect(), grown: 0, growth, _lock: lock })
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
        let kept = parse(&fs::read(&self.path)?).map_err(io::Error::other)?;
        let (file, bytes) = replace(&self.path, &kept)?;
        (self.file, self.grown, self.growth) = (file, 0, bytes.max(MIN_GROWTH_BYTES));
        Ok(())
    }
}

impl HighWaterStore for Journal {
    fn recall(&mut self) -> io::Result<Vec<(String, HighWater)>> {
        Ok(self.take_recalled())
    }

    fn remember(&mut self, resource: &str, mark: HighWater) -> io::Result<()> {
        let mut kept = self.append(resource, mark);
        if kept.is_ok() && self.grown > self.growth {
            kept = self.compact();
        }
        kept.map_err(|error| io::Error::other(format!("could not write {}: {error}", self.path.display())))
    }
}

/// Takes the lock beside the file.
fn claim(path: &Path) -> Result<Lock, OpenError> {
    let lock_path = beside(path, ".lock");
    let lock = File::options().create(true).truncate(false).write(true).open(&lock_path);
    let lock = lock.map_err(|error| OpenError::io("open", &lock_path, error))?;
    match lock.try_lock() {
        Ok(()) => Ok(Lock(lock)),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse { path: path.to_owned() }),
        Err(TryLockError::Error(error)) => Err(OpenError::io("lock", &lock_path, error)),
    }
}

/// Writes the marks to a new file and puts it in the place of the old one. The old one is whole until then.
fn replace(path: &Path, kept: &Kept) -> io::Result<(File, u64)> {
    let bytes = whole(kept);
    let new = beside(path, ".new");
    let mut file = File::create(&new)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()?;
    Ok((file, bytes.len() as u64))
}

/// A file that holds these marks and nothing else.
pub(crate) fn whole(kept: &Kept) -> Vec<u8> {
    let mut bytes = HEADER.to_vec();
    for (resource, mark) in kept {
        bytes.extend(record(resource, *mark));
    }
    bytes
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

fn record(resource: &str, mark: HighWater) -> Vec<u8> {
    let length = u16::try_from(resource.len()).expect("a resource's name is bounded");
    let mut bytes = vec![0; 4];
    bytes.extend(length.to_le_bytes());
    bytes.extend(mark.as_u64().to_le_bytes());
    bytes.extend(resource.as_bytes());
    let checksum = crc32fast::hash(&bytes[4..]);
    bytes[..4].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// The highest mark of each resource, or what is wrong.
pub(crate) fn parse(bytes: &[u8]) -> Result<Kept, String> {
    let Some(mut rest) = bytes.strip_prefix(HEADER) else {
        let start = String::from_utf8_lossy(&bytes[..bytes.len().min(HEADER.len())]).into_owned();
        return Err(format!("it starts with {start:?}, and not with {:?}", String::from_utf8_lossy(HEADER)));
    };
    let mut kept = Kept::new();
    while let Some((resource, mark, after)) = parse_record(rest) {
        let highest = kept.entry(resource.to_owned()).or_default();
        *highest = mark.max(*highest);
        rest = after;
    }
    // What is left is one torn record or nothing. More, or a whole record behind it, means that what is broken was once
    // followed by others, so it was whole and is now lost.
    let torn = rest.len() <= MAX_RECORD_BYTES && (1..rest.len()).all(|skip| parse_record(&rest[skip..]).is_none());
    if !torn {
        return Err(format!("the record at byte {} is broken, and there are more behind it", bytes.len() - rest.len()));
    }
    Ok(kept)
}

fn parse_record(bytes: &[u8]) -> Option<(&str, HighWater, &[u8])> {
    let (checksum, rest) = bytes.split_first_chunk::<4>()?;
    let (length, _) = rest.split_first_chunk::<2>()?;
    let end = FIXED_BYTES - 4 + usize::from(u16::from_le_bytes(*length));
    let (body, after) = rest.split_at_checked(end)?;
    if crc32fast::hash(body) != u32::from_le_bytes(*checksum) {
        return None;
    }
    let token = u64::from_le_bytes(body[2..10].try_into().expect("eight bytes"));
    let resource = std::str::from_utf8(&body[10..]).ok()?;
    Some((resource, HighWater::try_from(token).ok()?, after))
}

/// Why the marks cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(
        "{} is in use by another gate: one process at a time may keep its marks there; stop the other one or use another file",
        path.display()
    )]
    InUse { path: PathBuf },
    /// Going on without the lost marks would let old holders in.
    #[error(
        "{} is damaged: {what}; restore it together with the resource's data, or stop every old holder and remove the file",
        path.display()
    )]
    Damaged { path: PathBuf, what: String },
    #[error("could not {doing} {}: {source}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
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
    fn a_file_that_is_cut_anywhere_has_lost_at_most_its_last_record() {
        let (one, two) = (file(&[("a", 1)]), file(&[("a", 1), ("bb", i64::MAX as u64)]));
        for cut in HEADER.len()..one.len() {
            assert_eq!(parse(&two[..cut]).expect("torn"), Kept::new());
        }
        for cut in one.len()..two.len() {
            assert_eq!(parse(&two[..cut]).expect("torn"), Kept::from([("a".into(), mark(1))]));
        }
        assert_eq!(parse(&two).expect("whole")["bb"], mark(i64::MAX as u64));
        (0..HEADER.len()).for_each(|cut| assert!(parse(&two[..cut]).is_err(), "a file is never without its header"));
    }

    #[test]
    fn any_flipped_bit_before_the_last_record_is_noticed() {
        let whole = file(&[("a", 1), ("b", 2), ("a", 3)]);
        let last = whole.len() - record("a", mark(3)).len();
        for bit in 0..last * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(parse(&flipped).is_err(), "bit {bit}");
        }
        assert_eq!(MAX_RECORD_BYTES, 526, "checksum, length, token and the longest name");
        let mut overgrown = whole;
        overgrown.extend([0; MAX_RECORD_BYTES + 1]);
        assert!(parse(&overgrown).is_err(), "more than one record can be torn");
    }

    #[test]
    fn the_file_does_not_grow_without_end_and_forgets_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("marks");
        let mut journal = Journal::open(&path).expect("a new one");
        journal.growth = 200;
        for value in 1..=100 {
            journal.remember("often", mark(value)).expect("there is space");
            journal.remember(&format!("resource {}", value % 3), mark(value)).expect("there is space");
            let bytes = fs::metadata(&path).expect("it is there").len();
            assert!(bytes < MIN_GROWTH_BYTES);
            journal.growth = journal.growth.min(200);
            assert!(bytes < 600, "{bytes} bytes");
        }
        drop(journal);
        let recalled = Journal::open(&path).expect("it is there").recall().expect("read at opening");
        let expected = [("often", 100), ("resource 0", 99), ("resource 1", 100), ("resource 2", 98)];
        assert_eq!(recalled, expected.map(|(name, value)| (name.to_owned(), mark(value))));
    }
}
