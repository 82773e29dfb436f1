//! A transport inside one process, for tests: calls go straight to the other node's service, through a switchboard
//! that can cut any direction between two nodes, delay, lose and repeat what passes, and stop a node's whole traffic.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rand::RngExt;
use tokio::sync::watch;

use super::time::{self, NodeTime};
use crate::peer::{Identity, Incarnations, Lane, PeerError, Refusal, Service, Transport, handshake};
use crate::rng::rng;
use crate::types::NodeId;

/// How long a message takes where nothing else is said.
const LATENCY: Duration = Duration::from_micros(200);
/// More than the messages of a handshake have.
const HANDSHAKE_BYTES: usize = 64 << 10;

/// Joins the nodes of a test.
#[derive(Clone, Default)]
pub struct Switchboard {
    state: Arc<Mutex<State>>,
    stopped: watch::Sender<BTreeSet<NodeId>>,
}

/// How well messages travel between all nodes. The default is a network that loses nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NetworkFaults {
    /// Messages that are lost, requests and answers each for themselves.
    pub loss: f64,
    /// Raft's messages that arrive twice. Those of clients do not: the transport sends a request once.
    pub repeat: f64,
    /// Up to so much is added to each message's time, so that they overtake each other.
    pub jitter: Duration,
}

#[derive(Default)]
struct State {
    services: HashMap<NodeId, Plugged>,
    /// How often each node was plugged in or unplugged: what an earlier life of it still does reaches nobody.
    lives: HashMap<NodeId, u64>,
    cut: HashSet<(NodeId, NodeId)>,
    delays: HashMap<(NodeId, NodeId), Duration>,
    weather: NetworkFaults,
}

/// What answers for a node.
#[derive(Clone)]
struct Plugged {
    service: Arc<dyn ErasedService>,
    /// The pace at which it runs.
    pace: NodeTime,
    /// How it presents itself. Without an identity it takes every caller.
    end: Option<End>,
}

/// One end of a connection.
#[derive(Clone)]
struct End {
    identity: Identity,
    known: Arc<dyn Incarnations>,
}

/// One node's way into the switchboard.
#[derive(Clone)]
pub struct MemoryTransport {
    from: NodeId,
    life: u64,
    board: Switchboard,
    end: Option<End>,
    /// The lives of other nodes that the handshake was made with, for each lane.
    connections: Arc<Mutex<HashMap<(NodeId, u8), u64>>>,
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
        let end = self.plugged(from).and_then(|plugged| plugged.end);
        MemoryTransport { from, life: self.life(from), board: self.clone(), end, connections: Arc::default() }
    }

    /// From now on `service` answers for `node`, at the pace of whoever plugs it in.
    pub fn plug_in<S: Service>(&self, node: NodeId, service: S) {
        self.plug_in_end(node, service, None);
    }

    /// The same, for a node that makes the handshake of the peer protocol with every node that has an identity, too.
    pub fn plug_in_as<S: Service>(&self, identity: Identity, known: Arc<dyn Incarnations>, service: S) {
        self.plug_in_end(identity.node, service, Some(End { identity, known }));
    }

    fn plug_in_end<S: Service>(&self, node: NodeId, service: S, end: Option<End>) {
        let mut state = self.state.lock();
        state.services.insert(node, Plugged { service: Arc::new(service), pace: time::current(), end });
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
        state.weather = NetworkFaults::default();
    }

    pub fn set_faults(&self, weather: NetworkFaults) {
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

    fn plugged(&self, node: NodeId) -> Option<Plugged> {
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
    ) -> Result<Bytes, PeerError> {
        lane.check_request(target, &body)?;
        let passage = async {
            if self.is_gone() || !self.board.pass(self.from, target).await {
                return std::future::pending().await;
            }
            let life = self.board.life(target);
            let address = address.to_owned();
            let Some(Plugged { service, pace, end }) = self.board.plugged(target) else {
                let reason = "nobody is plugged in".to_string();
                return Err(PeerError::NotSent { target, address, reason });
            };
            match self.connect(target, life, lane, end.as_ref()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) if !self.board.pass(target, self.from).await => {
                    return std::future::pending().await;
                }
                Ok(Err(reason)) => return Err(PeerError::Refused { target, address, reason }),
                Err(error) => return Err(PeerError::NotSent { target, address, reason: error.to_string() }),
            }
            if self.board.repeats(lane) {
                pace.keep(service.serve(self.from, lane, body.clone())).await;
            }
            let answer = pace.keep(service.serve(self.from, lane, body)).await;
            if self.board.life(target) != life || !self.board.pass(target, self.from).await {
                return std::future::pending().await;
            }
            lane.refuses(&answer).map_or(Ok(answer), |reason| Err(PeerError::NoAnswer { target, reason }))
        };
        tokio::time::timeout(timeout, passage).await.unwrap_or(Err(PeerError::Timeout { target, timeout }))
    }

    /// Nobody reaches the node any more; calls of its own go on.
    async fn shutdown(&self) {
        if !self.is_gone() {
            self.board.unplug(self.from);
        }
    }
}

impl MemoryTransport {
    /// Makes the handshake with this life of the other node, once for each lane.
    async fn connect(
        &self,
        target: NodeId,
        life: u64,
        lane: Lane,
        answering: Option<&End>,
    ) -> io::Result<Result<(), Refusal>> {
        let (Some(calling), Some(answering)) = (&self.end, answering) else { return Ok(Ok(())) };
        if self.connections.lock().get(&(target, lane.code())) == Some(&life) {
            return Ok(Ok(()));
        }
        let (mut near, mut far) = tokio::io::duplex(HANDSHAKE_BYTES);
        let call = handshake::call(&mut near, &calling.identity, target, lane, &*calling.known);
        // The stream ends with the answering end.
        let answer = async move { handshake::answer(&mut far, &answering.identity, &*answering.known).await };
        let (called, answered) = futures_util::future::join(call, answer).await;
        if matches!((&called, &answered), (Ok(Ok(())), Ok(Ok(_)))) {
            self.connections.lock().insert((target, lane.code()), life);
        }
        called
    }

    /// Whether the node of this transport was unplugged, and another life of it may be plugged in.
    fn is_gone(&self) -> bool {
        self.board.life(self.from) != self.life
    }
}

fn happens(probability: f64) -> bool {
    probability > 0.0 && rng().random_bool(probability)
}

/// Which part of a jitter a message has. Without any nothing is drawn.
fn part_of(jitter: Duration) -> f64 {
    if jitter.is_zero() { 0.0 } else { rng().random() }
}
