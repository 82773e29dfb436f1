//! Compares the machine with the simple model after each entry: outcomes, effects and reads.

use proptest::prelude::*;
use tenure::lease::{
    Batch, Command, HolderLease, LeaseState, ListFilter, Machine, Outcome, Refusal, Stamp, StateFilter,
};
use tenure::token::FencingToken;

use crate::model::Model;
use crate::requests::{Proposer, holders, limits, machine_with, names, plans};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn outcomes_effects_and_reads_equal_the_models(limits in limits(), plan in plans()) {
        let mut machine = machine_with(limits);
        let mut model = Model::new(limits);
        let mut proposer = Proposer::with_principals();
        for planned in &plan {
            let (position, batch) = proposer.entry(planned, &model);
            let (outcomes, effects) = machine.apply(position, &batch);
            let (expected_outcomes, expected_effects) = model.apply(position, &batch);
            prop_assert_eq!(&outcomes, &expected_outcomes, "at {:?} {:?}", position, batch);
            prop_assert_eq!(&effects, &expected_effects, "at {:?} {:?}", position, batch);
            compare_reads(&machine, &model)?;
        }
    }
}

proptest! {
    /// The log would return the same refusal as the leader's memory.
    #[test]
    fn refusal_from_memory_equals_the_logs(limits in limits(), plan in plans()) {
        let (mut machine, mut model) = (machine_with(limits), Model::new(limits));
        let mut proposer = Proposer::new();
        for planned in &plan {
            let (position, batch) = proposer.entry(planned, &model);
            for command in &batch.commands {
                compare_refusals(&machine, position, batch.stamp, command)?;
            }
            machine.apply(position, &batch);
            model.apply(position, &batch);
        }
    }
}

fn compare_refusals(
    machine: &Machine,
    position: FencingToken,
    stamp: Stamp,
    command: &Command,
) -> Result<(), TestCaseError> {
    let Command::Acquire(acquire) = command else { return Ok(()) };
    let now = stamp.now.max(machine.now());
    let from_memory = machine.held_by_other(acquire, now);
    let batch = Batch { stamp, commands: vec![command.clone()] };
    let (outcomes, _) = machine.clone().apply(position, &batch);
    let by_the_log = match &outcomes[0] {
        Outcome::Refused(refusal @ Refusal::Held { .. }) => Some(refusal.clone()),
        _ => None,
    };
    if machine.next_due().is_none_or(|due| due > now) {
        prop_assert_eq!(from_memory, by_the_log);
    } else if from_memory.is_some() {
        // With a due timer, memory can omit the refusal or count too many waiters. The log must refuse too.
        prop_assert!(by_the_log.is_some(), "{:?} = {:?}, {:?} from memory", acquire, outcomes, from_memory);
    }
    Ok(())
}

fn compare_reads(machine: &Machine, model: &Model) -> Result<(), TestCaseError> {
    prop_assert_eq!(machine.now(), model.now);
    prop_assert_eq!(machine.limits(), model.limits);
    prop_assert_eq!(machine.counts(), model.counts());
    prop_assert_eq!(machine.next_due(), model.next_due());
    let mut all: Vec<HolderLease> = Vec::new();
    for name in names() {
        let (held, ended) = machine.get(&name).map(|view| (view.held, view.ended)).unwrap_or_default();
        let leases = [held.clone(), ended.clone()].concat();
        prop_assert_eq!(&leases, &model.leases_of(&name));
        for lease in &leases {
            let found = machine.held_with(&name, lease.token);
            prop_assert_eq!(found, held.iter().find(|held| held.token == lease.token).cloned());
        }
        prop_assert_eq!(machine.last_ended(&name), ended.last().cloned());
        prop_assert_eq!(machine.holders(&name), (held, None));
        prop_assert_eq!(machine.queue(&name), model.queue(&name));
        prop_assert_eq!(machine.history(&name), model.history(&name));
        for holder in holders() {
            prop_assert_eq!(machine.explain(&name, Some(&holder)), model.explain(&name, &holder));
        }
        all.extend(leases);
    }
    all.sort_by_key(|lease| (lease.name.clone(), lease.token));
    prop_assert_eq!(pages(machine, &ListFilter::default()), all.clone());
    for (state, fits) in STATES {
        let expected: Vec<HolderLease> = all.iter().filter(|lease| fits(lease)).cloned().collect();
        let filter = ListFilter { states: vec![state], ..ListFilter::default() };
        prop_assert_eq!(pages(machine, &filter), expected, "{:?}", state);
    }
    Ok(())
}

/// Whether a state of a list includes this lease.
type Fits = fn(&HolderLease) -> bool;

/// The states of a list.
const STATES: [(StateFilter, Fits); 6] = [
    (StateFilter::Active, |lease| lease.state == LeaseState::Active),
    (StateFilter::Renewed, |lease| lease.state == LeaseState::Active && lease.renewals > 0),
    (StateFilter::Expired, |lease| lease.state == LeaseState::Expired),
    (StateFilter::Released, |lease| lease.state == LeaseState::Released),
    (StateFilter::Revoked, |lease| lease.state == LeaseState::Revoked),
    (StateFilter::HandedOver, |lease| lease.state == LeaseState::HandedOver),
];

/// All leases that the filter selects, read in pages of two.
fn pages(machine: &Machine, filter: &ListFilter) -> Vec<HolderLease> {
    let mut leases = Vec::new();
    let mut after = None;
    loop {
        let (page, cursor) = machine.list(filter, after.as_ref(), 2);
        leases.extend(page);
        after = cursor;
        if after.is_none() {
            return leases;
        }
    }
}
