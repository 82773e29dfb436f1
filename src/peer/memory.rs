//! A transport inside one process, for tests: calls go straight to the other node's service, through a switchboard
//! that can cut any direction between two nodes and delay what passes.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use super::{CallError, Lane, Service, Transport};
use crate::types::NodeId;

/// How long a message takes where nothing else is said.
const LATENCY: Duration = Duration::from_micros(200);

/// Joins the nodes of a test.
#[derive(Clone, Default)]
pub struct Switchboard {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    services: HashMap<NodeId, Arc<dyn ErasedService>>,
    cut: HashSet<(NodeId, NodeId)>,
    delays: HashMap<(NodeId, NodeId), Duration>,
}

/// One node's way into the switchboard.
#[derive(Clone)]
pub struct MemoryTransport {
    from: NodeId,
    board: Switchboard,
}

type Answer<'a> = Pin<Box<dyn Future<Output = Bytes> + Send + 'a>>;

trait ErasedService: Send + Sync {
    fn serve(&self, from: NodeId, lane: Lane, body: Bytes) -> Answer<'_>;
}

impl<S: Service> ErasedService for S {
    fn serve(&self, from: NodeId, lane: Lane, body: Bytes) -> Answer<'_> {
        Box::pin(Service::serve(self, from, lane, body))
    }
}

impl Switchboard {
    pub fn transport(&self, from: NodeId) -> MemoryTransport {
        MemoryTransport { from, board: self.clone() }
    }

    /// From now on `service` answers for `node`.
    pub fn plug_in<S: Service>(&self, node: NodeId, service: S) {
        self.state.lock().services.insert(node, Arc::new(service));
    }

    /// The node is gone: calls to it fail.
    pub fn unplug(&self, node: NodeId) {
        self.state.lock().services.remove(&node);
    }

    /// Drops everything that goes from one node to the other, requests and answers alike.
    pub fn cut(&self, from: NodeId, to: NodeId) {
        self.state.lock().cut.insert((from, to));
    }

    /// Cuts a node off in both directions.
    pub fn isolate(&self, node: NodeId, others: impl IntoIterator<Item = NodeId>) {
        for other in others.into_iter().filter(|&other| other != node) {
            self.cut(node, other);
            self.cut(other, node);
        }
    }

    /// Joins one direction again.
    pub fn join(&self, from: NodeId, to: NodeId) {
        self.state.lock().cut.remove(&(from, to));
    }

    /// Joins everything again.
    pub fn heal(&self) {
        self.state.lock().cut.clear();
    }

    /// Every message from one node to the other takes this long.
    pub fn delay(&self, from: NodeId, to: NodeId, delay: Duration) {
        self.state.lock().delays.insert((from, to), delay);
    }

    /// Whether a message passes now, after its delay.
    async fn pass(&self, from: NodeId, to: NodeId) -> bool {
        let delay = self.state.lock().delays.get(&(from, to)).copied();
        tokio::time::sleep(delay.unwrap_or(LATENCY)).await;
        !self.state.lock().cut.contains(&(from, to))
    }

    fn service(&self, node: NodeId) -> Option<Arc<dyn ErasedService>> {
        self.state.lock().services.get(&node).cloned()
    }
}

impl Transport for MemoryTransport {
    async fn call(
        &self,
        target: NodeId,
        address: &str,
        lane: Lane,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, CallError> {
        let passage = async {
            if !self.board.pass(self.from, target).await {
                return std::future::pending().await;
            }
            let Some(service) = self.board.service(target) else {
                let reason = "nobody is plugged in".to_string();
                return Err(CallError::NotSent { target, address: address.to_string(), reason });
            };
            let answer = service.serve(self.from, lane, body).await;
            if !self.board.pass(target, self.from).await {
                return std::future::pending().await;
            }
            Ok(answer)
        };
        tokio::time::timeout(timeout, passage).await.unwrap_or(Err(CallError::Timeout { target, timeout }))
    }

    /// Nobody reaches the node any more; calls of its own go on.
    async fn shutdown(&self) {
        self.board.unplug(self.from);
    }
}
