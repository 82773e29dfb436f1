//! The background tasks of a node.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};
use tokio::sync::mpsc;

use crate::lease::{Command, WaiterId};
use crate::node::NodeCore;
use crate::node::leader::Timekeeper;
use crate::node::lifecycle::start::NodeConfig;
use crate::node::membership::join::MemberRegistry;
use crate::node::request::propose::{self, waiter_weight};
use crate::peer::Transport;
use crate::storage::Storage;
use crate::time::{self, inherit_time};

/// Bytes of waiters in one `KeepWaiting` command.
const KEEP_WAITING_BYTES: usize = 32 << 10;
/// Most `KeepWaiting` commands that are proposed concurrently. All at once would delay renewals.
const KEEP_AT_ONCE: usize = 4;
/// Most `LeaveQueue` commands that are proposed concurrently.
const LEAVE_AT_ONCE: usize = 1_024;

impl<S: Storage, T: Transport> NodeCore<S, T> {
    pub(in crate::node) fn begin(
        self: &Arc<Self>,
        config: &NodeConfig,
        jobs: propose::JobReceiver,
        left: mpsc::UnboundedReceiver<WaiterId>,
        known: Arc<MemberRegistry>,
    ) {
        let NodeCore { raft, requests, lifecycle, .. } = &**self;
        let (clock, stop) = (&requests.clock, &lifecycle.stop);
        let run = propose::run(jobs, raft.clone(), clock.clone(), config.lease.limits, stop.clone());
        lifecycle.tasks.spawn(inherit_time(run));
        let timekeeper = Timekeeper {
            node: self.settings.id,
            raft: raft.clone(),
            clock: clock.clone(),
            proposer: requests.proposer.clone(),
            known,
            limits: config.lease.limits,
            tick: Duration::from_millis(config.lease.tick_ms),
        };
        lifecycle.tasks.spawn(inherit_time(timekeeper.run(stop.clone())));
        lifecycle.spawn(self.clone().keep_waiting(Duration::from_millis(config.lease.limits.waiter_timeout_ms / 4)));
        lifecycle.spawn(self.clone().leave_queues(left));
        lifecycle.spawn(self.clone().notice_failure());
        lifecycle.spawn(self.clone().notice_stall());
        lifecycle.spawn(self.clone().expire_tokens());
        lifecycle.spawn(self.clone().record_leaders());
        lifecycle.spawn(self.clone().update_gauges());
        if let Some(schedule) = config.backup.clone() {
            lifecycle.spawn(self.clone().back_up(schedule, config.data.clone()));
        }
    }

    /// While this node leads, proposes at each interval that its waiting requests still wait.
    async fn keep_waiting(self: Arc<Self>, interval: Duration) {
        loop {
            // The time of the proposals counts: a round over many waiters takes a part of the interval.
            let next_round = time::sleep(interval);
            if let Some(leader_term) = self.requests.clock.leader_term() {
                let keep = |waiters| self.requests.proposer.propose(leader_term.term, Command::KeepWaiting { waiters });
                // The interval is a quarter of `waiter_timeout_ms`, so a failed proposal is repeated in time.
                let mut proposed =
                    stream::iter(split(self.requests.waits.ids())).map(keep).buffer_unordered(KEEP_AT_ONCE);
                while proposed.next().await.is_some() {}
            }
            next_round.await;
        }
    }

    /// Removes the waiters of cancelled requests from their queues.
    async fn leave_queues(self: Arc<Self>, mut left: mpsc::UnboundedReceiver<WaiterId>) {
        let mut gone = Vec::new();
        // Thousands of requests may be cancelled at once, so the commands share log entries.
        while left.recv_many(&mut gone, LEAVE_AT_ONCE).await > 0 {
            // A node that no longer leads ends no wait: the waiter keeps its position at the next leader.
            let Some(leader_term) = self.requests.clock.leader_term() else {
                gone.clear();
                continue;
            };
            let leave = |waiter| self.requests.proposer.propose(leader_term.term, Command::LeaveQueue { waiter });
            // A waiter with a new request stays in its queue. After a failed proposal the leader drops the waiter when
            // `waiter_timeout_ms` is over.
            let left = gone.drain(..).filter_map(|waiter| self.requests.waits.leave(waiter, leave));
            join_all(left).await;
        }
    }
}

fn split(ids: Vec<WaiterId>) -> Vec<Vec<WaiterId>> {
    let mut parts: Vec<Vec<WaiterId>> = Vec::new();
    let mut bytes = KEEP_WAITING_BYTES;
    for id in ids {
        bytes += waiter_weight(&id);
        if bytes > KEEP_WAITING_BYTES {
            parts.push(Vec::new());
            bytes = waiter_weight(&id);
        }
        parts.last_mut().expect("one was just pushed").push(id);
    }
    parts
}
