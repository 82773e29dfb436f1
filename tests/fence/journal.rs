//! A gate with marks in a file. `tests/powercut` tests its file after power failures.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::getuid;
use tenure::fence::{Gate, OpenError, Refused};

use crate::token::token;

#[test]
fn marks_survive_reopening() {
    let folder = tempfile::tempdir().expect("create a directory");
    let path = folder.path().join("marks");
    let gate = Gate::open(&path).expect("a new file");
    gate.admit_blocking("a", token(7), || ()).expect("the first");
    gate.admit_blocking("b", token(3), || ()).expect("the first");
    drop(gate);
    let gate = Gate::open(&path).expect("the same file");
    assert!(
        matches!(gate.admit_blocking("a", token(6), || ()), Err(Refused::Stale(stale)) if stale.highest == token(7))
    );
    gate.admit_blocking("a", token(7), || ()).expect("equal");
    gate.admit_blocking("b", token(4), || ()).expect("higher");
}

#[test]
fn second_gate_on_the_same_file_is_refused() {
    let folder = tempfile::tempdir().expect("create a directory");
    let path = folder.path().join("marks");
    let gate = Gate::open(&path).expect("a new file");
    let error = Gate::open(&path).expect_err("the file is in use");
    assert!(matches!(error, OpenError::InUse { .. }));
    assert!(error.to_string().contains("is in use by another gate"), "{error}");
    // The last clone or admission releases the lock.
    let inside = gate.enter_blocking("a", token(1)).expect("the first");
    drop(gate);
    assert!(Gate::open(&path).is_err());
    drop(inside);
    Gate::open(&path).expect("the file is not locked");
}

#[test]
fn link_to_a_file_opens_that_file() {
    let folder = tempfile::tempdir().expect("create a directory");
    let (file, link) = (folder.path().join("data/marks"), folder.path().join("marks"));
    fs::create_dir(folder.path().join("data")).expect("create a directory");
    symlink(&file, &link).expect("create a link");
    assert!(Gate::open(&link).is_err(), "the data may be on a disk that is not mounted");
    drop(Gate::open(&file).expect("a new file"));
    let gate = Gate::open(&link).expect("the file of the link");
    assert!(matches!(Gate::open(&file), Err(OpenError::InUse { .. })), "the link leads to the same file");
    gate.admit_blocking("a", token(7), || ()).expect("the first");
    drop(gate);
    assert!(fs::symlink_metadata(&link).expect("the link exists").is_symlink());
    assert_eq!(Gate::open(&file).expect("the same file").highest("a").token(), token(7));
}

/// Another process has the lock, and writes a mark before it ends. The read of a pipe without a writer blocks.
#[test]
fn marks_are_not_read_before_the_lock() {
    let folder = tempfile::tempdir().expect("create a directory");
    let path = folder.path().join("marks");
    assert!(Command::new("mkfifo").arg(&path).status().expect("run mkfifo").success());
    let lock = File::create(folder.path().join("marks.lock")).expect("create the file of the lock");
    lock.lock().expect("lock the file");
    let (opened, ended) = mpsc::channel();
    std::thread::spawn(move || opened.send(Gate::open(&path).map(drop)));
    let opened = ended.recv_timeout(Duration::from_secs(20)).expect("the gate reads before it has the lock");
    assert!(matches!(opened, Err(OpenError::InUse { .. })), "{opened:?}");
}

/// A gate that started without marks here would admit old holders.
#[test]
fn unreadable_file_is_refused_and_not_replaced() {
    let folder = tempfile::tempdir().expect("create a directory");
    let path = folder.path().join("marks");
    symlink(&path, &path).expect("create a link to itself, which is unreadable");
    let error = Gate::open(&path).expect_err("the file is unreadable");
    assert!(error.to_string().starts_with("cannot read"), "{error}");
    assert!(fs::symlink_metadata(&path).expect("the link exists").is_symlink());
}

#[test]
fn torn_record_is_dropped_and_other_damage_is_refused() {
    let folder = tempfile::tempdir().expect("create a directory");
    let path = folder.path().join("marks");
    let gate = Gate::open(&path).expect("a new file");
    gate.admit_blocking("a", token(1), || ()).expect("the first");
    let acknowledged = fs::read(&path).expect("read the file");
    gate.admit_blocking("a", token(2), || ()).expect("higher");
    drop(gate);
    let whole = fs::read(&path).expect("read the file");
    for cut in acknowledged.len()..whole.len() {
        fs::write(&path, &whole[..cut]).expect("write the file");
        let gate = Gate::open(&path).unwrap_or_else(|error| panic!("cut to {cut} bytes: {error}"));
        assert_eq!(gate.highest("a").token(), token(1));
    }
    let mut flipped = whole;
    flipped[20] ^= 1;
    fs::write(&path, &flipped).expect("write the file");
    let error = Gate::open(&path).expect_err("the file is damaged").to_string();
    assert!(error.contains("is damaged: the record at byte 16 is invalid"), "{error}");
    fs::write(&path, "").expect("write the file");
    assert!(matches!(Gate::open(&path), Err(OpenError::Damaged { .. })), "an empty file is not a new file");
}

#[test]
fn missing_directory_is_refused() {
    let folder = tempfile::tempdir().expect("create a directory");
    let error = Gate::open(folder.path().join("missing/marks")).expect_err("the directory does not exist").to_string();
    assert!(error.starts_with("cannot open") && error.contains("missing/marks.lock"), "{error}");
}

/// Regression test: between `fork` and `exec`, a child process shares all open files, including their locks.
#[test]
fn starting_child_process_does_not_keep_the_lock() {
    let folder = tempfile::tempdir().expect("create a directory");
    let path = folder.path().join("marks");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    // With these settings, the standard library uses `fork` and `exec` instead of `posix_spawn`.
                    let child = Command::new("true").current_dir("/").process_group(0).uid(getuid().as_raw()).status();
                    child.expect("run true");
                }
            });
        }
        let opened = (0..300).map(|_| Gate::open(&path).map(drop)).find(Result::is_err);
        done.store(true, Ordering::Relaxed);
        assert!(opened.is_none(), "{opened:?}");
    });
}
