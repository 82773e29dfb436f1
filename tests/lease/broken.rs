//! Tests of the promise checks: faulty machines, and the promise that detects each fault.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use tenure::lease::{Acquire, Batch, Change, Command, Effects, GrantCause, Limits, LostReason, Machine, Outcome};
use tenure::token::FencingToken;
use tenure::types::{MIN_TTL_MS, Ttl};

use crate::judge::Broken;
use crate::judge::entry::Entry;
use crate::judge::replay::Replay;
use crate::model::Model;
use crate::requests::{PlannedEntry, Proposer, limits, machine_with, plans};

/// Number of random histories in which the checks must detect a faulty machine.
const HISTORIES: u32 = 500;

pub trait Replica {
    fn apply(&mut self, position: FencingToken, batch: &Batch) -> (Vec<Outcome>, Effects);

    /// The state to judge, too.
    fn state(&self) -> Option<&Machine> {
        None
    }
}

impl Replica for Machine {
    fn apply(&mut self, position: FencingToken, batch: &Batch) -> (Vec<Outcome>, Effects) {
        Machine::apply(self, position, batch)
    }

    fn state(&self) -> Option<&Machine> {
        Some(self)
    }
}

/// Runs a history and returns the first broken promise. The tokens in the requests come from the model, so a fault of
/// the machine does not change the requests.
pub fn first_broken_promise(replica: &mut dyn Replica, limits: Limits, plan: &[PlannedEntry]) -> Option<Broken> {
    let mut model = Model::new(limits);
    let mut proposer = Proposer::new();
    let mut replay = Replay::default();
    plan.iter().find_map(|planned| {
        let (position, batch) = proposer.entry(planned, &model);
        model.apply(position, &batch);
        let (outcomes, Effects { transitions, dropped }) = replica.apply(position, &batch);
        let entry =
            Entry { position, batch: &batch, outcomes: &outcomes, transitions: &transitions, dropped: &dropped };
        let broken = replay.apply(&entry);
        broken.into_iter().chain(replica.state().into_iter().flat_map(|state| replay.compare(state))).next()
    })
}

type Fault = fn(&mut Machine, FencingToken, Batch) -> (Vec<Outcome>, Effects);

/// A machine with a fault in its input or its output.
struct Faulty {
    machine: Machine,
    fault: Fault,
}

impl Replica for Faulty {
    fn apply(&mut self, position: FencingToken, batch: &Batch) -> (Vec<Outcome>, Effects) {
        (self.fault)(&mut self.machine, position, batch.clone())
    }
}

/// The promise that detects a fault in the first of [`HISTORIES`] random histories that shows it. The histories are the
/// same in each run.
fn caught_by(fault: Fault) -> Option<&'static str> {
    let mut runner = TestRunner::deterministic();
    let histories = (limits(), plans());
    (0..HISTORIES).find_map(|_| {
        let (limits, plan) = histories.new_tree(&mut runner).expect("no filter rejects").current();
        let mut faulty = Faulty { machine: machine_with(limits), fault };
        first_broken_promise(&mut faulty, limits, &plan).map(|broken| broken.promise)
    })
}

fn each_acquire(batch: &mut Batch, change: impl Fn(&mut Acquire)) {
    batch.commands.iter_mut().for_each(|command| {
        if let Command::Acquire(acquire) = command {
            change(acquire);
        }
    });
}

fn scaled(ttl: Ttl, percent: u64) -> Ttl {
    ttl.as_millis().map_or(Ttl::INFINITE, |ms| Ttl::millis((ms * percent / 100).max(MIN_TTL_MS)).expect("valid"))
}

#[test]
fn correct_machine_breaks_no_promise() {
    assert_eq!(caught_by(|machine, position, batch| machine.apply(position, &batch)), None);
}

#[test]
fn token_given_twice_is_caught() {
    let fault: Fault = |machine, position, batch| {
        let (outcomes, mut effects) = machine.apply(position, &batch);
        effects.transitions.iter_mut().for_each(|transition| transition.token = FencingToken::new(1, 1));
        (outcomes, effects)
    };
    assert_eq!(caught_by(fault), Some("tokens_rise"));
}

#[test]
fn second_token_for_a_retried_acquire_is_caught() {
    let fault: Fault = |machine, position, batch| {
        let (mut outcomes, effects) = machine.apply(position, &batch);
        outcomes.iter_mut().for_each(|outcome| {
            if let Outcome::Held { lease, .. } = outcome {
                lease.token = position;
            }
        });
        (outcomes, effects)
    };
    assert_eq!(caught_by(fault), Some("reentrance_keeps_the_token"));
}

#[test]
fn renewal_that_revives_is_caught() {
    let fault: Fault = |machine, position, batch| {
        let (mut outcomes, effects) = machine.apply(position, &batch);
        for (command, outcome) in batch.commands.iter().zip(&mut outcomes) {
            if let (Command::Renew { leases, .. }, Outcome::Renewed(answers)) = (command, outcome) {
                for (renewal, answer) in leases.iter().zip(answers) {
                    let ended = machine.get(&renewal.name).map(|view| view.ended).unwrap_or_default();
                    let expired = answer.as_ref().is_err_and(|lost| lost.cause == LostReason::Expired);
                    let revived = ended.into_iter().find(|lease| expired && lease.token == renewal.token);
                    revived.into_iter().for_each(|lease| *answer = Ok(lease));
                }
            }
        }
        (outcomes, effects)
    };
    assert_eq!(caught_by(fault), Some("current_token_only"));
}

#[test]
fn release_that_ignores_the_token_is_caught() {
    let fault: Fault = |machine, position, mut batch| {
        batch.commands.iter_mut().for_each(|command| {
            if let Command::Release { name, holder, token } = command {
                let held = machine.get(name).map(|view| view.held).unwrap_or_default();
                let own = held.into_iter().find(|lease| lease.holder == *holder);
                own.into_iter().for_each(|lease| *token = lease.token);
            }
        });
        machine.apply(position, &batch)
    };
    assert_eq!(caught_by(fault), Some("current_token_only"));
}

#[test]
fn early_expiry_is_caught() {
    let fault: Fault = |machine, position, mut batch| {
        each_acquire(&mut batch, |acquire| acquire.ttl = scaled(acquire.ttl, 70));
        machine.apply(position, &batch)
    };
    assert_eq!(caught_by(fault), Some("no_early_expiry"));
}

#[test]
fn missing_expiry_is_caught() {
    let fault: Fault = |machine, position, mut batch| {
        each_acquire(&mut batch, |acquire| acquire.ttl = scaled(acquire.ttl, 130));
        machine.apply(position, &batch)
    };
    assert_eq!(caught_by(fault), Some("expiry_happens"));
}

#[test]
fn time_outside_the_log_is_caught() {
    let fault: Fault = |machine, position, mut batch| {
        batch.stamp.now += position.index();
        machine.apply(position, &batch)
    };
    assert_eq!(caught_by(fault), Some("time_is_the_logs"));
}

#[test]
fn second_holder_is_caught() {
    let fault: Fault = |machine, position, mut batch| {
        each_acquire(&mut batch, |acquire| acquire.limit += 1);
        machine.apply(position, &batch)
    };
    assert_eq!(caught_by(fault), Some("one_holder"));
}

#[test]
fn overtaken_waiter_is_caught() {
    let fault: Fault = |machine, position, batch| {
        let before = machine.clone();
        let (outcomes, mut effects) = machine.apply(position, &batch);
        for transition in &mut effects.transitions {
            if transition.change == Change::Granted(GrantCause::Queue) {
                let second = before.queue(&transition.name).into_iter().nth(1);
                second.into_iter().for_each(|waiter| transition.holder = waiter.holder);
            }
        }
        (outcomes, effects)
    };
    assert_eq!(caught_by(fault), Some("queue_order"));
}

#[test]
fn skipped_lock_delay_is_caught() {
    let fault: Fault = |machine, position, mut batch| {
        each_acquire(&mut batch, |acquire| acquire.lock_delay_ms = 0);
        machine.apply(position, &batch)
    };
    assert_eq!(caught_by(fault), Some("lock_delay"));
}

#[test]
fn duplicate_transition_is_caught() {
    let fault: Fault = |machine, position, batch| {
        let (outcomes, mut effects) = machine.apply(position, &batch);
        effects.transitions.extend(effects.transitions.last().cloned());
        (outcomes, effects)
    };
    assert_eq!(caught_by(fault), Some("each_transition_once"));
}

#[test]
fn missing_outcome_is_caught() {
    let fault: Fault = |machine, position, batch| {
        let (mut outcomes, effects) = machine.apply(position, &batch);
        outcomes.pop();
        (outcomes, effects)
    };
    assert_eq!(caught_by(fault), Some("each_is_answered"));
}
