//! Tests of the store.

mod closing;
mod contract;
mod refusals;

use std::path::Path;
use std::sync::mpsc;

use bytes::Bytes;

use super::{DiskStorage, Done, Identity, LogRecord, Position, Storage, StorageError, VoteRecord};

fn identity() -> Identity {
    Identity { cluster: "test".to_string(), node: 1 }
}

fn open(dir: &Path) -> DiskStorage {
    DiskStorage::open(dir, identity()).unwrap_or_else(|error| panic!("{error}"))
}

fn refusal(dir: &Path) -> StorageError {
    match DiskStorage::open(dir, identity()) {
        Ok(_) => panic!("{} was opened", dir.display()),
        Err(error) => error,
    }
}

fn at(term: u64, index: u64) -> Position {
    Position { term, index }
}

/// An entry with a payload that depends on its position.
fn entry(term: u64, index: u64, bytes: usize) -> LogRecord {
    let payload: Vec<u8> = (0..bytes as u64).map(|i| (term * 31 + index * 7 + i / 3) as u8).collect();
    LogRecord { position: at(term, index), payload: Bytes::from(payload) }
}

fn entries(term: u64, indices: std::ops::Range<u64>, bytes: usize) -> Vec<LogRecord> {
    indices.map(|index| entry(term, index, bytes)).collect()
}

fn vote(term: u64) -> VoteRecord {
    VoteRecord { term, candidate: Some(1), committed: false }
}

/// Writes and waits until the write is durable or has failed.
fn wait(write: impl FnOnce(Done)) -> Result<(), StorageError> {
    let (done, durable) = mpsc::channel();
    write(Box::new(move |result| drop(done.send(result))));
    durable.recv().expect("the store runs every callback")
}

fn whole_log(storage: &impl Storage) -> Vec<LogRecord> {
    let (floor, last) = storage.log_bounds();
    let to = last.map_or(0, |last| last.index + 1);
    storage.read_log(floor.map_or(0, |floor| floor.index + 1), to, usize::MAX).unwrap()
}

/// Writes a durable snapshot of `bytes` bytes. Returns its id and content.
fn write_snapshot(storage: &impl Storage, bytes: usize, seed: u8) -> (u64, Vec<u8>) {
    let content: Vec<u8> = (0..bytes).map(|i| (i / 5) as u8 ^ seed).collect();
    let mut writer = storage.begin_snapshot().unwrap();
    content.chunks(10_007).for_each(|piece| writer.push(piece).unwrap());
    let manifest = writer.finish_blocking(vec![seed]).unwrap();
    (manifest.id, content)
}

fn read_snapshot(storage: &impl Storage, id: u64) -> Result<Vec<u8>, StorageError> {
    let chunks = storage.snapshot().map_or(0, |manifest| manifest.chunks);
    let chunks = (0..chunks).map(|number| storage.read_snapshot(id, number)).collect::<Result<Vec<_>, _>>()?;
    Ok(chunks.concat())
}
