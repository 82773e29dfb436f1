//! The state that callers see: the store with all queued writes applied.

use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;

use super::tail::Tail;
use crate::storage::{Done, LogRecord, Position, Recovered, SnapshotManifest, StorageError, VoteRecord};

/// One queued write.
pub(super) enum WriteOp {
    /// `first_seq` is the tail's sequence number of the first entry.
    Append {
        records: Vec<LogRecord>,
        first_seq: u64,
        done: Done,
    },
    Truncate {
        after: Option<u64>,
        done: Done,
    },
    Purge {
        upto: Position,
        done: Done,
    },
    Vote {
        vote: VoteRecord,
        done: Done,
    },
    Chunk {
        id: u64,
        number: u64,
        bytes: Bytes,
        done: Done,
    },
    Finish {
        manifest: SnapshotManifest,
        done: Done,
    },
    Abandon {
        id: u64,
    },
}

/// The state behind the lock that callers and the storage thread share. No holder of the lock does disk I/O.
#[derive(Default)]
pub(super) struct QueuedState {
    pub queue: VecDeque<WriteOp>,
    pub tail: Tail,
    pub floor: Option<Position>,
    pub last: Option<Position>,
    pub vote: Option<VoteRecord>,
    /// A committed position for the next group.
    pub committed: Option<Option<Position>>,
    /// The newest durable snapshot.
    pub snapshot: Option<SnapshotManifest>,
    pub next_snapshot_id: u64,
    /// The number of truncates. A reader without the lock compares it to detect a concurrent truncate.
    pub truncations: u64,
    pub failure: Option<StorageError>,
    pub closing: bool,
    /// Whether the storage thread waits for a wake-up.
    pub idle: bool,
    /// The start of the running commit.
    pub committing_since: Option<Instant>,
}

impl WriteOp {
    /// The callback of the write.
    pub fn into_done(self) -> Option<Done> {
        match self {
            WriteOp::Append { done, .. }
            | WriteOp::Truncate { done, .. }
            | WriteOp::Purge { done, .. }
            | WriteOp::Vote { done, .. }
            | WriteOp::Chunk { done, .. }
            | WriteOp::Finish { done, .. } => Some(done),
            WriteOp::Abandon { .. } => None,
        }
    }

    /// The payload bytes that count towards the group limit, for operations that are never split.
    pub fn bytes(&self) -> usize {
        match self {
            WriteOp::Chunk { bytes, .. } => bytes.len(),
            _ => 0,
        }
    }
}

impl QueuedState {
    pub fn new(recovered: &Recovered, tail: Tail, next_snapshot_id: u64) -> QueuedState {
        QueuedState {
            tail,
            floor: recovered.purged,
            last: recovered.last,
            vote: recovered.vote,
            snapshot: recovered.snapshot.clone(),
            next_snapshot_id,
            ..QueuedState::default()
        }
    }

    /// Fails if the store is poisoned or closing.
    pub fn check(&self) -> Result<(), StorageError> {
        match &self.failure {
            Some(failure) => Err(failure.clone()),
            None if self.closing => Err(StorageError::Closed),
            None => Ok(()),
        }
    }

    /// Appends entries to the tail. Returns the sequence number of the first.
    pub fn append(&mut self, records: &[LogRecord]) -> Result<u64, StorageError> {
        check_contiguous(self.last, records)?;
        let first_seq = self.tail.newest_seq() + 1;
        for record in records {
            self.tail.push(record.clone());
            self.last = Some(record.position);
        }
        Ok(first_seq)
    }

    /// Removes the end of the log. `at` is the position of the entry that becomes the last one.
    pub fn truncate(&mut self, at: Option<Position>) {
        self.tail.truncate_after(at.map(|at| at.index));
        self.last = at.or(self.floor);
        self.truncations += 1;
    }

    pub fn purge(&mut self, upto: Position) {
        self.tail.purge(upto.index);
        self.floor = self.floor.max(Some(upto));
        if self.last.is_none_or(|last| last.index <= upto.index) {
            self.last = self.floor;
        }
    }
}

/// Checks that `records` are contiguous and that the first one follows `last`.
pub(crate) fn check_contiguous(last: Option<Position>, records: &[LogRecord]) -> Result<(), StorageError> {
    let first = match (last, records.first()) {
        (Some(last), _) => last.index + 1,
        (None, first) => first.map_or(0, |first| first.position.index.min(1)),
    };
    match (first..).zip(records).find(|(expected, record)| record.position.index != *expected) {
        Some((expected, record)) => Err(StorageError::NotContiguous { expected, found: record.position.index }),
        None => Ok(()),
    }
}
