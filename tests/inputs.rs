//! Parsers of outside bytes: the fuzz corpus, examples, mutations of both, and random bytes.
//!
//! The tests need no fuzzer. `scripts/fuzz` searches for new inputs. `UPDATE_CORPUS=1` writes the examples into the
//! corpus.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use peak_alloc::PeakAlloc;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};
use tenure::testing::inputs::{self, Input};

/// Maximum number of corpus files per input.
const MAX_FILES: usize = 100;
/// Maximum size of the whole corpus.
const MAX_CORPUS_BYTES: u64 = 1 << 20;
/// Number of random and mutated inputs per parser.
const CASES: u32 = 2_000;
/// Memory bound of a check without its input, for runtime and router.
const FIXED_BYTES: usize = 1 << 20;
/// Additional memory bound per byte of the input.
const BYTES_PER_BYTE: usize = 256;

/// Serializes the tests, because the allocator counts memory for the whole process.
static TEST_LOCK: Mutex<()> = Mutex::new(());

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

fn lock_tests() -> MutexGuard<'static, ()> {
    TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus")
}

fn files(input: &Input) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = corpus().join(input.name);
    let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = files.map(|file| file.expect("a readable directory entry").path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), fs::read(path).expect("a readable file"))).collect()
}

fn example_path(input: &Input, number: usize) -> PathBuf {
    corpus().join(input.name).join(format!("example-{number}"))
}

/// Runs the check of an input and returns whether it accepts the bytes.
///
/// # Panics
///
/// The check panics. The message has the bytes.
fn run_check(input: &Input, bytes: &[u8]) -> bool {
    let checked = std::panic::catch_unwind(|| (input.check)(bytes));
    checked.unwrap_or_else(|_| {
        panic!("the check {} panicked for {:?}: {bytes:?}", input.name, String::from_utf8_lossy(bytes))
    })
}

#[test]
fn examples_are_accepted_and_in_the_corpus() {
    let _lock = lock_tests();
    let update = std::env::var_os("UPDATE_CORPUS").is_some();
    for input in inputs::all() {
        for (number, example) in (input.examples)().into_iter().enumerate() {
            assert!(
                run_check(&input, &example),
                "{} refuses its example {:?}",
                input.name,
                String::from_utf8_lossy(&example)
            );
            assert!(example.len() <= input.max_bytes, "{} bytes of {}", example.len(), input.name);
            let path = example_path(&input, number);
            if update {
                fs::create_dir_all(path.parent().expect("the path has a parent")).expect("the directory is writable");
                fs::write(&path, &example).expect("the file is writable");
            }
            let is_there = fs::read(&path).is_ok_and(|bytes| bytes == example);
            assert!(is_there, "{} is out of date: run with UPDATE_CORPUS=1", path.display());
        }
    }
}

#[test]
fn corpus_inputs_pass_and_the_corpus_is_small() {
    let _lock = lock_tests();
    let mut bytes = 0;
    let mut names = BTreeSet::new();
    for input in inputs::all() {
        let files = files(&input);
        assert!((1..=MAX_FILES).contains(&files.len()), "{} files of {}", files.len(), input.name);
        let (mut accepted, mut refused) = (0, 0);
        for (_, file) in &files {
            bytes += file.len() as u64;
            if run_check(&input, file) { accepted += 1 } else { refused += 1 }
        }
        assert!(accepted > 0 && refused > 0, "{}: {accepted} accepted, {refused} refused", input.name);
        names.insert(input.name.to_owned());
    }
    assert!(bytes <= MAX_CORPUS_BYTES, "the corpus has {bytes} bytes, at most {MAX_CORPUS_BYTES} are allowed");
    let folders = fs::read_dir(corpus()).expect("the corpus exists");
    let folders = folders.map(|folder| folder.expect("readable").file_name().into_string().expect("a UTF-8 name"));
    assert_eq!(folders.collect::<BTreeSet<String>>(), names, "each directory of the corpus belongs to an input");
}

/// A mutation, as storage, networks and operators cause them.
#[derive(Clone, Debug)]
enum Mutation {
    Set(Index, u8),
    Remove(Index),
    Insert(Index, u8),
    Cut(Index),
    Repeat(Index, Index),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        any::<Index>().prop_map(Mutation::Remove),
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Mutation::Insert(at, byte)),
        any::<Index>().prop_map(Mutation::Cut),
        (any::<Index>(), any::<Index>()).prop_map(|(from, to)| Mutation::Repeat(from, to)),
    ]
}

fn mutated(mut bytes: Vec<u8>, mutations: &[Mutation]) -> Vec<u8> {
    for mutation in mutations {
        let end = bytes.len();
        match mutation {
            Mutation::Insert(at, byte) => bytes.insert(at.index(end + 1), *byte),
            Mutation::Cut(at) => bytes.truncate(at.index(end + 1)),
            _ if end == 0 => {}
            Mutation::Set(at, byte) => bytes[at.index(end)] = *byte,
            Mutation::Remove(at) => drop(bytes.remove(at.index(end))),
            Mutation::Repeat(from, to) => {
                let (from, to) = (from.index(end), to.index(end));
                bytes.extend_from_within(from.min(to)..from.max(to));
            }
        }
    }
    bytes
}

#[test]
fn random_and_mutated_inputs_pass_all_checks() {
    let _lock = lock_tests();
    for input in inputs::all() {
        let known: Vec<Vec<u8>> = files(&input).into_iter().map(|(_, bytes)| bytes).collect();
        let copies = (prop::sample::select(known), prop::collection::vec(mutation(), 1..6));
        let copies = copies.prop_map(|(bytes, mutations)| mutated(bytes, &mutations));
        let random = prop::collection::vec(any::<u8>(), 0..input.max_bytes.min(300));
        let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(CASES) });
        let ran = runner.run(&prop_oneof![3 => copies, 1 => random], |bytes| {
            run_check(&input, &bytes);
            Ok(())
        });
        ran.unwrap_or_else(|error| panic!("{}: {error}", input.name));
    }
}

/// A parser must not allocate by a length field before the bytes have arrived.
#[test]
fn memory_is_bounded_by_the_input_size() {
    let _lock = lock_tests();
    for input in inputs::all() {
        for (path, bytes) in files(&input) {
            run_check(&input, &bytes);
            MEMORY.reset_peak_usage();
            let before = MEMORY.current_usage();
            run_check(&input, &bytes);
            let used = MEMORY.peak_usage().saturating_sub(before);
            let max = FIXED_BYTES + BYTES_PER_BYTE * bytes.len();
            assert!(
                used <= max,
                "{used} bytes of memory for the {} bytes of {}, at most {max} are allowed",
                bytes.len(),
                path.display()
            );
        }
    }
}
