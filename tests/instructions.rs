//! Instructions per operation, as valgrind counts them. Unlike a time, a count is the same on a busy machine.
//!
//! Each case runs twice in a child process, with few and with many operations. The difference of the counts has neither
//! the start nor the end of the process. A count above the limit means that the operation became more expensive: find
//! out why, or record the new count together with the reason in the commit.
//!
//! The library of the test build is not optimized, or only a little. So the counts show more work, and not the time of a
//! release.

use std::process::Command;
use std::sync::mpsc;

use bytes::Bytes;
use tempfile::TempDir;
use tenure::config::{LeaseSettings, RaftTimings};
use tenure::lease::{Acquire, Batch, Command as LeaseCommand, Machine, Stamp};
use tenure::node::{Answer, Forward, Request, Response};
use tenure::storage::{DiskStorage, Identity, LogRecord, Position, Storage, codec};
use tenure::testing::Cluster;
use tenure::testing::inputs;
use tenure::token::FencingToken;
use tenure::types::{HolderId, LeaseName, Metadata, Ttl};

const TEST: &str = "operations_take_the_recorded_instructions";
/// The case and the number of operations of a child process.
const CASE: &str = "TENURE_TEST_INSTRUCTIONS";
/// Leases of the cases that use many.
const LEASES: u64 = 1_000;
/// The commands of one log entry under load, and the size of such an entry.
const COMMANDS: u64 = 16;
const ENTRY_BYTES: usize = 464;

struct Case {
    name: &'static str,
    run: fn(u64),
    /// The functions whose instructions count, with those that they call. Without any, the whole process counts. Waiting
    /// threads can spin, so a case with several threads needs them.
    counted: &'static [&'static str],
    operations: u64,
    /// Instructions of one operation on x86-64: in the usual test build, and with the library that scripts/check-compiler
    /// optimizes.
    recorded: [u64; 2],
}

const CASES: [Case; 7] = [
    Case {
        name: "apply an acquire and a release",
        run: apply,
        counted: &[],
        operations: 2_000,
        recorded: [66_900, 27_100],
    },
    Case {
        name: "encode an entry of 16 commands",
        run: encode,
        counted: &[],
        operations: 500,
        recorded: [62_600, 32_300],
    },
    Case {
        name: "decode an entry of 16 commands",
        run: decode,
        counted: &[],
        operations: 500,
        recorded: [203_100, 99_600],
    },
    Case { name: "read a lease", run: read, counted: &[], operations: 5_000, recorded: [9_800, 4_100] },
    Case {
        name: "append a lone entry to the log",
        run: append,
        counted: &["instructions::append_entries", "*::Committer::run"],
        operations: 500,
        recorded: [29_400, 19_500],
    },
    Case { name: "read and route a request", run: route, counted: &[], operations: 300, recorded: [125_700, 88_700] },
    Case {
        name: "write an entry on three nodes",
        run: write,
        counted: &[],
        operations: 100,
        recorded: [1_515_000, 995_500],
    },
];

/// Allowed excess in percent. Another compiler or C library changes a count a little.
const MARGIN: u64 = 10;
/// With fewer instructions than these percent, the record is old, or the case counts other functions.
const LEAST: u64 = 70;

#[test]
fn operations_take_the_recorded_instructions() {
    if let Ok(case) = std::env::var(CASE) {
        let (number, operations) = case.split_once(' ').expect("two numbers");
        let number: usize = number.parse().expect("a number");
        return (CASES[number].run)(operations.parse().expect("a number"));
    }
    if !cfg!(target_arch = "x86_64") || Command::new("valgrind").arg("--version").output().is_err() {
        assert!(std::env::var_os("TENURE_REQUIRE_SERVERS").is_none(), "install valgrind");
        println!("NOT CHECKED: the instructions per operation, which need valgrind on x86-64");
        return;
    }
    let mut others = Vec::new();
    for (number, case) in CASES.iter().enumerate() {
        let [few, many] = [1, 3].map(|times| count(number, case, times * case.operations));
        let counted = many.saturating_sub(few) / (2 * case.operations);
        let recorded = case.recorded[usize::from(cfg!(tenure_optimized))];
        println!("{counted:>8} instructions to {} (recorded: {recorded})", case.name);
        if !(recorded * LEAST..=recorded * (100 + MARGIN)).contains(&(counted * 100)) {
            others.push(format!("{}: {counted}, recorded {recorded}", case.name));
        }
    }
    assert!(others.is_empty(), "the instructions are not those recorded: {others:#?}");
}

/// Runs a case under valgrind, and returns the number of its counted instructions.
fn count(number: usize, case: &Case, operations: u64) -> u64 {
    let program = std::env::current_exe().expect("the test binary has a path");
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    if !case.counted.is_empty() {
        valgrind.arg("--collect-atstart=no").args(case.counted.iter().map(|name| format!("--toggle-collect={name}")));
    }
    valgrind.arg(program).args(["--exact", TEST]).env(CASE, format!("{number} {operations}"));
    let output = valgrind.output().expect("valgrind starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stdout));
    let total = said.lines().find_map(|line| line.split_once("Collected :")).expect("the instructions").1;
    total.trim().parse().expect("a number")
}

fn name(number: u64) -> LeaseName {
    LeaseName::new(format!("jobs/{}", number % LEASES)).expect("valid")
}

fn holder() -> HolderId {
    HolderId::new("worker-1").expect("valid")
}

fn acquire(number: u64) -> LeaseCommand {
    LeaseCommand::Acquire(Acquire {
        name: name(number),
        holder: holder(),
        ttl: Ttl::millis(30_000).expect("valid"),
        wait_ms: None,
        lock_delay_ms: 0,
        limit: 1,
        metadata: Metadata::default(),
    })
}

/// Each lease is acquired in one entry and released in the next one.
fn apply(operations: u64) {
    let (mut machine, mut index) = (Machine::new(), 0);
    let mut apply = |command| {
        index += 1;
        let token = FencingToken::new(1, index);
        let stamp = Stamp { now: index / 10, wall_ms: 1_700_000_000_000 + index / 10 };
        machine.apply(token, &Batch { stamp, commands: vec![command] });
        token
    };
    for number in 0..LEASES / 2 {
        apply(acquire(number));
    }
    for number in 0..operations {
        let number = LEASES / 2 + number % (LEASES / 2);
        let token = apply(acquire(number));
        apply(LeaseCommand::Release { name: name(number), holder: holder(), token });
    }
}

fn batch(first: u64) -> Batch {
    let commands = (first..first + COMMANDS).map(acquire).collect();
    Batch { stamp: Stamp { now: first, wall_ms: 1_700_000_000_000 }, commands }
}

fn encode(operations: u64) {
    let batch = batch(0);
    for _ in 0..operations {
        let bytes = codec::encode(&batch);
        assert!(bytes.len() > COMMANDS as usize);
    }
}

fn decode(operations: u64) {
    let bytes = codec::encode(&batch(0));
    for _ in 0..operations {
        let decoded: Batch = codec::decode(&bytes, 1 << 20).expect("its own encoding");
        assert_eq!(decoded.commands.len(), COMMANDS as usize);
    }
}

fn read(operations: u64) {
    let mut machine = Machine::new();
    for first in (0..LEASES).step_by(COMMANDS as usize) {
        machine.apply(FencingToken::new(1, first + 1), &batch(first));
    }
    for number in 0..operations {
        assert_eq!(machine.get(&name(number)).expect("held").held.len(), 1);
    }
}

/// The test waits for each entry. The thread of the store is counted, too.
fn append(operations: u64) {
    let dir = TempDir::new().expect("a folder");
    let identity = Identity { cluster: "test".to_owned(), node: 1 };
    let storage = DiskStorage::open(dir.path().join("1"), identity).expect("a new store opens");
    append_entries(&storage, operations);
    storage.close();
}

#[inline(never)]
fn append_entries(storage: &DiskStorage, operations: u64) {
    let payload = Bytes::from(vec![7; ENTRY_BYTES]);
    for index in 0..operations {
        let (tell, told) = mpsc::channel();
        let record = LogRecord { position: Position { term: 1, index }, payload: payload.clone() };
        storage.append(vec![record], Box::new(move |result| drop(tell.send(result))));
        told.recv().expect("an answer").expect("the entry is durable");
    }
}

/// A request through all routes to a node that has not started: it is read, checked and refused.
fn route(operations: u64) {
    let request = b"POST /v1/leases/jobs/acquire application/json\n{\"holder\":\"worker-1\",\"ttl_ms\":30000}";
    let input = inputs::all().into_iter().find(|input| input.name == "http_request").expect("it exists");
    for _ in 0..operations {
        assert!((input.check)(request), "the only error is that the node has not started");
    }
}

/// A request to the leader, until it is answered. Both followers are in the process, too. Their network and their disks
/// are in memory.
fn write(operations: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        let cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
        let leader = cluster.leader().await;
        for number in 0..operations {
            let LeaseCommand::Acquire(claim) = acquire(number) else { unreachable!("it is an acquire") };
            let written = cluster.node(leader).request(Request::Acquire(claim), Forward::Once).await;
            assert!(matches!(written, Ok(Response { answer: Answer::Outcome(_), .. })), "{written:?}");
        }
        cluster.shutdown().await;
    });
}
