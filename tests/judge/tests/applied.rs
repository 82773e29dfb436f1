//! Applied entries: each case changes one entry of a valid log.

use tenure::lease::{
    Acquire, Batch, Change, Command, DropCause, Effects, GrantCause, HolderLease, Machine, Outcome, Refusal, Renewal,
    Stamp, WaiterId,
};
use tenure::token::FencingToken;
use tenure::types::{AccessName, HolderId, LeaseName, Metadata, Ttl};

use crate::judge::entry::Entry;
use crate::judge::replay::Replay;
use crate::judge::replicas_agree::{check_effects, check_state};

/// An entry with the state of the replica behind it.
struct Applied {
    position: FencingToken,
    batch: Batch,
    outcomes: Vec<Outcome>,
    effects: Effects,
    replica: Machine,
}

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
        lock_delay_ms: 100,
        limit: 1,
        metadata: Metadata::default(),
    })
}

fn release(by: &str, token: FencingToken) -> Command {
    Command::Release { name: name(), holder: holder(by), token }
}

fn hand_over(to: Option<&str>) -> Command {
    Command::HandOver { name: name(), holder: holder("a"), token: at(1), to: to.map(holder) }
}

/// a holds the lease, b and c wait, and a hands it over.
fn log_of_a_hand_over(to: Option<&str>) -> Vec<Applied> {
    apply(vec![
        (100, acquire("a", None)),
        (200, acquire("b", Some(9_000))),
        (300, acquire("c", Some(9_000))),
        (400, hand_over(to)),
    ])
}

/// The same, but the leader changed before the claim of c, and no request of b has reached the new leader.
fn log_of_a_hand_over_after_a_leader_change(to: Option<&str>) -> Vec<Applied> {
    let later = |index| FencingToken::new(2, index);
    apply_entries([
        (at(1), 100, vec![acquire("a", None)]),
        (at(2), 200, vec![acquire("b", Some(9_000))]),
        (later(3), 300, vec![acquire("c", Some(9_000))]),
        (later(4), 400, vec![hand_over(to)]),
    ])
}

/// A valid log with one command in each entry. a acquires, b and c wait. a acquires again, renews and releases. b is
/// granted the lease, which expires. After the lock delay, c is granted it.
fn valid_log() -> Vec<Applied> {
    let renewal = Renewal { name: name(), token: at(1), ttl: None };
    apply(vec![
        (100, acquire("a", None)),
        (200, acquire("b", Some(9_000))),
        (300, acquire("c", Some(1_502))),
        (400, acquire("a", None)),
        (500, Command::Renew { holder: holder("a"), leases: vec![renewal] }),
        (600, release("a", at(1))),
        (700, release("a", at(1))),
        (1_601, Command::Tick),
        (1_702, Command::Tick),
    ])
}

/// A valid log of two principals with the same holder id: only the first one holds the lease. Then the second one gets it.
fn log_of_principals() -> Vec<Applied> {
    let of = |principal: &str, command: Command| command.owned_by(AccessName::new(principal).expect("valid"));
    let renew =
        |token| Command::Renew { holder: holder("a"), leases: vec![Renewal { name: name(), token, ttl: None }] };
    apply(vec![
        (100, of("p", acquire("a", None))),
        (200, of("q", acquire("a", None))),
        (300, of("q", renew(at(1)))),
        (400, of("q", release("a", at(1)))),
        (500, of("p", renew(at(1)))),
        (600, of("p", release("a", at(1)))),
        (700, of("q", acquire("a", None))),
        (800, of("q", release("a", at(7)))),
    ])
}

fn apply(commands: Vec<(u64, Command)>) -> Vec<Applied> {
    apply_entries((1..).zip(commands).map(|(index, (now, command))| (at(index), now, vec![command])))
}

fn apply_entries(entries: impl IntoIterator<Item = (FencingToken, u64, Vec<Command>)>) -> Vec<Applied> {
    let mut machine = Machine::new();
    let apply = |(position, now, commands)| {
        let batch = Batch { stamp: Stamp { now, wall_ms: now }, commands };
        let (outcomes, effects) = machine.apply(position, &batch);
        Applied { position, batch, outcomes, effects, replica: machine.clone() }
    };
    entries.into_iter().map(apply).collect()
}

/// After a leader change, a released lease stays reserved for the first waiter. In the same entry another client queues
/// behind it, and then the waiter confirms its place and gets the grant.
fn log_of_a_confirmed_waiter() -> Vec<Applied> {
    let confirmed = vec![release("a", at(1)), acquire("c", Some(9_000)), acquire("b", Some(9_000))];
    apply_entries([
        (at(1), 100, vec![acquire("a", None)]),
        (at(2), 200, vec![acquire("b", Some(9_000))]),
        (FencingToken::new(2, 3), 300, confirmed),
    ])
}

/// After a leader change, the first waiter has no grant yet. It releases with the token that it gets later in this entry.
fn log_of_a_token_from_the_future() -> Vec<Applied> {
    let later = FencingToken::new(2, 4);
    let waiter = WaiterId { name: name(), holder: holder("b") };
    apply_entries([
        (at(1), 100, vec![acquire("a", None)]),
        (at(2), 200, vec![acquire("b", Some(9_000))]),
        (FencingToken::new(2, 3), 300, vec![release("a", at(1))]),
        (later, 400, vec![release("b", later), Command::KeepWaiting { waiters: vec![waiter] }]),
    ])
}

/// The first broken promise of a log.
fn judged(log: &[Applied]) -> Option<&'static str> {
    let mut replay = Replay::default();
    log.iter().find_map(|applied| {
        let Applied { position, batch, outcomes, effects, replica } = applied;
        let (transitions, dropped) = (&effects.transitions, &effects.dropped);
        let broken = replay.apply(&Entry { position: *position, batch, outcomes, transitions, dropped });
        broken.into_iter().chain(replay.compare(replica)).map(|broken| broken.promise).next()
    })
}

/// The first broken promise after a change of the entry with this index.
fn judged_after(index: u64, change: impl FnOnce(&mut Applied)) -> Option<&'static str> {
    let mut log = valid_log();
    change(&mut log[index as usize - 1]);
    judged(&log)
}

/// The lease in the outcome of a claim or a renewal.
fn answered(applied: &mut Applied) -> &mut HolderLease {
    match &mut applied.outcomes[0] {
        Outcome::Held { lease, .. } => lease,
        Outcome::Renewed(renewed) => renewed[0].as_mut().expect("renewed"),
        other => panic!("no lease in {other:?}"),
    }
}

#[test]
fn valid_log_breaks_no_promise() {
    assert_eq!(judged(&valid_log()), None);
    let transitions: usize = valid_log().iter().map(|applied| applied.effects.transitions.len()).sum();
    assert_eq!(transitions, 5, "three grants, a release and an expiry");
}

#[test]
fn grant_follows_the_command_that_confirms_the_waiter() {
    let log = log_of_a_token_from_the_future();
    assert_eq!(log[3].outcomes, [Outcome::Released(false), Outcome::Waiting(1)]);
    assert_eq!(log[3].effects.transitions.len(), 1, "the waiter is granted the lease");
    assert_eq!(judged(&log), None);
}

#[test]
fn grant_to_an_unconfirmed_waiter_is_caught() {
    let mut log = log_of_a_token_from_the_future();
    log[3].batch.commands.pop();
    log[3].outcomes.pop();
    assert_eq!(judged(&log), Some("queue_order"));
}

#[test]
fn other_principals_are_caught() {
    assert_eq!(judged(&log_of_principals()), None);
    let judged_after = |index: u64, change: &dyn Fn(&mut Applied, &Applied)| {
        let mut log = log_of_principals();
        let first = log_of_principals().swap_remove(0);
        change(&mut log[index as usize - 1], &first);
        judged(&log)
    };
    let answered_like_the_owner = judged_after(2, &|applied, first| {
        let Outcome::Held { lease, .. } = first.outcomes[0].clone() else { panic!("a holds the lease") };
        applied.outcomes = vec![Outcome::Held { lease, fresh: false }];
    });
    assert_eq!(answered_like_the_owner, Some("owner_only"));
    let renewed = judged_after(3, &|applied, first| {
        let Outcome::Held { lease, .. } = first.outcomes[0].clone() else { panic!("a holds the lease") };
        applied.outcomes = vec![Outcome::Renewed(vec![Ok(lease)])];
    });
    assert_eq!(renewed, Some("current_token_only"));
    let released = judged_after(4, &|applied, _| applied.outcomes = vec![Outcome::Released(true)]);
    assert_eq!(released, Some("current_token_only"));
    let owner_refused = judged_after(7, &|applied, _| applied.outcomes = vec![Outcome::Refused(Refusal::HolderInUse)]);
    assert!(owner_refused.is_some(), "the first principal has released it");
}

#[test]
fn grant_to_a_second_holder_is_caught() {
    let second = |applied: &mut Applied| {
        let first = valid_log().swap_remove(0);
        let Outcome::Held { mut lease, .. } = first.outcomes[0].clone() else { panic!("a holds the lease") };
        (lease.holder, lease.token) = (holder("b"), at(2));
        let mut grant = first.effects.transitions[0].clone();
        (grant.holder, grant.token, grant.index, grant.at) = (holder("b"), at(2), 2, 200);
        applied.outcomes = vec![Outcome::Held { lease, fresh: true }];
        applied.effects.transitions = vec![grant];
    };
    assert_eq!(judged_after(2, second), Some("one_holder"));
    // The same grant while the lease is free.
    let mut free = valid_log();
    free.remove(0);
    free.truncate(1);
    second(&mut free[0]);
    let mut replay = Replay::default();
    let Applied { position, batch, outcomes, effects, .. } = &free[0];
    let (transitions, dropped) = (&effects.transitions, &effects.dropped);
    let broken = replay.apply(&Entry { position: *position, batch, outcomes, transitions, dropped });
    assert!(broken.is_empty(), "{broken:?}");
}

#[test]
fn replica_with_other_grants_is_caught() {
    assert_eq!(judged_after(4, |applied| applied.replica = Machine::new()), Some("time_is_the_logs"));
    let mut free = Machine::new();
    let tick = Batch { stamp: Stamp { now: 400, wall_ms: 400 }, commands: vec![Command::Tick] };
    free.apply(at(1), &tick);
    assert_eq!(judged_after(4, |applied| applied.replica = free), Some("one_holder"));
}

#[test]
fn token_that_is_not_the_position_is_caught() {
    assert_eq!(judged_after(1, |applied| applied.effects.transitions[0].token = at(2)), Some("tokens_rise"));
    assert_eq!(judged_after(1, |applied| answered(applied).token = at(2)), Some("tokens_rise"));
    assert_eq!(judged_after(9, |applied| applied.effects.transitions[0].token = at(2)), Some("tokens_rise"));
    let mut later_term = valid_log();
    let grant = &mut later_term[8];
    grant.position = FencingToken::new(2, grant.position.index());
    grant.effects.transitions[0].token = grant.position;
    let replica = &mut grant.replica;
    *replica = valid_log().swap_remove(7).replica;
    replica.apply(grant.position, &grant.batch);
    assert_eq!(judged(&later_term).filter(|promise| *promise == "tokens_rise"), None, "a higher term");
}

#[test]
fn early_expiry_is_caught() {
    let early = |applied: &mut Applied| applied.effects.transitions[0].change = Change::Expired;
    assert_eq!(judged_after(6, early), Some("no_early_expiry"));
    // The renewal at 500 moves the deadline to 1500. A replica that expires the lease one entry earlier does not know it.
    let forgotten = |applied: &mut Applied| applied.outcomes = vec![Outcome::Renewed(Vec::new())];
    assert_eq!(judged_after(5, forgotten), Some("no_early_expiry"), "the replica has a later deadline");
}

#[test]
fn missing_expiry_is_caught() {
    let missing = |applied: &mut Applied| applied.effects.transitions.clear();
    assert_eq!(judged_after(8, missing), Some("expiry_happens"));
    let at_the_deadline = |applied: &mut Applied| {
        missing(applied);
        applied.batch.stamp.now = 1_600;
    };
    assert_ne!(judged_after(8, at_the_deadline), Some("expiry_happens"), "the deadline is not over");
}

#[test]
fn grant_out_of_order_is_caught() {
    let to_c = |applied: &mut Applied| applied.effects.transitions[1].holder = holder("c");
    assert_eq!(judged_after(6, to_c), Some("queue_order"));
    let never_waited = |applied: &mut Applied| applied.outcomes = vec![Outcome::Done];
    assert_eq!(judged_after(2, never_waited), Some("queue_order"), "b is not in the queue");
    let wrong_place = |applied: &mut Applied| applied.outcomes = vec![Outcome::Queued { place: 0 }];
    assert_eq!(judged_after(3, wrong_place), Some("queue_order"), "b is before c");
    let not_dropped = |applied: &mut Applied| {
        let Command::Acquire(acquire) = &mut applied.batch.commands[0] else { panic!("c claims the lease") };
        acquire.wait_ms = Some(1_401);
    };
    assert_eq!(judged_after(3, not_dropped), Some("queue_order"), "the wait of c ended 1 ms before its grant");
    let just_in_time = |applied: &mut Applied| {
        let Command::Acquire(acquire) = &mut applied.batch.commands[0] else { panic!("c claims the lease") };
        acquire.wait_ms = Some(1_402);
    };
    assert_eq!(judged_after(3, just_in_time), None);
}

#[test]
fn hand_over_to_another_waiter_is_caught() {
    for to in [None, Some("b"), Some("c")] {
        assert_eq!(judged(&log_of_a_hand_over(to)), None, "{to:?}");
        assert_eq!(judged(&log_of_a_hand_over_after_a_leader_change(to)), None, "{to:?}");
    }
    let asked_for = |to, mut log: Vec<Applied>| {
        log[3].batch.commands = vec![hand_over(to)];
        judged(&log)
    };
    assert_eq!(asked_for(Some("c"), log_of_a_hand_over(Some("b"))), Some("queue_order"), "the holder chose c");
    assert_eq!(asked_for(None, log_of_a_hand_over(Some("c"))), Some("queue_order"), "b is the first waiter");
    let unconfirmed = log_of_a_hand_over_after_a_leader_change(Some("b"));
    assert_eq!(asked_for(None, unconfirmed), Some("queue_order"), "c is the first whose request arrived");
    let mut other_recipient = log_of_a_hand_over(None);
    other_recipient[3].effects.transitions[0].change = Change::HandedOver { to: holder("c") };
    assert_eq!(judged(&other_recipient), Some("each_transition_once"));
}

#[test]
fn grant_that_a_later_command_confirms_is_in_order() {
    let mut log = log_of_a_confirmed_waiter();
    assert_eq!(log[2].outcomes[1], Outcome::Queued { place: 1 });
    assert!(matches!(log[2].outcomes[2], Outcome::Held { fresh: true, .. }));
    assert_eq!(judged(&log), None);
    log[2].outcomes[1] = Outcome::Queued { place: 0 };
    assert_eq!(judged(&log), Some("queue_order"), "c queued while b waited");
}

#[test]
fn grant_inside_the_lock_delay_is_caught() {
    let delayed_more = |delay| {
        move |applied: &mut Applied| {
            let Command::Acquire(acquire) = &mut applied.batch.commands[0] else { panic!("b claims the lease") };
            acquire.lock_delay_ms = delay;
        }
    };
    assert_eq!(judged_after(2, delayed_more(101)), Some("lock_delay"));
    assert_eq!(judged_after(2, delayed_more(100)), None);
}

#[test]
fn end_with_another_token_is_caught() {
    let other_token = |applied: &mut Applied| applied.batch.commands = vec![release("a", at(4))];
    assert_eq!(judged_after(6, other_token), Some("current_token_only"));
    let nothing_released = |applied: &mut Applied| applied.outcomes = vec![Outcome::Released(false)];
    assert_eq!(judged_after(6, nothing_released), Some("current_token_only"));
    assert_eq!(judged_after(7, other_token), None, "nothing is released in either case");
    let of_another = |applied: &mut Applied| {
        let leases = vec![Renewal { name: name(), token: at(1), ttl: None }];
        applied.batch.commands = vec![Command::Renew { holder: holder("b"), leases }];
    };
    assert_eq!(judged_after(5, of_another), Some("current_token_only"));
}

#[test]
fn second_token_for_a_holder_is_caught() {
    assert_eq!(judged_after(4, |applied| answered(applied).token = at(4)), Some("reentrance_keeps_the_token"));
    let queued = |applied: &mut Applied| applied.outcomes = vec![Outcome::Queued { place: 2 }];
    assert_eq!(judged_after(4, queued), Some("reentrance_keeps_the_token"));
}

#[test]
fn transition_without_number_or_cause_is_caught() {
    assert_eq!(judged_after(6, |applied| applied.effects.transitions[1].part = 2), Some("each_transition_once"));
    assert_eq!(judged_after(6, |applied| applied.effects.transitions[0].index = 5), Some("each_transition_once"));
    let without_cause = |applied: &mut Applied| {
        applied.batch.commands = vec![Command::Tick];
        applied.outcomes = vec![Outcome::Done];
    };
    assert_eq!(judged_after(6, without_cause), Some("each_transition_once"));
    let another_end = |applied: &mut Applied| {
        applied.effects.transitions[0].change = Change::Revoked { reason: String::new() };
    };
    assert_eq!(judged_after(6, another_end), Some("each_transition_once"));
    let another_cause = |applied: &mut Applied| {
        applied.effects.transitions[0].change = Change::HandedOver { to: holder("b") };
    };
    assert_eq!(judged_after(6, another_cause), Some("each_transition_once"));
    let queue_without_waiter = |applied: &mut Applied| {
        applied.effects.transitions[0].change = Change::Granted(GrantCause::Queue);
    };
    assert_eq!(judged_after(1, queue_without_waiter), Some("queue_order"));
}

#[test]
fn missing_outcome_is_caught() {
    assert_eq!(judged_after(8, |applied| applied.outcomes.clear()), Some("each_is_answered"));
}

#[test]
fn time_that_is_not_the_stamp_is_caught() {
    assert_eq!(judged_after(1, |applied| applied.effects.transitions[0].at = 101), Some("time_is_the_logs"));
    assert_eq!(
        judged_after(2, |applied| applied.batch.stamp.now = 201),
        Some("time_is_the_logs"),
        "the replica's clock"
    );
    let old_stamp = |applied: &mut Applied| applied.batch.stamp.now = 0;
    let mut log = valid_log();
    old_stamp(&mut log[8]);
    assert_eq!(judged(&log), Some("time_is_the_logs"), "time stood still, but c was granted the lease");
}

#[test]
fn waiter_that_left_without_waiting_is_caught() {
    let waiter = |by| tenure::lease::WaiterId { name: name(), holder: holder(by) };
    let dropped = |by, cause| {
        move |applied: &mut Applied| {
            applied.effects.dropped.push(tenure::lease::DroppedWaiter { waiter: waiter(by), cause });
        }
    };
    assert_eq!(judged_after(4, dropped("x", DropCause::Abandoned)), Some("queue_order"));
    assert_eq!(judged_after(4, dropped("c", DropCause::Abandoned)), Some("queue_order"), "the replica still has it");
}

#[test]
fn different_replicas_are_caught() {
    let log = valid_log();
    let effects = |index: usize| (&log[index].effects.transitions[..], &log[index].effects.dropped[..]);
    check_effects(effects(5), effects(5)).expect("equal");
    check_effects(effects(5), effects(7)).expect_err("other transitions");
    check_state(&log[5].replica, &valid_log()[5].replica).expect("equal");
    check_state(&log[5].replica, &log[4].replica).expect_err("one entry is missing");
}
