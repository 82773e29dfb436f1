//! The operations of a run, and the states that a power cut may leave.
//!
//! The store writes in the order of the calls. So a cut leaves the state after some prefix of the operations: at least
//! the acknowledged ones, at most the submitted ones. A cut may split an append between two entries and a truncate
//! between two removals. Every other operation is atomic.

use std::collections::BTreeMap;
use std::fmt;

use tenure::storage::{DiskStorage, LogRecord, Position, SnapshotManifest, Storage, VoteRecord};

/// One write operation on the store.
#[derive(Clone, Debug)]
pub enum StoreOp {
    Append(Vec<LogRecord>),
    Truncate(Option<u64>),
    Purge(Position),
    Vote(VoteRecord),
    Snapshot(SnapshotManifest),
}

/// A committed position that the test saved after `ops` operations. No call waits for it.
#[derive(Clone, Copy, Debug)]
pub struct CommittedSave {
    pub ops: usize,
    pub position: Option<Position>,
}

/// Checks that a cut may leave the committed position `found`. `before` is the position at the start of the run. An
/// acknowledged operation that followed a saved position has made this position durable.
pub fn allows_committed(
    before: Option<Position>,
    committed_saves: &[CommittedSave],
    acknowledged: usize,
    found: Option<Position>,
) -> Result<(), String> {
    let durable = committed_saves.iter().rposition(|save| save.ops < acknowledged);
    let allowed = durable.is_none().then_some(before).into_iter();
    let mut allowed = allowed.chain(committed_saves[durable.unwrap_or(0)..].iter().map(|save| save.position));
    if allowed.any(|position| position == found) {
        return Ok(());
    }
    Err(format!(
        "found the committed position {found:?} after {acknowledged} acknowledged operations: saved {committed_saves:?}"
    ))
}

/// The contents of a store.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct View {
    pub floor: Option<Position>,
    pub log: BTreeMap<u64, LogRecord>,
    pub vote: Option<VoteRecord>,
    pub snapshot: Option<SnapshotManifest>,
}

impl View {
    /// Reads all contents of an open store. It is an error if a read fails or contradicts the store's bounds.
    pub fn read(storage: &DiskStorage) -> Result<View, String> {
        let (floor, last) = storage.log_bounds();
        let from = floor.map_or(0, |floor| floor.index + 1);
        let to = last.map_or(0, |last| last.index + 1);
        let log = storage.read_log(from, to.max(from), usize::MAX).map_err(|error| error.to_string())?;
        if log.last().map(|record| record.position).or(floor) != last {
            return Err(format!("the log ends at {:?}, not at {last:?}", log.last().map(|record| record.position)));
        }
        let snapshot = storage.snapshot();
        if let Some(manifest) = &snapshot {
            let mut crc = crc32fast::Hasher::new();
            for number in 0..manifest.chunks {
                crc.update(&storage.read_snapshot(manifest.id, number).map_err(|error| error.to_string())?);
            }
            if crc.finalize() != manifest.crc {
                return Err(format!("the bytes of snapshot {} do not match its manifest", manifest.id));
            }
        }
        let log = log.into_iter().map(|record| (record.position.index, record)).collect();
        Ok(View { floor, log, vote: storage.vote(), snapshot })
    }

    pub fn last(&self) -> Option<Position> {
        self.log.last_key_value().map(|(_, record)| record.position).or(self.floor)
    }

    pub fn apply(&mut self, op: &StoreOp) {
        self.apply_by_parts(op, |_| false);
    }

    /// Applies an operation in its smallest visible parts until `stop` returns true.
    fn apply_by_parts(&mut self, op: &StoreOp, mut stop: impl FnMut(&View) -> bool) -> bool {
        match op {
            StoreOp::Append(records) => records.iter().any(|record| {
                self.log.insert(record.position.index, record.clone());
                stop(self)
            }),
            StoreOp::Truncate(after) => loop {
                match self.log.last_key_value().map(|(index, _)| *index) {
                    Some(last) if after.is_none_or(|after| last > after) => self.log.remove(&last),
                    _ => break false,
                };
                if stop(self) {
                    break true;
                }
            },
            StoreOp::Purge(upto) => {
                self.floor = Some(*upto);
                self.log = self.log.split_off(&(upto.index + 1));
                stop(self)
            }
            StoreOp::Vote(vote) => {
                self.vote = Some(*vote);
                stop(self)
            }
            StoreOp::Snapshot(manifest) => {
                self.snapshot = Some(manifest.clone());
                stop(self)
            }
        }
    }

    /// Checks that a cut may leave `found` after `ops` on `self`, of which the first `acknowledged` must be there.
    pub fn allows(&self, ops: &[StoreOp], acknowledged: usize, found: &View) -> Result<(), String> {
        let (promised, possible) = ops.split_at(acknowledged);
        let mut view = self.clone();
        promised.iter().for_each(|op| view.apply(op));
        let least = view.clone();
        if *found == view || possible.iter().any(|op| view.apply_by_parts(op, |view| view == found)) {
            return Ok(());
        }
        Err(format!("found {found:?}: expected at least {least:?} and at most {view:?}"))
    }
}

/// Prints positions instead of payloads.
impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at =
            |position: Option<Position>| position.map_or("-".to_string(), |at| format!("{}/{}", at.term, at.index));
        let snapshot = self.snapshot.as_ref().map(|manifest| manifest.id);
        let vote = self.vote.map(|vote| vote.term);
        write!(f, "log {}..{} ({}), ", at(self.floor), at(self.last()), self.log.len())?;
        write!(f, "vote {vote:?}, snapshot {snapshot:?}")
    }
}
