//! The checker is checked: machines that are broken on purpose, and the promise that catches each.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use tenure::lease::{Acquire, Batch, Change, Command, Effects, GrantCause, Limits, LostCause, Machine, Outcome};
use tenure::token::FencingToken;
use tenure::types::Ttl;

use crate::model::Model;
use crate::promises::{Broken, Promises};
use crate::requests::{Proposer, Step, limits, machine_with, steps};

/// Random histories within which a broken machine must be caught.
const HISTORIES: u32 = 500;

pub trait Replica {
    fn apply(&mut self, position: FencingToken, batch: &Batch) -> (Vec<Outcome>, Effects);
}

impl Replica for Machine {
    fn apply(&mut self, position: FencingToken, batch: &Batch) -> (Vec<Outcome>, Effects) {
        Machine::apply(self, position, batch)
    }
}

/// Runs a history; the requests are those of somebody who talks to a machine that works.
pub fn first_broken_promise(replica: &mut dyn Replica, limits: Limits, steps: &[Step]) -> Option<Broken> {
    let mut model = Model::new(limits);
    let mut proposer = Proposer::new();
    let mut promises = Promises::default();
    steps.iter().find_map(|step| {
        let (position, batch) = proposer.entry(step, &model);
        model.apply(position, &batch);
        let (outcomes, effects) = replica.apply(position, &batch);
        promises.check(position, &batch, &outcomes, &effects).err()
    })
}

type Fault = fn(&mut Machine, FencingToken, Batch) -> (Vec<Outcome>, Effects);

/// A machine with one fault: in what goes in, or in what comes out.
struct Faulty {
    machine: Machine,
    fault: Fault,
}

impl Replica for Faulty {
    fn apply(&mut self, position: FencingToken, batch: &Batch) -> (Vec<Outcome>, Effects) {
        (self.fault)(&mut self.machine, position, batch.clone())
    }
}

/// The promise that catches a fault, in the first random history in which one does. The same histories every time.
fn caught_by(fault: Fault) -> Option<&'static str> {
    let mut runner = TestRunner::deterministic();
    let histories = (limits(), steps());
    (0..HISTORIES).find_map(|_| {
        let (limits, steps) = histories.new_tree(&mut runner).expect("no filter rejects").current();
        let mut faulty = Faulty { machine: machine_with(limits), fault };
        first_broken_promise(&mut faulty, limits, &steps).map(|broken| broken.promise)
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
    ttl.as_millis().map_or(Ttl::Infinite, |ms| Ttl::Finite(ms * percent / 100))
}

#[test]
fn no_fault_is_caught_in_the_machine_itself() {
    assert_eq!(caught_by(|machine, position, batch| machine.apply(position, &batch)), None);
}

#[test]
fn a_token_given_twice_is_caught() {
    let fault: Fault = |machine, position, batch| {
        let (outcomes, mut effects) = machine.apply(position, &batch);
        effects.transitions.iter_mut().for_each(|transition| transition.token = FencingToken { term: 1, index: 1 });
        (outcomes, effects)
    };
    assert_eq!(caught_by(fault), Some("tokens_rise"));
}

#[test]
fn a_second_token_for_a_retried_acquire_is_caught() {
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
fn a_renewal_that_revives_is_caught() {
    let fault: Fault = |machine, position, batch| {
        let (mut outcomes, effects) = machine.apply(position, &batch);
        for (command, outcome) in batch.commands.iter().zip(&mut outcomes) {
            if let (Command::Renew { leases, .. }, Outcome::Renewed(answers)) = (command, outcome) {
                for (renewal, answer) in leases.iter().zip(answers) {
                    let ended = machine.get(&renewal.name).map(|view| view.ended).unwrap_or_default();
                    let expired = answer.as_ref().is_err_and(|lost| lost.cause == LostCause::Expired);
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
fn a_release_that_ignores_the_token_is_caught() {
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
fn an_early_expiry_is_caught() {
    let fault: Fault = |machine, position, mut batch| {
        each_acquire(&mut batch, |acquire| acquire.ttl = scaled(acquire.ttl, 70));
        machine.apply(position, &batch)
    };
    assert_eq!(caught_by(fault), Some("no_early_expiry"));
}

#[test]
fn an_expiry_that_does_not_happen_is_caught() {
    let fault: Fault = |machine, position, mut batch| {
        each_acquire(&mut batch, |acquire| acquire.ttl = scaled(acquire.ttl, 130));
        machine.apply(position, &batch)
    };
    assert_eq!(caught_by(fault), Some("expiry_happens"));
}

#[test]
fn a_clock_that_runs_by_itself_is_caught() {
    let fault: Fault = |machine, position, mut batch| {
        batch.stamp.now += position.index;
        machine.apply(position, &batch)
    };
    assert_eq!(caught_by(fault), Some("time_is_the_logs"));
}

#[test]
fn a_second_holder_is_caught() {
    let fault: Fault = |machine, position, mut batch| {
        each_acquire(&mut batch, |acquire| acquire.limit += 1);
        machine.apply(position, &batch)
    };
    assert_eq!(caught_by(fault), Some("one_holder"));
}

#[test]
fn an_overtaken_waiter_is_caught() {
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
fn a_skipped_lock_delay_is_caught() {
    let fault: Fault = |machine, position, mut batch| {
        each_acquire(&mut batch, |acquire| acquire.lock_delay_ms = 0);
        machine.apply(position, &batch)
    };
    assert_eq!(caught_by(fault), Some("lock_delay"));
}

#[test]
fn a_transition_told_twice_is_caught() {
    let fault: Fault = |machine, position, batch| {
        let (outcomes, mut effects) = machine.apply(position, &batch);
        effects.transitions.extend(effects.transitions.last().cloned());
        (outcomes, effects)
    };
    assert_eq!(caught_by(fault), Some("each_transition_once"));
}

#[test]
fn a_command_without_an_answer_is_caught() {
    let fault: Fault = |machine, position, batch| {
        let (mut outcomes, effects) = machine.apply(position, &batch);
        outcomes.pop();
        (outcomes, effects)
    };
    assert_eq!(caught_by(fault), Some("each_is_answered"));
}
