//! Power cuts of the high-water marks of a fence. An acknowledged mark must not fall.

use std::path::Path;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tenure::fence::Gate;
use tenure::token::FencingToken;

use crate::disk::{Disk, HonoredSyncs, Image};
use crate::recorder::{Event, Recorder};
use crate::{cuts, first_seed, scratch};

const MARKS: &str = "marks";
const RESOURCES: usize = 3;
/// The admissions of one run. With the long names below, the gate rewrites the file once or twice.
const ADMISSIONS: usize = 3000;

struct Run {
    admissions: Vec<(String, FencingToken)>,
    events: Vec<Event>,
}

fn record(root: &Path, rng: &mut StdRng) -> Run {
    let recorder = Recorder::new(root, []);
    let mut gate = Gate::open(root.join(MARKS)).expect("a new file");
    let mut admissions = Vec::new();
    for n in 0..ADMISSIONS {
        if rng.random_ratio(1, 1000) {
            drop(gate);
            gate = Gate::open(root.join(MARKS)).expect("the file is readable");
        }
        let name = format!("{:0>500}", rng.random_range(0..RESOURCES));
        let token = FencingToken::new(1, n as u64 + 1);
        admissions.push((name.clone(), token));
        recorder.push(Event::Submitted);
        gate.admit_blocking(&name, token, || recorder.push(Event::Acknowledged(n))).expect("the token rises");
    }
    Run { admissions, events: recorder.events() }
}

impl Run {
    /// Opens the file that a cut has left and checks the mark of each resource.
    fn check(&self, point: usize, image: &Image) -> Result<(), String> {
        let past = &self.events[..point];
        let acknowledged = past.iter().filter(|event| matches!(event, Event::Acknowledged(_))).count();
        let submitted = past.iter().filter(|event| matches!(event, Event::Submitted)).count();
        let scratch = scratch();
        image.write_to(scratch.path());
        let _recorder = Recorder::new(scratch.path(), image.file_ids());
        let gate = Gate::open(scratch.path().join(MARKS)).map_err(|error| error.to_string())?;
        for resource in (0..RESOURCES).map(|n| format!("{n:0>500}")) {
            let last = |admissions: &[(String, FencingToken)]| {
                admissions.iter().rev().find(|(name, _)| *name == resource).map_or(0, |(_, token)| token.as_u64())
            };
            let (low, found) = (last(&self.admissions[..acknowledged]), gate.highest(&resource).as_u64());
            if found < low || found > last(&self.admissions[..submitted]) {
                return Err(format!("cut at event {point}: {low} was acknowledged, and the mark is {found}"));
            }
        }
        Ok(())
    }

    /// The events that give a rewritten file its name.
    fn renames(&self) -> Vec<usize> {
        let is_rename = |n: &usize| matches!(self.events[*n], Event::Rename { .. });
        let renames: Vec<usize> = (0..self.events.len()).filter(is_rename).collect();
        assert!(renames.len() > 1, "the gate never rewrote the file");
        renames
    }

    /// Cuts the power before each of these events. Returns the number of cuts that lost a mark, and the first loss.
    fn cut_at(&self, mut points: Vec<usize>, honored: HonoredSyncs, rng: &mut StdRng) -> (usize, Option<String>) {
        points.sort_unstable();
        let (mut disk, mut applied, mut failures) = (Disk::new(&Image::default(), honored), 0, Vec::new());
        for point in points.into_iter().map(|point| point.min(self.events.len())) {
            self.events[applied..point].iter().for_each(|event| disk.apply(event));
            applied = point;
            failures.extend(self.check(point, &disk.cut(rng)).err());
        }
        (failures.len(), failures.into_iter().next())
    }
}

/// Returns the number of cuts that lost a mark, and the first loss. Half of the cuts are near a rewrite of the file.
fn cut(cuts: usize, honored: HonoredSyncs) -> (usize, Option<String>) {
    let mut rng = StdRng::seed_from_u64(first_seed());
    let run = record(scratch().path(), &mut rng);
    let renames = run.renames();
    let mut points: Vec<usize> = (0..cuts).map(|_| rng.random_range(0..=run.events.len())).collect();
    for point in points.iter_mut().step_by(2) {
        *point = (renames[rng.random_range(0..renames.len())] + rng.random_range(0..12)).saturating_sub(4);
    }
    run.cut_at(points, honored, &mut rng)
}

#[test]
fn fence_marks_survive_a_power_cut() {
    let (lost, first) = cut(cuts(), HonoredSyncs::All);
    assert_eq!(lost, 0, "{first:?}");
}

/// A rewrite creates, writes, syncs and renames a file, and syncs the directory. Few random cuts hit one of its steps.
#[test]
fn power_cut_inside_a_rewrite_loses_no_mark() {
    const CUTS_PER_EVENT: usize = 20;
    let mut rng = StdRng::seed_from_u64(first_seed());
    let run = record(scratch().path(), &mut rng);
    let steps = |rename: usize| rename.saturating_sub(3)..=rename + 2;
    let points = run.renames().into_iter().flat_map(steps).flat_map(|point| [point; CUTS_PER_EVENT]);
    let (lost, first) = run.cut_at(points.collect(), HonoredSyncs::All, &mut rng);
    assert_eq!(lost, 0, "{first:?}");
}

/// The controls: without syncs the test must find a loss.
#[test]
fn fence_loses_marks_without_syncs() {
    for honored in [HonoredSyncs::NoDataSync, HonoredSyncs::NoFileSync, HonoredSyncs::NoDirSync] {
        let (lost, first) = cut(cuts(), honored);
        println!("{honored:?}: {lost} of {} cuts lost a mark: {first:?}", cuts());
        assert!(lost > 0, "{honored:?}");
    }
}

/// A mark whose sync failed is never accepted. The gate stays shut, and a new gate has the acknowledged marks.
#[test]
fn failed_sync_shuts_the_gate() {
    let (scratch, token) = (scratch(), |index| FencingToken::new(1, index));
    let recorder = Recorder::new(scratch.path(), []);
    let gate = Gate::open(scratch.path().join(MARKS)).expect("a new file");
    gate.admit_blocking("a", token(1), || ()).expect("the first token is admitted");
    let syncs = recorder.data_syncs();
    recorder.set_faults(crate::recorder::Faults { broken_sync: true, ..Default::default() });
    for index in [2, 1, 3] {
        let refused =
            gate.admit_blocking("a", token(index), || unreachable!()).expect_err("the gate cannot store the mark");
        assert!(refused.to_string().contains("cannot write"), "{refused}");
    }
    assert_eq!(recorder.data_syncs(), syncs + 1, "the gate never retries a failed sync");
    recorder.set_faults(Default::default());
    drop(gate);
    let gate = Gate::open(scratch.path().join(MARKS)).expect("the disk works again");
    assert!(gate.highest("a").token() >= token(1));
    gate.admit_blocking("a", token(2), || ()).expect("the token is not below the mark");
}

#[test]
fn full_disk_shuts_the_gate_and_loses_nothing() {
    let (scratch, token) = (scratch(), |index| FencingToken::new(1, index));
    let recorder = Recorder::new(scratch.path(), []);
    let gate = Gate::open(scratch.path().join(MARKS)).expect("a new file");
    recorder.set_faults(crate::recorder::Faults { space: Some(100), ..Default::default() });
    let admissions = (1..).take_while(|&index| gate.admit_blocking("a", token(index), || ()).is_ok()).count() as u64;
    assert!(admissions > 1, "{admissions}");
    recorder.set_faults(Default::default());
    drop(gate);
    let gate = Gate::open(scratch.path().join(MARKS)).expect("the disk has space again");
    assert_eq!(gate.highest("a").token(), token(admissions));
}
