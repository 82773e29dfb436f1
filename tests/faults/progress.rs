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

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn progress() -> Progress {
        let mut progress = Progress::default();
        for (index, at) in [(1, 100), (2, 200), (2, 250), (9, 1_000), (8, 1_050), (10, 1_100), (11, 3_100)] {
            progress.saw(index, ms(at));
        }
        progress
    }

    #[test]
    fn only_higher_indices_are_commits() {
        assert_eq!((progress().first_at(3), progress().first_at(9)), (Some(ms(1_000)), Some(ms(1_000))));
        assert_eq!((progress().first_at(0), progress().first_at(12)), (Some(ms(100)), None));
    }

    #[test]
    fn pauses_are_clipped_to_the_period() {
        let without = |from, until| progress().without_commits(ms(from), ms(until), ms(250));
        assert_eq!(without(0, 3_100), ms(800 + 2_000));
        assert_eq!(without(0, 210), ms(10), "a long pause begins at 200 ms");
        assert_eq!(without(500, 1_500), ms(500 + 400));
        assert_eq!(without(1_000, 1_100), Duration::ZERO);
        assert_eq!(without(3_200, 3_300), ms(100), "no commit after 3.1 s");
        assert_eq!(Progress::default().without_commits(ms(0), ms(9), ms(1)), Duration::ZERO);
    }

    #[test]
    fn forget_before_keeps_the_last_commit() {
        let mut short = progress();
        short.forget_before(ms(1_050));
        assert_eq!(short.without_commits(ms(1_050), ms(3_100), ms(250)), ms(2_000));
        assert_eq!(short.first_at(1), Some(ms(1_000)));
    }
}
