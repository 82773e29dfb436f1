//! The places of the durable log entries in the segments.

use std::collections::VecDeque;

/// The place of the record of one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Location {
    pub segment: u64,
    pub offset: u32,
    /// The length of the record.
    pub bytes: u32,
}

/// The places of contiguous entries. It can lack the first entries of the log while the log is replayed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LogIndex {
    first: u64,
    locations: VecDeque<Location>,
}

impl LogIndex {
    pub fn push(&mut self, index: u64, location: Location) {
        if self.locations.is_empty() {
            self.first = index;
        }
        debug_assert_eq!(index, self.first + self.locations.len() as u64);
        self.locations.push_back(location);
    }

    /// Removes all entries behind the new last one.
    pub fn truncate(&mut self, last: Option<u64>) {
        let kept = last.map_or(0, |last| last.saturating_add(1).saturating_sub(self.first));
        self.locations.truncate(usize::try_from(kept).unwrap_or(usize::MAX));
    }

    pub fn purge(&mut self, upto: u64) {
        let purged = upto.saturating_add(1).saturating_sub(self.first).min(self.locations.len() as u64);
        self.locations.drain(..purged as usize);
        self.first += purged;
    }

    pub fn first(&self) -> Option<u64> {
        (!self.locations.is_empty()).then_some(self.first)
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.locations.len()
    }

    /// The places of entries from `index` in the same segment as this one, in order.
    pub fn run(&self, index: u64) -> impl Iterator<Item = (u64, Location)> {
        let skipped = index.checked_sub(self.first).map_or(usize::MAX, |skipped| skipped as usize);
        let run = (index..).zip(self.locations.iter().copied().skip(skipped));
        let segment = self.locations.get(skipped).map(|location| location.segment);
        run.take_while(move |(_, location)| Some(location.segment) == segment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(segment: u64, offset: u32) -> Location {
        Location { segment, offset, bytes: 7 }
    }

    #[test]
    fn index_truncates_and_purges_its_ends() {
        let mut index = LogIndex::default();
        (5..15).for_each(|n| index.push(n, location(n / 10, n as u32)));
        assert_eq!(index.run(7).map(|(index, _)| index).collect::<Vec<_>>(), [7, 8, 9], "one segment");
        assert_eq!(index.run(4).count(), 0);
        index.purge(6);
        index.truncate(Some(12));
        assert_eq!((index.first(), index.len()), (Some(7), 6));
        assert_eq!(index.run(10).map(|(_, location)| location.offset).collect::<Vec<_>>(), [10, 11, 12]);
        index.truncate(Some(3));
        assert_eq!((index.first(), index.len(), index.run(4).count()), (None, 0, 0));
        index.push(4, location(2, 0));
        index.purge(20);
        assert_eq!(index, LogIndex { first: 5, locations: VecDeque::new() });
        index.push(21, location(2, 0));
        index.truncate(None);
        assert_eq!(index.first(), None);
    }
}
