//! Checker self-test: each invariant of the log accepts a short valid log and rejects one wrong change of it.

use std::time::Duration;

use tenure::lease::{Acquire, Batch, Change, Command, Effects, Machine, Outcome, Renewal, Stamp};
use tenure::node::WatchPosition;
use tenure::storage::{LogRecord, Position};
use tenure::testing::AppliedEntry;
use tenure::token::FencingToken;
use tenure::types::{HolderId, LeaseName, Metadata, Ttl};
use tokio::time::Instant;

use super::ledger::{Entry, Ledger};
use super::promises::one_leader::Leaders;
use super::promises::{self, expiry_happens, log_matching, watch_completeness};

fn name() -> LeaseName {
    LeaseName::new("a").expect("valid")
}

fn holder(name: &str) -> HolderId {
    HolderId::new(name).expect("valid")
}

fn at(index: u64) -> FencingToken {
    FencingToken::new(1, index)
}

fn acquire(by: &str, wait_ms: Option<u64>) -> Command {
    Command::Acquire(Acquire {
        name: name(),
        holder: holder(by),
        ttl: Ttl::millis(1_000).expect("valid"),
        wait_ms,
        lock_delay_ms: 0,
        limit: 1,
        metadata: Metadata::default(),
    })
}

fn release(by: &str, token: FencingToken) -> Command {
    Command::Release { name: name(), holder: holder(by), token }
}

fn applied<'a>(
    index: u64,
    batch: Option<&'a Batch>,
    outcomes: &'a [Outcome],
    effects: &'a Effects,
    machine: &'a Machine,
) -> AppliedEntry<'a> {
    AppliedEntry { position: Position { term: 1, index }, batch, outcomes, effects, machine }
}

/// A valid log with one command per entry.
///
/// a acquires, b and c wait. a acquires again, renews and releases. b is granted the lease, which expires. Then c is
/// granted it.
fn valid_ledger() -> Ledger {
    let renewal = Renewal { name: name(), token: at(1), ttl: None };
    let commands = [
        (100, acquire("a", None)),
        (200, acquire("b", Some(9_000))),
        (300, acquire("c", Some(9_000))),
        (400, acquire("a", None)),
        (500, Command::Renew { holder: holder("a"), leases: vec![renewal] }),
        (600, release("a", at(1))),
        (700, release("a", at(1))),
        (1_601, Command::Tick),
    ];
    let mut ledger = Ledger::new(Instant::now());
    let mut machine = Machine::new();
    for (index, (now, command)) in (1..).zip(commands) {
        let batch = Batch { stamp: Stamp { now, wall_ms: now }, commands: vec![command] };
        let (outcomes, effects) = machine.apply(at(index), &batch);
        ledger.record(1, &applied(index, Some(&batch), &outcomes, &effects, &machine));
    }
    ledger
}

/// The invariants that the ledger's entries violate, in order of the first violation.
fn violated_promises(ledger: &Ledger) -> Vec<&'static str> {
    let mut promises: Vec<_> = Vec::new();
    for entry in &ledger.entries {
        for found in promises::check_entry(ledger, entry) {
            if !promises.contains(&found.promise) {
                promises.push(found.promise);
            }
        }
    }
    promises
}

/// The invariants that a change of the valid ledger violates.
fn violated_after(change: impl FnOnce(&mut Ledger)) -> Vec<&'static str> {
    let mut ledger = valid_ledger();
    change(&mut ledger);
    violated_promises(&ledger)
}

/// The entry with this index.
fn entry(ledger: &mut Ledger, index: u64) -> &mut Entry {
    &mut ledger.entries[index as usize - 1]
}

#[test]
fn valid_log_violates_no_invariant() {
    let ledger = valid_ledger();
    assert!(ledger.violations.is_empty(), "{:?}", ledger.violations.first().map(ToString::to_string));
    let grants = ledger.transitions().filter(|(_, seen)| matches!(seen.change, Change::Granted(_))).count();
    assert!(violated_promises(&ledger).is_empty(), "second check: {:?}", violated_promises(&ledger));
    assert_eq!((grants, ledger.transitions().count()), (3, 5), "grants and transitions");
}

#[test]
fn each_entry_invariant_detects_a_wrong_entry() {
    let two_holders =
        violated_after(|ledger| entry(ledger, 6).transitions.retain(|seen| seen.change != Change::Released));
    assert!(two_holders.contains(&"one_holder"), "{two_holders:?}");

    let low_token = violated_after(|ledger| entry(ledger, 8).transitions[1].token = at(2));
    assert!(low_token.contains(&"tokens_rise"), "{low_token:?}");

    let wrong_waiter = violated_after(|ledger| entry(ledger, 6).transitions[1].holder = holder("c"));
    assert!(wrong_waiter.contains(&"queue_order"), "{wrong_waiter:?}");

    let not_free = violated_after(|ledger| entry(ledger, 6).transitions.swap_remove(0).part = 0);
    assert!(not_free.contains(&"waiter_gets_what_is_free"), "{not_free:?}");

    let never_waited = violated_after(|ledger| entry(ledger, 3).input = None);
    assert_eq!(never_waited, ["waiter_gets_what_is_free"]);

    let lost_claim = violated_after(|ledger| {
        let free = Machine::new();
        entry(ledger, 4).machine = free;
    });
    assert!(lost_claim.contains(&"one_token_a_claim"), "{lost_claim:?}");

    let without_cause = violated_after(|ledger| entry(ledger, 6).input = entry(ledger, 8).input.clone());
    assert!(without_cause.contains(&"only_the_current_token"), "{without_cause:?}");

    let revived = violated_after(|ledger| entry(ledger, 7).machine = entry(ledger, 5).machine.clone());
    assert!(revived.contains(&"only_the_current_token"), "{revived:?}");

    let early = violated_after(|ledger| {
        let end = entry(ledger, 6).transitions.iter_mut().find(|seen| seen.change == Change::Released);
        end.expect("entry 6 has the release").change = Change::Expired;
    });
    assert_eq!(early, ["only_the_current_token"], "an expiry before the deadline");

    let shorter = violated_after(|ledger| entry(ledger, 5).machine = entry(ledger, 3).machine.clone());
    assert_eq!(shorter, ["deadlines_stay"]);
}

#[test]
fn different_replicas_are_detected() {
    let ledger = valid_ledger();
    let first = |index| ledger.entry(index).expect("the ledger has this entry");
    let promises = |ledger: &Ledger| ledger.violations.iter().map(|found| found.promise).collect::<Vec<_>>();
    // Entry 6 on another replica, with the commands, the outcomes and the state of these entries.
    let apply = |commands, outcomes, state| {
        let mut other = valid_ledger();
        let batch = first(commands).input.as_ref().map(|input| &input.batch);
        let effects = Effects { transitions: first(6).transitions.clone(), dropped: first(6).dropped.clone() };
        other.record(2, &applied(6, batch, &first(outcomes).outcomes, &effects, &first(state).machine));
        promises(&other)
    };
    assert!(apply(6, 6, 6).is_empty(), "equal replicas");
    assert_eq!(apply(6, 6, 5), ["replicas_agree"]);
    assert_eq!(apply(6, 7, 6), ["replicas_agree"], "other outcomes");
    assert_eq!(apply(7, 6, 6), ["committed_stays"]);
    let mut other = valid_ledger();
    other.replace(3, 4, &first(4).machine);
    assert!(other.violations.is_empty());
    other.replace(3, 4, &first(5).machine);
    assert_eq!(promises(&other), ["replicas_agree"], "a snapshot of another state");
    let mut gap = valid_ledger();
    gap.record(1, &applied(10, None, &[], &Effects::default(), &Machine::new()));
    assert_eq!(promises(&gap), ["committed_stays"], "a gap in the indexes");
}

#[test]
fn skipped_and_repeated_watch_events_are_detected() {
    let ledger = valid_ledger();
    let after = |index, part| Some(WatchPosition { index, part });
    watch_completeness::check(&ledger, None, (1, 0)).expect("the first transition");
    watch_completeness::check(&ledger, after(1, None), (6, 0)).expect("the next transition");
    watch_completeness::check(&ledger, after(6, Some(0)), (6, 1)).expect("the second transition of an entry");
    watch_completeness::check(&ledger, after(1, None), (6, 1)).expect_err("a transition of the entry is skipped");
    watch_completeness::check(&ledger, after(1, None), (8, 0)).expect_err("an entry is skipped");
    watch_completeness::check(&ledger, after(6, Some(0)), (6, 0)).expect_err("a transition is repeated");
}

#[test]
fn second_leader_of_a_term_is_detected() {
    let mut leaders = Leaders::default();
    assert_eq!(leaders.observe(3, 1), Ok(true));
    assert_eq!(leaders.observe(3, 1), Ok(false));
    assert_eq!(leaders.observe(4, 2), Ok(true));
    assert!(leaders.observe(3, 2).is_err());
}

#[test]
fn different_committed_entries_are_detected() {
    let record = |term, index| LogRecord { position: Position { term, index }, payload: "x".into() };
    let log = || vec![record(1, 1), record(1, 2), record(2, 3)];
    let purged = || vec![record(2, 3), record(2, 4)];
    assert_eq!(log_matching::compare([(1, log()), (2, purged())].into_iter()), Ok(()));
    let other_term = vec![record(1, 2), record(3, 3)];
    assert!(log_matching::compare([(1, log()), (2, other_term)].into_iter()).is_err());
    let other_bytes = vec![LogRecord { payload: "y".into(), ..record(1, 2) }];
    assert!(log_matching::compare([(1, log()), (2, other_bytes)].into_iter()).is_err());
}

#[test]
fn lease_that_never_expires_is_detected() {
    let (ledger, bound) = (valid_ledger(), Duration::from_secs(4));
    let granted = ledger.entry(8).expect("entry 8 grants the lease to c").at;
    expiry_happens::check(&ledger, granted + bound, bound).expect("the bound has not passed");
    expiry_happens::check(&ledger, granted + bound * 2, bound).expect_err("the lease is held after the bound");
}
