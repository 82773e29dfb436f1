//! The leader's time-keeper: notices when this node's lead begins and ends, and lets time pass in the log.
//!
//! Time passes for leases only by entries. A tick is proposed when something is due, and at least every `tick` while
//! anything has a deadline, so that the next leader starts from a recent time. An idle cluster writes nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::leader_term::{LeaderClock, LeaderTerm};
use crate::lease::{Command, Limits};
use crate::node::membership::join::MemberRegistry;
use crate::node::request::propose::Proposer;
use crate::raft::{Progress, RaftHandle};
use crate::storage::Storage;
use crate::time;
use crate::types::{ClusterMs, NodeId};

/// Pause after a tick that was not applied: a leader that hands its leadership on refuses all of them.
const RETRY_PAUSE: Duration = Duration::from_millis(5);
/// How often it is looked whether a majority acknowledges the leader, where no change tells.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

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

    /// Waits until this node leads: a majority acknowledges it, and all that earlier leaders committed is applied here.
    /// Returns its term.
    async fn elected(&self) -> u64 {
        let mut leadership = self.raft.watch_leadership();
        let mut progress = self.raft.replica().progress();
        loop {
            let now = leadership.now();
            let applied = *progress.borrow_and_update();
            let is_leader = now.leader == Some(self.node);
            if is_leader && applied.applied.term == now.term && self.raft.leads_for().is_some() {
                return now.term;
            }
            tokio::select! {
                () = leadership.changed() => {}
                _ = progress.changed() => {}
                // No change tells of an acknowledgement.
                () = time::sleep(LOOK_INTERVAL), if is_leader => {}
            }
        }
    }

    /// Waits until this node leads no more in `term`: Raft says so, or no majority acknowledges it.
    async fn deposed(&self, term: u64) {
        let mut leadership = self.raft.watch_leadership();
        loop {
            let now = leadership.now();
            if now.leader != Some(self.node) || now.term != term {
                return;
            }
            let Some(left) = self.raft.leads_for() else {
                let unheard = self.raft.quorum_age();
                return tracing::warn!(term, ?unheard, "no majority acknowledges this leader: it leads no more");
            };
            tokio::select! {
                () = leadership.changed() => {}
                () = time::sleep(left + LOOK_INTERVAL) => {}
            }
        }
    }

    /// Leads in `term`, and never returns. It may be dropped while a proposal of its own is on its way: one that a leader
    /// without a majority made is answered only when there is a majority again.
    async fn lead(&self, term: u64) {
        // This node has met the nodes that elected it. Their disks go into the log before the first client's entry, so a
        // node that loses its disk afterwards is refused.
        self.known.record(&self.raft, term).await;
        let mut progress = self.raft.replica().progress();
        let state_now = progress.borrow_and_update().now;
        let lead = self.clock.begin(term, state_now);
        tracing::info!(term, cluster_time = state_now, "this node leads");
        loop {
            let applied = *progress.borrow_and_update();
            let pause = self.let_time_pass(&lead, &applied).await;
            tokio::select! {
                _ = progress.changed() => {}
                () = time::sleep(pause.unwrap_or_default()), if pause.is_some() => {}
            }
        }
    }

    /// Proposes a tick if one is called for; tells how long until the next can be.
    async fn let_time_pass(&self, lead: &LeaderTerm, progress: &Progress) -> Option<Duration> {
        let at = next_tick(progress, self.limits, self.tick)?;
        let pause = self.clock.until(lead, at);
        if pause.is_zero() && !self.propose(Command::Tick).await {
            return Some(RETRY_PAUSE);
        }
        Some(pause)
    }

    /// Whether it was applied. What was not is tried again at a later look, by whoever leads then.
    async fn propose(&self, command: Command) -> bool {
        let proposed = self.proposer.propose(command).await;
        if let Err(why) = &proposed {
            tracing::debug!(?why, "the time-keeper's proposal was not applied");
        }
        proposed.is_ok()
    }
}

/// Cluster time of the next tick. Limits that are not the leader's own are due at once: the proposer puts the leader's
/// into the entry of the tick.
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
    fn ticks_come_when_something_is_due_and_now_and_then_before() {
        let tick = Duration::from_millis(500);
        let limits = Limits::default();
        assert_eq!(next_tick(&progress(None, false), limits, tick), None, "idle");
        assert_eq!(next_tick(&progress(Some(1200), true), limits, tick), Some(1200));
        assert_eq!(next_tick(&progress(Some(9000), true), limits, tick), Some(1500));
    }

    #[test]
    fn limits_that_differ_are_due_until_they_are_applied() {
        let (tick, own) = (Duration::from_millis(500), Limits { max_waiters: 7, ..Limits::default() });
        let before = progress(None, false);
        assert_eq!(next_tick(&before, own, tick), Some(before.now), "however often it was tried");
        assert_eq!(next_tick(&Progress { limits: own, ..before }, own, tick), None);
    }
}
