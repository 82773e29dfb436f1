//! A transport inside one process, for tests: calls go straight to the other node's service, through a switchboard
//! that can cut any direction between two nodes, delay, lose and repeat what passes, and stop a node's whole traffic.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rand::RngExt;
use tokio::sync::watch;

use super::{CallError, Lane, Service, Transport};
use crate::chance::chance;
use crate::pace::{self, Pace};
use crate::types::NodeId;

/// How long a message takes where nothing else is said.
const LATENCY: Duration = Duration::from_micros(200);

/// Joins the nodes of a test.
#[derive(Clone, Default)]
pub struct Switchboard {
    state: Arc<Mutex<State>>,
    stopped: watch::Sender<BTreeSet<NodeId>>,
}

/// How well messages travel between all nodes. The default is a network that loses nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Weather {
    /// Messages that are lost, requests and answers each for themselves.
    pub loss: f64,
    /// Raft's messages that arrive twice. Those of clients do not: the transport sends a request once.
    pub repeat: f64,
    /// Up to so much is added to each message's time, so that they overtake each other.
    pub jitter: Duration,
}

#[derive(Default)]
struct State {
    /// Who answers for a node, and at which pace it runs.
    services: HashMap<NodeId, (Arc<dyn ErasedService>, Pace)>,
    /// How often each node was plugged in or unplugged: what an earlier life of it still does reaches nobody.
    lives: HashMap<NodeId, u64>,
    cut: HashSet<(NodeId, NodeId)>,
    delays: HashMap<(NodeId, NodeId), Duration>,
    weather: Weather,
}

/// One node's way into the switchboard.
#[derive(Clone)]
pub struct MemoryTransport {
    from: NodeId,
    life: u64,
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
    /// The way in of the node that is plugged in now.
    pub fn transport(&self, from: NodeId) -> MemoryTransport {
        MemoryTransport { from, life: self.life(from), board: self.clone() }
    }

    /// From now on `service` answers for `node`, at the pace of whoever plugs it in.
    pub fn plug_in<S: Service>(&self, node: NodeId, service: S) {
        let mut state = self.state.lock();
        state.services.insert(node, (Arc::new(service), pace::current()));
        *state.lives.entry(node).or_default() += 1;
    }

    /// The node is gone: calls to it fail.
    pub fn unplug(&self, node: NodeId) {
        let mut state = self.state.lock();
        state.services.remove(&node);
        *state.lives.entry(node).or_default() += 1;
    }

    fn life(&self, node: NodeId) -> u64 {
        self.state.lock().lives.get(&node).copied().unwrap_or_default()
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

    /// Every message takes the usual time again, and arrives.
    pub fn calm(&self) {
        let mut state = self.state.lock();
        state.delays.clear();
        state.weather = Weather::default();
    }

    pub fn set_weather(&self, weather: Weather) {
        self.state.lock().weather = weather;
    }

    /// Nothing reaches or leaves the node until it goes on; then all of it does. So the others see a process that is
    /// stopped.
    pub fn stop(&self, node: NodeId) {
        self.stopped.send_if_modified(|stopped| stopped.insert(node));
    }

    pub fn go_on(&self, node: NodeId) {
        self.stopped.send_if_modified(|stopped| stopped.remove(&node));
    }

    /// Waits until the node is not stopped.
    pub async fn running(&self, node: NodeId) {
        let mut stopped = self.stopped.subscribe();
        // Without the switchboard nothing stands still.
        let _ = stopped.wait_for(|stopped| !stopped.contains(&node)).await;
    }

    /// Every message from one node to the other takes this long.
    pub fn delay(&self, from: NodeId, to: NodeId, delay: Duration) {
        self.state.lock().delays.insert((from, to), delay);
    }

    /// Whether a message passes now, after its delay.
    async fn pass(&self, from: NodeId, to: NodeId) -> bool {
        let (delay, weather) = {
            let state = self.state.lock();
            (state.delays.get(&(from, to)).copied().unwrap_or(LATENCY), state.weather)
        };
        self.running(from).await;
        tokio::time::sleep(delay + weather.jitter.mul_f64(part_of(weather.jitter))).await;
        self.running(to).await;
        !happens(weather.loss) && !self.state.lock().cut.contains(&(from, to))
    }

    fn repeats(&self, lane: Lane) -> bool {
        matches!(lane, Lane::Control | Lane::Log) && happens(self.state.lock().weather.repeat)
    }

    fn service(&self, node: NodeId) -> Option<(Arc<dyn ErasedService>, Pace)> {
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
            if self.is_gone() || !self.board.pass(self.from, target).await {
                return std::future::pending().await;
            }
            let life = self.board.life(target);
            let Some((service, pace)) = self.board.service(target) else {
                let reason = "nobody is plugged in".to_string();
                return Err(CallError::NotSent { target, address: address.to_string(), reason });
            };
            if self.board.repeats(lane) {
                pace.keep(service.serve(self.from, lane, body.clone())).await;
            }
            let answer = pace.keep(service.serve(self.from, lane, body)).await;
            if self.board.life(target) != life || !self.board.pass(target, self.from).await {
                return std::future::pending().await;
            }
            Ok(answer)
        };
        tokio::time::timeout(timeout, passage).await.unwrap_or(Err(CallError::Timeout { target, timeout }))
    }

    /// Nobody reaches the node any more; calls of its own go on.
    async fn shutdown(&self) {
        if !self.is_gone() {
            self.board.unplug(self.from);
        }
    }
}

impl MemoryTransport {
    /// Whether the node of this transport was unplugged, and another life of it may be plugged in.
    fn is_gone(&self) -> bool {
        self.board.life(self.from) != self.life
    }
}

fn happens(probability: f64) -> bool {
    probability > 0.0 && chance().random_bool(probability)
}

/// Which part of a jitter a message has. Without any nothing is drawn.
fn part_of(jitter: Duration) -> f64 {
    if jitter.is_zero() { 0.0 } else { chance().random() }
}
