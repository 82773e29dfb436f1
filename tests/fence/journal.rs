//! The gate with marks in a file. What a power cut leaves of it is in `tests/powercut`.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::getuid;
use tenure::fence::{Gate, OpenError, Refused};

use crate::token::token;

#[test]
fn marks_outlive_the_gate() {
    let folder = tempfile::tempdir().expect("a folder");
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
fn a_second_gate_on_the_file_is_refused_and_says_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("marks");
    let gate = Gate::open(&path).expect("a new file");
    let error = Gate::open(&path).expect_err("it is in use");
    assert!(matches!(error, OpenError::InUse { .. }));
    assert!(error.to_string().contains("is in use by another gate"), "{error}");
    // The lock goes with the last clone, admissions included.
    let inside = gate.enter_blocking("a", token(1)).expect("the first");
    drop(gate);
    assert!(Gate::open(&path).is_err());
    drop(inside);
    Gate::open(&path).expect("it is free");
}

/// A gate that began anew here would let old holders in.
#[test]
fn file_that_cannot_be_read_is_refused_and_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("marks");
    std::os::unix::fs::symlink(&path, &path).expect("a link to itself, which nothing can read");
    let error = Gate::open(&path).expect_err("it cannot be read");
    assert!(error.to_string().starts_with("could not read"), "{error}");
    assert!(fs::symlink_metadata(&path).expect("it is there").is_symlink());
}

#[test]
fn a_torn_end_is_dropped_and_damage_before_it_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("marks");
    let gate = Gate::open(&path).expect("a new file");
    gate.admit_blocking("a", token(1), || ()).expect("the first");
    let acknowledged = fs::read(&path).expect("it is there");
    gate.admit_blocking("a", token(2), || ()).expect("higher");
    drop(gate);
    let whole = fs::read(&path).expect("it is there");
    for cut in acknowledged.len()..whole.len() {
        fs::write(&path, &whole[..cut]).expect("it is ours");
        let gate = Gate::open(&path).unwrap_or_else(|error| panic!("cut to {cut} bytes: {error}"));
        assert_eq!(gate.highest("a").token(), token(1));
    }
    let mut flipped = whole;
    flipped[20] ^= 1;
    fs::write(&path, &flipped).expect("it is ours");
    let error = Gate::open(&path).expect_err("it is damaged").to_string();
    assert!(error.contains("is damaged: the record at byte 16 is broken"), "{error}");
    fs::write(&path, "").expect("it is ours");
    assert!(matches!(Gate::open(&path), Err(OpenError::Damaged { .. })), "an emptied file is not a new one");
}

#[test]
fn where_nothing_can_be_kept_nothing_is_opened() {
    let folder = tempfile::tempdir().expect("a folder");
    let error = Gate::open(folder.path().join("missing/marks")).expect_err("there is no such folder").to_string();
    assert!(error.starts_with("could not open") && error.contains("missing/marks.lock"), "{error}");
}

/// A regression: a child that is being started has a copy of every file until it runs its program, locks included.
#[test]
fn a_child_that_is_being_started_does_not_keep_the_file_locked() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("marks");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    // With something to do before the program, the child is a real fork.
                    let child = Command::new("true").current_dir("/").process_group(0).uid(getuid().as_raw()).status();
                    child.expect("true is there");
                }
            });
        }
        let opened = (0..300).map(|_| Gate::open(&path).map(drop)).find(Result::is_err);
        done.store(true, Ordering::Relaxed);
        assert!(opened.is_none(), "{opened:?}");
    });
}
