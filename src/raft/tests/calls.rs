//! Calls that a caller drops while Raft stops.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::clock::SystemClock;
use crate::config::RaftTimings;
use crate::peer::{Lane, Payload, PeerError, Transport};
use crate::raft::{FeatureLevel, Joined, PeerInfo, Proposal, RaftHandle, Replica, WriteError};
use crate::sim::{MemoryStorage, SyncMode};
use crate::storage::StorageError;
use crate::types::NodeId;

/// Blocks the thread that drops it until the test continues.
struct DropBarrier {
    reached: SyncSender<()>,
    resumed: Mutex<Receiver<()>>,
}

impl DropBarrier {
    /// Also returns the receiver that reports the drop, and the sender that ends the wait.
    fn new() -> (DropBarrier, Receiver<()>, SyncSender<()>) {
        let ((reached, is_reached), (resume, resumed)) = (sync_channel(1), sync_channel(1));
        (DropBarrier { reached, resumed: Mutex::new(resumed) }, is_reached, resume)
    }
}

impl Drop for DropBarrier {
    fn drop(&mut self) {
        // Lets the tasks that this task woke run on another worker.
        tokio::task::block_in_place(|| {
            let _ = self.reached.send(());
            let _ = self.resumed.lock().recv();
        });
    }
}

async fn reached(barrier: Receiver<()>) {
    let waited = tokio::task::spawn_blocking(move || barrier.recv_timeout(LONG));
    waited.await.expect("no panic").expect("the barrier is dropped in time");
}

/// A transport without peers. When openraft's core stops, it drops the last clone before it reads the calls that
/// are still in its channel.
#[derive(Clone)]
struct BarrierTransport {
    _barrier: Arc<DropBarrier>,
}

impl Transport for BarrierTransport {
    async fn call(&self, _: NodeId, _: &str, _: Lane, _: Payload, _: Duration) -> Result<Bytes, PeerError> {
        unreachable!("the cluster has one node")
    }

    async fn is_refused(&self, _: NodeId, _: &str) -> bool {
        unreachable!("the cluster has one node")
    }

    async fn shutdown(&self) {}
}

const LONG: Duration = Duration::from_secs(20);
/// Long enough for a call to reach its wait.
const SHORT: Duration = Duration::from_millis(100);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_call_during_raft_stop_leaves_other_calls_answered() {
    let (barrier, stopping, finish_stop) = DropBarrier::new();
    let transport = BarrierTransport { _barrier: Arc::new(barrier) };
    let storage = MemoryStorage::new(SyncMode::default());
    let replica = Replica::new(Vec::new(), FeatureLevel::SUPPORTED);
    let timings = RaftTimings::lan();
    let clock = Arc::new(SystemClock);
    let raft = RaftHandle::build(1, "calls", timings, storage.clone(), transport, replica, clock);
    let raft = Arc::new(raft.await.expect("Raft is built"));
    raft.run();
    raft.form(BTreeMap::from([(1, PeerInfo::default())])).await.expect("the cluster is formed");
    let propose = |node| {
        let raft = raft.clone();
        async move { raft.propose(1, Proposal::joined(Joined { node, incarnation: 1 })).await }
    };
    while propose(1).await == Err(WriteError::NotLeader) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    // The core stops. It drops a call that arrived too late, and the barrier blocks it directly after that.
    storage.fail_next(StorageError::Closed);
    let failing = tokio::spawn(propose(2));
    reached(stopping).await;
    let reading = raft.clone();
    let reading = tokio::spawn(async move { reading.await_readable(LONG).await });
    tokio::time::sleep(SHORT).await;
    let (barrier, dropping, resume) = DropBarrier::new();
    raft.raft().external_request(move |_| drop(barrier)).await.expect("the core still accepts requests");
    finish_stop.send(()).expect("the core waits at the barrier");
    reached(dropping).await;
    tokio::time::sleep(SHORT).await;
    assert!(!reading.is_finished(), "the read waits for the core to stop");
    reading.abort();
    assert!(reading.await.expect_err("the read was aborted").is_cancelled());
    resume.send(()).expect("the core waits at the barrier");

    for call in [failing, tokio::spawn(propose(3))] {
        let answer = timeout(LONG, call).await.expect("Raft has stopped").expect("no panic");
        assert!(matches!(answer, Err(WriteError::Unknown(_))), "{answer:?}");
    }
}
