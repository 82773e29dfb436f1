//! Limits of lanes and connections, over TCP and over the transport in memory. An oversized call fails alone.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::frame::{self, Frame, FrameKind};
use super::handshake;
use super::{
    Incarnations, Lane, Payload, PeerError, PeerIdentity, PeerListener, Service, Services, TcpPeerListener,
    TcpTransport, Transport,
};
use crate::sim::Switchboard;
use crate::types::NodeId;

/// A timeout that only a hang exceeds.
pub(super) const HANG_TIMEOUT: Duration = Duration::from_secs(20);
const LANES: [Lane; 3] = [Lane::Control, Lane::Log, Lane::Request];

pub(super) struct AcceptAll;

impl Incarnations for AcceptAll {
    fn joined(&self, _: NodeId) -> Option<u64> {
        None
    }
    fn is_removed(&self, _: NodeId) -> bool {
        false
    }
    fn observe(&self, _: NodeId, _: u64) {}
}

/// Returns each body as its answer, with two exceptions: a number gives as many bytes, and "wait" waits for `resume`
/// first.
#[derive(Clone, Default)]
struct Echo {
    arrived: Arc<Notify>,
    resume: Arc<Notify>,
}

impl Service for Echo {
    async fn serve(&self, _: NodeId, body: Bytes) -> Bytes {
        if let Some(bytes) = std::str::from_utf8(&body).ok().and_then(|text| text.parse().ok()) {
            return vec![0; bytes].into();
        }
        if body == "wait" {
            self.arrived.notify_one();
            self.resume.notified().await;
        }
        body
    }
}

/// A service of a kind that its test does not call.
#[derive(Clone, Copy)]
pub(super) struct Uncalled;

impl Service for Uncalled {
    async fn serve(&self, from: NodeId, body: Bytes) -> Bytes {
        panic!("node {from} called the wrong service with {body:?}")
    }
}

pub(super) fn identity(node: NodeId) -> PeerIdentity {
    PeerIdentity { cluster: "test".to_owned(), node, incarnation: node, vote_lease: Duration::from_millis(300) }
}

/// Starts node 2, which serves until the token is cancelled, and the transport of node 1.
async fn start_tcp(service: impl Service) -> (TcpTransport, String, CancellationToken, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("the listener is bound").to_string();
    let stop = CancellationToken::new();
    let served = tokio::spawn(TcpPeerListener::new(listener, None).serve(
        identity(2),
        Arc::new(AcceptAll),
        Services { raft: Uncalled, node: service },
        stop.clone(),
    ));
    (TcpTransport::new(identity(1), Arc::new(AcceptAll), None), address, stop, served)
}

/// Asserts that an oversized request and an oversized answer fail alone: other calls on the lane get their answers.
async fn assert_fails_alone<T: Transport>(transport: &T, address: &str, lane: Lane, echo: &Echo) {
    let call = |body: Bytes| {
        let (transport, address) = (transport.clone(), address.to_owned());
        async move { transport.call(2, &address, lane, Payload::Node(body), HANG_TIMEOUT).await }
    };
    // A lane that serves in order has one call at a time.
    let waiting = (!lane.in_order()).then(|| tokio::spawn(call("wait".into())));
    if waiting.is_some() {
        echo.arrived.notified().await;
    }
    let max = lane.max_body();
    for largest in [vec![0; max].into(), Bytes::from(max.to_string())] {
        let answer = call(largest).await.map(|answer| answer.len());
        assert_eq!(answer, Ok(max), "{lane:?}: request and answer are at the limit");
    }
    let request = call(vec![0; max + 1].into()).await.map(|answer| answer.len());
    assert_eq!(request, Err(PeerError::TooLarge { target: 2, bytes: max + 1, max }), "{lane:?}");
    assert!(request.expect_err("the request is too large").certainly_not_done());
    let answer =
        call((max + 1).to_string().into()).await.map(|answer| answer.len()).expect_err("the answer is too large");
    assert!(matches!(answer, PeerError::NoAnswer { target: 2, .. }), "{lane:?}: {answer}");
    assert!(answer.to_string().contains(&(max + 1).to_string()) && !answer.certainly_not_done(), "{answer}");
    assert_eq!(call("next".into()).await.expect("the lane stays usable"), "next", "{lane:?}");
    if let Some(waiting) = waiting {
        echo.resume.notify_one();
        assert_eq!(waiting.await.expect("no panic").expect("the lane stays open"), "wait", "{lane:?}");
    }
}

#[tokio::test]
async fn oversized_call_fails_alone() {
    let echo = Echo::default();
    let (transport, address, stop, served) = start_tcp(echo.clone()).await;
    for lane in LANES {
        assert_fails_alone(&transport, &address, lane, &echo).await;
    }
    transport.shutdown().await;
    stop.cancel();
    served.await.expect("no panic");
}

#[tokio::test]
async fn shutdown_does_not_wait_for_a_caller_that_reads_nothing() {
    let (transport, address, stop, served) = start_tcp(Echo::default()).await;
    let mut caller = connect(&address, Lane::Request).await.expect("a connection");
    let body = Bytes::from(Lane::Request.max_body().to_string());
    for id in 0..2 {
        let request = Frame { kind: FrameKind::Node, id, body: body.clone() };
        frame::write(&mut caller, &request).await.expect("the connection is open");
    }
    caller.read_u8().await.expect("the first byte of an answer");
    stop.cancel();
    tokio::time::timeout(HANG_TIMEOUT, served).await.expect("the listener ends").expect("no panic");
    transport.shutdown().await;
}

/// Sends request 0, whose answer exceeds the buffers of the connection, and returns the first byte of this answer.
async fn begin_largest_answer(caller: &mut TcpStream) -> [u8; 1] {
    let body = Lane::Request.max_body().to_string().into();
    frame::write(caller, &Frame { kind: FrameKind::Node, id: 0, body }).await.expect("the connection is open");
    let begun = tokio::time::timeout(HANG_TIMEOUT, caller.read_u8()).await;
    [begun.expect("the answer begins").expect("readable")]
}

#[tokio::test]
async fn withdrawal_amid_an_answer_leaves_the_answers_whole() {
    let echo = Echo::default();
    let (transport, address, stop, served) = start_tcp(echo.clone()).await;
    let mut caller = connect(&address, Lane::Request).await.expect("a connection");
    let first = begin_largest_answer(&mut caller).await;
    for (kind, id, body) in [(FrameKind::Withdraw, 0, ""), (FrameKind::Node, 1, "wait")] {
        frame::write(&mut caller, &Frame { kind, id, body: body.into() }).await.expect("the connection is open");
    }
    // The node reads the frames in order, so it has seen the withdrawal.
    echo.arrived.notified().await;
    echo.resume.notify_one();
    let answers = async {
        let mut rest = (&first[..]).chain(caller);
        for (id, bytes) in [(0, Lane::Request.max_body()), (1, 4)] {
            let answer = frame::read(&mut rest, Lane::Request.max_body()).await.expect("readable").expect("an answer");
            assert_eq!((answer.kind, answer.id, answer.body.len()), (FrameKind::Response, id, bytes));
        }
    };
    tokio::time::timeout(HANG_TIMEOUT, answers).await.expect("both answers are whole");
    stop.cancel();
    served.await.expect("no panic");
    transport.shutdown().await;
}

/// More answers wait behind the largest one. After a stop, none of them may follow the cut frame.
#[tokio::test]
async fn no_frame_follows_one_that_a_stop_has_cut() {
    let echo = Echo::default();
    let (transport, address, stop, served) = start_tcp(echo.clone()).await;
    let mut caller = connect(&address, Lane::Request).await.expect("a connection");
    let first = begin_largest_answer(&mut caller).await;
    for id in 1..=1_000 {
        let body = if id == 1_000 { "wait" } else { "late" }.into();
        frame::write(&mut caller, &Frame { kind: FrameKind::Node, id, body }).await.expect("the connection is open");
    }
    echo.arrived.notified().await;
    let mut received = first.to_vec();
    while caller.try_read_buf(&mut received).is_ok_and(|bytes| bytes > 0) {}
    stop.cancel();
    let rest = tokio::time::timeout(HANG_TIMEOUT, caller.read_to_end(&mut received)).await;
    rest.expect("the connection ends").expect("readable");
    let body = &received[4 + 1 + 8..];
    assert!(body.len() < Lane::Request.max_body(), "the stop cuts the answer");
    assert!(body.iter().all(|&byte| byte == 0), "another frame follows the cut one");
    served.await.expect("no panic");
    transport.shutdown().await;
}

#[tokio::test]
async fn switchboard_refuses_the_same_calls_as_tcp() {
    let (board, echo) = (Switchboard::default(), Echo::default());
    board.attach(2, Services { raft: Uncalled, node: echo.clone() });
    for lane in LANES {
        assert_fails_alone(&board.transport(1), "node2", lane, &echo).await;
    }
}

/// Connects as node 1 to the node at this address. Fails if that node closes the connection.
pub(super) async fn connect(address: &str, lane: Lane) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await?;
    handshake::call(&mut stream, &identity(1), 2, lane, &AcceptAll).await?.expect("both nodes belong to the cluster");
    Ok(stream)
}

#[tokio::test]
async fn node_accepts_256_peer_connections() {
    let (_, address, stop, served) = start_tcp(Echo::default()).await;
    let mut open = Vec::new();
    for number in 1..=256 {
        let stream = connect(&address, Lane::Control).await;
        open.push(stream.unwrap_or_else(|error| panic!("connection {number}: {error}")));
    }
    connect(&address, Lane::Control).await.expect_err("the connection is above the limit");
    drop(open.pop());
    let room_again = async { while connect(&address, Lane::Control).await.is_err() {} };
    tokio::time::timeout(HANG_TIMEOUT, room_again).await.expect("the node accepts again after a close");
    stop.cancel();
    served.await.expect("no panic");
}

/// Counts the requests and answers them after `resume`.
#[derive(Clone, Default)]
struct Counter {
    received: Arc<AtomicUsize>,
    resume: CancellationToken,
}

impl Service for Counter {
    async fn serve(&self, _: NodeId, body: Bytes) -> Bytes {
        self.received.fetch_add(1, Ordering::SeqCst);
        self.resume.cancelled().await;
        body
    }
}

#[tokio::test]
async fn connection_serves_32768_requests_at_once() {
    const MOST: usize = 32_768;
    let counter = Counter::default();
    let (_, address, stop, served) = start_tcp(counter.clone()).await;
    let (mut reader, mut writer) = connect(&address, Lane::Request).await.expect("a connection").into_split();
    let requests = async {
        for id in 0..=MOST as u64 {
            let request = Frame { kind: FrameKind::Node, id, body: Bytes::new() };
            frame::write(&mut writer, &request).await.expect("the connection is open");
        }
        while counter.received.load(Ordering::SeqCst) < MOST {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(HANG_TIMEOUT, requests).await.expect("the node starts the requests");
    // This sleep observes that no further request starts. It synchronizes nothing.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(counter.received.load(Ordering::SeqCst), MOST, "the request above the limit waits");
    counter.resume.cancel();
    let answers = async {
        for _ in 0..=MOST {
            frame::read(&mut reader, 0).await.expect("readable").expect("each request has an answer");
        }
    };
    tokio::time::timeout(HANG_TIMEOUT, answers).await.expect("the node answers all requests");
    stop.cancel();
    served.await.expect("no panic");
}

/// Answers "count" with the number of other requests that run. The others never end.
#[derive(Clone, Default)]
struct Running(Arc<()>);

impl Service for Running {
    async fn serve(&self, _: NodeId, body: Bytes) -> Bytes {
        if body != "count" {
            let _runs = self.0.clone();
            return std::future::pending().await;
        }
        // One for the test, and one for the listener.
        (Arc::strong_count(&self.0) - 2).to_string().into()
    }
}

/// A node gives up the requests of a broken connection and may send them again. Its kernel can still hold them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newer_connection_ends_the_requests_of_the_one_before() {
    let running = Running::default();
    let (_, address, stop, served) = start_tcp(running.clone()).await;
    for lane in [Lane::Request, Lane::Urgent] {
        let mut earlier = connect(&address, lane).await.expect("a connection");
        for id in 0..200 {
            let request = Frame { kind: FrameKind::Node, id, body: "runs".into() };
            frame::write(&mut earlier, &request).await.expect("the connection is open");
        }
        assert_next_connection_ends(earlier, &address, lane).await;
    }
    stop.cancel();
    served.await.expect("no panic");
}

/// Opens another connection to a node that serves [`Running`].
async fn assert_next_connection_ends(mut earlier: TcpStream, address: &str, lane: Lane) {
    let mut later = connect(address, lane).await.expect("a connection");
    let count = Frame { kind: FrameKind::Node, id: 0, body: "count".into() };
    frame::write(&mut later, &count).await.expect("the connection is open");
    let answer = tokio::time::timeout(HANG_TIMEOUT, frame::read(&mut later, lane.max_body())).await;
    let answer = answer.expect("an answer in time").expect("readable").expect("the connection is open");
    assert_eq!(answer.body, "0", "{lane:?}: requests of the earlier connection still run");
    let end = tokio::time::timeout(HANG_TIMEOUT, frame::read(&mut earlier, lane.max_body())).await;
    assert!(!matches!(end.expect("it ends"), Ok(Some(_))), "{lane:?}: the earlier connection is closed");
}

/// The disk of this node hangs during a call. The leader gives up the call and starts the transfer of a snapshot again.
#[tokio::test]
async fn newer_connection_ends_the_ordered_call_of_the_one_before() {
    let running = Running::default();
    let (_, address, stop, served) = start_tcp(running.clone()).await;
    for lane in [Lane::Log, Lane::Snapshot] {
        let mut earlier = connect(&address, lane).await.expect("a connection");
        let request = Frame { kind: FrameKind::Node, id: 0, body: "runs".into() };
        frame::write(&mut earlier, &request).await.expect("the connection is open");
        let runs = async {
            while Arc::strong_count(&running.0) < 3 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(HANG_TIMEOUT, runs).await.expect("the call runs");
        assert_next_connection_ends(earlier, &address, lane).await;
    }
    stop.cancel();
    served.await.expect("no panic");
}

/// Counts the connections that were opened to its node.
#[derive(Default)]
struct Greeted(AtomicUsize);

impl Incarnations for Greeted {
    fn joined(&self, _: NodeId) -> Option<u64> {
        None
    }
    fn is_removed(&self, _: NodeId) -> bool {
        false
    }
    fn observe(&self, _: NodeId, _: u64) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn call_after_a_timeout_has_the_connection_of_its_lane() {
    let payloads: [fn(Bytes) -> Payload; 2] = [Payload::Raft, Payload::Node];
    for (lane, payload) in Lane::ALL.into_iter().flat_map(|lane| payloads.map(|payload| (lane, payload))) {
        let is_raft = matches!(payload(Bytes::new()), Payload::Raft(_));
        // The other kinds of calls use no lane that serves in order.
        if lane.in_order() && !is_raft {
            continue;
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let (stop, greeted) = (CancellationToken::new(), Arc::new(Greeted::default()));
        let services = Services { raft: Echo::default(), node: Echo::default() };
        let served = tokio::spawn(TcpPeerListener::new(listener, None).serve(
            identity(2),
            greeted.clone(),
            services,
            stop.clone(),
        ));
        let transport = TcpTransport::new(identity(1), Arc::new(AcceptAll), None);
        let call = |body: &'static str, timeout| transport.call(2, &address, lane, payload(body.into()), timeout);
        assert_eq!(call("first", HANG_TIMEOUT).await.expect("answered"), "first", "{lane:?}");
        let timeout = Duration::from_millis(50);
        assert_eq!(call("wait", timeout).await, Err(PeerError::Timeout { target: 2, timeout }), "{lane:?}");
        // A client request may time out because it waits, and a question because it has little time. Raft expects each
        // answer soon.
        let opened = if matches!(lane, Lane::Request | Lane::Urgent) || !is_raft { 1 } else { 2 };
        assert_eq!(call("next", HANG_TIMEOUT).await.expect("answered"), "next", "{lane:?}");
        assert_eq!(greeted.0.load(Ordering::SeqCst), opened, "{lane:?}");
        transport.shutdown().await;
        stop.cancel();
        served.await.expect("no panic");
    }
}

/// Answers with its name.
struct NamedService(&'static str);

impl Service for NamedService {
    async fn serve(&self, _: NodeId, _: Bytes) -> Bytes {
        self.0.into()
    }
}

#[tokio::test]
async fn each_payload_reaches_the_service_of_its_kind() {
    let services = || Services { raft: NamedService("raft"), node: NamedService("node") };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    let stop = CancellationToken::new();
    let served = tokio::spawn(TcpPeerListener::new(listener, None).serve(
        identity(2),
        Arc::new(AcceptAll),
        services(),
        stop.clone(),
    ));
    let transport = TcpTransport::new(identity(1), Arc::new(AcceptAll), None);
    let board = Switchboard::default();
    board.attach(2, services());
    for lane in Lane::ALL {
        for (payload, name) in [(Payload::Raft(Bytes::new()), "raft"), (Payload::Node(Bytes::new()), "node")] {
            let answer = transport.call(2, &address, lane, payload.clone(), HANG_TIMEOUT).await;
            assert_eq!(answer.expect("answered"), name, "{lane:?} over TCP");
            let answer = board.transport(1).call(2, "node2", lane, payload, HANG_TIMEOUT).await;
            assert_eq!(answer.expect("answered"), name, "{lane:?} in memory");
        }
    }
    transport.shutdown().await;
    stop.cancel();
    served.await.expect("no panic");
}

#[tokio::test]
async fn connection_before_the_node_serves_is_closed_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    let listener = TcpPeerListener::new(listener, None);
    let transport = TcpTransport::new(identity(1), Arc::new(AcceptAll), None);
    let call = || transport.call(2, &address, Lane::Request, Payload::Node("early".into()), HANG_TIMEOUT);
    // Without the close, the call ends only after the timeout of a connection.
    let soon = super::transport::CONNECT_TIMEOUT / 2;
    let early = tokio::time::timeout(soon, listener.closed_during(call())).await.expect("it ends at once");
    assert!(matches!(early, Err(PeerError::NotSent { .. })), "{early:?}");
    let stop = CancellationToken::new();
    let services = Services { raft: Uncalled, node: Echo::default() };
    let served = tokio::spawn(listener.serve(identity(2), Arc::new(AcceptAll), services, stop.clone()));
    assert_eq!(call().await.expect("the node serves now"), "early");
    transport.shutdown().await;
    stop.cancel();
    served.await.expect("no panic");
}

/// A partition hides the end of a peer. Then the kernel must end both sides of a connection.
#[tokio::test]
async fn kernel_ends_a_silent_connection_after_5_s() {
    use rustix::net::sockopt::{socket_keepalive, tcp_keepcnt, tcp_keepidle, tcp_keepintvl};
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let stream = TcpStream::connect(listener.local_addr().expect("it is bound")).await.expect("it listens");
    super::prepare(&stream).expect("a socket");
    assert!(stream.nodelay().expect("a socket") && socket_keepalive(&stream).expect("a socket"));
    let (first, next) = (tcp_keepidle(&stream).expect("a socket"), tcp_keepintvl(&stream).expect("a socket"));
    assert_eq!(first + next * tcp_keepcnt(&stream).expect("a socket"), Duration::from_secs(5));
    #[cfg(target_os = "linux")]
    assert_eq!(rustix::net::sockopt::tcp_user_timeout(&stream).expect("a socket"), 5_000);
}

/// Notes who closed the connection of heartbeats.
#[derive(Clone)]
struct Disconnects(mpsc::UnboundedSender<NodeId>);

impl Service for Disconnects {
    async fn serve(&self, _: NodeId, body: Bytes) -> Bytes {
        body
    }

    fn disconnected(&self, from: NodeId) {
        self.0.send(from).expect("the test receives it");
    }
}

#[tokio::test]
async fn closed_connection_of_heartbeats_is_reported() {
    let (closed, mut closes) = mpsc::unbounded_channel();
    let (transport, address, stop, served) = start_tcp(Disconnects(closed)).await;
    for lane in [Lane::Log, Lane::Request, Lane::Control] {
        let call = transport.call(2, &address, lane, Payload::Node("hello".into()), HANG_TIMEOUT);
        call.await.expect("node 2 answers");
    }
    let open = TcpTransport::new(identity(3), Arc::new(AcceptAll), None);
    let call = open.call(2, &address, Lane::Control, Payload::Node("hello".into()), HANG_TIMEOUT);
    call.await.expect("node 2 answers");
    assert!(!transport.is_refused(2, &address).await, "node 2 accepts connections");
    transport.shutdown().await;
    let first = tokio::time::timeout(HANG_TIMEOUT, closes.recv()).await.expect("it is reported");
    assert_eq!(first, Some(1));
    stop.cancel();
    served.await.expect("no panic");
    assert_eq!(closes.recv().await, None, "only the lane of heartbeats counts, and only its other end");
    assert!(open.is_refused(2, &address).await, "nothing listens there any more");
}

/// The caller resets its connection, so that its answers cannot be written.
#[tokio::test]
async fn reset_connection_of_heartbeats_is_reported() {
    let (closed, mut closes) = mpsc::unbounded_channel();
    let (_, address, stop, served) = start_tcp(Disconnects(closed)).await;
    for _ in 0..20 {
        let mut caller = connect(&address, Lane::Control).await.expect("a connection");
        for id in 0..50 {
            let request = Frame { kind: FrameKind::Node, id, body: "hello".into() };
            frame::write(&mut caller, &request).await.expect("the connection is open");
        }
        rustix::net::sockopt::set_socket_linger(&caller, Some(Duration::ZERO)).expect("a socket");
        drop(caller);
        let reported = tokio::time::timeout(HANG_TIMEOUT, closes.recv()).await.expect("it is reported");
        assert_eq!(reported, Some(1));
    }
    stop.cancel();
    served.await.expect("no panic");
}
