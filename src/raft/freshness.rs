//! How old the state of a node can be.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use openraft::Instant as _;
use openraft::alias::InstantOf;
use parking_lot::Mutex;
use rand::RngExt;

use super::types::TypeConfig;
use super::wire::ProcessTime;
use crate::clock::Clock;
use crate::rng::rng;

/// Time since the last accepted message from a leader, and the age of the state.
pub struct LeaderContact {
    clock: Arc<dyn Clock>,
    /// See [`ProcessTime`].
    process: u64,
    /// Time of the last message in milliseconds of `clock`, plus one. 0 if there was none.
    last: AtomicU64,
    freshness: Mutex<Freshness>,
}

/// When a state was complete. Times are in milliseconds.
#[derive(Default)]
struct Freshness {
    /// The state has all that any node had shown at this time.
    complete_at: Option<u64>,
    /// An entry that the state does not have yet, and a time at which no node had shown a later one.
    awaited: Option<(u64, u64)>,
}

impl Freshness {
    fn announced(&mut self, at_ms: u64, commit: u64, applied: u64) {
        self.applied(applied);
        if commit <= applied {
            (self.complete_at, self.awaited) = (self.complete_at.max(Some(at_ms)), None);
        } else if self.awaited.is_none_or(|(_, awaited)| awaited == commit) {
            self.awaited = self.awaited.max(Some((at_ms, commit)));
        }
    }

    fn applied(&mut self, applied: u64) {
        if let Some((at_ms, _)) = self.awaited.take_if(|(_, commit)| *commit <= applied) {
            self.complete_at = self.complete_at.max(Some(at_ms));
        }
    }

    fn complete_at(&mut self, applied: u64) -> Option<u64> {
        self.applied(applied);
        self.complete_at
    }
}

impl LeaderContact {
    pub fn new(clock: Arc<dyn Clock>) -> LeaderContact {
        LeaderContact { clock, process: rng().random(), last: AtomicU64::new(0), freshness: Mutex::default() }
    }

    pub fn heard(&self) {
        self.last.store(self.now_ms() + 1, Ordering::Relaxed);
    }

    /// `None` if no leader was heard since the start of the node.
    pub fn elapsed(&self) -> Option<Duration> {
        let last = self.last.load(Ordering::Relaxed).checked_sub(1)?;
        Some(Duration::from_millis(self.now_ms().saturating_sub(last)))
    }

    pub fn time(&self) -> ProcessTime {
        ProcessTime { process: self.process, ms: self.now_ms() }
    }

    /// A time that this process gave a leader. `None` for one of another process, also of an earlier one of this node.
    pub fn read(&self, time: ProcessTime) -> Option<u64> {
        (time.process == self.process && time.ms <= self.now_ms()).then_some(time.ms)
    }

    /// At this time, no node had shown an entry after this index.
    pub fn announced(&self, at_ms: u64, commit: u64, applied: u64) {
        self.freshness.lock().announced(at_ms, commit, applied);
    }

    /// Time since the state was complete. `None` if it was not complete since the start of the node.
    pub fn state_age(&self, applied: u64) -> Option<Duration> {
        let complete_at = self.freshness.lock().complete_at(applied)?;
        Some(Duration::from_millis(self.now_ms().saturating_sub(complete_at)))
    }

    pub fn now_ms(&self) -> u64 {
        self.clock.elapsed().as_millis() as u64
    }
}

/// The commits that this node announced as the leader.
pub struct AnnouncedCommits {
    clock: Arc<dyn Clock>,
    highest: AtomicU64,
    freshness: Mutex<Freshness>,
}

impl AnnouncedCommits {
    pub fn new(clock: Arc<dyn Clock>) -> AnnouncedCommits {
        AnnouncedCommits { clock, highest: AtomicU64::new(0), freshness: Mutex::default() }
    }

    /// Call it before a message with this commit index leaves.
    pub fn announce(&self, commit: u64, applied: u64) {
        // Another message must not announce more between the two.
        let mut freshness = self.freshness.lock();
        let highest = self.highest.fetch_max(commit, Ordering::SeqCst).max(commit);
        freshness.announced(self.now_ms(), highest, applied);
    }

    /// Highest commit index in any sent message. No follower can have applied more.
    pub fn highest(&self) -> u64 {
        self.highest.load(Ordering::SeqCst)
    }

    /// Time since this node had applied all that it had announced. `None` if it never had.
    pub fn applied_age(&self, applied: u64) -> Option<Duration> {
        if applied >= self.highest() {
            return Some(Duration::ZERO);
        }
        let complete_at = self.freshness.lock().complete_at(applied)?;
        Some(Duration::from_millis(self.now_ms().saturating_sub(complete_at)))
    }

    fn now_ms(&self) -> u64 {
        self.clock.elapsed().as_millis() as u64
    }
}

/// The times in the answers of a follower. The leader sends the newest one back at which no other node led.
///
/// It knows this when a majority has acknowledged a message that left later than it received the time. A lease is not enough
/// for that: after a transfer, the next leader waits for none.
#[derive(Default)]
pub struct Echoes {
    confirmed: Option<ProcessTime>,
    /// The oldest and the newest that are not confirmed, each with the moment of its receipt.
    unconfirmed: VecDeque<(InstantOf<TypeConfig>, ProcessTime)>,
}

impl Echoes {
    const MAX_UNCONFIRMED: usize = 2;

    pub fn received(&mut self, time: ProcessTime) {
        self.unconfirmed.truncate(Self::MAX_UNCONFIRMED - 1);
        self.unconfirmed.push_back((InstantOf::<TypeConfig>::now(), time));
    }

    /// `acked`: when this leader sent the last message that a majority has acknowledged.
    pub fn newest(&mut self, acked: Option<InstantOf<TypeConfig>>) -> Option<ProcessTime> {
        while let Some((_, time)) = self.unconfirmed.pop_front_if(|(received, _)| Some(*received) < acked) {
            self.confirmed = Some(time);
        }
        self.confirmed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn time_is_echoed_after_an_acknowledgement_of_a_later_message() {
        const STEP: Duration = Duration::from_millis(10);
        let time = |ms| ProcessTime { process: 7, ms };
        let mut echoes = Echoes::default();
        assert_eq!(echoes.newest(Some(InstantOf::<TypeConfig>::now())), None, "no answer came");
        let received = InstantOf::<TypeConfig>::now();
        for ms in 1..=5 {
            echoes.received(time(ms));
            tokio::time::advance(STEP).await;
        }
        assert_eq!(echoes.newest(None), None, "no majority acknowledged a message");
        assert_eq!(echoes.newest(Some(received)), None, "the message may have left before the answer came");
        assert_eq!(echoes.newest(Some(received + STEP)), Some(time(1)));
        assert_eq!(echoes.newest(None), Some(time(1)), "it stays confirmed");
        assert_eq!(echoes.newest(Some(InstantOf::<TypeConfig>::now())), Some(time(5)));
    }

    /// A follower that always lacks a few entries must still report a recent age.
    #[test]
    fn later_commit_does_not_replace_the_awaited_one() {
        let mut freshness = Freshness::default();
        freshness.announced(0, 10, 5);
        freshness.announced(100, 20, 8);
        assert_eq!(freshness.complete_at(8), None);
        freshness.announced(200, 30, 15);
        assert_eq!(freshness.complete_at(15), Some(0), "it has entry 10");
        freshness.announced(300, 40, 33);
        assert_eq!(freshness.complete_at(33), Some(200), "it has entry 30");
    }
}
