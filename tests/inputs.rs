//! Everything that reads bytes from outside: the corpus that fuzzing has left, its examples, changed copies of both, and
//! chance. Needs no fuzzer; `scripts/fuzz` is what looks for new ones.
//!
//! `UPDATE_CORPUS=1` writes the examples into the corpus.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use peak_alloc::PeakAlloc;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};
use tenure::testing::inputs::{self, Input};

/// Most files of one input's corpus, and most bytes of all of them.
const MAX_FILES: usize = 100;
const MAX_CORPUS_BYTES: u64 = 1 << 20;
/// Random and changed inputs of each kind.
const CASES: u32 = 2_000;
/// What a check may have in memory at once: its runtime and router, and so much for each byte of its input.
const FIXED_BYTES: usize = 1 << 20;
const BYTES_PER_BYTE: usize = 256;

/// Memory is counted for the whole process, so the tests take turns.
static TURN: Mutex<()> = Mutex::new(());

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus")
}

fn files(input: &Input) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = corpus().join(input.name);
    let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = files.map(|file| file.expect("a readable folder").path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), fs::read(path).expect("a readable file"))).collect()
}

fn example_path(input: &Input, number: usize) -> PathBuf {
    corpus().join(input.name).join(format!("example-{number}"))
}

/// Feeds it, and says what was fed if the check panics.
fn feed(input: &Input, bytes: &[u8]) -> bool {
    let fed = std::panic::catch_unwind(|| (input.check)(bytes));
    fed.unwrap_or_else(|_| panic!("{} failed for {:?}: {bytes:?}", input.name, String::from_utf8_lossy(bytes)))
}

#[test]
fn every_example_is_accepted_and_is_in_the_corpus() {
    let _turn = turn();
    let update = std::env::var_os("UPDATE_CORPUS").is_some();
    for input in inputs::all() {
        for (number, example) in (input.examples)().into_iter().enumerate() {
            assert!(
                feed(&input, &example),
                "{} refuses its example {:?}",
                input.name,
                String::from_utf8_lossy(&example)
            );
            assert!(example.len() <= input.max_bytes, "{} bytes of {}", example.len(), input.name);
            let path = example_path(&input, number);
            if update {
                fs::create_dir_all(path.parent().expect("it is in a folder")).expect("a folder");
                fs::write(&path, &example).expect("a file");
            }
            let is_there = fs::read(&path).is_ok_and(|bytes| bytes == example);
            assert!(is_there, "{} is out of date: UPDATE_CORPUS=1", path.display());
        }
    }
}

#[test]
fn what_fuzzing_has_found_is_fed_again_and_is_small() {
    let _turn = turn();
    let mut bytes = 0;
    let mut names = BTreeSet::new();
    for input in inputs::all() {
        let files = files(&input);
        assert!((1..=MAX_FILES).contains(&files.len()), "{} files of {}", files.len(), input.name);
        let (mut accepted, mut refused) = (0, 0);
        for (_, file) in &files {
            bytes += file.len() as u64;
            if feed(&input, file) { accepted += 1 } else { refused += 1 }
        }
        assert!(accepted > 0 && refused > 0, "{}: {accepted} accepted, {refused} refused", input.name);
        names.insert(input.name.to_owned());
    }
    assert!(bytes <= MAX_CORPUS_BYTES, "the corpus has {bytes} bytes");
    let folders = fs::read_dir(corpus()).expect("a corpus");
    let folders = folders.map(|folder| folder.expect("readable").file_name().into_string().expect("a name"));
    assert_eq!(folders.collect::<BTreeSet<String>>(), names, "every folder of the corpus is an input's");
}

/// Some bytes of one input, changed as storage, networks and people change them.
#[derive(Clone, Debug)]
enum Change {
    Set(Index, u8),
    Remove(Index),
    Insert(Index, u8),
    Cut(Index),
    Repeat(Index, Index),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        any::<Index>().prop_map(Change::Remove),
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Insert(at, byte)),
        any::<Index>().prop_map(Change::Cut),
        (any::<Index>(), any::<Index>()).prop_map(|(from, to)| Change::Repeat(from, to)),
    ]
}

fn changed(mut bytes: Vec<u8>, changes: &[Change]) -> Vec<u8> {
    for change in changes {
        let end = bytes.len();
        match change {
            Change::Insert(at, byte) => bytes.insert(at.index(end + 1), *byte),
            Change::Cut(at) => bytes.truncate(at.index(end + 1)),
            _ if end == 0 => {}
            Change::Set(at, byte) => bytes[at.index(end)] = *byte,
            Change::Remove(at) => drop(bytes.remove(at.index(end))),
            Change::Repeat(from, to) => {
                let (from, to) = (from.index(end), to.index(end));
                bytes.extend_from_within(from.min(to)..from.max(to));
            }
        }
    }
    bytes
}

#[test]
fn chance_and_changed_copies_break_no_promise() {
    let _turn = turn();
    for input in inputs::all() {
        let known: Vec<Vec<u8>> = files(&input).into_iter().map(|(_, bytes)| bytes).collect();
        let copies = (prop::sample::select(known), prop::collection::vec(change(), 1..6));
        let copies = copies.prop_map(|(bytes, changes)| changed(bytes, &changes));
        let chance = prop::collection::vec(any::<u8>(), 0..input.max_bytes.min(300));
        let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(CASES) });
        let ran = runner.run(&prop_oneof![3 => copies, 1 => chance], |bytes| {
            feed(&input, &bytes);
            Ok(())
        });
        ran.unwrap_or_else(|error| panic!("{}: {error}", input.name));
    }
}

/// A length inside of the bytes must not be believed before the bytes are there.
#[test]
fn memory_is_bounded_by_what_came() {
    let _turn = turn();
    for input in inputs::all() {
        for (path, bytes) in files(&input) {
            feed(&input, &bytes);
            MEMORY.reset_peak_usage();
            let before = MEMORY.current_usage();
            feed(&input, &bytes);
            let used = MEMORY.peak_usage().saturating_sub(before);
            let most = FIXED_BYTES + BYTES_PER_BYTE * bytes.len();
            assert!(used <= most, "{used} bytes for the {} of {}", bytes.len(), path.display());
        }
    }
}
