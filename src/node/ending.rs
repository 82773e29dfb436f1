//! The end of a node: in order when it is asked for, and by itself when nobody has the node any more.
//!
//! One task carries it out. It is there before anything else of the node is, ends after all of it, and is the same
//! whether the node was shut down, its last handle was dropped, or its start was given up half way.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::Node;
use crate::peer::Transport;
use crate::raft::RaftHandle;
use crate::storage::Storage;

/// What a node needs to be ended.
pub(super) struct Life<S: Storage> {
    /// Ends the node when it is dropped.
    pub owner: DropGuard,
    pub stop: CancellationToken,
    pub tasks: TaskTracker,
    /// Filled in once Raft is there: it ends by a call of its own.
    pub raft: Arc<OnceLock<Arc<RaftHandle<S>>>>,
    /// Cancelled when nothing of the node is left.
    pub ended: CancellationToken,
}

impl<S: Storage> Life<S> {
    /// From now on `storage` and `transport` are closed when the life's owner is dropped.
    pub fn begin<T: Transport>(storage: S, transport: T) -> Life<S> {
        let (stop, tasks, ended) = (CancellationToken::new(), TaskTracker::new(), CancellationToken::new());
        let raft = Arc::new(OnceLock::new());
        let life = Life {
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

impl<S: Storage, T: Transport> Node<S, T> {
    /// Hands leadership on, ends everything, and closes the data directory. Takes at most a few leadership leases, and
    /// as long as the disk hangs.
    ///
    /// All handles of this node are of a node that has ended then: their requests are refused as
    /// [`ShuttingDown`](super::RequestError::ShuttingDown), and their watches end. Given up half way, it leaves a node
    /// that refuses requests and ends when its last handle is dropped.
    pub async fn shutdown(&self) {
        let inner = &self.inner;
        inner.draining.store(true, Ordering::Relaxed);
        if inner.clock.lead().is_some() {
            match inner.raft.hand_on(inner.timeouts.hand_on).await {
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
