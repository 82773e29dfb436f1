//! What a power cut leaves of a fence's marks: none that was acknowledged may have fallen.

use std::path::Path;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tenure::fence::Gate;
use tenure::token::FencingToken;

use crate::disk::{Disk, Image, Trust};
use crate::recorder::{Event, Watch};
use crate::{cuts, first_seed, scratch};

const MARKS: &str = "marks";
const RESOURCES: usize = 3;
/// With the long names below the file is written anew once or twice in a run.
const RISES: usize = 3000;

struct Run {
    rises: Vec<(String, FencingToken)>,
    events: Vec<Event>,
}

fn record(root: &Path, rng: &mut StdRng) -> Run {
    let watch = Watch::new(root, []);
    let mut gate = Gate::open(root.join(MARKS)).expect("a new file");
    let mut rises = Vec::new();
    for n in 0..RISES {
        if rng.random_ratio(1, 1000) {
            drop(gate);
            gate = Gate::open(root.join(MARKS)).expect("the same file");
        }
        let name = format!("{:0>500}", rng.random_range(0..RESOURCES));
        let token = FencingToken { term: 1, index: n as u64 + 1 };
        rises.push((name.clone(), token));
        watch.note(Event::Submitted);
        gate.admit_blocking(&name, token, || watch.note(Event::Acknowledged(n))).expect("it rises");
    }
    Run { rises, events: watch.events() }
}

impl Run {
    /// Opens what a cut has left, and says what it forgot.
    fn check(&self, point: usize, image: &Image) -> Result<(), String> {
        let past = &self.events[..point];
        let acknowledged = past.iter().filter(|event| matches!(event, Event::Acknowledged(_))).count();
        let submitted = past.iter().filter(|event| matches!(event, Event::Submitted)).count();
        let scratch = scratch();
        image.write_to(scratch.path());
        let _watch = Watch::new(scratch.path(), image.file_ids());
        let gate = Gate::open(scratch.path().join(MARKS)).map_err(|error| error.to_string())?;
        for resource in (0..RESOURCES).map(|n| format!("{n:0>500}")) {
            let last = |rises: &[(String, FencingToken)]| {
                rises.iter().rev().find(|(name, _)| *name == resource).map_or(0, |(_, token)| token.as_u64())
            };
            let (low, found) = (last(&self.rises[..acknowledged]), gate.highest(&resource).as_u64());
            if found < low || found > last(&self.rises[..submitted]) {
                return Err(format!("cut at event {point}: {low} was acknowledged, and {found} is there"));
            }
        }
        Ok(())
    }
}

/// How many of the cuts forgot something, and what the first one forgot. Half of them hit where the file is replaced.
fn cut(cuts: usize, trust: Trust) -> (usize, Option<String>) {
    let mut rng = StdRng::seed_from_u64(first_seed());
    let run = record(scratch().path(), &mut rng);
    let renames: Vec<usize> =
        (0..run.events.len()).filter(|&n| matches!(run.events[n], Event::Rename { .. })).collect();
    assert!(renames.len() > 1, "the file was never written anew");
    let mut points: Vec<usize> = (0..cuts).map(|_| rng.random_range(0..=run.events.len())).collect();
    for point in points.iter_mut().step_by(2) {
        *point = (renames[rng.random_range(0..renames.len())] + rng.random_range(0..12)).saturating_sub(4);
    }
    points.sort_unstable();
    let (mut disk, mut applied, mut failures) = (Disk::new(&Image::default(), trust), 0, Vec::new());
    for point in points.into_iter().map(|point| point.min(run.events.len())) {
        run.events[applied..point].iter().for_each(|event| disk.apply(event));
        applied = point;
        failures.extend(run.check(point, &disk.cut(&mut rng)).err());
    }
    (failures.len(), failures.into_iter().next())
}

#[test]
fn a_fences_marks_survive_a_power_cut() {
    let (lost, first) = cut(cuts(), Trust::All);
    assert_eq!(lost, 0, "{first:?}");
}

/// The controls.
#[test]
fn without_its_syncs_a_fence_forgets() {
    for trust in [Trust::NoDataSync, Trust::NoDirSync] {
        let (lost, first) = cut(cuts(), trust);
        println!("{trust:?}: {lost} of {} cuts forgot something: {first:?}", cuts());
        assert!(lost > 0, "{trust:?}");
    }
}

/// A mark whose sync failed was never accepted; the gate stays shut, and opens again with what was acknowledged.
#[test]
fn a_failed_sync_shuts_the_gate() {
    let (scratch, token) = (scratch(), |index| FencingToken { term: 1, index });
    let watch = Watch::new(scratch.path(), []);
    let gate = Gate::open(scratch.path().join(MARKS)).expect("a new file");
    gate.admit_blocking("a", token(1), || ()).expect("the first");
    let syncs = watch.data_syncs();
    watch.set_faults(crate::recorder::Faults { broken_sync: true, ..Default::default() });
    for index in [2, 1, 3] {
        let refused = gate.admit_blocking("a", token(index), || unreachable!()).expect_err("it cannot be kept");
        assert!(refused.to_string().contains("cannot write"), "{refused}");
    }
    assert_eq!(watch.data_syncs(), syncs + 1, "a failed sync is not tried again");
    watch.set_faults(Default::default());
    drop(gate);
    let gate = Gate::open(scratch.path().join(MARKS)).expect("the disk is well again");
    assert!(gate.highest("a").token() >= token(1));
    gate.admit_blocking("a", token(2), || ()).expect("higher or equal");
}

#[test]
fn a_full_disk_shuts_the_gate_and_loses_nothing() {
    let (scratch, token) = (scratch(), |index| FencingToken { term: 1, index });
    let watch = Watch::new(scratch.path(), []);
    let gate = Gate::open(scratch.path().join(MARKS)).expect("a new file");
    watch.set_faults(crate::recorder::Faults { space: Some(100), ..Default::default() });
    let rises = (1..).take_while(|&index| gate.admit_blocking("a", token(index), || ()).is_ok()).count() as u64;
    assert!(rises > 1, "{rises}");
    watch.set_faults(Default::default());
    drop(gate);
    let gate = Gate::open(scratch.path().join(MARKS)).expect("there is space again");
    assert_eq!(gate.highest("a").token(), token(rises));
}
