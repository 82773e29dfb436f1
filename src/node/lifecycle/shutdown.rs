//! The end of a node: in order when it is asked for, and by itself when nobody has the node any more.
//!
//! One task carries it out. It is there before anything else of the node is, ends after all of it, and is the same
//! whether the node was shut down, its last handle was dropped, or its start was given up half way.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::join_all;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::lease::Command;
use crate::node::{Forward, Inner, Node, Request};
use crate::peer::Transport;
use crate::raft::{RaftHandle, State};
use crate::storage::Storage;
use crate::time;

/// Longest time that a node that is shut down stays a voter for what others release.
const STAY: Duration = Duration::from_millis(500);
/// It stays for so long after nothing is held or waited for any more: programs of other nodes still ask whether what they
/// gave up is gone.
const QUIET: Duration = Duration::from_millis(50);
/// Pause before waiting requests that have not ended are asked once more to leave their queues.
const LEAVE_PAUSE: Duration = Duration::from_millis(5);

/// What a node needs to be ended.
pub(in crate::node) struct Lifecycle<S: Storage> {
    /// Ends the node when it is dropped.
    pub owner: DropGuard,
    pub stop: CancellationToken,
    pub tasks: TaskTracker,
    /// Filled in once Raft is there: it ends by a call of its own.
    pub raft: Arc<OnceLock<Arc<RaftHandle<S>>>>,
    /// Cancelled when nothing of the node is left.
    pub ended: CancellationToken,
}

impl<S: Storage> Lifecycle<S> {
    /// From now on `storage` and `transport` are closed when the life's owner is dropped.
    pub fn begin<T: Transport>(storage: S, transport: T) -> Lifecycle<S> {
        let (stop, tasks, ended) = (CancellationToken::new(), TaskTracker::new(), CancellationToken::new());
        let raft = Arc::new(OnceLock::new());
        let life = Lifecycle {
            owner: stop.clone().drop_guard(),
            stop: stop.clone(),
            tasks: tasks.clone(),
            raft: raft.clone(),
            ended: ended.clone(),
        };
        // Said even if the runtime goes before the end is carried out.
        let said = ended.drop_guard();
        tokio::spawn(async move {
            stop.cancelled().await;
            end(raft, tasks, transport, storage).await;
            drop(said);
        });
        life
    }
}

async fn end<S: Storage, T: Transport>(
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
        tracing::error!(%error, "the data directory was not closed in order");
    }
}

impl<S: Storage, T: Transport> Inner<S, T> {
    /// Has every waiting request of this process leave its queue, and waits until all of them have ended. One that was
    /// granted first ends with its grant; one that could not leave in time ends as unknown, with the node.
    async fn end_local_waits(self: &Arc<Self>) {
        let ended = async {
            loop {
                let waiters = self.local_waits.ids();
                if waiters.is_empty() {
                    return;
                }
                let leave = |waiter| self.attempt(Request::Change(Command::LeaveQueue { waiter }), Forward::Once);
                join_all(waiters.into_iter().map(leave)).await;
                time::sleep(LEAVE_PAUSE).await;
            }
        };
        if tokio::time::timeout(self.timeouts.transfer_leadership, ended).await.is_err() {
            tracing::warn!("not every waiting request left its queue: its place is dropped when its patience ends");
        }
    }

    /// Stays a voter while leases are held or waited for, and for [`QUIET`] after that: other nodes may be shutting down too.
    /// What their programs release is committed only by a majority, and so is the answer that it is released.
    async fn stay_for_releases(&self) {
        let replica = self.raft.replica();
        let mut progress = replica.progress();
        let released = async {
            let is_in_use = |state: &State| state.machine.counts().held + state.machine.counts().waiting > 0;
            let mut quiet = std::pin::pin!(time::sleep(QUIET));
            while self.raft.leadership().leader.is_some() {
                let in_use = replica.read(is_in_use);
                if in_use {
                    quiet.set(time::sleep(QUIET));
                }
                tokio::select! {
                    changed = progress.changed() => if changed.is_err() { return },
                    () = quiet.as_mut(), if !in_use => return,
                }
            }
        };
        // Leases that live on are the rule when one node of several is restarted.
        let _ = tokio::time::timeout(STAY, released).await;
    }
}

impl<S: Storage, T: Transport> Node<S, T> {
    /// Has waiting requests of this process leave their queues, hands leadership on, ends everything, and closes the data
    /// directory. Takes at most 0.5 s and a few leadership leases, and as long as the disk hangs.
    ///
    /// While leases are held or waited for, and for 50 ms after that, the node stays a voter, for up to 0.5 s in all: when all
    /// nodes are shut down at about the same time, what their programs release then is still committed and confirmed.
    ///
    /// All handles of this node are of a node that has ended then: their requests are refused as
    /// [`ShuttingDown`](crate::node::RequestError::ShuttingDown), and their watches end. Given up half way, it leaves a node
    /// that refuses requests and ends when its last handle is dropped.
    pub async fn shutdown(&self) {
        let inner = &self.inner;
        inner.draining.store(true, Ordering::Relaxed);
        inner.end_local_waits().await;
        inner.stay_for_releases().await;
        if inner.clock.lead().is_some() {
            match inner.raft.transfer_leadership(inner.timeouts.transfer_leadership).await {
                Ok(to) => tracing::info!(to, "leadership handed on"),
                Err(error) => tracing::warn!(%error, "leadership not handed on: the others elect when its lease ends"),
            }
        }
        self.kill().await;
    }

    /// Ends everything, without a word to the other nodes.
    pub(crate) async fn kill(&self) {
        self.inner.draining.store(true, Ordering::Relaxed);
        self.inner.stop.cancel();
        self.inner.ended.cancelled().await;
    }
}
