//! Disks that fail without a power cut: full, broken, read-only. Every acknowledged write is there after the disk works
//! again, and the error message advises the operator.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tenure::storage::{DiskStorage, Done, LogRecord, Position, Storage, StorageError, VoteRecord, measure_fsync};

use crate::recorder::{Faults, Recorder};
use crate::scratch;
use crate::workload::identity;

/// An upper bound of one write. Only a hang exceeds it.
const LONG: Duration = Duration::from_secs(30);

fn append(storage: &DiskStorage, index: u64, bytes: usize) -> Result<(), StorageError> {
    let record = LogRecord { position: Position { term: 1, index }, payload: Bytes::from(vec![index as u8; bytes]) };
    wait(|done| storage.append(vec![record], done))
}

fn wait(write: impl FnOnce(Done)) -> Result<(), StorageError> {
    let (done, durable) = mpsc::channel();
    write(Box::new(move |result| drop(done.send(result))));
    durable.recv_timeout(LONG).expect("the store runs every callback")
}

#[test]
fn full_disk_stops_the_store_and_loses_nothing() {
    let scratch = scratch();
    let recorder = Recorder::new(scratch.path(), []);
    let storage = DiskStorage::open(scratch.path(), identity()).unwrap();
    let mut failure = storage.failure();
    recorder.set_faults(Faults { space: Some(2 << 20), ..Faults::default() });
    let mut acknowledged = 0;
    let error = loop {
        match append(&storage, acknowledged, 9_000) {
            Ok(()) => acknowledged += 1,
            Err(error) => break error,
        }
    };
    assert!(acknowledged > 10, "{acknowledged}");
    let text = error.to_string();
    assert!(
        text.contains("free some space on that disk and start the node again; nothing acknowledged is lost"),
        "{text}"
    );
    assert!(text.contains(scratch.path().to_str().unwrap()), "{text}");

    // The store is poisoned: every call and the failure channel report the same error.
    assert_eq!(append(&storage, acknowledged + 1, 10), Err(error.clone()));
    assert_eq!(storage.read_log(0, 1, 1), Err(error.clone()));
    assert_eq!(storage.begin_snapshot().map(|_| ()), Err(error.clone()));
    assert_eq!(*failure.borrow_and_update(), Some(error));

    // While the disk is full, the store cannot open, and the error tells the cause.
    storage.close();
    recorder.set_faults(Faults { space: Some(0), ..Faults::default() });
    let text = DiskStorage::open(scratch.path(), identity()).map(|_| ()).unwrap_err().to_string();
    assert!(text.contains("free some space on that disk"), "{text}");

    recorder.set_faults(Faults::default());
    let storage = DiskStorage::open(scratch.path(), identity()).unwrap_or_else(|error| panic!("{error}"));
    let last = storage.recovered().last.map_or(0, |last| last.index + 1);
    assert!(last >= acknowledged, "{acknowledged} entries were acknowledged, but only {last} are there");
    let log = storage.read_log(0, last, usize::MAX).unwrap();
    assert!(log.iter().all(|record| record.payload == vec![record.position.index as u8; 9_000]));
}

#[test]
fn failed_sync_is_not_retried() {
    let scratch = scratch();
    let recorder = Recorder::new(scratch.path(), []);
    let storage = DiskStorage::open(scratch.path(), identity()).unwrap();
    append(&storage, 0, 100).unwrap();
    recorder.set_faults(Faults { broken_sync: true, ..Faults::default() });
    let before = recorder.data_syncs();
    let (tell, told) = mpsc::channel();
    for term in 1..=50 {
        let tell = tell.clone();
        let done = Box::new(move |result| drop(tell.send(result)));
        storage.save_vote(VoteRecord { term, candidate: None, committed: false }, done);
    }
    let result = || told.recv_timeout(LONG).expect("the store runs every callback");
    let results: Vec<Result<(), StorageError>> = std::iter::repeat_with(result).take(50).collect();
    let text = results[0].clone().unwrap_err().to_string();
    assert!(results.iter().all(|result| *result == results[0]), "every callback gets the same error");
    assert!(
        text.starts_with(&format!("could not sync {}", scratch.path().join("log/0000000000000001.log").display())),
        "{text}"
    );
    assert!(text.contains("check the disk and the system's log"), "{text}");
    assert_eq!(recorder.data_syncs(), before + 1);
    storage.close();
    assert_eq!(recorder.data_syncs(), before + 1);

    recorder.set_faults(Faults::default());
    let storage = DiskStorage::open(scratch.path(), identity()).unwrap();
    assert_eq!(storage.recovered().last, Some(Position { term: 1, index: 0 }));
}

#[test]
fn read_only_disk_is_refused() {
    let scratch = scratch();
    let recorder = Recorder::new(scratch.path(), []);
    recorder.set_faults(Faults { read_only: true, ..Faults::default() });
    let text = DiskStorage::open(scratch.path(), identity()).map(|_| ()).unwrap_err().to_string();
    let expected = format!("could not open {}: Read-only file system", scratch.path().join("LOCK").display());
    assert!(text.starts_with(&expected), "{text}");
    assert!(text.ends_with("mount it writable and start the node again; nothing acknowledged is lost"), "{text}");
    recorder.set_faults(Faults::default());
    DiskStorage::open(scratch.path(), identity()).unwrap();
}

/// A node fails if its disk hangs, also while the store removes old segments.
#[test]
fn removal_of_segments_counts_as_a_commit() {
    let scratch = scratch();
    let recorder = Recorder::new(scratch.path(), []);
    let storage = DiskStorage::open(scratch.path(), identity()).unwrap();
    for index in 0..8 {
        append(&storage, index, 3 << 20).unwrap();
    }
    recorder.set_faults(Faults { slow_unlink: Some(Duration::from_millis(500)), ..Faults::default() });
    wait(|done| storage.purge(Position { term: 1, index: 7 }, done)).unwrap();
    let begun = Instant::now();
    while storage.committing_for().is_none_or(|age| age < Duration::from_millis(300)) {
        assert!(begun.elapsed() < Duration::from_secs(5), "no age during the removal");
        std::thread::sleep(Duration::from_millis(1));
    }
    append(&storage, 8, 100).unwrap();
    assert_eq!(storage.committing_for(), None, "the removal is finished");
    storage.close();
}

#[test]
fn failed_measurement_leaves_no_file() {
    let scratch = scratch();
    let recorder = Recorder::new(scratch.path(), []);
    recorder.set_faults(Faults { broken_sync: true, ..Faults::default() });
    let text = measure_fsync(scratch.path(), 5, LONG).unwrap_err().to_string();
    assert!(text.starts_with("could not write and sync "), "{text}");
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
}
