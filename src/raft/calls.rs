//! Calls of openraft that nobody can give up half way.

use std::pin::Pin;
use std::task::{Context, Poll};

use openraft::AsyncRuntime;

use super::runtime::Runtime;

/// Makes a call that goes to its end even if nobody waits for it any more: in a task of its own then.
///
/// The first call that learns that openraft's core has stopped awaits the end of the core's task on behalf of all. If
/// it is dropped meanwhile, by a client that hangs up or a node that ends, every later call panics (openraft
/// 0.10.0-alpha.37, `RaftInner::join_core_task`).
pub async fn to_the_end<F>(call: F) -> F::Output
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    ToTheEnd(Some(Box::pin(call))).await
}

struct ToTheEnd<F>(Option<Pin<Box<F>>>)
where
    F: Future<Output: Send + 'static> + Send + 'static;

impl<F> Future for ToTheEnd<F>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // Not put back by a panic: it has come to its end then.
        let mut call = self.0.take().expect("a future is not polled behind its end");
        let polled = call.as_mut().poll(context);
        if polled.is_pending() {
            self.0 = Some(call);
        }
        polled
    }
}

impl<F> Drop for ToTheEnd<F>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    fn drop(&mut self) {
        // Where the runtime has gone, so has Raft.
        if let Some(call) = self.0.take()
            && tokio::runtime::Handle::try_current().is_ok()
        {
            drop(Runtime::spawn(call));
        }
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
    use std::time::Duration;

    use bytes::Bytes;
    use parking_lot::Mutex;
    use tokio::time::timeout;

    use super::super::payload::Joined;
    use super::super::{PeerInfo, Proposal, RaftHandle, RaftTimings, Replica, Safeguards, WriteError};
    use crate::clock::SystemClock;
    use crate::peer::{Lane, PeerError, Transport};
    use crate::sim::{MemoryStorage, SyncMode};
    use crate::storage::StorageError;
    use crate::types::NodeId;

    /// Holds up who drops it.
    struct Hold {
        reached: SyncSender<()>,
        goes_on: Mutex<Receiver<()>>,
    }

    impl Hold {
        /// With it what is told when it is reached, and what lets it go.
        fn new() -> (Hold, Receiver<()>, SyncSender<()>) {
            let ((reached, is_reached), (go_on, goes_on)) = (sync_channel(1), sync_channel(1));
            (Hold { reached, goes_on: Mutex::new(goes_on) }, is_reached, go_on)
        }
    }

    impl Drop for Hold {
        fn drop(&mut self) {
            // What was woken by this task may run meanwhile.
            tokio::task::block_in_place(|| {
                let _ = self.reached.send(());
                let _ = self.goes_on.lock().recv();
            });
        }
    }

    async fn reached(hold: Receiver<()>) {
        let waited = tokio::task::spawn_blocking(move || hold.recv_timeout(LONG));
        waited.await.expect("no panic").expect("it is reached");
    }

    /// Calls nobody. openraft's core drops the last of it when it ends, before it looks at the calls that came since.
    #[derive(Clone)]
    struct HoldsUp {
        _hold: Arc<Hold>,
    }

    impl Transport for HoldsUp {
        async fn call(&self, _: NodeId, _: &str, _: Lane, _: Bytes, _: Duration) -> Result<Bytes, PeerError> {
            unreachable!("the cluster has one node")
        }

        async fn shutdown(&self) {}
    }

    const LONG: Duration = Duration::from_secs(20);
    /// Long enough for a call to have come where it waits.
    const SHORT: Duration = Duration::from_millis(100);

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_call_that_is_given_up_while_raft_ends_leaves_the_others_an_answer() {
        let (hold, ends, end) = Hold::new();
        let transport = HoldsUp { _hold: Arc::new(hold) };
        let storage = MemoryStorage::new(SyncMode::default());
        let replica = Replica::new(Arc::new(()));
        let (timings, safeguards) = (RaftTimings::lan(), Safeguards::default());
        let clock = Arc::new(SystemClock);
        let raft = RaftHandle::build(1, "calls", timings, safeguards, storage.clone(), transport, replica, clock);
        let raft = Arc::new(raft.await.expect("it is built"));
        raft.run();
        raft.form(BTreeMap::from([(1, PeerInfo::default())])).await.expect("it is formed");
        let propose = |node| {
            let raft = raft.clone();
            async move { raft.propose(1, Proposal::joined(Joined { node, incarnation: 1 })).await }
        };
        while propose(1).await == Err(WriteError::NotLeader) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }

        // Its core ends: a call came too late for it, and the core is held up right behind having dropped that.
        storage.fail_next(StorageError::Closed);
        let failing = tokio::spawn(propose(2));
        reached(ends).await;
        let reading = raft.clone();
        let reading = tokio::spawn(async move { reading.await_readable(LONG).await });
        tokio::time::sleep(SHORT).await;
        let (hold, ends, go_on) = Hold::new();
        raft.raft().external_request(move |_| drop(hold)).await.expect("it is still there");
        end.send(()).expect("it waits for this");
        reached(ends).await;
        tokio::time::sleep(SHORT).await;
        assert!(!reading.is_finished(), "it waits for the end");
        reading.abort();
        assert!(reading.await.expect_err("it is given up").is_cancelled());
        go_on.send(()).expect("it waits for this");

        for call in [failing, tokio::spawn(propose(3))] {
            let answer = timeout(LONG, call).await.expect("Raft has ended").expect("no panic");
            assert!(matches!(answer, Err(WriteError::Unknown(_))), "{answer:?}");
        }
    }
}
