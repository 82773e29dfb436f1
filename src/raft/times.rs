//! When this node appended, synced and applied log entries, for the spans of the commands in them.
//!
//! Times are recorded only while a command with a span is in progress. A build without the feature `otel` has no such
//! command.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;

use crate::storage::{Done, LogRecord};

/// Most entries with times. A command reads them soon after its entry is applied.
const MAX_ENTRIES: usize = 256;

/// The times of the last entries. Clones share them.
#[derive(Clone, Default)]
pub struct EntryTimes(Arc<Recorder>);

#[derive(Default)]
struct Recorder {
    /// Number of commands in progress that will read times.
    readers: AtomicUsize,
    /// Oldest first.
    entries: Mutex<VecDeque<EntryTimestamps>>,
}

struct EntryTimestamps {
    index: u64,
    appended: SystemTime,
    durable: Option<SystemTime>,
    applied: Option<(SystemTime, SystemTime)>,
}

/// A stage of an entry: its name, start and end.
pub type Stage = (&'static str, SystemTime, SystemTime);

/// Times are recorded until drop.
pub struct TimesReader(EntryTimes);

impl EntryTimes {
    pub fn record(&self) -> TimesReader {
        self.0.readers.fetch_add(1, Ordering::Relaxed);
        TimesReader(self.clone())
    }

    fn are_read(&self) -> bool {
        cfg!(feature = "otel") && self.0.readers.load(Ordering::Relaxed) > 0
    }

    /// Records the append of these records now, and returns a callback that also records when they are durable.
    pub(super) fn appended(&self, records: &[LogRecord], done: Done) -> Done {
        let (Some(first), Some(last)) = (records.first(), records.last()) else { return done };
        if !self.are_read() {
            return done;
        }
        let (first, last) = (first.position.index, last.position.index);
        let appended = SystemTime::now();
        let mut entries = self.0.entries.lock();
        for index in first..=last {
            if entries.len() == MAX_ENTRIES {
                entries.pop_front();
            }
            entries.push_back(EntryTimestamps { index, appended, durable: None, applied: None });
        }
        drop(entries);
        let times = self.clone();
        Box::new(move |result| {
            if result.is_ok() {
                let now = SystemTime::now();
                let mut entries = times.0.entries.lock();
                let written =
                    |entry: &&mut EntryTimestamps| (first..=last).contains(&entry.index) && entry.appended == appended;
                entries.iter_mut().filter(written).for_each(|entry| entry.durable = Some(now));
            }
            done(result);
        })
    }

    /// Records the time that `apply` takes for the entry.
    pub(super) fn applied<R>(&self, index: u64, apply: impl FnOnce() -> R) -> R {
        if !self.are_read() {
            return apply();
        }
        let began = SystemTime::now();
        let result = apply();
        let mut entries = self.0.entries.lock();
        if let Some(entry) = entries.iter_mut().rev().find(|entry| entry.index == index) {
            entry.applied = Some((began, SystemTime::now()));
        }
        result
    }
}

impl TimesReader {
    /// The stages of an entry that this node has appended and applied. If the other members were faster, the sync here
    /// may be in progress: then its stage ends now.
    pub fn stages(&self, index: u64) -> Vec<Stage> {
        let entries = self.0.0.entries.lock();
        let Some(entry) = entries.iter().rev().find(|entry| entry.index == index) else { return Vec::new() };
        let mut stages = vec![("disk", entry.appended, entry.durable.unwrap_or_else(SystemTime::now))];
        stages.extend(entry.applied.map(|(from, to)| ("apply", from, to)));
        stages
    }
}

impl Drop for TimesReader {
    fn drop(&mut self) {
        self.0.0.readers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, feature = "otel"))]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::storage::{Position, StorageError};

    fn records(indexes: std::ops::Range<u64>) -> Vec<LogRecord> {
        indexes.map(|index| LogRecord { position: Position { term: 1, index }, payload: Bytes::new() }).collect()
    }

    fn names(reader: &TimesReader, index: u64) -> Vec<&'static str> {
        reader.stages(index).into_iter().map(|(name, ..)| name).collect()
    }

    #[test]
    fn times_are_recorded_while_a_command_reads_them() {
        let times = EntryTimes::default();
        times.appended(&records(1..2), Box::new(|_| {}))(Ok(()));
        let reader = times.record();
        times.appended(&records(2..4), Box::new(|_| {}))(Ok(()));
        assert_eq!(times.applied(3, || 7), 7);
        assert_eq!([1, 2, 3].map(|index| names(&reader, index)), [vec![], vec!["disk"], vec!["disk", "apply"]]);
        let [(_, appended, durable), (_, began, applied)] = reader.stages(3)[..] else { panic!("two stages") };
        assert!(appended <= durable && durable <= began && began <= applied);
        drop(reader);
        times.appended(&records(4..5), Box::new(|_| {}))(Ok(()));
        assert_eq!(names(&times.record(), 4), Vec::<&str>::new());
    }

    #[test]
    fn table_of_times_is_bounded() {
        let times = EntryTimes::default();
        let reader = times.record();
        let last = 2 * MAX_ENTRIES as u64;
        times.appended(&records(0..last + 1), Box::new(|_| {}))(Ok(()));
        assert_eq!(times.0.entries.lock().len(), MAX_ENTRIES);
        assert_eq!((names(&reader, 0), names(&reader, last)), (vec![], vec!["disk"]));
    }

    #[test]
    fn callback_is_called_with_the_result() {
        let times = EntryTimes::default();
        let _reader = times.record();
        let (sender, receiver) = std::sync::mpsc::channel();
        let done = times.appended(&records(1..2), Box::new(move |result| sender.send(result).expect("it is received")));
        done(Err(StorageError::Closed));
        assert!(matches!(receiver.recv(), Ok(Err(StorageError::Closed))));
        assert_eq!(times.0.entries.lock()[0].durable, None);
    }
}
