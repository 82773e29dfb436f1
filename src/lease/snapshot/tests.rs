//! Views, retained bytes, older versions, and invalid snapshots.

use super::*;
use crate::lease::snapshot::stored::{MoreV2, PartV2};
use crate::lease::{
    Acquire, Batch, Command, Limits, MAX_RETAINED_ENDED_BYTES, MAX_RETAINED_NAME_BYTES, Outcome, Refusal, Stamp,
    WaiterId,
};
use crate::types::{AccessName, HolderId, MAX_METADATA_BYTES, Metadata, Ttl};

fn holder(number: u64) -> HolderId {
    HolderId::new(format!("holder-{number:06}")).expect("a valid holder")
}

fn name() -> LeaseName {
    LeaseName::new("pool").expect("a valid name")
}

/// A claim of the counted lease `pool` with `bytes` of metadata.
fn claim(number: u64, bytes: usize, wait_ms: Option<u64>) -> Command {
    let metadata = Metadata::new([("k".to_owned(), "v".repeat(bytes - 1))].into()).expect("metadata within its bounds");
    let (holder, ttl, limit) = (holder(number), Ttl::INFINITE, 1_000_000);
    Command::Acquire(Acquire { name: name(), holder, ttl, wait_ms, lock_delay_ms: 0, limit, metadata })
}

fn acquire(name: String) -> Command {
    Command::Acquire(Acquire {
        name: LeaseName::new(name).expect("a valid name"),
        holder: holder(0),
        ttl: Ttl::millis(60_000).expect("valid"),
        wait_ms: None,
        lock_delay_ms: 0,
        limit: 1,
        metadata: Metadata::default(),
    })
}

/// Applies one entry with one command in term 1.
fn apply(machine: &mut Machine, command: Command) -> Outcome {
    apply_in(machine, 1, command)
}

fn apply_in(machine: &mut Machine, term: u64, command: Command) -> Outcome {
    let index = machine.applied().map_or(1, |last| last.index + 1);
    let batch = Batch { stamp: Stamp { now: index, wall_ms: 0 }, commands: vec![command] };
    machine.apply(FencingToken { term, index }, &batch).0.remove(0)
}

fn machine_of(leases: u64) -> Machine {
    let mut machine = Machine::new();
    let commands = (0..leases).map(|n| acquire(format!("lease-{n}"))).collect();
    machine.apply(FencingToken { term: 1, index: 1 }, &Batch { stamp: Stamp::default(), commands });
    machine
}

/// Rebuilds the machine from its records and compares state and derived values.
fn assert_comes_back(machine: &Machine) {
    let again = Machine::from_records(machine.header(), machine.records()).expect("the machine wrote these records");
    assert_eq!(again.header(), machine.header());
    assert!(again.records().eq(machine.records()));
    assert_eq!((again.counts(), again.ended_bytes), (machine.counts(), machine.ended_bytes));
    let bytes =
        |machine: &Machine| machine.records.get(&name()).map(|record| (record.in_use_bytes(), record.ended.bytes()));
    assert_eq!(bytes(&again), bytes(machine));
}

#[test]
fn view_of_100_000_leases_is_shared_and_unchanged() {
    let mut machine = machine_of(100_000);
    let view = machine.clone();
    assert!(view.records.ptr_eq(&machine.records), "a clone copies no record");
    assert!(view.tombstones.ptr_eq(&machine.tombstones), "a clone copies no index");
    let expire_all = Batch { stamp: Stamp { now: 60_001, wall_ms: 0 }, commands: vec![acquire("new".to_string())] };
    machine.apply(FencingToken { term: 1, index: 2 }, &expire_all);
    assert_eq!((machine.counts().held, machine.now()), (1, 60_001));
    assert_eq!((view.counts().held, view.now()), (100_000, 0));
    assert_eq!(view.records().count(), 100_000);
}

/// The retained bytes of each name and of all ended grants are the sums over their items. Each grant, waiter and ended
/// grant counts 512 bytes plus its holder and metadata.
fn assert_bytes_are_sums(machine: &Machine) {
    let bytes = |holder: &HolderId, metadata: &Metadata| 512 + (holder.as_str().len() + metadata.bytes()) as u64;
    let mut all_ended = 0;
    for (name, record) in &machine.records {
        let held: u64 = record.holders.iter().map(|grant| bytes(&grant.holder, &grant.metadata)).sum();
        let waiting: u64 =
            record.queue.iter().map(|(_, waiter)| bytes(&waiter.request.holder, &waiter.request.metadata)).sum();
        let ended: u64 = record.ended.iter().map(|ended| bytes(&ended.grant.holder, &ended.grant.metadata)).sum();
        assert_eq!((record.in_use_bytes(), record.ended.bytes()), (held + waiting, ended), "{name}");
        all_ended += ended;
    }
    assert_eq!(machine.ended_bytes, all_ended);
}

#[test]
fn retained_bytes_follow_each_change() {
    let mut machine = Machine::new();
    let mut step = |command| {
        let outcome = apply(&mut machine, command);
        assert_bytes_are_sums(&machine);
        assert_comes_back(&machine);
        (outcome, machine.applied().expect("applied"), machine.counts())
    };
    let limited = |number, bytes, wait_ms| {
        let Command::Acquire(claim) = claim(number, bytes, wait_ms) else { unreachable!() };
        Command::Acquire(Acquire { limit: 2, ..claim })
    };
    step(Command::SetLimits(Limits { ended_keep: 2, ..Limits::INITIAL }));
    let tokens = [1, 2].map(|number| step(limited(number, 100 * number as usize, None)).1);
    for number in 3..=6 {
        step(limited(number, 100 * number as usize, Some(9_000)));
    }
    assert!(matches!(step(limited(4, 4_000, Some(9_000))).0, Outcome::Queued { place: 1 }), "more metadata");
    assert!(matches!(step(limited(5, 50, Some(9_000))).0, Outcome::Queued { place: 2 }), "less metadata");
    step(Command::LeaveQueue { waiter: WaiterId { name: name(), holder: holder(3) } });
    let Command::Acquire(Acquire { metadata, .. }) = limited(1, 70, None) else { unreachable!() };
    step(Command::UpdateMetadata { name: name(), holder: holder(1), token: tokens[0], version: 0, metadata });
    for (number, token) in (1..).zip(tokens) {
        assert_eq!(step(Command::Release { name: name(), holder: holder(number), token }).0, Outcome::Released(true));
    }
    assert_eq!(step(Command::Revoke { name: name(), reason: String::new() }).2.ended, 2, "ended_keep is 2");
    step(Command::Revoke { name: name(), reason: String::new() });
    let counts = step(Command::SetLimits(Limits { ended_keep: 0, ..Limits::INITIAL })).2;
    assert_eq!((counts.held, counts.waiting, counts.ended), (0, 0, 0));
}

/// The owners of this name take three stored records.
#[test]
fn owners_of_2_000_holders_come_back() {
    let mut machine = Machine::new();
    for number in 0..2_000 {
        let owner = AccessName::new(format!("principal-{}", number % 3)).expect("a valid name");
        let outcome = apply(&mut machine, claim(number, 1, None).owned_by(owner));
        assert!(matches!(outcome, Outcome::Held { fresh: true, .. }), "{outcome:?}");
    }
    let parts = machine.records().filter(|record| matches!(record, StoredRecord::Owners(_))).count();
    assert_eq!(parts, 3, "stored records of owners");
    assert_comes_back(&machine);
}

#[test]
fn lease_full_refuses_claims_and_forgets_ended_grants() {
    let mut machine = Machine::new();
    for number in 0..1_000 {
        apply(&mut machine, claim(number, MAX_METADATA_BYTES, None));
        let (name, token) = (name(), machine.applied().expect("applied"));
        apply(&mut machine, Command::Release { name, holder: holder(number), token });
    }
    assert_eq!(machine.counts().ended, 1_000);
    let full = Outcome::Refused(Refusal::LeaseFull { max_bytes: MAX_RETAINED_NAME_BYTES });
    let mut number = 10_000;
    while apply(&mut machine, claim(number, MAX_METADATA_BYTES, None)) != full {
        number += 1;
        assert!(number < 30_000, "30,000 claims without a refusal");
    }
    let in_use = machine.records[&name()].in_use_bytes();
    assert_eq!(in_use, (number - 10_000) * (512 + 13 + MAX_METADATA_BYTES as u64));
    assert!(number - 10_000 > 10_000, "10,000 holders with the largest metadata fit");
    assert!(in_use <= MAX_RETAINED_NAME_BYTES && machine.counts().ended == 0, "the machine forgets ended grants first");
    assert_eq!(apply(&mut machine, claim(number, MAX_METADATA_BYTES, Some(1_000))), full, "a waiter");
    let small = MAX_RETAINED_NAME_BYTES - in_use - 512 - 13;
    assert!(matches!(apply(&mut machine, claim(1, small as usize, None)), Outcome::Held { .. }), "the rest");
    let token = machine.applied().expect("applied");
    let Command::Acquire(Acquire { metadata, .. }) = claim(1, small as usize + 1, None) else { unreachable!() };
    let update = Command::UpdateMetadata { name: name(), holder: holder(1), token, version: 0, metadata };
    assert_eq!(apply(&mut machine, update), full, "a holder with more metadata");
    assert!(matches!(apply(&mut machine, claim(1, small as usize, None)), Outcome::Held { fresh: false, .. }));
    assert_comes_back(&machine);
}

#[test]
fn waiter_of_a_full_lease_can_claim_again() {
    let mut machine = Machine::new();
    let limits = Limits { max_waiters: 20_000, waiter_timeout_ms: 600_000, ..Limits::INITIAL };
    apply(&mut machine, Command::SetLimits(limits));
    let mut wait = |number: u64, bytes: usize| {
        let Command::Acquire(claim) = claim(number, bytes, Some(3_600_000)) else { unreachable!() };
        let outcome = apply(&mut machine, Command::Acquire(Acquire { limit: 1, ..claim }));
        (outcome, machine.records[&name()].in_use_bytes())
    };
    let most = MAX_RETAINED_NAME_BYTES / (512 + 13 + MAX_METADATA_BYTES as u64);
    for number in 0..most {
        let (outcome, _) = wait(number, MAX_METADATA_BYTES);
        assert!(matches!(outcome, Outcome::Held { .. } | Outcome::Queued { .. }), "{number}: {outcome:?}");
    }
    let rest = (MAX_RETAINED_NAME_BYTES % (512 + 13 + MAX_METADATA_BYTES as u64) - 512 - 13) as usize;
    let last = Outcome::Queued { place: most as u32 - 1 };
    assert_eq!(wait(most, rest - 1), (last.clone(), MAX_RETAINED_NAME_BYTES - 1), "one byte is left");
    assert_eq!(wait(1, MAX_METADATA_BYTES), (Outcome::Queued { place: 0 }, MAX_RETAINED_NAME_BYTES - 1), "the same");
    assert_eq!(wait(most, rest), (last.clone(), MAX_RETAINED_NAME_BYTES), "one byte more");
    let full = Outcome::Refused(Refusal::LeaseFull { max_bytes: MAX_RETAINED_NAME_BYTES });
    assert_eq!(wait(most, rest + 1), (full, MAX_RETAINED_NAME_BYTES), "one byte too many");
    assert_eq!(wait(most, rest), (last, MAX_RETAINED_NAME_BYTES), "its place stays");
}

#[test]
fn ended_grant_stays_until_its_name_retains_64_mib() {
    let mut machine = Machine::new();
    apply(&mut machine, claim(0, 1, None));
    let token = machine.applied().expect("applied");
    apply(&mut machine, Command::Release { name: name(), holder: holder(0), token });
    let (ended, full) = (512 + 13 + 1, 512 + 13 + MAX_METADATA_BYTES as u64);
    let left = MAX_RETAINED_NAME_BYTES - ended;
    for number in 1..=left / full {
        assert!(matches!(apply(&mut machine, claim(number, MAX_METADATA_BYTES, None)), Outcome::Held { .. }));
    }
    let rest = (left % full - 512 - 13) as usize;
    assert!(matches!(apply(&mut machine, claim(99_999, rest, None)), Outcome::Held { .. }));
    let token = machine.applied().expect("applied");
    assert_eq!((machine.records[&name()].in_use_bytes(), machine.counts().ended), (left, 1), "at the bound");
    let Command::Acquire(Acquire { holder, metadata, .. }) = claim(99_999, rest + 1, None) else { unreachable!() };
    let update = Command::UpdateMetadata { name: name(), holder, token, version: 0, metadata };
    assert!(!matches!(apply(&mut machine, update), Outcome::Refused(_)));
    assert_eq!(
        (machine.records[&name()].in_use_bytes(), machine.counts().ended),
        (left + 1, 0),
        "one byte above the bound"
    );
}

#[test]
fn ended_grants_of_all_names_are_forgotten_above_their_bound() {
    let mut machine = machine_of(3);
    apply(&mut machine, Command::Revoke { name: LeaseName::new("lease-1").expect("valid"), reason: String::new() });
    apply(&mut machine, Command::Revoke { name: LeaseName::new("lease-0").expect("valid"), reason: String::new() });
    assert_eq!((machine.counts().ended, machine.ended_bytes), (2, 2 * (512 + 13)));
    // Real grants up to the bound would take minutes, so the test sets the sum.
    machine.ended_bytes = MAX_RETAINED_ENDED_BYTES;
    apply(&mut machine, Command::Tick);
    assert_eq!((machine.counts().ended, machine.ended_bytes), (2, MAX_RETAINED_ENDED_BYTES), "at the bound");
    machine.ended_bytes = MAX_RETAINED_ENDED_BYTES + 1;
    apply(&mut machine, Command::Tick);
    assert_eq!((machine.counts().ended, machine.ended_bytes), (1, MAX_RETAINED_ENDED_BYTES + 1 - (512 + 13)));
    assert!(machine.get(&LeaseName::new("lease-1").expect("valid")).is_none(), "lease-1 ended first");
}

#[test]
fn only_finite_leases_have_deadlines() {
    let mut machine = Machine::new();
    assert!(!machine.has_deadlines(), "nothing is held");
    apply(&mut machine, claim(1, 1, None));
    assert!(!machine.has_deadlines(), "the lease is infinite");
    apply(&mut machine, acquire("finite".to_owned()));
    assert!(machine.has_deadlines());
}

#[test]
fn waiter_is_confirmed_in_the_term_of_the_entry() {
    let confirmed = |machine: &Machine| machine.records[&name()].queue.first().expect("one waiter").1.confirmed_term;
    let Command::Acquire(wait) = acquire("pool".to_owned()) else { unreachable!() };
    let wait = Command::Acquire(Acquire { holder: holder(1), limit: 1, wait_ms: Some(9_000), ..wait });
    let mut machine = Machine::new();
    apply_in(&mut machine, 1, acquire("pool".to_owned()));
    apply_in(&mut machine, 2, wait.clone());
    assert_eq!((confirmed(&machine), machine.term_began), (2, 2));
    apply_in(&mut machine, 4, Command::Tick);
    assert_eq!((confirmed(&machine), machine.term_began), (2, 3), "a new term does not confirm the waiter");
    let waiters = vec![WaiterId { name: name(), holder: holder(1) }];
    apply_in(&mut machine, 4, Command::KeepWaiting { waiters });
    assert_eq!((confirmed(&machine), machine.term_began), (4, 3));
    apply_in(&mut machine, 5, wait);
    assert_eq!((confirmed(&machine), machine.term_began), (5, 5));
}

#[test]
fn older_version_is_read_and_its_terms_are_unknown() {
    let mut machine = Machine::new();
    apply_in(&mut machine, 3, acquire("pool".to_owned()));
    let Command::Acquire(wait) = acquire("pool".to_owned()) else { unreachable!() };
    let wait = Acquire { holder: holder(1), wait_ms: Some(9_000), ..wait };
    apply_in(&mut machine, 3, Command::Acquire(wait));
    assert_eq!(machine.records[&name()].queue.first().expect("one waiter").1.confirmed_term, 3);
    assert_eq!(machine.term_began, 1);
    let (header, records) = old::snapshot(&machine);
    let header = SnapshotHeader::try_from(header).expect("version 1");
    let read = Machine::from_records(header, records.clone()).expect("version 1 is readable");
    assert_eq!(read.records[&name()].queue.first().expect("one waiter").1.confirmed_term, 0);
    assert_eq!((read.term_began, read.counts(), read.next_due()), (0, machine.counts(), machine.next_due()));
    assert!(old::snapshot(&read).1 == records, "all other state is the same");
}

/// A check without a machine, as of a backup, refuses the same snapshots.
#[test]
fn invalid_snapshot_is_refused() {
    let machine = machine_of(2);
    let records: Vec<StoredRecord> = machine.records().collect();
    let rebuild = |header: SnapshotHeader, records: Vec<StoredRecord>| {
        let check = || -> Result<Machine, BadSnapshot> {
            let mut rebuild = Rebuild::new(header.clone())?;
            rebuild.keep_nothing();
            records.iter().cloned().try_for_each(|record| rebuild.push(record))?;
            rebuild.finish()
        };
        let checked = check().expect_err("invalid snapshot");
        let rebuilt = Machine::from_records(header, records).expect_err("invalid snapshot");
        assert_eq!(checked, rebuilt);
        rebuilt
    };
    let swapped = vec![records[1].clone(), records[0].clone()];
    assert!(matches!(rebuild(machine.header(), swapped), BadSnapshot::Order(_)));
    let repeated = vec![records[0].clone(), records[0].clone()];
    assert!(matches!(rebuild(machine.header(), repeated), BadSnapshot::Order(_)), "a name that comes twice");
    let short = records[..1].to_vec();
    assert_eq!(rebuild(machine.header(), short), BadSnapshot::Count { expected: 2, found: 1 });
    let old = SnapshotHeader { applied: None, ..machine.header() };
    assert!(matches!(rebuild(old, records.clone()), BadSnapshot::Impossible(_)), "granted after its last entry");
    let newer = SnapshotHeader { version: 4, ..machine.header() };
    assert_eq!(rebuild(newer, records.clone()), BadSnapshot::Version(4));
    let StoredRecord::V2(record) = records[0].clone() else { panic!("{:?}", records[0]) };
    let mut twice = record.clone();
    (twice.limit, twice.counts.held) = (2, 2);
    twice.part.held = [twice.part.held.clone(), twice.part.held].concat();
    assert!(matches!(rebuild(machine.header(), vec![StoredRecord::V2(twice)]), BadSnapshot::Impossible(_)));
    let mut counted = Machine::new();
    for number in 1..=2 {
        apply(&mut counted, claim(number, 1, None));
    }
    let crowded = counted.records().next();
    let Some(StoredRecord::V2(mut crowded)) = crowded else { panic!("{crowded:?}") };
    crowded.limit = 1;
    let crowded = rebuild(counted.header(), vec![StoredRecord::V2(crowded)]);
    assert_eq!(crowded, BadSnapshot::TooManyHolders(name()), "two holders, and a limit of 1");
    let mut part_lost = record.clone();
    part_lost.counts.held += 1;
    assert!(matches!(rebuild(machine.header(), vec![StoredRecord::V2(part_lost)]), BadSnapshot::Incomplete(_)));
    let stray = StoredRecord::More(MoreV2 { name: name(), part: PartV2::default() });
    assert!(matches!(rebuild(machine.header(), vec![stray.clone()]), BadSnapshot::Order(_)));
    assert!(matches!(rebuild(machine.header(), vec![records[0].clone(), stray]), BadSnapshot::Order(_)));
}
