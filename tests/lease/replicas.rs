//! Replicas that applied the same entries have the same stored bytes, with or without restarts.

use proptest::prelude::*;
use tenure::lease::{Machine, SnapshotHeader, StoredRecord};

use crate::judge::replicas_agree::check_state;
use crate::model::Model;
use crate::requests::{Proposer, limits, machine_with, plans};

pub fn bytes(machine: &Machine) -> Vec<u8> {
    let records: Vec<StoredRecord> = machine.records().collect();
    bincode::serde::encode_to_vec((machine.header(), records), bincode::config::standard()).expect("a snapshot encodes")
}

pub fn rebuilt(bytes: &[u8]) -> Machine {
    type Snapshot = (SnapshotHeader, Vec<StoredRecord>);
    let decoded = bincode::serde::decode_from_slice(bytes, bincode::config::standard());
    let ((header, records), read): (Snapshot, usize) = decoded.expect("a snapshot decodes");
    assert_eq!(read, bytes.len());
    Machine::from_records(header, records).expect("a machine wrote this snapshot")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn replicas_agree(limits in limits(), plan in plans()) {
        let (mut one, mut other, mut model) = (machine_with(limits), machine_with(limits), Model::new(limits));
        let mut proposer = Proposer::with_principals();
        for planned in &plan {
            let (position, batch) = proposer.entry(planned, &model);
            model.apply(position, &batch);
            prop_assert_eq!(one.apply(position, &batch), other.apply(position, &batch));
            prop_assert_eq!(bytes(&one), bytes(&other));
            prop_assert_eq!(check_state(&one, &other), Ok(()));
        }
    }

    /// A replica rebuilt from snapshots behaves like one that was never rebuilt, also in its derived state.
    #[test]
    fn restart_equivalence(limits in limits(), plan in plans(), every in 1..8usize) {
        let (mut steady, mut restarted, mut model) = (machine_with(limits), machine_with(limits), Model::new(limits));
        let mut proposer = Proposer::with_principals();
        for (number, planned) in plan.iter().enumerate() {
            if number % every == 0 {
                restarted = rebuilt(&bytes(&restarted));
            }
            let (position, batch) = proposer.entry(planned, &model);
            model.apply(position, &batch);
            prop_assert_eq!(steady.apply(position, &batch), restarted.apply(position, &batch));
            prop_assert_eq!(bytes(&steady), bytes(&restarted));
            prop_assert_eq!(steady.next_due(), restarted.next_due());
            prop_assert_eq!(steady.counts(), restarted.counts());
        }
    }

    /// Entries applied after a clone do not change the clone.
    #[test]
    fn view_is_unchanged_by_later_entries(limits in limits(), plan in plans(), at in 0..60usize) {
        let (mut machine, mut model) = (machine_with(limits), Model::new(limits));
        let mut proposer = Proposer::with_principals();
        let mut taken = None;
        for (number, planned) in plan.iter().enumerate() {
            if number == at {
                taken = Some((machine.clone(), bytes(&machine)));
            }
            let (position, batch) = proposer.entry(planned, &model);
            model.apply(position, &batch);
            machine.apply(position, &batch);
        }
        if let Some((view, expected)) = taken {
            prop_assert_eq!(bytes(&view), expected);
        }
    }
}
