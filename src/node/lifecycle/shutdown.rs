//! Shutdown of a node: on request, after the last handle is dropped, or after a cancelled start.
//!
//! One task stops the node in all three cases. It starts before every other task of the node and ends after them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::access::Caller;
use crate::lease::Command;
use crate::node::{Forward, Node, NodeCore, NodeFailure, Request};
use crate::peer::Transport;
use crate::raft::{RaftHandle, State};
use crate::storage::Storage;
use crate::time::{self, inherit_time};
use crate::types::Role;

/// Longest time that a node stays a voter during its shutdown, so that clients of other nodes can release leases.
const RELEASE_TIMEOUT: Duration = Duration::from_millis(500);
/// The node stays a voter for this long after the last lease and waiter are gone. Clients of other nodes may still read
/// to confirm their releases.
const IDLE_TIME: Duration = Duration::from_millis(50);
/// Pause before the node proposes again that its waiting requests leave their queues.
const LEAVE_PAUSE: Duration = Duration::from_millis(5);

/// The state of a node from its start to its end.
pub(in crate::node) struct Lifecycle<S: Storage> {
    /// Set at the start of a shutdown. The node then refuses new requests.
    pub draining: AtomicBool,
    /// Stops all tasks of the node.
    pub stop: CancellationToken,
    pub tasks: TaskTracker,
    /// Set once Raft exists. Raft is stopped by a call, not by `stop`.
    pub raft: Arc<OnceLock<Arc<RaftHandle<S>>>>,
    /// Cancelled after every task, thread and file of the node is gone.
    pub ended: CancellationToken,
    /// The permanent failure of the node, if there is one.
    pub failure: watch::Sender<Option<NodeFailure>>,
}

impl<S: Storage> Lifecycle<S> {
    /// Starts the shutdown task. It closes `storage` and `transport` after the returned guard is dropped.
    pub fn begin<T: Transport>(storage: S, transport: T) -> (Lifecycle<S>, DropGuard) {
        let (stop, tasks, ended) = (CancellationToken::new(), TaskTracker::new(), CancellationToken::new());
        let raft = Arc::new(OnceLock::new());
        let owner = stop.clone().drop_guard();
        let lifecycle = Lifecycle {
            draining: AtomicBool::new(false),
            stop: stop.clone(),
            tasks: tasks.clone(),
            raft: raft.clone(),
            ended: ended.clone(),
            failure: watch::Sender::new(None),
        };
        // The guard cancels `ended` even if the runtime is dropped before the shutdown is complete.
        let on_drop = ended.drop_guard();
        tokio::spawn(async move {
            stop.cancelled().await;
            stop_all(raft, tasks, transport, storage).await;
            drop(on_drop);
        });
        (lifecycle, owner)
    }

    /// Spawns a task that runs until the node stops.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(inherit_time(async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = work => {}
            }
        }));
    }

    /// Marks the node as failed. The first reason is kept.
    pub fn fail(&self, why: NodeFailure) {
        let message = why.to_string();
        let is_first = self.failure.send_if_modified(|failure| {
            let is_first = failure.is_none();
            failure.get_or_insert(why);
            is_first
        });
        if is_first {
            tracing::error!(why = %message, "this node has failed");
        }
    }
}

async fn stop_all<S: Storage, T: Transport>(
    raft: Arc<OnceLock<Arc<RaftHandle<S>>>>,
    tasks: TaskTracker,
    transport: T,
    storage: S,
) {
    if let Some(raft) = raft.get() {
        raft.shutdown().await;
    }
    tasks.close();
    tasks.wait().await;
    transport.shutdown().await;
    if !S::BLOCKS {
        storage.close();
    } else if let Err(error) = tokio::task::spawn_blocking(move || storage.close()).await {
        tracing::error!(%error, "the data directory was not closed cleanly");
    }
}

impl<S: Storage, T: Transport> NodeCore<S, T> {
    /// Removes every waiting request of this process from its queue, and waits until all of them have ended.
    ///
    /// A request that was granted first ends with its grant. A request that cannot leave in time ends with an unknown
    /// outcome when the node stops.
    async fn end_local_waits(self: &Arc<Self>) {
        let ended = async {
            loop {
                let waiters = self.requests.local_waits.ids();
                if waiters.is_empty() {
                    return;
                }
                let leave = |waiter| {
                    self.attempt(&Caller::Program, Request::Change(Command::LeaveQueue { waiter }), Forward::Once)
                };
                join_all(waiters.into_iter().map(leave)).await;
                time::sleep(LEAVE_PAUSE).await;
            }
        };
        if tokio::time::timeout(self.settings.timeouts.transfer_leadership, ended).await.is_err() {
            tracing::warn!("a waiting request did not leave its queue: the leader drops it after `waiter_timeout_ms`");
        }
    }

    /// Stays a voter while leases are held or waited for, and for [`IDLE_TIME`] after that. Other nodes may be shutting
    /// down too, and the releases of their clients need a majority to commit.
    async fn stay_for_releases(&self) {
        let replica = self.raft.replica();
        let mut progress = replica.progress();
        let released = async {
            let is_in_use = |state: &State| state.machine.counts().held + state.machine.counts().waiting > 0;
            let mut idle = std::pin::pin!(time::sleep(IDLE_TIME));
            // Without a leader, the next one can still commit them.
            loop {
                let in_use = replica.read(is_in_use);
                tokio::select! {
                    changed = progress.changed() => if changed.is_err() { return },
                    () = idle.as_mut(), if !in_use => return,
                }
                if in_use {
                    // This entry may have ended the last lease.
                    idle.set(time::sleep(IDLE_TIME));
                }
            }
        };
        // A timeout is normal: if only one node is restarted, clients of the other nodes keep their leases.
        let _ = tokio::time::timeout(RELEASE_TIMEOUT, released).await;
    }
}

impl<S: Storage, T: Transport> Node<S, T> {
    /// Shuts the node down.
    ///
    /// The node removes waiting requests of this process from their queues, transfers its leadership, stops all tasks
    /// and closes the data directory. This takes at most 0.5 s and a few leadership leases, plus the time of a disk
    /// stall.
    ///
    /// The node stays a voter while leases are held or waited for, and for 50 ms after that, but at most 0.5 s in all.
    /// If all nodes are shut down at about the same time, the cluster can still commit and confirm releases.
    ///
    /// Afterwards, requests through any handle of this node are refused as
    /// [`ShuttingDown`](crate::node::RequestError::ShuttingDown), and watches end.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the node refuses requests and stops when its last handle is dropped.
    pub async fn shutdown(&self) {
        let inner = &self.inner;
        inner.lifecycle.draining.store(true, Ordering::Relaxed);
        inner.end_local_waits().await;
        inner.stay_for_releases().await;
        let has_successor = inner.members().iter().any(|member| member.role == Role::Follower);
        if has_successor && inner.requests.clock.leader_term().is_some() {
            match inner.raft.transfer_leadership(inner.settings.timeouts.transfer_leadership).await {
                Ok(to) => tracing::info!(to, "leadership transferred"),
                Err(error) => {
                    tracing::warn!(%error, "leadership transfer failed: the others elect a leader when its lease ends");
                }
            }
        }
        self.kill().await;
    }

    /// Stops the node without a leadership transfer, as a crash does for the other nodes.
    pub(crate) async fn kill(&self) {
        self.inner.lifecycle.draining.store(true, Ordering::Relaxed);
        self.inner.lifecycle.stop.cancel();
        self.inner.lifecycle.ended.cancelled().await;
    }
}
