//! The background tasks of a node.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::mpsc;

#[cfg(feature = "testing")]
use crate::lease::Batch;
use crate::lease::{Command, Effects, Machine, WaiterId};
use crate::node::Inner;
use crate::node::leader::Timekeeper;
use crate::node::lifecycle::start::NodeConfig;
use crate::node::membership::join::MemberRegistry;
use crate::node::metrics::TransitionCounters;
use crate::node::request::propose::{self, waiter_weight};
use crate::node::request::wait::WaitRegistry;
use crate::node::watch::EventLog;
use crate::peer::Transport;
use crate::raft::Observer;
use crate::storage::Storage;
use crate::time::{self, inherit_time};
#[cfg(feature = "testing")]
use crate::token::FencingToken;

/// Bytes of waiters in one `KeepWaiting` command.
const KEEP_WAITING_BYTES: usize = 32 << 10;
/// Most `LeaveQueue` commands that are proposed concurrently.
const LEAVE_AT_ONCE: usize = 1_024;

impl<S: Storage, T: Transport> Inner<S, T> {
    pub(in crate::node) fn begin(
        self: &Arc<Self>,
        config: &NodeConfig,
        jobs: propose::JobReceiver,
        left: mpsc::UnboundedReceiver<WaiterId>,
        known: Arc<MemberRegistry>,
    ) {
        let Inner { raft, requests, lifecycle, .. } = &**self;
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
        lifecycle.spawn(self.clone().keep_waiting(Duration::from_millis(config.lease.limits.patience_ms / 4)));
        lifecycle.spawn(self.clone().leave_queues(left));
        lifecycle.spawn(self.clone().notice_failure());
        lifecycle.spawn(self.clone().notice_stall());
        lifecycle.spawn(self.clone().update_gauges());
    }

    /// While this node leads, proposes at each interval that its waiting requests still wait.
    async fn keep_waiting(self: Arc<Self>, interval: Duration) {
        loop {
            time::sleep(interval).await;
            if self.requests.clock.leader_term().is_none() {
                continue;
            }
            for waiters in split(self.requests.waits.ids()) {
                // The interval is a quarter of `patience_ms`, so a failed proposal is repeated in time.
                let _ = self.requests.proposer.propose(Command::KeepWaiting { waiters }).await;
            }
        }
    }

    /// Removes the waiters of cancelled requests from their queues.
    async fn leave_queues(self: Arc<Self>, mut left: mpsc::UnboundedReceiver<WaiterId>) {
        let mut gone = Vec::new();
        // Thousands of requests may be cancelled at once, so the commands share log entries.
        while left.recv_many(&mut gone, LEAVE_AT_ONCE).await > 0 {
            let leave = |waiter| self.requests.proposer.propose(Command::LeaveQueue { waiter });
            // A waiter with a new request stays in its queue. After a failed proposal the leader drops the waiter when
            // `patience_ms` is over.
            let left = gone.drain(..).filter(|waiter| !self.requests.waits.has(waiter));
            join_all(left.map(leave)).await;
        }
    }
}

/// Passes every applied entry to the parts of the node that observe it.
pub(in crate::node) struct ObserverFanout {
    pub waits: Arc<WaitRegistry>,
    pub events: Arc<EventLog>,
    pub transitions: TransitionCounters,
    pub test_observer: Option<Arc<dyn Observer>>,
}

impl Observer for ObserverFanout {
    fn applied(&self, index: u64, effects: Effects, machine: &Machine) {
        self.transitions.count(&effects.transitions);
        self.waits.applied(&effects, machine);
        self.events.applied(index, &effects.transitions);
        if let Some(test_observer) = &self.test_observer {
            test_observer.applied(index, effects, machine);
        }
    }

    fn replaced(&self, index: u64, machine: &Machine) {
        self.events.replaced(index);
        if let Some(test_observer) = &self.test_observer {
            test_observer.replaced(index, machine);
        }
    }

    #[cfg(feature = "testing")]
    fn applying(&self, machine: &mut Machine, token: &mut FencingToken, batch: &mut Batch) {
        if let Some(test_observer) = &self.test_observer {
            test_observer.applying(machine, token, batch);
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
