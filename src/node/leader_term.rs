//! The leader's term and cluster time: from when this node may propose, and the timestamps of its proposals.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::Clock;
use crate::lease::Stamp;
use crate::types::ClusterMs;

/// A term that this node leads. It starts after this node has applied every entry that earlier leaders committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeaderTerm {
    pub term: u64,
    /// Cluster time of the state at the start of the term.
    base: ClusterMs,
    /// This node's monotonic clock at the start of the term.
    since: Duration,
}

/// The leader's clock: extends the cluster time of the state by the local monotonic clock.
#[derive(Clone)]
pub(super) struct LeaderClock {
    clock: Arc<dyn Clock>,
    leader_term: Arc<watch::Sender<Option<LeaderTerm>>>,
}

impl LeaderClock {
    pub fn new(clock: Arc<dyn Clock>) -> LeaderClock {
        LeaderClock { clock, leader_term: Arc::new(watch::Sender::new(None)) }
    }

    /// Starts leading in `term`. Cluster time continues from `state_now`.
    ///
    /// This node does not know how much time passed since that value was committed. Leases last longer by that time,
    /// never shorter. The same holds for a leader that regains its majority: an entry with a later timestamp of its
    /// earlier clock does no harm, because the state's time never decreases.
    pub fn begin(&self, term: u64, state_now: ClusterMs) -> LeaderTerm {
        let leader_term = LeaderTerm { term, base: state_now, since: self.clock.elapsed() };
        self.leader_term.send_replace(Some(leader_term));
        leader_term
    }

    pub fn end(&self) {
        self.leader_term.send_if_modified(|current| current.take().is_some());
    }

    pub fn leader_term(&self) -> Option<LeaderTerm> {
        *self.leader_term.borrow()
    }

    pub fn changes(&self) -> watch::Receiver<Option<LeaderTerm>> {
        self.leader_term.subscribe()
    }

    /// Waits until this node no longer leads in `term`.
    pub async fn ended(&self, term: u64) {
        let mut leads = self.changes();
        // An error means that the sender is gone, so the term has ended as well.
        let _ = leads.wait_for(|current| current.is_none_or(|current| current.term != term)).await;
    }

    pub fn now(&self, leader_term: &LeaderTerm) -> ClusterMs {
        leader_term.base + self.clock.elapsed().saturating_sub(leader_term.since).as_millis() as u64
    }

    pub fn stamp(&self, leader_term: &LeaderTerm) -> Stamp {
        Stamp { now: self.now(leader_term), wall_ms: self.clock.wall_ms() }
    }

    /// Returns the time left until cluster time reaches `at`.
    pub fn until(&self, leader_term: &LeaderTerm, at: ClusterMs) -> Duration {
        let reached = leader_term.since + Duration::from_millis(at.saturating_sub(leader_term.base));
        reached.saturating_sub(self.clock.elapsed())
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use crate::lease::{Acquire, Batch, Command, Machine, Stamp};
    use crate::testing::ManualClock;
    use crate::token::FencingToken;
    use crate::types::{HolderId, LeaseName, Metadata, Ttl};

    const TTL: Duration = Duration::from_millis(100);

    /// Returns the lifetime of a lease that is granted this long after the start of the term.
    fn lifetime(granted: Duration) -> Duration {
        let manual = ManualClock::new();
        let clock = LeaderClock::new(Arc::new(manual.clone()));
        let mut machine = Machine::new();
        let mut apply = |index, stamp: Stamp, command| {
            machine.apply(FencingToken { term: 1, index }, &Batch { stamp, commands: vec![command] });
            (machine.next_due(), machine.counts().held)
        };
        let leader_term = clock.begin(1, 5_000);
        manual.advance(granted);
        let acquire = Command::Acquire(Acquire {
            name: LeaseName::new("nightly").expect("a valid name"),
            holder: HolderId::new("worker-1").expect("a valid holder"),
            ttl: Ttl::millis(TTL.as_millis() as u64).expect("valid"),
            wait_ms: None,
            lock_delay_ms: 0,
            limit: 1,
            metadata: Metadata::default(),
        });
        let (due, held) = apply(1, clock.stamp(&leader_term), acquire);
        assert_eq!(held, 1);
        let lasts = clock.until(&leader_term, due.expect("it expires"));
        manual.advance(lasts);
        let (_, held) = apply(2, clock.stamp(&leader_term), Command::Tick);
        assert_eq!(held, 0, "a tick at its due time expires the lease");
        lasts
    }

    #[test]
    fn no_early_expiry_wherever_in_a_millisecond_it_is_granted() {
        for micros in (0..3_000).step_by(50) {
            let lasts = lifetime(Duration::from_micros(micros));
            assert!(lasts >= TTL, "granted after {micros} us, it expired after {lasts:?}");
            assert!(lasts <= TTL + Duration::from_millis(1), "granted after {micros} us, it lasted {lasts:?}");
        }
    }
}
