//! Checker self-test: the ledger accepts a short valid log and rejects wrong changes of it. [`judge`](super::judge) has its own tests.

use std::time::Duration;

use tenure::lease::{Acquire, Batch, Change, Command, Effects, Machine, Outcome, Renewal, Stamp, Transition};
use tenure::node::Compacted;
use tenure::storage::{LogRecord, Position};
use tenure::testing::AppliedEntry;
use tenure::token::FencingToken;
use tenure::types::{HolderId, LeaseName, Metadata, Ttl};
use tokio::time::Instant;

use super::invariants::cluster_time_advances::{self, Advance};
use super::invariants::idle_leader::{self, NextDeadline};
use super::invariants::log_matching;
use super::invariants::one_leader::Leaders;
use super::ledger::Ledger;
use super::watcher;

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

#[test]
fn valid_log_violates_no_invariant() {
    let ledger = valid_ledger();
    assert!(ledger.violations.is_empty(), "{:?}", ledger.violations.first().map(ToString::to_string));
    let grants = ledger.transitions().filter(|(_, seen)| matches!(seen.change, Change::Granted(_))).count();
    assert_eq!((grants, ledger.transitions().count()), (3, 5), "grants and transitions");
}

/// Entries of one term every 100 ms. `now` gives the cluster time of each, in milliseconds.
fn advances(now: impl Fn(u64) -> u64) -> impl Iterator<Item = Advance> {
    let advance = move |at| Advance { term: 1, at: Duration::from_millis(at), now: Duration::from_millis(now(at)) };
    (0..50).map(|number| 100 * number).map(advance)
}

#[test]
fn cluster_time_that_stands_still_is_detected() {
    let check = |now: fn(u64) -> u64| cluster_time_advances::check(advances(now), 1.0);
    assert_eq!(check(|at| at), Ok(()));
    assert_eq!(check(|at| at.saturating_sub(500)), Ok(()), "entries are in flight for 500 ms");
    assert!(check(|at| at.min(1_000).max(at.saturating_sub(600))).is_err(), "it stands still for 600 ms");
    assert!(check(|at| at / 2).is_err(), "it runs at half the rate");
    let restarted = advances(|at| at.min(1_000)).map(|entry| Advance { term: entry.at.as_millis() as u64, ..entry });
    assert_eq!(cluster_time_advances::check(restarted, 1.0), Ok(()), "each leader starts anew");
    let paused = advances(|at| at.min(1_000)).map(|entry| Advance { at: entry.at * 3, ..entry });
    assert_eq!(cluster_time_advances::check(paused, 1.0), Ok(()), "a pause of 300 ms is time without a leader");
}

#[test]
fn deadline_that_an_idle_leader_misses_is_detected() {
    let ms = Duration::from_millis;
    let entry = |term, at, next: Option<u64>| NextDeadline { term, at: ms(at), now: ms(at), next: next.map(ms) };
    let check = |entries: &[NextDeadline]| idle_leader::check(entries, ms(5_000), 1.0);
    let first = entry(Some(1), 1_000, Some(2_000));
    assert_eq!(check(&[first, entry(Some(1), 2_250, None)]), Ok(1));
    assert!(check(&[first, entry(Some(1), 2_251, None)]).is_err(), "one commit takes at most 250 ms");
    assert_eq!(check(&[first, entry(Some(2), 4_000, None)]), Ok(0), "another leader follows");
    let blank = entry(None, 4_000, None);
    assert_eq!(check(&[first, blank, entry(Some(2), 4_100, None)]), Ok(0), "the blank entry of another leader");
    assert!(check(&[first, blank, entry(Some(1), 4_100, None)]).is_err(), "a change of the members in the term");
    assert_eq!(check(&[first, blank]), Ok(0), "the term of the blank entry is unknown");
    assert!(check(&[first]).is_err(), "no entry comes until the end");
    assert_eq!(check(&[entry(Some(1), 1_000, Some(4_750))]), Ok(1));
    assert_eq!(check(&[entry(Some(1), 1_000, None)]), Ok(0), "no deadline");
    let slow = NextDeadline { now: ms(0), ..first };
    assert!(idle_leader::check(&[slow, entry(Some(1), 5_200, None)], ms(6_000), 0.5).is_ok(), "a slow clock");
}

#[test]
fn wrong_watch_is_detected() {
    let ledger = valid_ledger();
    let (_, granted) = ledger.transitions().next().expect("the log has a grant");
    let (start, behind) = ((0, u32::MAX), (granted.index, granted.part));
    assert_eq!(watcher::check(&ledger, start, granted), Ok(()));
    let (_, second) = ledger.transitions().nth(1).expect("the log has a second transition");
    assert_eq!(watcher::check(&ledger, behind, second), Ok(()));
    assert!(watcher::check(&ledger, start, second).is_err(), "the first one is missing");
    assert!(watcher::check(&ledger, behind, granted).is_err(), "it is repeated");
    let other = Transition { holder: holder("z"), ..granted.clone() };
    assert!(watcher::check(&ledger, start, &other).is_err(), "the log has another holder");
    let compacted = |oldest, replaced| watcher::check_compacted(replaced, (4, 0), Compacted { oldest });
    assert_eq!((compacted(7, 7), compacted(4, 7)), (Ok(()), Ok(())));
    assert!(compacted(8, 7).is_err(), "the node has no snapshot of 8");
    assert!(compacted(3, 7).is_err(), "the watch has to begin before its position");
}

#[test]
fn entry_with_other_outcomes_is_detected() {
    let mut ledger = valid_ledger();
    let (position, now) = (at(9), 1_700);
    let batch = Batch { stamp: Stamp { now, wall_ms: now }, commands: vec![release("c", at(8))] };
    let mut machine = ledger.entries[7].machine.clone();
    let (_, effects) = machine.apply(position, &batch);
    ledger.record(1, &applied(9, Some(&batch), &[Outcome::Released(false)], &effects, &machine));
    assert_eq!(ledger.violations.first().map(|found| found.promise), Some("current_token_only"));
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
