//! The leader's time-keeper: notices when this node's lead begins and ends, and lets time pass in the log.
//!
//! Time passes for leases only by entries. A tick is proposed when something is due, and at least every `tick` while
//! anything has a deadline, so that the next leader starts from a recent time. An idle cluster writes nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::join::Acquaintances;
use super::lead::{Lead, LeadClock};
use super::proposer::Proposer;
use crate::lease::{Command, Limits};
use crate::pace;
use crate::raft::{LeadershipWatch, Progress, RaftHandle};
use crate::storage::Storage;
use crate::types::{ClusterMs, NodeId};

/// Pause after a tick that was not applied: a leader that hands its leadership on refuses all of them.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

pub(super) struct Timekeeper<S: Storage> {
    pub node: NodeId,
    pub raft: Arc<RaftHandle<S>>,
    pub clock: LeadClock,
    pub proposer: Proposer,
    pub known: Arc<Acquaintances>,
    /// What this node's configuration says; a leader makes it the cluster's.
    pub limits: Limits,
    /// Longest time between two entries while anything has a deadline.
    pub tick: Duration,
}

impl<S: Storage> Timekeeper<S> {
    pub async fn run(self, stop: CancellationToken) {
        let mut leadership = self.raft.watch_leadership();
        let mut progress = self.raft.replica().progress();
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.keep_time(&mut leadership, &mut progress) => {}
        }
        self.clock.end();
    }

    async fn keep_time(&self, leadership: &mut LeadershipWatch, progress: &mut watch::Receiver<Progress>) {
        loop {
            let now = leadership.now();
            let applied = *progress.borrow_and_update();
            let leads = now.leader == Some(self.node) && applied.applied.term == now.term;
            let pause = match (leads, self.clock.lead()) {
                (true, Some(lead)) if lead.term == now.term => self.let_time_pass(&lead, &applied).await,
                (true, _) => {
                    // Whoever elected this node has been met. With their disks in the log before any client's entry,
                    // none of them can lose what a client was told without being found out.
                    self.known.write_down(&self.raft, now.term).await;
                    let lead = self.clock.begin(now.term, applied.now);
                    tracing::info!(term = lead.term, cluster_time = applied.now, "this node leads");
                    self.set_limits().await;
                    continue;
                }
                (false, _) => {
                    self.clock.end();
                    None
                }
            };
            tokio::select! {
                () = leadership.changed() => {}
                _ = progress.changed() => {}
                () = pace::sleep(pause.unwrap_or_default()), if pause.is_some() => {}
            }
        }
    }

    /// Proposes a tick if one is called for; tells how long until the next can be.
    async fn let_time_pass(&self, lead: &Lead, progress: &Progress) -> Option<Duration> {
        let at = next_tick(progress, self.tick)?;
        let pause = self.clock.until(lead, at);
        if pause.is_zero() && !self.propose(Command::Tick).await {
            return Some(RETRY_PAUSE);
        }
        Some(pause)
    }

    async fn set_limits(&self) {
        if self.raft.replica().read(|state| state.machine.limits()) != self.limits {
            self.propose(Command::SetLimits(self.limits)).await;
        }
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

/// Cluster time of the next tick.
fn next_tick(progress: &Progress, tick: Duration) -> Option<ClusterMs> {
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
        assert_eq!(next_tick(&progress(None, false), tick), None, "idle");
        assert_eq!(next_tick(&progress(Some(1200), true), tick), Some(1200));
        assert_eq!(next_tick(&progress(Some(9000), true), tick), Some(1500));
    }
}
