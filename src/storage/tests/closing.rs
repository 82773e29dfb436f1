//! Open and close, and the files on the disk.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::*;

#[test]
fn closed_store_reopens_at_once() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..20 {
        let storage = open(dir.path());
        wait(|done| storage.append(entries(1, round..round + 1, 5_000), done)).unwrap();
        let clone = storage.clone();
        // close writes all queued data and then fails every call of the clones.
        clone.save_vote(vote(round), Box::new(drop));
        storage.close();
        assert_eq!(wait(|done| clone.save_vote(vote(99), done)), Err(StorageError::Closed));
        assert_eq!(clone.read_log(0, 1, 1), Err(StorageError::Closed));
    }
    let storage = open(dir.path());
    assert_eq!((whole_log(&storage), storage.vote()), (entries(1, 0..20, 5_000), Some(vote(19))));
}

/// A program can keep a node that has stopped, and with it the store.
#[cfg(target_os = "linux")]
#[test]
fn closed_store_keeps_no_segment_open() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().canonicalize().unwrap().join("log");
    let open_segments = || {
        let links = fs::read_dir("/proc/self/fd").unwrap().filter_map(|file| fs::read_link(file.ok()?.path()).ok());
        links.filter(|link| link.starts_with(&log)).count()
    };
    let storage = open(dir.path());
    wait(|done| storage.append(entries(1, 0..200, 100_000), done)).unwrap();
    assert!(open_segments() >= 4, "control: {}", open_segments());
    storage.close();
    assert_eq!(open_segments(), 0);
    drop(storage);
}

#[test]
fn last_clone_closes_the_store_on_drop() {
    let dir = tempfile::tempdir().unwrap();
    let storage = open(dir.path());
    storage.append(entries(1, 0..100, 1_000), Box::new(drop));
    drop(storage.clone());
    drop(storage);
    assert_eq!(whole_log(&open(dir.path())), entries(1, 0..100, 1_000));
}

/// Two tasks of a program close the store, and each of them opens the directory afterwards.
#[test]
fn each_close_returns_after_the_release() {
    const LONG: Duration = Duration::from_secs(30);
    let dir = tempfile::tempdir().unwrap();
    let storage = open(dir.path());
    let ((resume, resumed), (tell, closed)) = (mpsc::channel::<()>(), mpsc::channel());
    storage.save_vote(vote(1), Box::new(move |_| resumed.recv_timeout(LONG).expect("the test resumes the thread")));
    let closing = [storage.clone(), storage].map(|storage| {
        let tell = tell.clone();
        std::thread::spawn(move || {
            storage.close();
            tell.send(()).unwrap();
        })
    });
    let early = closed.recv_timeout(Duration::from_millis(500));
    assert_eq!(early, Err(mpsc::RecvTimeoutError::Timeout), "a callback still runs on the storage thread");
    resume.send(()).unwrap();
    closed.recv_timeout(LONG).unwrap();
    assert_eq!(open(dir.path()).vote(), Some(vote(1)));
    closing.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn last_clone_may_be_dropped_in_a_callback() {
    let dir = tempfile::tempdir().unwrap();
    let storage = open(dir.path());
    let (tell, told) = mpsc::channel();
    let inside = storage.clone();
    let done = move |result| {
        drop(inside);
        tell.send(result).unwrap();
    };
    storage.save_vote(vote(1), Box::new(done));
    drop(storage);
    told.recv().unwrap().unwrap();
    // No handle joins the storage thread now: it releases the directory a moment later.
    let reopened = (0..5_000).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        DiskStorage::open(dir.path(), identity()).ok()
    });
    assert_eq!(reopened.expect("released within seconds").vote(), Some(vote(1)));
}

#[test]
fn open_reports_only_the_first_start_as_new() {
    let dir = tempfile::tempdir().unwrap();
    let node = dir.path().join("several/missing/directories");
    assert!(DiskStorage::open_or_create(&node, identity()).unwrap().is_new);
    assert!(!DiskStorage::open_or_create(&node, identity()).unwrap().is_new);
    assert_eq!(fs::metadata(&node).unwrap().permissions().mode() & 0o777, 0o700);
}

/// The second process is this test's executable.
#[test]
fn second_process_is_refused() {
    const DIR: &str = "TENURE_TEST_SECOND_PROCESS_DIR";
    if let Some(dir) = std::env::var_os(DIR) {
        println!("error of the second process: {}", refusal(Path::new(&dir)));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let _storage = open(dir.path());
    let mut second = Command::new(std::env::current_exe().unwrap());
    second.args(["--exact", "storage::tests::closing::second_process_is_refused", "--nocapture"]);
    let output = second.env(DIR, dir.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let expected = format!(
        "error of the second process: data directory {} is in use by another process: stop that process, or give this \
         node another directory",
        dir.path().display()
    );
    assert!(output.status.success() && text.contains(&expected), "{text}");
}

#[test]
fn values_never_become_separate_files() {
    let dir = tempfile::tempdir().unwrap();
    let storage = open(dir.path());
    for round in 0..12u64 {
        let first = round * 500;
        let written = (first..first + 500).map(|index| entry(1, index, if index % 100 == 0 { 600_000 } else { 3_000 }));
        wait(|done| storage.append(written.collect(), done)).unwrap();
        wait(|done| storage.save_vote(vote(round), done)).unwrap();
        write_snapshot(&storage, 3 << 20, round as u8);
        wait(|done| storage.purge(at(1, first + 200), done)).unwrap();
    }
    let expected = whole_log(&storage);
    assert_eq!(expected.len(), 6_000 - (11 * 500 + 201));
    storage.close();
    let storage = open(dir.path());
    assert_eq!(whole_log(&storage), expected);
    assert_eq!(fs::read_dir(dir.path().join("store/blobs")).unwrap().count(), 0);
}

#[test]
fn entries_outside_the_tail_are_read_from_disk() {
    let dir = tempfile::tempdir().unwrap();
    let storage = open(dir.path());
    let written = entries(1, 0..400, 100_000);
    for part in written.chunks(50) {
        wait(|done| storage.append(part.to_vec(), done)).unwrap();
    }
    assert_eq!(storage.read_log(0, 400, 250_000).unwrap(), written[..2]);
    assert_eq!(whole_log(&storage), written);
    // The tail does not hold the new last entry: its term comes from the disk.
    wait(|done| storage.truncate_after(Some(10), done)).unwrap();
    assert_eq!(storage.log_bounds().1, Some(at(1, 10)));
    assert_eq!(whole_log(&storage), written[..11]);
}

#[test]
fn async_writer_stores_a_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let storage = open(dir.path());
    let content: Vec<u8> = (0..3_000_000u32).map(|i| (i / 7) as u8).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let write = async {
        let mut writer = storage.begin_snapshot().unwrap();
        for piece in content.chunks(100_000) {
            writer.write(piece).await.unwrap();
        }
        assert_eq!((writer.bytes(), writer.crc()), (content.len() as u64, crc32fast::hash(&content)));
        writer.finish_blocking(b"meta".to_vec()).unwrap()
    };
    let limited = async { tokio::time::timeout(Duration::from_secs(30), write).await };
    let manifest = runtime.block_on(limited).expect("each written chunk wakes the writer");
    assert_eq!(storage.snapshot(), Some(manifest.clone()));
    assert_eq!(read_snapshot(&storage, manifest.id).unwrap(), content);
    assert_eq!(storage.committing_for().filter(|busy| busy.as_secs() > 5), None);
}

#[test]
fn oversized_snapshot_meta_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let storage = open(dir.path());
    let writer = storage.begin_snapshot().unwrap();
    let error = writer.finish_blocking(vec![0; 20_000]).unwrap_err();
    assert_eq!(error.to_string(), "the meta of a snapshot has 20000 bytes: at most 16384 are allowed");
    wait(|done| storage.save_vote(vote(1), done)).expect("the store stays usable");
}

#[test]
fn replaced_snapshots_leave_the_disk_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let storage = open(dir.path());
    (0..3).for_each(|seed| drop(write_snapshot(&storage, 200_000, seed)));
    // close may interrupt the removal. The next open continues it, a part with every commit.
    storage.close();
    let storage = open(dir.path());
    (0..100).for_each(|term| wait(|done| storage.save_vote(vote(term), done)).unwrap());
    storage.close();
    assert_eq!(stored_records(dir.path(), "snap"), 49);
}

#[test]
fn purged_segments_are_used_again_and_leave_the_disk() {
    const ROUND: u64 = 400;
    let dir = tempfile::tempdir().unwrap();
    let segments = || fs::read_dir(dir.path().join("log")).unwrap().count();
    let storage = open(dir.path());
    // 40 MB in ten segments, all purged at once.
    wait(|done| storage.append(entries(1, 0..ROUND, 100_000), done)).unwrap();
    assert!(segments() >= 10, "{} segments", segments());
    wait(|done| storage.purge(at(1, ROUND - 1), done)).unwrap();
    wait(|done| storage.save_vote(vote(1), done)).unwrap();
    assert!(segments() <= 6, "{} segments", segments());
    // A log that is purged in time needs no new file.
    for round in 1..5 {
        for first in (0..ROUND).step_by(40).map(|first| round * ROUND + first) {
            wait(|done| storage.append(entries(1, first..first + 40, 100_000), done)).unwrap();
            wait(|done| storage.purge(at(1, first + 38), done)).unwrap();
        }
        assert!(segments() <= 6, "{} segments", segments());
    }
    storage.close();
    let storage = open(dir.path());
    assert_eq!(whole_log(&storage), entries(1, 5 * ROUND - 1..5 * ROUND, 100_000));
}

#[test]
fn entry_above_the_size_of_a_segment_is_refused() {
    const MAX: usize = (4 << 20) - (4 << 10);
    let dir = tempfile::tempdir().unwrap();
    let storage = open(dir.path());
    let refused = wait(|done| storage.append(entries(1, 0..1, MAX + 1), done)).unwrap_err();
    assert_eq!(refused.to_string(), "log entry 0 has 4190209 bytes: at most 4190208 are allowed");
    storage.save_committed(Some(at(1, 0)));
    wait(|done| storage.append(entries(1, 0..2, MAX), done)).unwrap();
    storage.close();
    assert_eq!(whole_log(&open(dir.path())), entries(1, 0..2, MAX));
}

/// The number of records in a tree of a closed store.
fn stored_records(dir: &Path, tree: &str) -> usize {
    let db = sled::Config::new().path(dir.join("store")).segment_size(8 << 20).open().unwrap();
    db.open_tree(tree).unwrap().len()
}

/// Some crashes come before the only complete snapshot, some after it, and some nodes have none.
#[test]
fn snapshots_that_crashes_interrupted_leave_the_disk() {
    for complete in [None, Some(0), Some(1), Some(2)] {
        let dir = tempfile::tempdir().unwrap();
        for crash in 0..3 {
            let storage = open(dir.path());
            if complete == Some(crash) {
                write_snapshot(&storage, 200_000, 1);
            }
            let mut interrupted = storage.begin_snapshot().unwrap();
            interrupted.push(&[7; 200_000]).unwrap();
            wait(|done| storage.save_vote(vote(crash), done)).unwrap();
            // A crash does not drop the writer, which would remove its chunks.
            std::mem::forget(interrupted);
            storage.close();
            assert!(stored_records(dir.path(), "snap") >= 48, "the chunks of crash {crash} are on the disk");
        }
        let storage = open(dir.path());
        (0..100).for_each(|term| wait(|done| storage.save_vote(vote(term), done)).unwrap());
        storage.close();
        let expected = if complete.is_some() { 49 } else { 0 };
        assert_eq!(stored_records(dir.path(), "snap"), expected, "complete snapshot before crash {complete:?}");
    }
}

/// The store does not restart in between.
#[test]
fn replaced_snapshot_leaves_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let storage = open(dir.path());
    (0..3).for_each(|seed| drop(write_snapshot(&storage, 200_000, seed)));
    (0..100).for_each(|term| wait(|done| storage.save_vote(vote(term), done)).unwrap());
    storage.close();
    assert_eq!(stored_records(dir.path(), "snap"), 49, "the chunks of one snapshot");
}

/// The store does not restart in between.
#[test]
fn failed_snapshots_leave_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let storage = open(dir.path());
    let written = || {
        let mut writer = storage.begin_snapshot().unwrap();
        writer.push(&[7; 200_000]).unwrap();
        writer
    };
    drop(written());
    written().finish_blocking(vec![0; 20_000]).expect_err("the meta is too long");
    let id = storage.begin_snapshot().unwrap().id() + 1;
    wait(|done| storage.write_snapshot_chunk(id, 0, Bytes::from_static(b"chunk"), done)).unwrap();
    let manifest = crate::storage::SnapshotManifest { id, meta: vec![], chunks: 2, bytes: 5, crc: 0 };
    wait(|done| storage.finish_snapshot(manifest, done)).expect_err("a chunk is missing");
    (0..100).for_each(|term| wait(|done| storage.save_vote(vote(term), done)).unwrap());
    storage.close();
    assert_eq!(stored_records(dir.path(), "snap"), 0);
}

#[test]
fn reader_sees_no_gap_while_the_log_moves() {
    let dir = tempfile::tempdir().unwrap();
    let storage = open(dir.path());
    let (reader, reads) = (storage.clone(), Arc::new(AtomicU64::new(0)));
    let counted = reads.clone();
    let reading = std::thread::spawn(move || {
        loop {
            let (floor, last) = reader.log_bounds();
            let from = floor.map_or(0, |floor| floor.index + 1);
            match reader.read_log(from, last.map_or(0, |last| last.index + 1), 1 << 20) {
                Ok(found) => assert!(found.windows(2).all(|pair| pair[0].position.index + 1 == pair[1].position.index)),
                Err(StorageError::Purged { .. }) => {}
                Err(StorageError::Closed) => return,
                Err(error) => panic!("{error}"),
            }
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    let mut next = 0;
    for round in 1.. {
        // On a busy machine, the reader needs more rounds.
        if round >= 60 && (reads.load(Ordering::SeqCst) > 10 || reading.is_finished()) {
            break;
        }
        storage.append(entries(round, next..next + 100, 20_000), Box::new(drop));
        storage.truncate_after(Some(next + 79), Box::new(drop));
        next += 80;
        if round % 5 == 0 {
            wait(|done| storage.purge(at(round, next - 100), done)).unwrap();
        }
    }
    wait(|done| storage.save_vote(vote(1), done)).unwrap();
    storage.close();
    reading.join().unwrap();
    assert!(reads.load(Ordering::SeqCst) > 10);
}

/// A sender reads the snapshot while the storage thread removes it.
#[test]
fn reader_of_a_snapshot_learns_its_replacement() {
    let dir = tempfile::tempdir().unwrap();
    let storage = open(dir.path());
    write_snapshot(&storage, 200_000, 0);
    let (reader, reads) = (storage.clone(), Arc::new(AtomicU64::new(0)));
    let counted = reads.clone();
    let reading = std::thread::spawn(move || {
        loop {
            let manifest = reader.snapshot().expect("the store has a snapshot");
            for number in 0..manifest.chunks {
                match reader.read_snapshot(manifest.id, number) {
                    Ok(_) => {}
                    Err(StorageError::SnapshotReplaced { .. }) => break,
                    Err(StorageError::Closed) => return,
                    Err(error) => panic!("{error}"),
                }
            }
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    for round in 1.. {
        // On a busy machine, the reader needs more rounds.
        if round >= 30 && (reads.load(Ordering::SeqCst) > 10 || reading.is_finished()) {
            break;
        }
        write_snapshot(&storage, 200_000, round as u8);
    }
    storage.close();
    reading.join().unwrap();
    assert!(reads.load(Ordering::SeqCst) > 10);
}

/// The summary of the recorder keeps only the last groups, so the test reads it after each phase.
#[cfg(feature = "cli")]
#[test]
fn group_has_at_most_128_kib() {
    const BOUND: f64 = (128 << 10) as f64;
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let render = recorder.handle();
    let dir = tempfile::tempdir().unwrap();
    let storage = metrics::with_local_recorder(&recorder, || open(dir.path()));
    let largest = || -> f64 {
        let text = render.render();
        let largest = text.lines().find_map(|line| line.strip_prefix("tenure_storage_group_bytes{quantile=\"1\"} "));
        largest.unwrap_or_else(|| panic!("no largest group in:\n{text}")).parse().expect("a number")
    };
    // The summary rounds its values.
    let bound = BOUND * 1.01;
    wait(|done| storage.append(entries(1, 0..1_000, 3_000), done)).unwrap();
    let of_one_append = largest();
    assert!((BOUND / 2.0..bound).contains(&of_one_append), "{of_one_append}");
    for index in 1_000..1_500 {
        storage.append(entries(1, index..index + 1, 3_000), Box::new(drop));
    }
    wait(|done| storage.append(entries(1, 1_500..1_501, 3_000), done)).unwrap();
    let of_many = largest();
    assert!((3_000.0..bound).contains(&of_many), "{of_many}");
    write_snapshot(&storage, 1 << 20, 1);
    let of_chunks = largest();
    assert!((4_000.0..bound).contains(&of_chunks), "{of_chunks}");
    storage.close();
}

#[cfg(feature = "cli")]
#[test]
fn metrics_count_each_group_and_its_entries() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let render = recorder.handle();
    let dir = tempfile::tempdir().unwrap();
    let storage = metrics::with_local_recorder(&recorder, || open(dir.path()));
    for index in 0..3 {
        wait(|done| storage.append(entries(1, 2 * index..2 * index + 2, 1_000), done)).unwrap();
    }
    storage.close();
    let text = render.render();
    let value = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in:\n{text}")).parse().expect("a number")
    };
    assert_eq!(value("tenure_storage_groups_total"), 3.0);
    for summary in ["group_entries", "group_bytes", "sync_seconds"] {
        assert_eq!(value(&format!("tenure_storage_{summary}_count")), 3.0, "{summary}");
    }
    assert_eq!(value("tenure_storage_group_entries_sum"), 6.0);
    let written = value("tenure_storage_written_bytes_total");
    assert!((6_000.0..12_000.0).contains(&written), "{written}");
    assert_eq!(value("tenure_storage_group_bytes_sum"), written);
}

/// A small entry adds fewer bytes than the bound on a group, so only the bound on its entries ends the group.
#[cfg(feature = "cli")]
#[test]
fn group_has_at_most_1024_entries() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let render = recorder.handle();
    let dir = tempfile::tempdir().unwrap();
    let storage = metrics::with_local_recorder(&recorder, || open(dir.path()));
    wait(|done| storage.append(entries(1, 0..5_000, 10), done)).unwrap();
    storage.close();
    let text = render.render();
    let largest = text.lines().find_map(|line| line.strip_prefix("tenure_storage_group_entries{quantile=\"1\"} "));
    let largest: f64 = largest.unwrap_or_else(|| panic!("no largest group in:\n{text}")).parse().expect("a number");
    // The summary rounds its values.
    assert!((1_000.0..1_035.0).contains(&largest), "{largest}");
}

/// A node fails if one commit takes too long.
#[test]
fn age_of_a_commit_is_known_only_while_it_runs() {
    let dir = tempfile::tempdir().unwrap();
    let storage = open(dir.path());
    assert_eq!(storage.committing_for(), None);
    wait(|done| storage.save_vote(vote(1), done)).unwrap();
    assert_eq!(storage.committing_for(), None, "the first commit is finished");
    let mut ages = Vec::new();
    // On a busy machine, this thread may not run during a commit.
    let mut first = 0;
    while ages.is_empty() && first < 4_000 {
        let (done, durable) = mpsc::channel();
        storage.append(entries(1, first..first + 400, 100_000), Box::new(move |result| drop(done.send(result))));
        let appended = loop {
            match durable.recv_timeout(Duration::from_micros(100)) {
                Err(mpsc::RecvTimeoutError::Timeout) => ages.extend(storage.committing_for()),
                appended => break appended,
            }
        };
        appended.expect("the store runs every callback").unwrap();
        first += 400;
    }
    assert!(!ages.is_empty(), "no age during a commit");
    wait(|done| storage.save_vote(vote(2), done)).unwrap();
    assert_eq!(storage.committing_for(), None, "all commits are finished");
}
