//! Every promise about the log can fail: a short log that is right, and one small lie about it for each.

use std::time::Duration;

use tenure::lease::{Acquire, Batch, Change, Command, Effects, Machine, Renewal, Stamp};
use tenure::node::WatchPosition;
use tenure::storage::{LogRecord, Position};
use tenure::token::FencingToken;
use tenure::types::{HolderId, LeaseName, Metadata, Ttl};
use tokio::time::Instant;

use super::ledger::{Asked, Entry, Ledger};
use super::promises::one_leader::Leaders;
use super::promises::{self, expiry_happens, log_matching, watch_completeness};

fn name() -> LeaseName {
    LeaseName::new("a").expect("valid")
}

fn holder(name: &str) -> HolderId {
    HolderId::new(name).expect("valid")
}

fn at(index: u64) -> FencingToken {
    FencingToken { term: 1, index }
}

fn acquire(by: &str, wait_ms: Option<u64>) -> Command {
    Command::Acquire(Acquire {
        name: name(),
        holder: holder(by),
        ttl: Ttl::Finite(1_000),
        wait_ms,
        lock_delay_ms: 0,
        limit: 1,
        metadata: Metadata::default(),
    })
}

fn release(by: &str, token: FencingToken) -> Command {
    Command::Release { name: name(), holder: holder(by), token }
}

/// One command an entry, 100 ms apart: a holds, b and c wait, a asks again, renews and releases, b has it, it expires, and
/// c has it.
fn right() -> Ledger {
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
        let (_, effects) = machine.apply(at(index), &batch);
        ledger.record(1, index, Some(Asked { position: at(index), batch }), effects, &machine);
    }
    ledger
}

/// The promises that the ledger's entries break, in order, each once.
fn broken(ledger: &Ledger) -> Vec<&'static str> {
    let mut broken: Vec<_> = Vec::new();
    for entry in &ledger.entries {
        for found in promises::check_entry(ledger, entry) {
            if !broken.contains(&found.promise) {
                broken.push(found.promise);
            }
        }
    }
    broken
}

fn lie(change: impl FnOnce(&mut Ledger)) -> Vec<&'static str> {
    let mut ledger = right();
    change(&mut ledger);
    broken(&ledger)
}

/// The entry with this index.
fn entry(ledger: &mut Ledger, index: u64) -> &mut Entry {
    &mut ledger.entries[index as usize - 1]
}

#[test]
fn a_log_that_is_right_breaks_nothing() {
    let ledger = right();
    assert!(ledger.broken.is_empty(), "{:?}", ledger.broken.first().map(ToString::to_string));
    let grants = ledger.transitions().filter(|(_, seen)| matches!(seen.change, Change::Granted(_))).count();
    assert!(broken(&ledger).is_empty(), "also in hindsight: {:?}", broken(&ledger));
    assert_eq!((grants, ledger.transitions().count()), (3, 5), "all of it happened");
}

#[test]
fn every_promise_about_an_entry_finds_a_lie_about_it() {
    let two_holders = lie(|ledger| entry(ledger, 6).transitions.retain(|seen| seen.change != Change::Released));
    assert!(two_holders.contains(&"one_holder"), "{two_holders:?}");

    let low_token = lie(|ledger| entry(ledger, 8).transitions[1].token = at(2));
    assert!(low_token.contains(&"tokens_rise"), "{low_token:?}");

    let out_of_turn = lie(|ledger| entry(ledger, 6).transitions[1].holder = holder("c"));
    assert!(out_of_turn.contains(&"queue_order"), "{out_of_turn:?}");

    let not_free = lie(|ledger| entry(ledger, 6).transitions.swap_remove(0).part = 0);
    assert!(not_free.contains(&"waiter_gets_what_is_free"), "{not_free:?}");

    let never_waited = lie(|ledger| entry(ledger, 3).asked = None);
    assert_eq!(never_waited, ["waiter_gets_what_is_free"]);

    let lost_claim = lie(|ledger| {
        let free = Machine::new();
        entry(ledger, 4).machine = free;
    });
    assert!(lost_claim.contains(&"one_token_a_claim"), "{lost_claim:?}");

    let by_nobody = lie(|ledger| entry(ledger, 6).asked = entry(ledger, 8).asked.clone());
    assert!(by_nobody.contains(&"only_the_current_token"), "{by_nobody:?}");

    let revived = lie(|ledger| entry(ledger, 7).machine = entry(ledger, 5).machine.clone());
    assert!(revived.contains(&"only_the_current_token"), "{revived:?}");

    let early = lie(|ledger| {
        let end = entry(ledger, 6).transitions.iter_mut().find(|seen| seen.change == Change::Released);
        end.expect("it was released").change = Change::Expired;
    });
    assert_eq!(early, ["only_the_current_token"], "an expiry before its time");

    let shorter = lie(|ledger| entry(ledger, 5).machine = entry(ledger, 3).machine.clone());
    assert_eq!(shorter, ["deadlines_stay"]);
}

#[test]
fn replicas_that_differ_are_found() {
    let (ledger, asked) = (right(), |ledger: &Ledger, index| ledger.entry(index).expect("there").asked.clone());
    let told = |ledger: &Ledger| ledger.broken.iter().map(|broken| broken.promise).collect::<Vec<_>>();
    let play = |index: u64, asked: Option<Asked>, state: u64| {
        let mut other = right();
        let effects = Effects {
            transitions: ledger.entry(index).expect("there").transitions.clone(),
            dropped: ledger.entry(index).expect("there").dropped.clone(),
        };
        other.record(2, index, asked, effects, &ledger.entry(state).expect("there").machine);
        told(&other)
    };
    assert!(play(6, asked(&ledger, 6), 6).is_empty(), "the same");
    assert_eq!(play(6, asked(&ledger, 6), 5), ["replicas_agree"]);
    assert_eq!(play(6, asked(&ledger, 7), 6), ["committed_stays"]);
    let mut other = right();
    other.replace(3, 4, &ledger.entry(4).expect("there").machine);
    assert!(other.broken.is_empty());
    other.replace(3, 4, &ledger.entry(5).expect("there").machine);
    assert_eq!(told(&other), ["replicas_agree"], "a snapshot of another state");
    let mut gap = right();
    gap.record(1, 10, None, Effects::default(), &Machine::new());
    assert_eq!(told(&gap), ["committed_stays"], "an entry that nobody saw");
}

#[test]
fn a_watch_that_misses_or_repeats_is_found() {
    let ledger = right();
    let behind = |index, part| Some(WatchPosition { index, part });
    watch_completeness::check(&ledger, None, (1, 0)).expect("the first");
    watch_completeness::check(&ledger, behind(1, None), (6, 0)).expect("the next");
    watch_completeness::check(&ledger, behind(6, Some(0)), (6, 1)).expect("the rest of an entry");
    watch_completeness::check(&ledger, behind(1, None), (6, 1)).expect_err("a part is missed");
    watch_completeness::check(&ledger, behind(1, None), (8, 0)).expect_err("an entry is missed");
    watch_completeness::check(&ledger, behind(6, Some(0)), (6, 0)).expect_err("it came twice");
}

#[test]
fn a_second_leader_of_a_term_is_found() {
    let mut leaders = Leaders::default();
    assert_eq!(leaders.see(3, 1), Ok(true));
    assert_eq!(leaders.see(3, 1), Ok(false));
    assert_eq!(leaders.see(4, 2), Ok(true));
    assert!(leaders.see(3, 2).is_err());
}

#[test]
fn logs_that_differ_where_they_are_committed_are_found() {
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
fn a_lease_that_outlives_its_holder_is_found() {
    let (ledger, bound) = (right(), Duration::from_secs(4));
    let granted = ledger.entry(8).expect("c was granted it").at;
    expiry_happens::check(&ledger, granted + bound, bound).expect("its time is not over");
    expiry_happens::check(&ledger, granted + bound * 2, bound).expect_err("nobody ended it");
}
