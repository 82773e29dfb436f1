//! The leader: from when to when this node leads, the timestamps of its proposals, and the advance of cluster time.
//!
//! Cluster time advances only by log entries. The leader proposes a tick when a deadline is due, and at least every
//! `tick` while any deadline exists. So the next leader starts from a recent time. An idle cluster writes nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::lease::{Command, Limits, Stamp};
use crate::node::membership::join::MemberRegistry;
use crate::node::request::propose::Proposer;
use crate::raft::{Progress, RaftHandle};
use crate::storage::Storage;
use crate::time;
use crate::types::{ClusterMs, NodeId};

/// Pause after a tick that was not applied. A leader refuses every tick during a leadership transfer.
const RETRY_PAUSE: Duration = Duration::from_millis(5);
/// A leader checks this long after its leadership lease whether a majority has acknowledged it meanwhile.
const LEASE_SLACK: Duration = Duration::from_millis(10);

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
    /// never shorter.
    pub fn begin(&self, term: u64, state_now: ClusterMs) -> LeaderTerm {
        let leader_term = LeaderTerm { term, base: state_now, since: self.clock.elapsed() };
        self.leader_term.send_replace(Some(leader_term));
        leader_term
    }

    /// Continues from the time of the state if that is ahead of this clock.
    ///
    /// A leader that regains its majority begins before the entries of its earlier clock are applied. Their timestamps
    /// can be later by the time without a majority. Without this, cluster time would stand still for as long, and leases
    /// that are granted meanwhile would last longer.
    fn follow(&self, leader_term: LeaderTerm, state_now: ClusterMs) -> LeaderTerm {
        if state_now > self.now(&leader_term) { self.begin(leader_term.term, state_now) } else { leader_term }
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
        leader_term.base + self.led_for(leader_term).as_millis() as u64
    }

    /// Time since the clock of this term began: at most as long as this node has led in it.
    pub fn led_for(&self, leader_term: &LeaderTerm) -> Duration {
        self.clock.elapsed().saturating_sub(leader_term.since)
    }

    pub fn stamp(&self, leader_term: &LeaderTerm) -> Stamp {
        Stamp { now: self.now(leader_term), wall_ms: self.clock.wall_ms() }
    }

    /// The monotonic clock and the wall clock of this node, in milliseconds.
    pub fn reading(&self) -> (u64, u64) {
        (self.clock.elapsed().as_millis() as u64, self.clock.wall_ms())
    }

    /// Returns the time left until cluster time reaches `at`.
    pub fn until(&self, leader_term: &LeaderTerm, at: ClusterMs) -> Duration {
        let reached = leader_term.since + Duration::from_millis(at.saturating_sub(leader_term.base));
        reached.saturating_sub(self.clock.elapsed())
    }
}

/// Detects the start and end of this node's leadership, and proposes ticks.
pub(super) struct Timekeeper<S: Storage> {
    pub node: NodeId,
    pub raft: Arc<RaftHandle<S>>,
    pub clock: LeaderClock,
    pub proposer: Proposer,
    pub known: Arc<MemberRegistry>,
    /// The limits of this node's configuration.
    pub limits: Limits,
    /// Longest time between two entries while anything has a deadline.
    pub tick: Duration,
}

impl<S: Storage> Timekeeper<S> {
    pub async fn run(self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.keep_time() => {}
        }
        self.clock.end();
    }

    async fn keep_time(&self) {
        loop {
            let term = self.elected().await;
            tokio::select! {
                biased;
                () = self.deposed(term) => {}
                () = self.lead(term) => {}
            }
            self.clock.end();
        }
    }

    /// Waits until this node leads, and returns its term. It leads once a majority acknowledges it and it has applied
    /// every entry that earlier leaders committed.
    async fn elected(&self) -> u64 {
        let mut leadership = self.raft.watch_leadership();
        let mut progress = self.raft.replica().progress();
        let mut reports = self.raft.watch_reports();
        loop {
            reports.mark_seen();
            let now = leadership.now();
            let applied = *progress.borrow_and_update();
            let is_leader = now.leader == Some(self.node);
            if is_leader && applied.applied.term == now.term && self.raft.leads_for().is_some() {
                return now.term;
            }
            tokio::select! {
                () = leadership.changed() => {}
                _ = progress.changed(), if is_leader => {}
                // The acknowledgement of a majority can come after the entry is applied.
                () = reports.changed(), if is_leader => {}
            }
        }
    }

    /// Waits until this node no longer leads in `term`: Raft reports it, or no majority acknowledges this node.
    async fn deposed(&self, term: u64) {
        let mut leadership = self.raft.watch_leadership();
        loop {
            let now = leadership.now();
            if now.leader != Some(self.node) || now.term != term {
                return;
            }
            let Some(left) = self.raft.leads_for() else {
                let unheard = self.raft.quorum_age();
                return tracing::warn!(term, ?unheard, "no majority acknowledges this leader: it stops leading");
            };
            tokio::select! {
                () = leadership.changed() => {}
                () = time::sleep(left + LEASE_SLACK) => {}
            }
        }
    }

    /// Leads in `term`, and never returns. The caller may drop the future while its proposal is in flight: without a
    /// majority a proposal has no answer.
    async fn lead(&self, term: u64) {
        // This node knows the incarnations of its voters. It records them before the first client entry, so that peers
        // refuse a voter that loses its disk afterwards.
        self.known.record(&self.raft, term).await;
        let mut progress = self.raft.replica().progress();
        let state_now = progress.borrow_and_update().now;
        let mut leader_term = self.clock.begin(term, state_now);
        tracing::info!(term, cluster_time = state_now, "this node became the leader");
        loop {
            let applied = *progress.borrow_and_update();
            leader_term = self.clock.follow(leader_term, applied.now);
            let pause = self.tick_if_due(&leader_term, &applied).await;
            tokio::select! {
                _ = progress.changed() => {}
                () = time::sleep(pause.unwrap_or_default()), if pause.is_some() => {}
            }
        }
    }

    /// Proposes a tick if one is due. Returns the time until the next check, or `None` if only an applied entry can
    /// make a tick due.
    async fn tick_if_due(&self, leader_term: &LeaderTerm, progress: &Progress) -> Option<Duration> {
        let at = next_tick(progress, self.limits, self.tick)?;
        let pause = self.clock.until(leader_term, at);
        if pause.is_zero() && !self.propose(leader_term.term, Command::Tick).await {
            return Some(RETRY_PAUSE);
        }
        Some(pause)
    }

    /// Proposes a command and returns whether it was applied. A later check repeats a failed one, here or on the next
    /// leader.
    async fn propose(&self, term: u64, command: Command) -> bool {
        let proposed = self.proposer.propose(term, command).await;
        if let Err(why) = &proposed {
            tracing::debug!(?why, "a proposal of the timekeeper was not applied");
        }
        proposed.is_ok()
    }
}

/// Returns the cluster time of the next tick. It is due at once if the state has other limits than the leader, because
/// the proposer puts the leader's limits into the entry of the tick.
fn next_tick(progress: &Progress, limits: Limits, tick: Duration) -> Option<ClusterMs> {
    if progress.limits != limits {
        return Some(progress.now);
    }
    let recent = progress.has_deadlines.then(|| progress.now + tick.as_millis() as u64);
    progress.next_due.into_iter().chain(recent).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(next_due: Option<ClusterMs>, has_deadlines: bool) -> Progress {
        Progress { now: 1000, next_due, has_deadlines, ..Progress::default() }
    }

    #[test]
    fn ticks_come_at_deadlines_and_at_least_every_tick() {
        let tick = Duration::from_millis(500);
        let limits = Limits::default();
        assert_eq!(next_tick(&progress(None, false), limits, tick), None, "idle");
        assert_eq!(next_tick(&progress(Some(1200), true), limits, tick), Some(1200));
        assert_eq!(next_tick(&progress(Some(9000), true), limits, tick), Some(1500));
    }

    #[test]
    fn differing_limits_are_due_until_they_are_applied() {
        let (tick, own) = (Duration::from_millis(500), Limits { max_waiters: 7, ..Limits::default() });
        let before = progress(None, false);
        assert_eq!(next_tick(&before, own, tick), Some(before.now), "due until the state has the limits");
        assert_eq!(next_tick(&Progress { limits: own, ..before }, own, tick), None);
    }
}

#[cfg(all(test, feature = "testing"))]
mod clock_tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::config::{LeaseSettings, RaftTimings};
    use crate::lease::{Acquire, Batch, Command, Machine, Stamp};
    use crate::node::{Forward, Request, RequestError};
    use crate::raft::Proposal;
    use crate::testing::{Cluster, ManualClock};
    use crate::token::FencingToken;
    use crate::types::{HolderId, LeaseName, Metadata, Ttl};

    const TTL: Duration = Duration::from_millis(100);

    fn acquire(ttl: Duration) -> Acquire {
        Acquire {
            name: LeaseName::new("nightly").expect("a valid name"),
            holder: HolderId::new("worker-1").expect("a valid holder"),
            ttl: Ttl::millis(ttl.as_millis() as u64).expect("valid"),
            wait_ms: None,
            lock_delay_ms: 0,
            limit: 1,
            metadata: Metadata::default(),
        }
    }

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
        let (due, held) = apply(1, clock.stamp(&leader_term), Command::Acquire(acquire(TTL)));
        assert_eq!(held, 1);
        let lasts = clock.until(&leader_term, due.expect("it expires"));
        manual.advance(lasts);
        let (_, held) = apply(2, clock.stamp(&leader_term), Command::Tick);
        assert_eq!(held, 0, "a tick at its due time expires the lease");
        lasts
    }

    /// Found by `scripts/faults`: the leader was suspended for 5 s, and leases that it granted then lasted 2.8 s longer.
    #[test]
    fn clock_follows_a_later_entry_of_the_clock_before() {
        let manual = ManualClock::new();
        let clock = LeaderClock::new(Arc::new(manual.clone()));
        let before = clock.begin(1, 5_000);
        manual.advance(Duration::from_secs(5));
        let in_flight = clock.stamp(&before).now;
        clock.end();
        let again = clock.begin(1, 5_200);
        manual.advance(Duration::from_millis(10));
        assert_eq!(clock.follow(again, 5_205), again, "the state is behind");
        let again = clock.follow(again, in_flight);
        assert_eq!((clock.now(&again), clock.leader_term()), (10_000, Some(again)));
        manual.advance(Duration::from_millis(7));
        assert_eq!(clock.now(&again), 10_007);
    }

    /// Longer than any step of a test.
    const LONG: Duration = Duration::from_secs(60);

    /// Cuts all links until the leader no longer leads. After the cut its log gets an entry, so it votes for no other
    /// node. It applies nothing more until the test uses the sender.
    async fn lose_majority(cluster: &Cluster, leader: NodeId) -> oneshot::Sender<()> {
        let node = cluster.node(leader);
        let tick = || node.request(Request::Change(Command::Tick), Forward::Once);
        tick().await.expect("it leads");
        // It also records the disks of voters that it hears later.
        tokio::time::sleep(Duration::from_secs(1)).await;
        for id in cluster.ids() {
            cluster.board.isolate(id, cluster.ids());
        }
        let late = tick().await;
        assert!(matches!(late, Err(RequestError::Unknown(_))), "control: only its log has the entry: {late:?}");
        let mut leads = node.inner.requests.clock.changes();
        let ended = tokio::time::timeout(LONG, leads.wait_for(Option::is_none)).await;
        drop(ended.expect("it has no majority").expect("the node runs"));
        let (resume, resumed) = oneshot::channel();
        let raft = node.raft().raft();
        let stall = raft.external_state_machine_request(move |_| Box::pin(async move { _ = resumed.await }));
        stall.await.expect("Raft runs");
        resume
    }

    /// Only the leader reaches the other nodes, so none of them wins an election.
    fn reconnect(cluster: &Cluster, leader: NodeId) {
        for other in cluster.ids().filter(|id| *id != leader) {
            cluster.board.reconnect(leader, other);
            cluster.board.reconnect(other, leader);
        }
    }

    /// It applies nothing at that time, so only the acknowledgement tells that it leads.
    #[tokio::test(start_paused = true)]
    async fn leader_leads_again_as_soon_as_a_majority_acknowledges_it() {
        let cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
        let leader = cluster.leader().await;
        let node = cluster.node(leader);
        for round in 0..5 {
            let resume = lose_majority(&cluster, leader).await;
            tokio::time::sleep(Duration::from_millis(7 * round)).await;
            reconnect(&cluster, leader);
            let acknowledged = async {
                while node.raft().leads_for().is_none() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::time::timeout(LONG, acknowledged).await.expect("a majority acknowledges it again");
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert!(node.inner.requests.clock.leader_term().is_some(), "round {round}");
            resume.send(()).expect("the state machine waits");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        cluster.shutdown().await;
    }

    /// An entry of its clock before can be later than the state from which the present clock began.
    #[tokio::test(start_paused = true)]
    async fn leader_continues_from_the_cluster_time_of_an_applied_entry() {
        let cluster = Cluster::start(1, RaftTimings::lan(), LeaseSettings::default()).await;
        cluster.leader().await;
        let node = cluster.node(1);
        node.request(Request::Change(Command::Tick), Forward::Once).await.expect("it leads");
        let clock = &node.inner.requests.clock;
        let leader_term = clock.leader_term().expect("it leads");
        let ahead = clock.now(&leader_term) + 60_000;
        let stamp = Stamp { now: ahead, ..clock.stamp(&leader_term) };
        let batch = Batch { stamp, commands: vec![Command::Tick] };
        node.raft().propose(leader_term.term, Proposal::leases(&batch)).await.expect("it leads");
        tokio::time::sleep(Duration::from_secs(1)).await;
        let leader_term = clock.leader_term().expect("it leads");
        let now = clock.now(&leader_term);
        assert!(now >= ahead, "the clock of the leader is {} ms behind its state", ahead - now);
        cluster.shutdown().await;
    }

    #[test]
    fn no_early_expiry_wherever_in_a_millisecond_it_is_granted() {
        for micros in (0..3_000).step_by(50) {
            let lasts = lifetime(Duration::from_micros(micros));
            assert!(lasts >= TTL, "granted after {micros} us, it expired after {lasts:?}");
            assert!(lasts <= TTL + Duration::from_millis(1), "granted after {micros} us, it lasted {lasts:?}");
        }
    }

    /// An election does not wait until the entries of earlier leaders are applied.
    #[tokio::test(start_paused = true)]
    async fn term_begins_after_an_entry_of_it_is_applied() {
        let cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
        let leader = cluster.leader().await;
        let next = cluster.ids().find(|id| *id != leader).expect("three nodes");
        let node = cluster.node(next).clone();
        let (resume, resumed) = oneshot::channel::<()>();
        let raft = node.raft().raft();
        let stall = raft.external_state_machine_request(move |_| Box::pin(async move { _ = resumed.await }));
        stall.await.expect("Raft runs");
        cluster.node(leader).transfer_leadership_to(next).await.expect("it is connected");
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(node.raft().leads_for().is_some(), "a majority acknowledges it");
        assert_eq!(node.inner.requests.clock.leader_term(), None, "its state may lack grants of the leader before");
        resume.send(()).expect("the state machine waits");
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(node.inner.requests.clock.leader_term().is_some());
        cluster.shutdown().await;
    }
}
