//! The measurements of a run, and its table.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;

use anyhow::{Result, bail};

use super::arguments::Run as Arguments;
use super::cluster::Cluster;
use super::episodes::{EpisodeJudge, Judged};
use super::fault_window::{self, FaultWindow};
use super::judge::expiry_happens::ExpiryDelivery;
use super::kind::Kind;
use super::machine::Standstill;
use super::plan::FaultCounts;
use super::recorder::{AnswerGap, now};
use super::register;
use super::world::World;

/// The number of disk syncs that are measured before the run.
const SYNCS: usize = 200;
/// The largest share of leases without a verdict: the log has a gap, or the search for an order was too hard.
const MAX_UNJUDGED_PERCENT: u64 = 5;
/// A run of this length must have a backup.
const BACKED_UP_AFTER: Duration = Duration::from_secs(60);

/// The description of a run in its table.
#[derive(Debug, Default)]
pub struct RunInfo {
    seed: u64,
    nodes: u64,
    version: String,
    command: String,
    /// The median sync time of a node's disk.
    sync: Duration,
    began: Duration,
}

#[derive(Debug, Default)]
pub struct Figures {
    info: RunInfo,
    fault_counts: FaultCounts,
    counts: Vec<((&'static str, String), u64)>,
    watched: u64,
    judged: Judged,
    register: register::WriteCounts,
    lasted: Duration,
    longest: AnswerGap,
    /// The faults that were active in the longest gap.
    meanwhile: String,
    /// The longest gap while each fault kind was active, alone or with others.
    gaps: BTreeMap<Kind, Duration>,
    standstills: Vec<Standstill>,
    /// The ids of the members.
    pub members: BTreeSet<u64>,
    /// The nodes that the cluster removed.
    removed: u64,
    /// The valid backups at the end.
    pub backups: u64,
}

fn last_heard_words(heard: ExpiryDelivery) -> String {
    let ExpiryDelivery { behind, without_commits, delivery, is_ambiguous } = heard;
    let ambiguous = if is_ambiguous { ", an extension of unknown outcome" } else { "" };
    format!(
        "{behind:.2?} behind its ttl: {without_commits:.2?} without commits, {delivery:.2?} \
         from the log to the watcher{ambiguous}"
    )
}

impl Figures {
    pub fn new(arguments: &Arguments, cluster: &Cluster) -> Result<Figures> {
        let disk = &cluster.nodes.values().next().expect("a cluster has at least three nodes").disk;
        let mut syncs = tenure::storage::measure_fsync(disk.path(), SYNCS, Duration::MAX)?;
        syncs.sort();
        let info = RunInfo {
            seed: arguments.seed,
            nodes: arguments.nodes,
            version: cluster.version()?,
            command: arguments.command(),
            sync: syncs[syncs.len() / 2],
            began: now(),
        };
        Ok(Figures { info, ..Figures::default() })
    }

    pub fn planned(&mut self, kind: Kind) {
        *self.fault_counts.planned.entry(kind).or_default() += 1;
    }

    pub fn happened(&mut self, kind: Kind) {
        *self.fault_counts.happened.entry(kind).or_default() += 1;
    }

    /// A node that a fault removed has exited, and the change is complete.
    pub fn removed(&mut self) {
        self.removed += 1;
    }

    pub fn add_gap(&mut self, gap: AnswerGap, windows: &[FaultWindow]) {
        if gap.lasted() > self.longest.lasted() {
            self.longest = gap;
            self.meanwhile = fault_window::during(windows, gap.from, gap.until);
        }
        for window in windows.iter().filter(|window| window.overlaps(gap.from, gap.until)) {
            let longest = self.gaps.entry(window.kind).or_default();
            *longest = gap.lasted().max(*longest);
        }
    }

    /// Copies the counts of the other parts of the harness.
    pub fn note(&mut self, world: &World, judge: &EpisodeJudge, standstills: Vec<Standstill>, lasted: Duration) {
        self.standstills = standstills;
        self.counts = world.recorder.lock().counts.iter().map(|(key, count)| (key.clone(), *count)).collect();
        self.watched = world.log.lock().complete;
        (self.judged, self.register, self.lasted) = (judge.judged, judge.register(), lasted);
    }

    /// Fails if the run tested too little to count as a pass.
    pub fn check(&self) -> Result<()> {
        let missing = self.fault_counts.missing();
        if !missing.is_empty() {
            bail!("these faults were planned and never injected: {missing:?}");
        }
        let changes = self.fault_counts.happened.iter().filter(|(kind, _)| kind.changes_members());
        let changes: u64 = changes.map(|(_, count)| count).sum();
        if self.removed != changes {
            bail!("{changes} faults changed the members, but {} nodes were removed", self.removed);
        }
        let Judged { leases, too_hard, unjudged, .. } = self.judged;
        if (too_hard + unjudged) * 100 > (leases + unjudged) * MAX_UNJUDGED_PERCENT {
            bail!(
                "of {} leases {unjudged} have a gap in the log and {too_hard} were too hard; expected at \
                 most {MAX_UNJUDGED_PERCENT} %",
                leases + unjudged
            );
        }
        let Judged { expiries, counted, infinite, delays, delayed_queue_grants, .. } = self.judged;
        if [expiries, counted, infinite, delays, delayed_queue_grants].contains(&0) {
            bail!(
                "judged: {expiries} expiries, {counted} leases with several holders, {infinite} infinite grants, \
                 {delays} lock delays, {delayed_queue_grants} waiters behind one; none of these may be 0"
            );
        }
        if self.backups == 0 && self.lasted >= BACKED_UP_AFTER {
            bail!("no backup after {:?}; the schedule asks for one every 2 s", self.lasted);
        }
        let done =
            self.counts.iter().filter(|((_, outcome), _)| outcome == "done").map(|(_, count)| count).sum::<u64>();
        if done == 0 || self.watched == 0 || self.register.accepted == 0 {
            bail!("{done} operations done, {} transitions watched, {} writes", self.watched, self.register.accepted);
        }
        Ok(())
    }

    pub fn table(&self, violations: usize) -> String {
        let (operations, unknown) = self.operations();
        let faults: u64 = self.fault_counts.happened.values().sum();
        let Judged { leases, too_hard, unjudged, late, expiries, ambiguous, longest_overdue, .. } = self.judged;
        let Judged { counted, infinite, delays, queue_grants, delayed_queue_grants, longest_queue_grant, .. } =
            self.judged;
        let register::WriteCounts { accepted, refused, stale, overlaps } = self.register;
        let seconds = self.lasted.as_secs_f64();
        let rate = operations as f64 / seconds.max(1.0);
        let RunInfo { seed, nodes, version, command, sync, began } = &self.info;
        let (gap, at) = (self.longest.lasted(), self.longest.from.saturating_sub(*began).as_secs());
        let (meanwhile, stood) = (&self.meanwhile, self.stood_still(&self.longest));
        let most = self.standstills.iter().map(Standstill::lasted).max().unwrap_or_default();
        let rows = [
            ("command", command.clone()),
            ("seed, nodes, program", format!("{seed}, {nodes}, {version}")),
            ("raw fdatasync, p50", format!("{sync:.2?}")),
            ("lasted", format!("{seconds:.0} s")),
            ("operations", format!("{operations}, {rate:.0}/s")),
            ("of unknown outcome", format!("{unknown}")),
            ("carried out late", format!("{late}")),
            ("faults", format!("{faults}")),
            ("members", format!("{:?} at the end, {} removed", self.members, self.removed)),
            ("backups checked", format!("{}, the newest one restored", self.backups)),
            ("leases judged", format!("{leases}, {too_hard} too hard to order, {unjudged} not known well enough")),
            ("transitions, at every watcher", format!("{}", self.watched)),
            ("writes at the register", format!("{accepted} accepted, {refused} refused as stale, {overlaps} overlaps")),
            ("stale writes accepted", format!("{stale}")),
            (
                "longest without an answer",
                format!("{gap:.2?} ({meanwhile}), at {at} s, the machine stood still for {stood:.2?} of it"),
            ),
            ("the machine stood still", format!("{} times, {most:.2?} at most", self.standstills.len())),
            ("expiries judged", format!("{expiries}; {ambiguous} more behind an unknown outcome")),
            ("longest overdue expiry", format!("{longest_overdue:.2?}, without time in which nothing was committed")),
            ("expiry heard of last", last_heard_words(self.judged.last_heard)),
            ("held by several at once", format!("{counted} leases")),
            ("infinite grants judged", format!("{infinite}")),
            ("lock delays judged", format!("{delays}")),
            (
                "grants from a queue judged",
                format!("{queue_grants}, {delayed_queue_grants} of them behind a lock delay"),
            ),
            (
                "longest wait for a free place",
                format!("{longest_queue_grant:.2?}, without time in which nothing was committed"),
            ),
            ("violations", format!("{violations}")),
        ];
        let mut table = String::new();
        for (name, value) in rows {
            let _ = writeln!(table, "{name:<30} {value}");
        }
        table.push_str("\nfault                          happened  planned  longest without an answer meanwhile\n");
        for (kind, planned) in &self.fault_counts.planned {
            let happened = self.fault_counts.happened.get(kind).unwrap_or(&0);
            let gap = self.gaps.get(kind).copied().unwrap_or_default().as_secs_f64();
            let _ = writeln!(table, "{kind:<30} {happened:>8} {planned:>8}  {gap:.2} s");
        }
        table.push_str("\noperation          outcome                   count\n");
        for ((what, outcome), count) in &self.counts {
            let _ = writeln!(table, "{what:<18} {outcome:<22} {count:>8}");
        }
        table
    }

    /// The longest overlap of one standstill with a gap.
    fn stood_still(&self, gap: &AnswerGap) -> Duration {
        let within =
            |standstill: &Standstill| standstill.until.min(gap.until).saturating_sub(standstill.from.max(gap.from));
        self.standstills.iter().map(within).max().unwrap_or_default()
    }

    /// The number of all operations, and of those with an unknown outcome.
    fn operations(&self) -> (u64, u64) {
        let unknown = self.counts.iter().filter(|((_, outcome), _)| outcome == "unknown");
        (self.counts.iter().map(|(_, count)| count).sum(), unknown.map(|(_, count)| count).sum())
    }

    /// The number of stale writes that the register accepted.
    pub fn stale(&self) -> u64 {
        self.register.stale
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Figures {
        let mut figures = Figures { watched: 9, counts: vec![(("read", "done".to_owned()), 5)], ..Figures::default() };
        figures.judged = Judged {
            leases: 40,
            expiries: 9,
            counted: 9,
            infinite: 9,
            delays: 9,
            delayed_queue_grants: 9,
            ..Judged::default()
        };
        figures.register.accepted = 3;
        (figures.backups, figures.lasted) = (1, BACKED_UP_AFTER);
        figures.planned(Kind::Kill);
        figures.happened(Kind::Kill);
        figures
    }

    #[test]
    fn run_with_too_little_evidence_is_rejected() {
        good().check().expect("the run tested everything");
        type Worsen = fn(&mut Figures);
        let worse: [(&str, Worsen); 13] = [
            ("a change of the members that removed no node", |figures| {
                figures.planned(Kind::MemberReplace);
                figures.happened(Kind::MemberReplace);
            }),
            ("a fault that never happened", |figures| figures.planned(Kind::Loss)),
            ("nothing done", |figures| figures.counts.clear()),
            ("nothing watched", |figures| figures.watched = 0),
            ("no backup", |figures| figures.backups = 0),
            ("nothing written", |figures| figures.register.accepted = 0),
            ("too much too hard", |figures| figures.judged.too_hard = 3),
            ("too much unknown", |figures| figures.judged.unjudged = 3),
            ("no expiry", |figures| figures.judged.expiries = 0),
            ("no lease with several holders", |figures| figures.judged.counted = 0),
            ("no infinite grant", |figures| figures.judged.infinite = 0),
            ("no lock delay", |figures| figures.judged.delays = 0),
            ("no waiter behind a lock delay", |figures| figures.judged.delayed_queue_grants = 0),
        ];
        for (what, worsen) in worse {
            let mut figures = good();
            worsen(&mut figures);
            assert!(figures.check().is_err(), "{what}");
        }
    }

    #[test]
    fn table_shows_the_longest_gap_and_its_faults() {
        let mut figures = good();
        let seconds = Duration::from_secs;
        let windows = [FaultWindow { kind: Kind::Kill, from: seconds(10), until: Some(seconds(14)) }];
        figures.add_gap(AnswerGap { from: seconds(11), until: seconds(13) }, &windows);
        figures.add_gap(AnswerGap { from: seconds(20), until: seconds(21) }, &windows);
        figures.info.began = seconds(4);
        figures.standstills.push(Standstill { from: seconds(12), until: seconds(16) });
        let table = figures.table(0);
        let longest = "longest without an answer      2.00s (kill), at 7 s, the machine stood still for 1.00s of it";
        assert!(table.contains(longest), "{table}");
        assert!(table.contains("the machine stood still        1 times, 4.00s at most"), "{table}");
        assert!(table.contains("kill                                  1        1  2.00 s"), "{table}");
    }
}
