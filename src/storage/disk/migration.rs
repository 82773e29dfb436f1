//! Moves the log of format 1 from sled into segments.
//!
//! Format 1 has entries in parts in the tree `log`, and vote, floor and committed position in the tree `meta`. The new
//! log is durable as `log.new` before the marker of format 2 replaces the old one. Then it gets its name, and the old
//! records are removed. A power cut leaves the old format, or the new one without these last steps. The next start
//! continues them.

use std::fs::{self, File};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use bytes::{Bytes, BytesMut};

use super::directory::{self, Directory};
use super::log::SegmentLog;
use super::recovery::{newer, read_meta};
use super::segment::Item;
use super::trees::{self, Trees};
use crate::storage::record::{
    self, COMMITTED, CommittedV1, FLOOR, LogPartV1, PositionV1, RecordError, RecordKind, VOTE, VoteV1, log_key,
    split_log_key,
};
use crate::storage::{Identity, LogRecord, Position, StorageError, VoteRecord};

/// The tree of the entries in format 1.
pub(in crate::storage) const LOG_TREE: &[u8] = b"log";
/// Maximum payload in one group of the new log.
const GROUP_BYTES: usize = 128 << 10;
/// Maximum records that share a sync while they are removed.
const REMOVES: usize = 64;

/// Writes the log of format 1 as segments, then the marker of format 2.
pub(super) fn migrate(directory: &Directory, trees: &Trees, identity: &Identity) -> Result<(), StorageError> {
    // An interrupted first start, or a copy of the old files over the new ones, can leave segments. Format 1 has none.
    let stale = directory.log();
    if stale.exists() {
        remove_files(&stale)?;
        fs::remove_dir(&stale).map_err(|error| StorageError::io("remove", &stale, &error))?;
        directory::sync(directory.path())?;
    }
    let dir = directory.migrated_log();
    remove_files(&dir)?;
    let mut log = SegmentLog::create(&dir)?;
    write_log(directory, trees, &mut log)?;
    log.close()?;
    directory::sync(directory.path())?;
    directory.write_marker(identity)?;
    let dir = directory.path().display();
    tracing::info!(%dir, "moved the log to data format 2: earlier versions refuse this directory from now on");
    directory.name_migrated_log()
}

/// Removes the files in a directory, if it exists.
fn remove_files(dir: &Path) -> Result<(), StorageError> {
    if !dir.exists() {
        return Ok(());
    }
    let removed = fs::read_dir(dir).and_then(|mut items| items.try_for_each(|item| fs::remove_file(item?.path())));
    removed.map_err(|error| StorageError::io("remove", dir, &error))
}

fn write_log(directory: &Directory, trees: &Trees, log: &mut SegmentLog) -> Result<(), StorageError> {
    let vote = read_meta(directory, trees, RecordKind::Vote, VOTE, |stored: VoteV1| VoteRecord {
        term: stored.term,
        candidate: stored.candidate,
        committed: stored.committed,
    })?;
    let floor = read_meta(directory, trees, RecordKind::Floor, FLOOR, position)?;
    let committed = read_meta(directory, trees, RecordKind::Committed, COMMITTED, |stored: CommittedV1| {
        stored.position.map(position)
    })?;
    let mut group = log.group();
    vote.iter().for_each(|vote| group.push(&Item::Vote(*vote)));
    floor.iter().for_each(|floor| group.push(&Item::Floor(*floor)));
    committed.iter().for_each(|committed| group.push(&Item::Committed(*committed)));
    let (mut bytes, mut term) = (0, floor.map_or(0, |floor| floor.term));
    let entries = old_log(directory, trees)?.map(|tree| Entries::above(&tree, floor.map(|floor| floor.index)));
    for entry in entries.into_iter().flatten() {
        let LogRecord { position, payload } = match entry {
            Ok(entry) => entry,
            // Safe to drop: the store acknowledged an append only with all parts of its entries, and a caller requested
            // any truncate that began to remove the entry.
            Err(Damage::Unfinished { .. }) => break,
            Err(Damage::Record { error: RecordError::Newer { version }, .. }) => return Err(newer(directory, version)),
            Err(damage) => return Err(directory.corrupt(damage)),
        };
        if position.term < term {
            let Position { term: found, index } = position;
            return Err(directory.corrupt(format!("log entry {index} has term {found} after term {term}")));
        }
        term = position.term;
        if bytes + payload.len() > GROUP_BYTES && !group.is_empty() {
            log.write(&group)?;
            (group, bytes) = (log.group(), 0);
        }
        bytes += payload.len();
        group.push(&Item::Entry { position, payload: &payload });
    }
    if group.is_empty() { Ok(()) } else { log.write(&group).map(drop) }
}

/// Whether sled holds entries.
pub(super) fn has_log(directory: &Directory, trees: &Trees) -> Result<bool, StorageError> {
    Ok(old_log(directory, trees)?.is_some_and(|log| !log.is_empty()))
}

/// Removes the records of format 1, in small parts with a sync each: sled can lose large commits.
pub(super) fn remove_old_log(directory: &Directory, trees: &Trees, data_file: &File) -> Result<(), StorageError> {
    // sled panics when it cannot write. This is not damage.
    let removed = catch_unwind(AssertUnwindSafe(|| remove_records(directory, trees, data_file)));
    removed.unwrap_or_else(|panic| Err(trees::panic_error("write to", directory.path(), panic.as_ref())))
}

fn remove_records(directory: &Directory, trees: &Trees, data_file: &File) -> Result<(), StorageError> {
    let failed = |error| trees::sled_error(directory.path(), "write to", error);
    let mut removed = 0;
    let mut count = |is_end: bool| {
        removed += usize::from(!is_end);
        if removed == 0 || !is_end && removed % REMOVES > 0 {
            return Ok(());
        }
        #[cfg(test)]
        REMOVED_AT_SYNCS.with_borrow_mut(|counts| counts.push(removed));
        trees.db.flush().map_err(failed)?;
        data_file.sync_data().map_err(|error| StorageError::io("sync", directory.data_file(), &error))
    };
    if let Some(log) = old_log(directory, trees)? {
        for key in log.iter().keys() {
            log.remove(key.map_err(failed)?).map_err(failed)?;
            count(false)?;
        }
    }
    for key in [VOTE, FLOOR, COMMITTED] {
        if trees.meta.remove(key).map_err(failed)?.is_some() {
            count(false)?;
        }
    }
    count(true)
}

#[cfg(test)]
thread_local! {
    /// The number of records that a call on this thread had removed at each of its syncs.
    pub(in crate::storage) static REMOVED_AT_SYNCS: std::cell::RefCell<Vec<usize>> =
        const { std::cell::RefCell::new(Vec::new()) };
}

fn old_log(directory: &Directory, trees: &Trees) -> Result<Option<sled::Tree>, StorageError> {
    if !trees.db.tree_names().iter().any(|name| name == LOG_TREE) {
        return Ok(None);
    }
    let tree = trees.db.open_tree(LOG_TREE);
    tree.map(Some).map_err(|error| trees::sled_error(directory.path(), "read", error))
}

fn position(stored: PositionV1) -> Position {
    Position { term: stored.term, index: stored.index }
}

/// An iterator over entries. It checks every record and that the entries are contiguous.
struct Entries {
    iter: sled::Iter,
    next: Expected,
}

/// A decoded part.
struct Part {
    index: u64,
    number: u32,
    term: u64,
    parts: u32,
    payload: Bytes,
}

/// The index that the next entry must have.
enum Expected {
    /// Index 0 or 1: the start of a log that was never purged.
    Start,
    Index(u64),
}

impl Entries {
    /// Entries above `floor`.
    fn above(log: &sled::Tree, floor: Option<u64>) -> Entries {
        let iter = log.range(log_key(floor.map_or(0, |floor| floor + 1), 0)..);
        Entries { iter, next: floor.map_or(Expected::Start, |floor| Expected::Index(floor + 1)) }
    }

    fn read(&mut self) -> Result<Option<LogRecord>, Damage> {
        let Some(first) = self.read_part()? else { return Ok(None) };
        let Part { index, term, parts, .. } = first;
        match self.next {
            Expected::Start if index > 1 => return Err(Damage::Gap { expected: 0, found: index }),
            Expected::Index(expected) if index != expected => return Err(Damage::Gap { expected, found: index }),
            _ => {}
        }
        if first.number != 0 {
            return Err(Damage::Part { index, expected: 0, found: first.number });
        }
        let payload = if parts <= 1 { first.payload } else { self.read_rest(first)? };
        self.next = Expected::Index(index + 1);
        Ok(Some(LogRecord { position: Position { term, index }, payload }))
    }

    fn read_rest(&mut self, first: Part) -> Result<Bytes, Damage> {
        let Part { index, term, parts, .. } = first;
        let mut payload = BytesMut::from(first.payload);
        for expected in 1..parts {
            let Some(part) = self.read_part()? else { return Err(Damage::Unfinished { index }) };
            if (part.index, part.number, part.term, part.parts) != (index, expected, term, parts) {
                return Err(Damage::Part { index, expected, found: part.number });
            }
            payload.extend_from_slice(&part.payload);
        }
        Ok(payload.freeze())
    }

    fn read_part(&mut self) -> Result<Option<Part>, Damage> {
        let Some(item) = self.iter.next() else { return Ok(None) };
        let (key, value) = item?;
        let Some((index, number)) = split_log_key(&key) else { return Err(Damage::Key(key.to_vec())) };
        let stored: LogPartV1 =
            record::unseal(RecordKind::LogPart, &key, &value).map_err(|error| Damage::Record { index, error })?;
        let payload = Bytes::copy_from_slice(stored.payload.0);
        Ok(Some(Part { index, number, term: stored.term, parts: stored.parts, payload }))
    }
}

impl Iterator for Entries {
    type Item = Result<LogRecord, Damage>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

/// Damage in the stored log.
#[derive(Debug, thiserror::Error)]
enum Damage {
    #[error("{0}")]
    Sled(#[from] sled::Error),
    #[error("invalid log key {0:02x?}: expected 12 bytes")]
    Key(Vec<u8>),
    #[error("log entry {index} is {error}")]
    Record { index: u64, error: RecordError },
    #[error("the log has a gap: entry {expected} is missing, the next entry is {found}")]
    Gap { expected: u64, found: u64 },
    #[error("log entry {index} has part {found}: expected part {expected}")]
    Part { index: u64, expected: u32, found: u32 },
    #[error("log entry {index} is the last one and is incomplete")]
    Unfinished { index: u64 },
}
