//! Workloads of a store: concurrent appends, votes, truncates, purges and snapshots, chosen by a seed.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::{Arc, mpsc};

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tenure::storage::{DiskStorage, Done, Identity, LogRecord, Position, SnapshotWriter, Storage, VoteRecord};

use crate::disk::Image;
use crate::history::{CommittedSave, StoreOp, View};
use crate::recorder::{Event, FileId, Recorder};

/// A recorded run of a store.
pub struct Recording {
    pub seed: u64,
    /// The files before the run.
    pub base: Image,
    pub before: View,
    pub committed_before: Option<Position>,
    pub ops: Vec<StoreOp>,
    pub committed_saves: Vec<CommittedSave>,
    pub events: Vec<Event>,
    /// The number of events of the open.
    pub opened: usize,
}

/// Records the heaviest workload of the store's callers: many small and large entries with immediate purges and
/// truncates, and snapshots that replace each other.
pub fn record_flood(scratch: &Path) -> Recording {
    let recorder = Arc::new(Recorder::new(scratch, []));
    let storage = DiskStorage::open(scratch.join(DATA_DIR), identity()).unwrap_or_else(|error| panic!("{error}"));
    let opened = recorder.events().len();
    let rng = StdRng::seed_from_u64(1);
    let view = View::default();
    let mut run = Run::new(rng, storage, &recorder, view);
    for (count, bytes) in [(5_000, 20), (400, 16_384), (2_000, 1_000), (100, 16_384), (20, 300_000)].repeat(2) {
        let first = run.view.last().map_or(0, |last| last.index + 1);
        let payload = Bytes::from(vec![7; bytes]);
        let entry = |index| LogRecord { position: Position { term: 1, index }, payload: payload.clone() };
        run.submit(StoreOp::Append((first..first + count).map(entry).collect()));
        run.submit(StoreOp::Truncate(Some(first + count / 2)));
        let mut writer = run.storage.begin_snapshot().unwrap();
        writer.push(&vec![bytes as u8; 6 << 20]).unwrap();
        run.finish(writer);
        run.submit(StoreOp::Purge(Position { term: 1, index: first + count / 2 }));
        // The next commits remove the purged entries and the replaced snapshot.
        for _ in 0..50 {
            run.vote();
            run.drain();
        }
    }
    run.storage.close();
    let (base, before) = (Image::default(), View::default());
    let (ops, committed_saves, events) = (run.ops, run.committed_saves, recorder.events());
    Recording { seed: 1, base, before, committed_before: None, ops, committed_saves, events, opened }
}

/// Records entries of this size, each of which is durable before the next one.
pub fn record_lone_entries(scratch: &Path, count: u64, bytes: usize) -> Recording {
    let recorder = Arc::new(Recorder::new(scratch, []));
    let storage = DiskStorage::open(scratch.join(DATA_DIR), identity()).unwrap_or_else(|error| panic!("{error}"));
    let opened = recorder.events().len();
    let mut run = Run::new(StdRng::seed_from_u64(1), storage, &recorder, View::default());
    for index in 0..count {
        let position = Position { term: 1, index };
        run.submit(StoreOp::Append(vec![LogRecord { position, payload: Bytes::from(vec![7; bytes]) }]));
        run.drain();
    }
    run.storage.close();
    let (ops, committed_saves, events) = (run.ops, run.committed_saves, recorder.events());
    let (base, before) = (Image::default(), View::default());
    Recording { seed: 1, base, before, committed_before: None, ops, committed_saves, events, opened }
}

/// Records a truncation of many entries.
pub fn record_truncation(scratch: &Path) -> Recording {
    let recorder = Arc::new(Recorder::new(scratch, []));
    let storage = DiskStorage::open(scratch.join(DATA_DIR), identity()).unwrap_or_else(|error| panic!("{error}"));
    let opened = recorder.events().len();
    let mut run = Run::new(StdRng::seed_from_u64(1), storage, &recorder, View::default());
    let payload = Bytes::from(vec![7; 100]);
    let entry = |index| LogRecord { position: Position { term: 1, index }, payload: payload.clone() };
    for first in (0..4_000).step_by(500) {
        run.submit(StoreOp::Append((first..first + 500).map(entry).collect()));
        run.drain();
    }
    run.submit(StoreOp::Truncate(Some(100)));
    run.drain();
    run.storage.close();
    let (ops, committed_saves, events) = (run.ops, run.committed_saves, recorder.events());
    let (base, before) = (Image::default(), View::default());
    Recording { seed: 1, base, before, committed_before: None, ops, committed_saves, events, opened }
}

/// Records entries of which a segment has one, and purges most of them: the log uses new files and purged ones.
pub fn record_segments(scratch: &Path) -> Recording {
    let recorder = Arc::new(Recorder::new(scratch, []));
    let storage = DiskStorage::open(scratch.join(DATA_DIR), identity()).unwrap_or_else(|error| panic!("{error}"));
    let opened = recorder.events().len();
    let mut run = Run::new(StdRng::seed_from_u64(1), storage, &recorder, View::default());
    for index in 0..8 {
        let position = Position { term: 1, index };
        run.submit(StoreOp::Append(vec![LogRecord { position, payload: Bytes::from(vec![7; 3 << 20]) }]));
        run.drain();
        if index > 2 {
            run.submit(StoreOp::Purge(Position { term: 1, index: index - 1 }));
            run.drain();
        }
    }
    run.storage.close();
    let (ops, committed_saves, events) = (run.ops, run.committed_saves, recorder.events());
    let (base, before) = (Image::default(), View::default());
    Recording { seed: 1, base, before, committed_before: None, ops, committed_saves, events, opened }
}

impl Recording {
    /// The events from the submission of the last operation to its acknowledgement.
    pub fn last_op(&self) -> RangeInclusive<usize> {
        let last = |is: fn(&Event) -> bool| self.events.iter().rposition(is).expect("a run has operations");
        last(|event| matches!(event, Event::Submitted))..=last(|event| matches!(event, Event::Acknowledged(_)))
    }

    /// The events that give a file of the log its name.
    pub fn log_renames(&self) -> Vec<usize> {
        let log = Path::new(DATA_DIR).join("log");
        let is_name = |event: &Event| matches!(event, Event::Rename { to, .. } if to.starts_with(&log));
        (0..self.events.len()).filter(|n| is_name(&self.events[*n])).collect()
    }

    /// The last write to each of sled's page tables, before its sync and its rename.
    pub fn whole_page_tables(&self) -> Vec<usize> {
        let written = |renamed: usize| {
            let Event::Rename { from, .. } = &self.events[renamed] else { return None };
            let is_table = from.extension().is_some_and(|extension| extension == "generating");
            let created = |event: &Event| match event {
                Event::Create { path, file } if is_table && path == from => Some(*file),
                _ => None,
            };
            let table = self.events[..renamed].iter().rev().find_map(created)?;
            let is_write = |event: &Event| matches!(event, Event::Write { file, .. } if *file == table);
            self.events[..renamed].iter().rposition(is_write)
        };
        (0..self.events.len()).filter_map(written).collect()
    }

    /// Whether the store overwrote a torn group while it opened. It always writes one sector.
    pub fn overwrites_a_torn_group(&self) -> bool {
        let sizes = 513..1 << 20;
        let is_torn = |bytes: &[u8]| sizes.contains(&bytes.len()) && bytes.iter().all(|byte| *byte == 0);
        let opening = &self.events[..self.opened];
        opening.iter().any(|event| matches!(event, Event::Write { bytes, .. } if is_torn(bytes)))
    }

    pub fn written_bytes(&self) -> usize {
        self.events.iter().map(Event::written_bytes).sum()
    }

    /// The syncs and the written bytes between the acknowledgements of the first and of the last operation.
    pub fn cost_after_the_first(&self) -> (usize, usize) {
        let is_end = |event: &Event| matches!(event, Event::Acknowledged(_));
        let first = self.events.iter().position(is_end).expect("a run has operations");
        let events = &self.events[first..*self.last_op().end()];
        let syncs = events.iter().filter(|event| matches!(event, Event::SyncFile { .. } | Event::SyncDir(_))).count();
        (syncs, events.iter().map(Event::written_bytes).sum())
    }

    /// Points behind writes of log groups that lie in several sectors, before their sync. A cut can tear these groups.
    pub fn points_in_large_groups(&self) -> Vec<usize> {
        let db = self.sled_file();
        let is_large_group = |event: &Event| match event {
            Event::Write { file, bytes, .. } => {
                *file != db && bytes.len() > 4096 && bytes.iter().any(|byte| *byte != 0)
            }
            _ => false,
        };
        (self.opened..self.events.len()).filter(|n| is_large_group(&self.events[*n])).map(|n| n + 1).collect()
    }

    fn sled_file(&self) -> FileId {
        let path = Path::new(DATA_DIR).join("store/db");
        let created = self.events.iter().find_map(|event| match event {
            Event::Create { path: created, file } if *created == path => Some(*file),
            _ => None,
        });
        created.or(self.base.files.get(&path).map(|(file, _)| *file)).expect("the store has the file")
    }

    /// The most bytes that the open store wrote to sled's file between two data syncs of it.
    pub fn largest_sled_commit(&self) -> usize {
        let db = self.sled_file();
        let used = &self.events[self.opened..];
        let commits = used.split(|event| matches!(event, Event::SyncFile { data_only: true, file } if *file == db));
        let bytes = |event: &Event| match event {
            Event::Write { bytes, file, .. } if *file == db => bytes.len(),
            _ => 0,
        };
        commits.map(|commit| commit.iter().map(bytes).sum()).max().unwrap_or(0)
    }
}

/// The directory of the store inside the recorded one.
pub const DATA_DIR: &str = "node";

pub fn identity() -> Identity {
    Identity { cluster: "powercut".to_string(), node: 1 }
}

/// Opens the store on these files and runs `ops` random operations.
pub fn record(scratch: &Path, seed: u64, base: Image, before: View, ops: usize) -> Recording {
    base.write_to(scratch);
    let recorder = Arc::new(Recorder::new(scratch, base.file_ids()));
    let storage = DiskStorage::open(scratch.join(DATA_DIR), identity()).unwrap_or_else(|error| panic!("{error}"));
    let opened = recorder.events().len();
    let rng = StdRng::seed_from_u64(seed);
    let view = before.clone();
    let committed_before = storage.recovered().committed;
    let mut run = Run::new(rng, storage, &recorder, view);
    (0..ops).for_each(|_| run.random_op());
    if run.rng.random() {
        run.drain();
        run.storage.close();
    }
    // Otherwise the recording ends with operations in flight. The test ignores all later events.
    let events = recorder.events();
    Recording {
        seed,
        base,
        before,
        committed_before,
        ops: run.ops,
        committed_saves: run.committed_saves,
        events,
        opened,
    }
}

struct Run {
    rng: StdRng,
    storage: DiskStorage,
    recorder: Arc<Recorder>,
    /// The contents of the store after all submitted operations.
    view: View,
    ops: Vec<StoreOp>,
    committed_saves: Vec<CommittedSave>,
    snapshot: Option<SnapshotWriter<DiskStorage>>,
    /// Receives a message after the acknowledgement of the newest operation.
    last: Option<mpsc::Receiver<()>>,
}

impl Run {
    fn new(rng: StdRng, storage: DiskStorage, recorder: &Arc<Recorder>, view: View) -> Run {
        let recorder = Arc::clone(recorder);
        Run { rng, storage, recorder, view, ops: Vec::new(), committed_saves: Vec::new(), snapshot: None, last: None }
    }

    fn commit(&mut self) {
        let position = self.view.last();
        self.committed_saves.push(CommittedSave { ops: self.ops.len(), position });
        self.recorder.push(Event::Marker);
        self.storage.save_committed(position);
    }

    fn random_op(&mut self) {
        match self.rng.random_range(0..100) {
            0..60 => self.append(),
            60..68 => self.vote(),
            68..73 => self.truncate(),
            73..78 => self.purge(),
            78..98 => self.snapshot(),
            _ => self.commit(),
        }
        // Wait at times, as Raft does, so that groups of all sizes occur.
        if self.rng.random_ratio(1, 3) {
            self.drain();
        }
    }

    fn append(&mut self) {
        let term = self.view.last().map_or(1, |last| last.term) + u64::from(self.rng.random_ratio(1, 10));
        let first = self.view.last().map_or(0, |last| last.index + 1);
        let count =
            if self.rng.random_ratio(1, 10) { self.rng.random_range(1..200) } else { self.rng.random_range(1..5) };
        let records = (first..first + count).map(|index| self.entry(Position { term, index })).collect();
        self.submit(StoreOp::Append(records));
    }

    fn entry(&mut self, position: Position) -> LogRecord {
        let bytes = match self.rng.random_range(0..1000) {
            0..850 => self.rng.random_range(0..400),
            850..970 => self.rng.random_range(400..8_000),
            970..995 => self.rng.random_range(16_000..60_000),
            _ => self.rng.random_range(100_000..300_000),
        };
        let mut payload = vec![0; bytes];
        self.rng.fill(payload.as_mut_slice());
        LogRecord { position, payload: Bytes::from(payload) }
    }

    fn vote(&mut self) {
        let term = self.view.vote.map_or(0, |vote| vote.term) + 1;
        let vote = VoteRecord { term, candidate: Some(term % 3), committed: self.rng.random() };
        self.submit(StoreOp::Vote(vote));
    }

    fn truncate(&mut self) {
        let floor = self.view.floor.map(|floor| floor.index);
        let Some(last) = self.view.last().map(|last| last.index) else { return };
        let back = if self.rng.random_ratio(1, 10) { 300 } else { 8 };
        let after = last.checked_sub(self.rng.random_range(0..back)).max(floor);
        self.submit(StoreOp::Truncate(after));
    }

    fn purge(&mut self) {
        let (Some(first), Some(last)) = (self.view.log.keys().next().copied(), self.view.last()) else { return };
        let upto = match self.rng.random_range(0..20) {
            // Like a snapshot from a peer that is far ahead.
            0 => Position { term: last.term + 1, index: last.index + self.rng.random_range(0..1000) },
            1..5 => last,
            _ => self.view.log[&self.rng.random_range(first..=last.index)].position,
        };
        self.submit(StoreOp::Purge(upto));
    }

    fn snapshot(&mut self) {
        let begin = || self.storage.begin_snapshot().unwrap();
        let mut writer = self.snapshot.take().unwrap_or_else(begin);
        let mut piece = vec![0; self.rng.random_range(0..50_000)];
        self.rng.fill(piece.as_mut_slice());
        writer.push(&piece).unwrap();
        match self.rng.random_range(0..12) {
            0 => drop(writer),
            1 | 2 => self.finish(writer),
            _ => self.snapshot = Some(writer),
        }
    }

    fn finish(&mut self, writer: SnapshotWriter<DiskStorage>) {
        let (n, done) = self.begin_op();
        let meta = n.to_le_bytes().to_vec();
        self.recorder.push(Event::Submitted);
        let manifest = writer.finish(meta, done).unwrap();
        self.finish_op(StoreOp::Snapshot(manifest));
    }

    fn submit(&mut self, op: StoreOp) {
        let (_, done) = self.begin_op();
        self.recorder.push(Event::Submitted);
        match op.clone() {
            StoreOp::Append(records) => self.storage.append(records, done),
            StoreOp::Truncate(after) => self.storage.truncate_after(after, done),
            StoreOp::Purge(upto) => self.storage.purge(upto, done),
            StoreOp::Vote(vote) => self.storage.save_vote(vote, done),
            StoreOp::Snapshot(_) => unreachable!("the writer of a snapshot submits its manifest"),
        }
        self.finish_op(op);
    }

    fn begin_op(&mut self) -> (usize, Done) {
        let n = self.ops.len();
        let (tell, told) = mpsc::channel();
        self.last = Some(told);
        let recorder = Arc::clone(&self.recorder);
        let done = move |result: Result<(), _>| {
            result.expect("this workload injects no disk failure");
            recorder.push(Event::Acknowledged(n));
            let _ = tell.send(());
        };
        (n, Box::new(done))
    }

    fn finish_op(&mut self, op: StoreOp) {
        self.view.apply(&op);
        self.ops.push(op);
    }

    fn drain(&mut self) {
        if let Some(told) = self.last.take() {
            told.recv().expect("the store acknowledges every operation");
        }
    }
}
