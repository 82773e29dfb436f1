//! Checks the leases of finished episodes, and saves the history of each lease with a violation.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use parking_lot::Mutex;
use serde_json::json;
use tenure::api::EventKind;

use super::bounds::BOUNDS;
use super::drawing;
use super::export::Export;
use super::fault_window::FaultWindow;
use super::holders;
use super::judge::expiry_happens::{self, ExpiryDelivery};
use super::judge::file::HistoryWriter;
use super::judge::history::{Ended, Operation};
use super::judge::{self, Broken, LeaseHistory, SearchResult, TimeBounds, Transition, held};
use super::names::{self, MARKER};
use super::recorder::{LeaseRecord, now};
use super::refusals;
use super::register::Register;
use super::world::World;

/// Operations of unknown outcome may be applied later, so the judge remembers those of this many episodes.
const REMEMBERED: usize = 20;
/// The largest number of saved histories per run.
const MAX_PICTURES: usize = 20;

/// The results of all checks so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Judged {
    pub leases: u64,
    pub too_hard: u64,
    /// The log of these leases has a gap.
    pub unjudged: u64,
    /// Operations of unknown outcome that were applied after the end of their episode.
    pub late: u64,
    /// Expiries that were checked against their bound, and those whose last extension has an unknown outcome.
    pub expiries: u64,
    pub ambiguous: u64,
    /// The longest time from the end of a ttl to the expiry, without the time in which the cluster committed nothing.
    pub longest_overdue: Duration,
    /// The expiry with the longest time between the end of the ttl and its event.
    pub last_heard: ExpiryDelivery,
    /// Leases with several holders at once.
    pub counted: u64,
    /// Grants with an infinite ttl.
    pub infinite: u64,
    /// Lock delays that a grant followed.
    pub delays: u64,
    /// Grants from a queue that were checked against their bound, and those of them after a lock delay.
    pub queue_grants: u64,
    pub delayed_queue_grants: u64,
    /// The longest time from a free place to its grant, without the time in which the cluster committed nothing.
    pub longest_queue_grant: Duration,
}

impl Judged {
    fn add(&mut self, timed: &TimeBounds, history: &LeaseHistory) {
        let TimeBounds { expiries, queue_grants, delays } = timed;
        self.expiries += expiries.judged;
        self.ambiguous += expiries.ambiguous;
        self.infinite += expiries.infinite;
        self.longest_overdue = self.longest_overdue.max(expiries.longest);
        self.last_heard = self.last_heard.max(expiries.last_heard);
        self.queue_grants += queue_grants.judged;
        self.delayed_queue_grants += queue_grants.behind_delay;
        self.longest_queue_grant = self.longest_queue_grant.max(queue_grants.longest);
        self.delays += delays;
        self.counted += u64::from(history.most_holders() > 1);
    }
}

/// The operations of unknown outcome of an episode, by lease name.
type Unknown = BTreeMap<String, Vec<Operation>>;

pub struct EpisodeJudge {
    world: Arc<World>,
    register: Arc<Mutex<Register>>,
    keep: PathBuf,
    export: Option<Export>,
    pub judged: Judged,
    remembered: VecDeque<(u64, Unknown)>,
    pictures: usize,
}

impl EpisodeJudge {
    pub fn new(world: Arc<World>, register: Arc<Mutex<Register>>, keep: &Path, export: Option<Export>) -> EpisodeJudge {
        let (keep, judged) = (keep.to_owned(), Judged::default());
        EpisodeJudge { world, register, keep, export, judged, remembered: VecDeque::new(), pictures: 0 }
    }

    /// The names with this prefix that are held by the log, and the time of the last transition of each.
    pub fn still_held(&self, prefix: &str) -> Vec<(String, Duration)> {
        let log = self.world.log.lock();
        let names = log.names().filter(|name| name.starts_with(prefix) && !held(log.of(name)).is_empty());
        let last = |name: &String| log.of(name).iter().map(|seen| seen.at).max().unwrap_or_default();
        names.map(|name| (name.clone(), last(name))).collect()
    }

    /// A violation by a lease with this prefix that is still held after its bound.
    pub fn overdue(&self, prefix: &str) -> Option<Broken> {
        let held = self.still_held(prefix);
        let (log, recorder) = (self.world.log.lock(), self.world.recorder.lock());
        held.iter().find_map(|(name, _)| {
            let (operations, transitions) = (recorder.operations_of(name), log.of(name));
            let history = LeaseHistory { operations, queues: &[], transitions, bounds: &BOUNDS };
            let late = expiry_happens::check(&history, &recorder.progress, now()).late?;
            Some(Broken::of_lease("expiry_happens", name, late))
        })
    }

    /// Checks and removes all leases of an episode.
    pub fn episode(&mut self, episode: u64, windows: &[FaultWindow]) -> Result<()> {
        let records = self.world.recorder.lock().take(&names::prefix(episode));
        let (logs, has_gap) = self.take_logs(&names::prefix(episode));
        if let Some(export) = &mut self.export {
            let operations = records.values().flat_map(|record| &record.history.operations);
            let own = logs.iter().filter(|(name, _)| names::episode(name) == Some(episode));
            export.add(operations, own.flat_map(|(_, log)| log)).context("the file of --history")?;
        }
        self.late(&logs);
        self.strangers(episode);
        if has_gap {
            self.judged.unjudged += records.len() as u64;
        } else {
            for (name, record) in &records {
                let log = logs.get(name.as_str()).map_or(&[][..], Vec::as_slice);
                self.lease(name.as_str(), record, log, windows);
            }
            for name in logs.keys().filter(|name| names::episode(name) == Some(episode)) {
                if !records.keys().any(|known| known.as_str() == name) {
                    self.world.break_promise(Broken::of_lease(
                        "unknown_is_said",
                        name,
                        "no client requested this lease",
                    ));
                }
            }
        }
        let unknown = records.into_iter().map(|(name, record)| {
            let operations = record.history.operations.into_iter();
            (name.to_string(), operations.filter(|operation| operation.ended == Ended::Unknown).collect())
        });
        self.remembered.push_back((episode, unknown.collect()));
        if self.remembered.len() > REMEMBERED {
            self.remembered.pop_front();
        }
        Ok(())
    }

    /// Removes the log of these names and of the remembered episodes. Also returns whether the log has a gap.
    fn take_logs(&self, prefix: &str) -> (BTreeMap<String, Vec<Transition>>, bool) {
        let mut log = self.world.log.lock();
        let before = |name: &str| self.remembered.iter().any(|(episode, _)| names::episode(name) == Some(*episode));
        let names: Vec<String> = log.names().filter(|name| name.starts_with(prefix) || before(name)).cloned().collect();
        let mut logs = BTreeMap::new();
        for name in names {
            logs.insert(name.clone(), log.of(&name).to_vec());
            log.forget(&name);
        }
        (logs, log.take_common_gap())
    }

    fn lease(&mut self, name: &str, record: &LeaseRecord, log: &[Transition], windows: &[FaultWindow]) {
        let (operations, queues) = (&record.history.operations, &record.queues);
        let history = LeaseHistory { operations, queues, transitions: log, bounds: &BOUNDS };
        let (mut broken, decided) = judge::check(name, &history);
        broken.extend(refusals::check(operations).err().map(|how| Broken::of_lease("api", name, how)));
        self.judged.leases += 1;
        self.judged.too_hard += u64::from(decided == SearchResult::TooHard);
        let (late, timed) = judge::check_bounds(name, &history, &self.world.recorder.lock().progress, now());
        self.judged.add(&timed, &history);
        broken.extend(late);
        if !broken.is_empty() {
            self.keep(name, &history, windows);
        }
        broken.into_iter().for_each(|broken| self.world.break_promise(broken));
    }

    /// Checks late transitions of remembered leases. Only operations of unknown outcome may cause them.
    fn late(&mut self, logs: &BTreeMap<String, Vec<Transition>>) {
        for (name, seen) in logs.iter().flat_map(|(name, log)| log.iter().map(move |seen| (name, seen))) {
            let episode = names::episode(name);
            let Some((_, unknown)) = self.remembered.iter().find(|(known, _)| Some(*known) == episode) else {
                continue;
            };
            let operations = unknown.get(name).map_or(&[][..], Vec::as_slice);
            self.judged.late += u64::from(seen.event != EventKind::Expired);
            if seen.event != EventKind::Expired && !judge::explains_late(operations, seen, &BOUNDS) {
                let how = format!("{seen:?} after the end of the episode; the unknown operations are {operations:?}");
                self.world.break_promise(Broken::of_lease("unknown_is_said", name, how));
            }
        }
    }

    /// Detects transitions of leases that no client uses: of episodes before the remembered ones, of later episodes, and
    /// of other names. The clients use the leases of the next episode already. A late transition of a remembered episode
    /// can come at any moment.
    fn strangers(&self, episode: u64) {
        let is_remembered = |of: u64| self.remembered.iter().any(|(known, _)| *known == of);
        let is_of_clients = |of: u64| of == episode || of == episode + 1 || is_remembered(of);
        let is_used = |name: &str| {
            let is_of_harness = name == MARKER || holders::names().any(|lock| lock == name);
            is_of_harness || names::episode(name).is_some_and(is_of_clients)
        };
        let mut log = self.world.log.lock();
        let strangers: Vec<String> = log.names().filter(|name| !is_used(name)).cloned().collect();
        for name in strangers {
            // A late grant can expire after its episode was forgotten.
            let is_old = names::episode(&name).is_some_and(|of| of < episode);
            let is_legal = |seen: &Transition| is_old && seen.event == EventKind::Expired;
            if let Some(seen) = log.of(&name).iter().find(|seen| !is_legal(seen)) {
                let how = format!("no client requested this lease at this time: {seen:?}");
                self.world.break_promise(Broken::of_lease("unknown_is_said", &name, how));
            }
            log.forget(&name);
        }
    }

    /// Checks a lease of the holders by its log.
    pub fn lock(&mut self, name: &str) {
        let log = self.world.log.lock().of(name).to_vec();
        let broken =
            judge::check_transitions(name, &log, &BOUNDS).into_iter().chain(self.register.lock().judge(name, &log));
        broken.for_each(|broken| self.world.break_promise(broken));
    }

    pub fn register(&self) -> super::register::WriteCounts {
        self.register.lock().figures()
    }

    /// Saves the history of a lease as JSON lines and as a drawing.
    fn keep(&mut self, name: &str, history: &LeaseHistory, windows: &[FaultWindow]) {
        self.pictures += 1;
        if self.pictures > MAX_PICTURES {
            return;
        }
        let mut lines = Vec::new();
        let mut writer = HistoryWriter::new(&mut lines, "faults".to_owned());
        writer.write(history.operations, history.transitions).expect("a write to memory succeeds");
        let queues = history.queues.iter().map(|queue| json!({"queue": queue.waiters, "index": queue.index}));
        let faults = windows.iter().map(|window| json!({"fault": format!("{window:?}")}));
        for note in faults.chain(queues) {
            lines.extend(format!("{}\n", json!({"type": "note", "value": note})).into_bytes());
        }
        let write = |ending: &str, text: &[u8]| std::fs::write(self.keep.join(format!("{name}.{ending}")), text);
        let written = write("history.jsonl", &lines)
            .and_then(|()| write("svg", drawing::draw(name, history, windows).as_bytes()));
        if let Err(error) = written {
            eprintln!("cannot save the history of {name}: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::samples::{acquire, did, expired, granted};
    use crate::log::event;

    fn judge_of(seen: Vec<Transition>) -> EpisodeJudge {
        let world = Arc::new(World::new(1));
        for seen in seen {
            world.log.lock().saw(0, event(&seen), seen.at).expect("in order");
        }
        EpisodeJudge::new(world, Arc::default(), Path::new("/nowhere"), None)
    }

    #[test]
    fn unexpired_lease_is_detected() {
        assert_eq!(judge_of(vec![granted(1, "a", 5)]).still_held("jo"), [("job".to_owned(), Duration::from_millis(1))]);
        assert!(judge_of(vec![granted(1, "a", 5), expired(2, "a", 5, 8)]).still_held("jo").is_empty());
    }

    #[test]
    fn transition_of_a_lease_without_clients_is_detected() {
        let broken = |name: &str, seen: Transition| {
            let mut judge = judge_of(vec![Transition { name: name.to_owned(), ..seen }]);
            judge.remembered.push_back((29, Unknown::new()));
            judge.strangers(30);
            judge.strangers(30);
            judge.world.broken().len()
        };
        for name in ["marker", "lock.0", "lock.1", "e29.4.0", "e30.4.0", "e31.4.0"] {
            assert_eq!(broken(name, granted(1, "a", 5)), 0, "{name}");
        }
        for name in ["job", "lock.2", "e32.4.0", "e9.4.0"] {
            assert_eq!(broken(name, granted(1, "a", 5)), 1, "{name}");
        }
        assert_eq!(broken("e9.4.0", expired(1, "a", 5, 8)), 0, "the end of a late grant");
        assert_eq!(broken("job", expired(1, "a", 5, 8)), 1);
    }

    #[test]
    fn refusal_with_a_wrong_code_is_detected() {
        let mut judge = judge_of(Vec::new());
        let mut record = LeaseRecord::default();
        record.history.operations.push(did("a", acquire(), (0, 10), Ended::Refused("no_leader".into())));
        judge.lease("e1.0.0", &record, &[], &[]);
        assert!(judge.world.broken().is_empty());
        record.history.operations.push(did("b", acquire(), (20, 30), Ended::Refused("forbidden".into())));
        judge.lease("e1.0.0", &record, &[], &[]);
        let promises: Vec<_> = judge.world.broken().into_iter().map(|broken| broken.promise).collect();
        assert_eq!(promises, ["api"]);
    }

    #[test]
    fn late_transition_needs_an_unknown_operation() {
        let late = |unknown: Vec<Operation>| {
            let mut judge = judge_of(Vec::new());
            judge.remembered.push_back((7, Unknown::from([("e7.0.0".to_owned(), unknown)])));
            judge.late(&BTreeMap::from([("e7.0.0".to_owned(), vec![granted(900, "a", 5)])]));
            judge.world.broken().len()
        };
        assert_eq!(late(vec![did("a", acquire(), (0, 10), Ended::Unknown)]), 0);
        assert_eq!(late(vec![did("b", acquire(), (0, 10), Ended::Unknown)]), 1);
        assert_eq!(late(Vec::new()), 1);
    }
}
