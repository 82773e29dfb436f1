//! An in-process transport for tests.
//!
//! A switchboard passes each call directly to the other node's service. It can cut each direction between two nodes. It
//! can also delay, lose and repeat messages, and stop all traffic of a node.
//!
//! As with TCP, a client's request that is lost is sent again. A request that a node forwards into a cut arrives after
//! the repair, even if the node has given it up.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rand::RngExt;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::time::{self, NodeTime};
use crate::peer::{
    Incarnations, Lane, Payload, PeerError, PeerIdentity, PeerListener, PeerRefusal, Service, Services, Transport,
    handshake,
};
use crate::rng::rng;
use crate::types::NodeId;

/// Default latency of a message.
const LATENCY: Duration = Duration::from_micros(200);
/// Buffer size for a handshake, in bytes. All messages of a handshake fit into it.
const HANDSHAKE_BYTES: usize = 64 << 10;

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause of TCP before it sends a segment again. Each later pause is twice as long.
const RETRANSMISSION: Duration = Duration::from_millis(200);
/// How often TCP sends a segment again before it ends the connection.
const RETRANSMISSIONS: u32 = 15;

/// Connects the nodes of a test. Clones share the state.
#[derive(Clone, Default)]
pub struct Switchboard {
    state: Arc<Mutex<BoardState>>,
    paused: watch::Sender<BTreeSet<NodeId>>,
}

/// Message faults between all nodes. The default has no faults.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NetworkFaults {
    /// Probability that a message is lost. Requests and replies are lost independently. A client's request arrives later.
    pub loss: f64,
    /// Probability that a Raft message arrives twice. A client's request never does: the transport sends it once.
    pub repeat: f64,
    /// Largest random delay per message, in addition to the latency. It can reorder messages.
    pub jitter: Duration,
}

#[derive(Default)]
struct BoardState {
    attached: HashMap<NodeId, AttachedServices>,
    /// Number of times that each node was detached. The board drops messages of earlier generations.
    generations: HashMap<NodeId, u64>,
    cut: HashSet<(NodeId, NodeId)>,
    delays: HashMap<(NodeId, NodeId), Duration>,
    faults: NetworkFaults,
    /// Number of calls on the lane of the log.
    appends: usize,
}

/// The services of an attached node.
#[derive(Clone)]
struct AttachedServices {
    services: Arc<dyn ErasedServices>,
    /// The simulated time of the node's tasks.
    time: NodeTime,
    /// The node's side of the handshake. Without it, the node accepts each caller.
    endpoint: Option<Endpoint>,
}

/// One side of a handshake.
#[derive(Clone)]
struct Endpoint {
    identity: PeerIdentity,
    known: Arc<dyn Incarnations>,
}

/// One node's transport through the switchboard.
#[derive(Clone)]
pub struct MemoryTransport {
    from: NodeId,
    generation: u64,
    board: Switchboard,
    endpoint: Option<Endpoint>,
    /// The generation of each other node that completed the handshake, per lane.
    connections: Arc<Mutex<HashMap<(NodeId, u8), u64>>>,
    /// The requests that TCP has to send again, per lane. Later ones on the same connection follow them.
    kept: Arc<Mutex<HashMap<(NodeId, u8), KeptRequests>>>,
}

/// The number of requests that TCP has to send again.
type KeptRequests = watch::Sender<usize>;

type BoxedReply<'a> = Pin<Box<dyn Future<Output = Bytes> + Send + 'a>>;

trait ErasedServices: Send + Sync {
    fn serve(&self, from: NodeId, payload: Payload) -> BoxedReply<'_>;
    fn disconnected(&self, from: NodeId);
}

impl<R: Service, N: Service> ErasedServices for Services<R, N> {
    fn serve(&self, from: NodeId, payload: Payload) -> BoxedReply<'_> {
        Box::pin(Services::serve(self, from, payload))
    }

    fn disconnected(&self, from: NodeId) {
        Services::disconnected(self, from);
    }
}

/// The listener of the node with this transport. It attaches the node to the switchboard.
pub struct MemoryListener(pub MemoryTransport);

impl PeerListener for MemoryListener {
    /// The node is not attached yet, so calls to it fail.
    async fn closed_during<W: Future<Output: Send> + Send>(&self, work: W) -> W::Output {
        work.await
    }

    async fn serve<R: Service, N: Service>(
        self,
        identity: PeerIdentity,
        known: Arc<dyn Incarnations>,
        services: Services<R, N>,
        _: CancellationToken,
    ) {
        // The power of the node may have been cut since the task was spawned.
        if !self.0.is_detached() {
            self.0.board.attach_endpoint(identity.node, services, Some(Endpoint { identity, known }));
        }
    }
}

impl Switchboard {
    /// A transport that sends as this node, without a handshake.
    pub fn transport(&self, from: NodeId) -> MemoryTransport {
        let generation = self.generation(from);
        MemoryTransport {
            from,
            generation,
            board: self.clone(),
            endpoint: None,
            connections: Arc::default(),
            kept: Arc::default(),
        }
    }

    /// The transport of a node with an identity. It performs the peer handshake with each other node that has an
    /// identity. Earlier transports of the node are detached.
    pub fn transport_as(&self, identity: PeerIdentity, known: Arc<dyn Incarnations>) -> MemoryTransport {
        let from = identity.node;
        self.detach(from);
        MemoryTransport { endpoint: Some(Endpoint { identity, known }), ..self.transport(from) }
    }

    /// Attaches the services of a node without an identity. They run in the simulated time of the calling task.
    pub fn attach<R: Service, N: Service>(&self, node: NodeId, services: Services<R, N>) {
        self.attach_endpoint(node, services, None);
    }

    fn attach_endpoint<R: Service, N: Service>(
        &self,
        node: NodeId,
        services: Services<R, N>,
        endpoint: Option<Endpoint>,
    ) {
        let attached = AttachedServices { services: Arc::new(services), time: time::current(), endpoint };
        self.state.lock().attached.insert(node, attached);
    }

    /// Detaches the node. Calls to it fail. The other nodes do not notice it, as after a power cut.
    pub fn detach(&self, node: NodeId) {
        let mut state = self.state.lock();
        state.attached.remove(&node);
        *state.generations.entry(node).or_default() += 1;
    }

    /// Closes the connections of the node, as the kernel does after the end of a process. The other nodes notice it if
    /// the message arrives.
    pub fn close_connections(&self, node: NodeId) {
        let attached = self.state.lock().attached.clone();
        // Sorted, so that equal seeds give equal runs.
        for (other, AttachedServices { services, time, .. }) in BTreeMap::from_iter(attached) {
            let board = self.clone();
            tokio::spawn(async move {
                if other != node && board.deliver(node, other).await {
                    time.run_with(async { services.disconnected(node) }).await;
                }
            });
        }
    }

    fn generation(&self, node: NodeId) -> u64 {
        self.state.lock().generations.get(&node).copied().unwrap_or_default()
    }

    /// Drops all messages from one node to the other, both requests and replies. A client's request arrives after the
    /// repair.
    pub fn cut(&self, from: NodeId, to: NodeId) {
        self.state.lock().cut.insert((from, to));
    }

    /// Isolates a node from `others` in both directions.
    pub fn isolate(&self, node: NodeId, others: impl IntoIterator<Item = NodeId>) {
        for other in others.into_iter().filter(|&other| other != node) {
            self.cut(node, other);
            self.cut(other, node);
        }
    }

    /// Reconnects one direction.
    pub fn reconnect(&self, from: NodeId, to: NodeId) {
        self.state.lock().cut.remove(&(from, to));
    }

    /// Reconnects all nodes.
    pub fn heal(&self) {
        self.state.lock().cut.clear();
    }

    /// Resets delays and message faults.
    pub fn clear_faults(&self) {
        let mut state = self.state.lock();
        state.delays.clear();
        state.faults = NetworkFaults::default();
    }

    pub fn set_faults(&self, faults: NetworkFaults) {
        self.state.lock().faults = faults;
    }

    /// Holds all messages from and to the node until [`resume`](Self::resume), and then delivers them. To the other
    /// nodes, it looks like a process after SIGSTOP.
    pub fn pause(&self, node: NodeId) {
        self.paused.send_if_modified(|paused| paused.insert(node));
    }

    /// Delivers the held messages of a paused node.
    pub fn resume(&self, node: NodeId) {
        self.paused.send_if_modified(|paused| paused.remove(&node));
    }

    /// Waits until the node is not paused.
    pub async fn running(&self, node: NodeId) {
        let mut paused = self.paused.subscribe();
        // The wait fails only if the switchboard is gone, and then no node is paused.
        let _ = paused.wait_for(|paused| !paused.contains(&node)).await;
    }

    /// Number of appends that were sent so far, without heartbeats.
    pub fn appends(&self) -> usize {
        self.state.lock().appends
    }

    /// Sets the latency of messages from one node to the other.
    pub fn delay(&self, from: NodeId, to: NodeId, delay: Duration) {
        self.state.lock().delays.insert((from, to), delay);
    }

    /// Waits for the delay of one message. Returns whether the message arrives.
    async fn deliver(&self, from: NodeId, to: NodeId) -> bool {
        let (delay, faults) = {
            let state = self.state.lock();
            (state.delays.get(&(from, to)).copied().unwrap_or(LATENCY), state.faults)
        };
        self.running(from).await;
        tokio::time::sleep(delay + random_part(faults.jitter)).await;
        self.running(to).await;
        !happens(faults.loss) && !self.is_cut(from, to)
    }

    fn is_cut(&self, from: NodeId, to: NodeId) -> bool {
        self.state.lock().cut.contains(&(from, to))
    }

    /// Waits until TCP has sent a request again, in a cut after the repair of this direction. Returns whether it arrives.
    async fn deliver_late(&self, from: NodeId, to: NodeId) -> bool {
        for number in 0..RETRANSMISSIONS {
            tokio::time::sleep(RETRANSMISSION * 2_u32.pow(number)).await;
            if !self.is_cut(from, to) && self.deliver(from, to).await {
                return true;
            }
        }
        false
    }

    fn repeats(&self, lane: Lane) -> bool {
        matches!(lane, Lane::Control | Lane::Log) && happens(self.state.lock().faults.repeat)
    }

    fn attached(&self, node: NodeId) -> Option<AttachedServices> {
        self.state.lock().attached.get(&node).cloned()
    }
}

impl Transport for MemoryTransport {
    async fn call(
        &self,
        target: NodeId,
        address: &str,
        lane: Lane,
        payload: Payload,
        timeout: Duration,
    ) -> Result<Bytes, PeerError> {
        lane.check_request(target, &payload)?;
        self.board.state.lock().appends += usize::from(lane == Lane::Log);
        let passage = async {
            if self.is_detached() {
                return std::future::pending().await;
            }
            let generation = self.board.generation(target);
            let kept = self.kept.lock().entry((target, lane.code())).or_default().clone();
            // TCP keeps the order. The wait cannot fail, because this call has a sender.
            let _ = kept.subscribe().wait_for(|count| *count == 0).await;
            if self.board.deliver(self.from, target).await {
                return self.arrive(target, address, lane, payload).await;
            }
            if matches!(lane, Lane::Request | Lane::Urgent) {
                let (transport, address) = (self.clone(), address.to_owned());
                kept.send_modify(|count| *count += 1);
                // A task of its own: the request arrives although the caller gives it up.
                let late = tokio::spawn(async move {
                    let arrives = transport.board.deliver_late(transport.from, target).await;
                    let is_connected = arrives && transport.board.generation(target) == generation;
                    kept.send_modify(|count| *count -= 1);
                    if !is_connected {
                        return None;
                    }
                    Some(transport.arrive(target, &address, lane, payload).await)
                });
                if let Ok(Some(answered)) = late.await {
                    return answered;
                }
            }
            std::future::pending().await
        };
        tokio::time::timeout(timeout, passage).await.unwrap_or(Err(PeerError::Timeout { target, timeout }))
    }

    async fn is_refused(&self, target: NodeId, _: &str) -> bool {
        let answer = async {
            if self.is_detached() || !self.board.deliver(self.from, target).await {
                return std::future::pending().await;
            }
            let is_refused = self.board.attached(target).is_none();
            if !self.board.deliver(target, self.from).await {
                return std::future::pending().await;
            }
            is_refused
        };
        tokio::time::timeout(CONNECT_TIMEOUT, answer).await.unwrap_or(false)
    }

    /// Detaches the node. Its own calls in progress continue.
    async fn shutdown(&self) {
        if !self.is_detached() {
            self.board.detach(self.from);
            self.board.close_connections(self.from);
        }
    }
}

impl MemoryTransport {
    /// Passes a request that has arrived to the service, and waits for the reply.
    async fn arrive(&self, target: NodeId, address: &str, lane: Lane, payload: Payload) -> Result<Bytes, PeerError> {
        let generation = self.board.generation(target);
        let address = address.to_owned();
        let Some(AttachedServices { services, time, endpoint }) = self.board.attached(target) else {
            let reason = "the node is not attached to the switchboard".to_string();
            return Err(PeerError::NotSent { target, address, reason });
        };
        match self.connect(target, generation, lane, endpoint.as_ref()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) if !self.board.deliver(target, self.from).await => {
                return std::future::pending().await;
            }
            Ok(Err(reason)) => return Err(PeerError::Refused { target, address, reason }),
            Err(error) => return Err(PeerError::NotSent { target, address, reason: error.to_string() }),
        }
        if self.board.repeats(lane) {
            time.run_with(services.serve(self.from, payload.clone())).await;
        }
        let reply = time.run_with(services.serve(self.from, payload)).await;
        if self.board.generation(target) != generation || !self.board.deliver(target, self.from).await {
            return std::future::pending().await;
        }
        lane.refuses(&reply).map_or(Ok(reply), |reason| Err(PeerError::NoAnswer { target, reason }))
    }

    /// Performs the handshake with this generation of the other node, once per lane.
    async fn connect(
        &self,
        target: NodeId,
        generation: u64,
        lane: Lane,
        answering: Option<&Endpoint>,
    ) -> io::Result<Result<(), PeerRefusal>> {
        let (Some(calling), Some(answering)) = (&self.endpoint, answering) else { return Ok(Ok(())) };
        if self.connections.lock().get(&(target, lane.code())) == Some(&generation) {
            return Ok(Ok(()));
        }
        let (mut near, mut far) = tokio::io::duplex(HANDSHAKE_BYTES);
        let call = handshake::call(&mut near, &calling.identity, target, lane, &*calling.known);
        // `move` drops the stream with the answering side, so the caller sees the end of the stream.
        let answer = async move { handshake::answer(&mut far, &answering.identity, &*answering.known, None).await };
        let (called, answered) = futures_util::future::join(call, answer).await;
        if matches!((&called, &answered), (Ok(Ok(())), Ok(Ok(_)))) {
            self.connections.lock().insert((target, lane.code()), generation);
        }
        called
    }

    /// Whether the node of this transport was detached. A newer generation of the node may be attached.
    fn is_detached(&self) -> bool {
        self.board.generation(self.from) != self.generation
    }
}

fn happens(probability: f64) -> bool {
    probability > 0.0 && rng().random_bool(probability)
}

/// A random part of the jitter. Without jitter, it draws no random number.
fn random_part(jitter: Duration) -> Duration {
    if jitter.is_zero() { Duration::ZERO } else { jitter.mul_f64(rng().random()) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Counts the requests that arrive.
    #[derive(Clone, Default)]
    struct Arrivals(Arc<AtomicUsize>);

    impl Service for Arrivals {
        async fn serve(&self, _: NodeId, body: Bytes) -> Bytes {
            self.0.fetch_add(1, Ordering::SeqCst);
            body
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lost_client_request_arrives_later_and_raft_message_never() {
        let (board, arrivals) = (Switchboard::default(), Arrivals::default());
        board.attach(2, Services { raft: arrivals.clone(), node: arrivals.clone() });
        let transport = board.transport(1);
        board.set_faults(NetworkFaults { loss: 1.0, ..NetworkFaults::default() });
        for lane in [Lane::Control, Lane::Request] {
            let lost = transport.call(2, "", lane, Payload::Node(Bytes::new()), RETRANSMISSION / 4).await;
            assert!(matches!(lost, Err(PeerError::Timeout { .. })), "{lane:?}: {lost:?}");
        }
        // The first segment that is sent again is lost, too.
        tokio::time::sleep(2 * RETRANSMISSION).await;
        assert_eq!(arrivals.0.load(Ordering::SeqCst), 0, "every message is lost");
        board.clear_faults();
        tokio::time::sleep(10 * RETRANSMISSION).await;
        assert_eq!(arrivals.0.load(Ordering::SeqCst), 1, "only the request of the client arrives");
    }
}
