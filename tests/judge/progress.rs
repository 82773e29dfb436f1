//! The commits of the cluster, as the answers to clients show them.

use std::time::Duration;

/// The first answer that showed each higher log index. At least one commit lies between two of these answers.
#[derive(Clone, Debug, Default)]
pub struct Progress(Vec<(u64, Duration)>);

impl Progress {
    /// Records that an answer showed the log up to `index`.
    pub fn saw(&mut self, index: u64, now: Duration) {
        if self.0.last().is_none_or(|(last, _)| *last < index) {
            self.0.push((index, now));
        }
    }

    /// The time of the first answer that showed the log up to `index` or further.
    pub fn first_at(&self, index: u64) -> Option<Duration> {
        self.0.get(self.0.partition_point(|(seen, _)| *seen < index)).map(|(_, at)| *at)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The part of a period that lies in pauses between commits longer than `longest`.
    pub fn without_commits(&self, from: Duration, until: Duration, longest: Duration) -> Duration {
        let first = self.0.partition_point(|(_, at)| *at <= from).saturating_sub(1);
        let times = self.0[first..].iter().map(|(_, at)| *at);
        let begins = times.clone();
        let pauses = begins.zip(times.skip(1).chain([Duration::MAX]));
        let pauses = pauses.take_while(|(begin, _)| *begin < until).filter(|(begin, end)| *end - *begin > longest);
        pauses.map(|(begin, end)| end.min(until).saturating_sub(begin.max(from))).sum()
    }

    /// Removes all commits before `time`, except the last one.
    pub fn forget_before(&mut self, time: Duration) {
        let keep = self.0.partition_point(|(_, at)| *at < time).saturating_sub(1);
        self.0.drain(..keep);
    }
}
