//! A scripted peer that sends and receives single frames, and the calls of a node to it.
//!
//! Two rules hold. An answer belongs only to the request with its id. A sent request may have been carried out, even if
//! its answer is lost.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::frame::{self, Frame, FrameKind};
use super::handshake;
use super::listener::MAX_IN_FLIGHT;
use super::tests::{AcceptAll, HANG_TIMEOUT, Uncalled, connect, identity};
use super::transport::CONNECT_TIMEOUT;
use super::{Lane, Payload, PeerError, PeerListener, Service, Services, TcpPeerListener, TcpTransport, Transport};
use crate::types::NodeId;

/// The timeout of a call that gets no answer.
const SHORT: Duration = Duration::from_millis(200);

/// The listener of node 2.
struct ScriptedPeer(TcpListener);

/// One connection of a node to the scripted peer, after the handshake.
struct ScriptedCaller(TcpStream);

impl ScriptedPeer {
    async fn listen() -> (ScriptedPeer, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("the listener is bound").to_string();
        (ScriptedPeer(listener), address)
    }

    async fn accept(&self) -> ScriptedCaller {
        self.accept_after(Duration::ZERO).await
    }

    /// Accepts a connection, and answers its handshake after a delay.
    async fn accept_after(&self, delay: Duration) -> ScriptedCaller {
        let accepted = tokio::time::timeout(HANG_TIMEOUT, self.0.accept()).await.expect("a connection in time");
        let (mut stream, _) = accepted.expect("a connection");
        tokio::time::sleep(delay).await;
        let outcome = handshake::answer(&mut stream, &identity(2), &AcceptAll, None).await.expect("a handshake");
        outcome.expect("the caller belongs to the cluster");
        ScriptedCaller(stream)
    }
}

impl ScriptedCaller {
    async fn receive(&mut self) -> Frame {
        let read = tokio::time::timeout(HANG_TIMEOUT, frame::read(&mut self.0, Lane::Request.max_body()));
        read.await.expect("a frame in time").expect("a frame").expect("the connection is open")
    }

    /// Receives a request, checks its body, and returns its id.
    async fn request(&mut self, body: &'static str) -> u64 {
        let frame = self.receive().await;
        assert_eq!((frame.kind, &frame.body[..]), (FrameKind::Node, body.as_bytes()));
        frame.id
    }

    async fn answer(&mut self, id: u64, body: &'static str) {
        frame::write(&mut self.0, &Frame { kind: FrameKind::Response, id, body: body.into() })
            .await
            .expect("the connection is open");
    }
}

fn transport() -> TcpTransport {
    TcpTransport::new(identity(1), Arc::new(AcceptAll), None)
}

type PeerResult = Result<Bytes, PeerError>;

/// Calls node 2 in a separate task.
fn call(
    transport: &TcpTransport,
    address: &str,
    lane: Lane,
    body: &'static str,
    timeout: Duration,
) -> JoinHandle<PeerResult> {
    call_with(transport, address, lane, Payload::Node(body.into()), timeout)
}

fn call_with(
    transport: &TcpTransport,
    address: &str,
    lane: Lane,
    payload: Payload,
    timeout: Duration,
) -> JoinHandle<PeerResult> {
    let (transport, address) = (transport.clone(), address.to_owned());
    tokio::spawn(async move { transport.call(2, &address, lane, payload, timeout).await })
}

async fn wait_for(call: JoinHandle<PeerResult>) -> PeerResult {
    tokio::time::timeout(HANG_TIMEOUT, call).await.expect("the call ends").expect("no panic")
}

#[tokio::test]
async fn answer_after_a_withdrawal_reaches_no_other_call() {
    let ((peer, address), transport) = (ScriptedPeer::listen().await, transport());
    let withdrawn = call(&transport, &address, Lane::Request, "first", HANG_TIMEOUT);
    let mut caller = peer.accept().await;
    let first = caller.request("first").await;
    let second_call = call(&transport, &address, Lane::Request, "second", HANG_TIMEOUT);
    let second = caller.request("second").await;
    withdrawn.abort();
    let withdrawal = caller.receive().await;
    assert_eq!((withdrawal.kind, withdrawal.id), (FrameKind::Withdraw, first));
    caller.answer(first, "too late").await;
    caller.answer(second, "its own").await;
    assert_eq!(wait_for(second_call).await.expect("it has an answer"), "its own");
}

/// A call that waits for less time than a slow network needs for the handshake does not end it.
#[tokio::test]
async fn connection_that_opens_after_its_call_serves_the_next() {
    for lane in Lane::ALL {
        let ((peer, address), transport) = (ScriptedPeer::listen().await, transport());
        let first = call(&transport, &address, lane, "first", SHORT);
        let mut caller = peer.accept_after(2 * SHORT).await;
        let refused = wait_for(first).await.expect_err("the handshake takes longer");
        assert!(matches!(refused, PeerError::NotSent { .. }), "{lane:?}: {refused:?}");
        let second = call(&transport, &address, lane, "second", HANG_TIMEOUT);
        let id = caller.request("second").await;
        caller.answer(id, "its own").await;
        assert_eq!(wait_for(second).await.expect("the connection is open"), "its own", "{lane:?}");
    }
}

/// A call that opened its connection has less time for the answer, so its timeout is no sign of a broken connection.
#[tokio::test]
async fn connection_stays_if_the_call_that_opened_it_times_out() {
    for lane in Lane::ALL {
        let ((peer, address), transport) = (ScriptedPeer::listen().await, transport());
        let first = call_with(&transport, &address, lane, Payload::Raft("first".into()), 4 * SHORT);
        let mut caller = peer.accept_after(SHORT).await;
        assert_eq!(caller.receive().await.body, "first");
        let timed_out = wait_for(first).await.expect_err("no answer comes");
        assert!(matches!(timed_out, PeerError::Timeout { .. }), "{lane:?}: {timed_out:?}");
        let second = call(&transport, &address, lane, "second", HANG_TIMEOUT);
        assert_eq!(caller.receive().await.kind, FrameKind::Withdraw, "{lane:?}: the first request");
        let id = caller.request("second").await;
        caller.answer(id, "its own").await;
        assert_eq!(wait_for(second).await.expect("the connection is open"), "its own", "{lane:?}");
    }
}

/// A question can have less time than a round trip. So its timeout ends a connection only after a longer silence.
#[tokio::test]
async fn questions_without_an_answer_end_a_silent_connection() {
    let ((peer, address), transport) = (ScriptedPeer::listen().await, transport());
    let first = call(&transport, &address, Lane::Control, "first", HANG_TIMEOUT);
    let mut caller = peer.accept().await;
    let id = caller.request("first").await;
    caller.answer(id, "its own").await;
    wait_for(first).await.expect("it has an answer");
    let silent_since = Instant::now();
    let unanswered = async {
        loop {
            let asked = call(&transport, &address, Lane::Control, "question", SHORT);
            wait_for(asked).await.expect_err("there is no answer");
        }
    };
    tokio::select! {
        () = unanswered => {}
        _ = peer.accept() => {}
    }
    assert!(silent_since.elapsed() >= CONNECT_TIMEOUT, "after {:?}", silent_since.elapsed());
}

/// The other end may have left the cluster, so no later call replaces the connection.
#[tokio::test]
async fn connection_that_the_peer_ends_closes_without_another_call() {
    for lane in Lane::ALL {
        let ((peer, address), transport) = (ScriptedPeer::listen().await, transport());
        let first = call(&transport, &address, lane, "first", HANG_TIMEOUT);
        let mut caller = peer.accept().await;
        let id = caller.request("first").await;
        caller.answer(id, "its own").await;
        wait_for(first).await.expect("it has an answer");
        caller.0.shutdown().await.expect("the connection is open");
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(HANG_TIMEOUT, caller.0.read_to_end(&mut rest)).await;
        let closed = closed.unwrap_or_else(|_| panic!("{lane:?}: the node keeps its end"));
        assert_eq!(closed.expect("it is not reset"), 0, "{lane:?}: no other frame");
    }
}

/// The kernel takes only a part of the large request. Its caller and the next one leave, and the connection stays usable.
#[tokio::test]
async fn caller_that_leaves_amid_its_request_disturbs_no_other_call() {
    for lane in [Lane::Request, Lane::Urgent] {
        let ((peer, address), transport) = (ScriptedPeer::listen().await, transport());
        let first = call(&transport, &address, lane, "first", HANG_TIMEOUT);
        let mut caller = peer.accept().await;
        let first_id = caller.request("first").await;
        let large = {
            let (transport, address) = (transport.clone(), address.clone());
            let body = Payload::Node(vec![7; lane.max_body()].into());
            tokio::spawn(async move { transport.call(2, &address, lane, body, HANG_TIMEOUT).await })
        };
        caller.0.peek(&mut [0]).await.expect("the connection is open");
        let behind = call(&transport, &address, lane, "behind", HANG_TIMEOUT);
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        large.abort();
        assert!(large.await.expect_err("it is aborted").is_cancelled());
        behind.abort();
        assert!(behind.await.expect_err("it is aborted").is_cancelled());
        let last = call(&transport, &address, lane, "last", HANG_TIMEOUT);
        let left = caller.receive().await;
        assert!(left.body.len() == lane.max_body() && left.body.iter().all(|byte| *byte == 7), "{lane:?}: not whole");
        // The request behind it is not sent. The withdrawal and the next request can come in either order.
        let next = [caller.receive().await, caller.receive().await];
        let of_kind = |kind| next.iter().find(|frame| frame.kind == kind).unwrap_or_else(|| panic!("{next:?}"));
        assert_eq!(of_kind(FrameKind::Withdraw).id, left.id);
        assert_eq!(of_kind(FrameKind::Node).body, "last");
        let last_id = of_kind(FrameKind::Node).id;
        for (id, waiting) in [(first_id, first), (last_id, last)] {
            caller.answer(id, "its own").await;
            assert_eq!(wait_for(waiting).await.expect("the connection stays open"), "its own");
        }
    }
}

#[tokio::test]
async fn answer_of_an_unknown_id_reaches_no_call() {
    let ((peer, address), transport) = (ScriptedPeer::listen().await, transport());
    let waiting = call(&transport, &address, Lane::Request, "one", HANG_TIMEOUT);
    let mut caller = peer.accept().await;
    let id = caller.request("one").await;
    caller.answer(id + 1_000, "of no request").await;
    let later = call(&transport, &address, Lane::Request, "two", HANG_TIMEOUT);
    let later_id = caller.request("two").await;
    // Answer in reverse order, and send the first answer twice.
    caller.answer(later_id, "second").await;
    caller.answer(later_id, "once more").await;
    caller.answer(id, "first").await;
    assert_eq!(wait_for(waiting).await.expect("it has an answer"), "first");
    assert_eq!(wait_for(later).await.expect("it has an answer"), "second");
}

#[tokio::test]
async fn loss_after_sending_is_never_certainly_not_done() {
    for lane in Lane::ALL {
        for half_an_answer in [false, true] {
            let ((peer, address), transport) = (ScriptedPeer::listen().await, transport());
            let lost = call(&transport, &address, lane, "change", HANG_TIMEOUT);
            let mut caller = peer.accept().await;
            caller.request("change").await;
            if half_an_answer {
                caller.0.write_all(&[0, 0, 0, 30, FrameKind::Response as u8]).await.expect("the connection is open");
            }
            drop(caller);
            let error = wait_for(lost).await.expect_err("there is no answer");
            assert!(matches!(error, PeerError::Lost { target: 2, .. }), "{lane:?}: {error}");
            assert!(!error.certainly_not_done(), "{lane:?}: {error}");
        }
    }
}

#[tokio::test]
async fn silence_after_sending_is_never_certainly_not_done() {
    for lane in Lane::ALL {
        let ((peer, address), transport) = (ScriptedPeer::listen().await, transport());
        // The connection is open, so a slow handshake takes no part of the short timeout.
        let first = call(&transport, &address, lane, "first", HANG_TIMEOUT);
        let mut caller = peer.accept().await;
        let id = caller.request("first").await;
        caller.answer(id, "its own").await;
        wait_for(first).await.expect("it has an answer");
        let silent = call(&transport, &address, lane, "change", SHORT);
        caller.request("change").await;
        let error = wait_for(silent).await.expect_err("there is no answer");
        assert!(matches!(error, PeerError::Timeout { target: 2, .. }), "{lane:?}: {error}");
        assert!(!error.certainly_not_done(), "{lane:?}: {error}");
    }
}

#[tokio::test]
async fn unreachable_peer_is_certainly_not_done() {
    let (peer, address) = ScriptedPeer::listen().await;
    drop(peer);
    let error = wait_for(call(&transport(), &address, Lane::Request, "change", HANG_TIMEOUT))
        .await
        .expect_err("no node listens");
    assert!(error.certainly_not_done(), "{error}");
}

/// The peer accepts the connection and does not answer the hello. Later it works again.
#[tokio::test]
async fn call_that_waits_for_a_handshake_ends_and_frees_its_lane() {
    for ends_by_its_own_timeout in [true, false] {
        let ((peer, address), transport) = (ScriptedPeer::listen().await, transport());
        let timeout = if ends_by_its_own_timeout { CONNECT_TIMEOUT / 2 } else { HANG_TIMEOUT };
        let silent = call(&transport, &address, Lane::Log, "first", timeout);
        let _accepted = peer.0.accept().await.expect("a connection");
        tokio::time::pause();
        let longest = timeout.min(CONNECT_TIMEOUT);
        tokio::time::advance(longest + Duration::from_millis(1)).await;
        tokio::time::resume();
        let error = wait_for(silent).await.expect_err("the peer is silent");
        let reason = format!("no connection within {longest:?}");
        assert_eq!(error, PeerError::NotSent { target: 2, address: address.clone(), reason });
        let next = call(&transport, &address, Lane::Log, "next", HANG_TIMEOUT);
        let mut caller = peer.accept().await;
        let id = caller.request("next").await;
        caller.answer(id, "here").await;
        assert_eq!(wait_for(next).await.expect("the peer answers"), "here");
    }
}

#[tokio::test]
async fn broken_connection_is_opened_again() {
    let ((peer, address), transport) = (ScriptedPeer::listen().await, transport());
    let mut lost = call(&transport, &address, Lane::Urgent, "lost", HANG_TIMEOUT);
    let mut caller = peer.accept().await;
    for round in 0..3 {
        caller.request("lost").await;
        drop(caller);
        assert!(wait_for(lost).await.is_err(), "round {round}");
        let next = call(&transport, &address, Lane::Urgent, "next", HANG_TIMEOUT);
        caller = peer.accept().await;
        let id = caller.request("next").await;
        caller.answer(id, "here").await;
        assert_eq!(wait_for(next).await.expect("the node reconnects"), "here", "round {round}");
        lost = call(&transport, &address, Lane::Urgent, "lost", HANG_TIMEOUT);
    }
    lost.abort();
}

#[tokio::test]
async fn moved_peer_is_called_at_its_new_address() {
    let transport = transport();
    for place in 0..2 {
        let (peer, address) = ScriptedPeer::listen().await;
        let called = call(&transport, &address, Lane::Control, "hello", HANG_TIMEOUT);
        let mut caller = peer.accept().await;
        let id = caller.request("hello").await;
        caller.answer(id, "here").await;
        assert_eq!(wait_for(called).await.expect("the peer answers"), "here", "address {place}");
    }
}

/// The connection to the old address ends a moment after the one to the new address has taken its place.
#[tokio::test]
async fn connection_to_the_new_address_outlives_the_end_of_the_old_one() {
    let transport = transport();
    let ((old, old_address), (new, new_address)) = (ScriptedPeer::listen().await, ScriptedPeer::listen().await);
    let first = call(&transport, &old_address, Lane::Request, "first", HANG_TIMEOUT);
    let mut before = old.accept().await;
    let id = before.request("first").await;
    before.answer(id, "here").await;
    wait_for(first).await.expect("the peer answers");
    let second = call(&transport, &new_address, Lane::Request, "second", HANG_TIMEOUT);
    let mut moved = new.accept().await;
    let second_id = moved.request("second").await;
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(HANG_TIMEOUT, before.0.read_to_end(&mut rest)).await;
    closed.expect("the node closes the connection to the old address").expect("it is not reset");
    let third = call(&transport, &new_address, Lane::Request, "third", HANG_TIMEOUT);
    let third_id = tokio::select! {
        id = moved.request("third") => id,
        _ = new.accept() => panic!("the node opens another connection to the same address"),
    };
    for (id, waiting) in [(second_id, second), (third_id, third)] {
        moved.answer(id, "here").await;
        assert_eq!(wait_for(waiting).await.expect("the peer answers"), "here");
    }
}

/// Serves requests without an end, and reports the start and the abort of each.
struct PendingService {
    began: mpsc::UnboundedSender<()>,
    given_up: mpsc::UnboundedSender<()>,
}

/// Sends a message when it is dropped.
struct WhenDropped(mpsc::UnboundedSender<()>);

impl Drop for WhenDropped {
    fn drop(&mut self) {
        // The test may have ended.
        let _ = self.0.send(());
    }
}

impl Service for PendingService {
    async fn serve(&self, _: NodeId, _: Bytes) -> Bytes {
        let _given_up = WhenDropped(self.given_up.clone());
        self.began.send(()).expect("the test waits");
        std::future::pending().await
    }
}

/// Node 2 with a service that never answers.
struct PendingNode {
    address: String,
    begins: mpsc::UnboundedReceiver<()>,
    given_up: mpsc::UnboundedReceiver<()>,
    stop: CancellationToken,
    served: JoinHandle<()>,
}

impl PendingNode {
    async fn start() -> PendingNode {
        let (peer, address) = ScriptedPeer::listen().await;
        let ((began, begins), (dropped, given_up)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let services = Services { raft: Uncalled, node: PendingService { began, given_up: dropped } };
        let stop = CancellationToken::new();
        let served = tokio::spawn(TcpPeerListener::new(peer.0, None).serve(
            identity(2),
            Arc::new(AcceptAll),
            services,
            stop.clone(),
        ));
        PendingNode { address, begins, given_up, stop, served }
    }

    async fn gives_up(&mut self) {
        let given_up = tokio::time::timeout(HANG_TIMEOUT, self.given_up.recv()).await;
        given_up.expect("the node aborts the request").expect("the service reports the abort");
    }

    async fn end(self) {
        self.stop.cancel();
        self.served.await.expect("no panic");
    }
}

#[tokio::test]
async fn withdrawn_request_ends_at_the_answering_node() {
    let (mut node, transport) = (PendingNode::start().await, transport());
    let waiting = call(&transport, &node.address, Lane::Request, "wait", HANG_TIMEOUT);
    node.begins.recv().await.expect("the node serves the request");
    waiting.abort();
    node.gives_up().await;
    node.end().await;
}

#[tokio::test]
async fn withdrawn_requests_make_room_for_others() {
    let mut node = PendingNode::start().await;
    let mut stream = connect(&node.address, Lane::Request).await.expect("a connection");
    let frames = async {
        for (kind, ids) in [(FrameKind::Node, 0..MAX_IN_FLIGHT), (FrameKind::Withdraw, 0..MAX_IN_FLIGHT)] {
            for id in ids {
                let frame = Frame { kind, id: id as u64, body: Bytes::new() };
                frame::write(&mut stream, &frame).await.expect("the connection is open");
            }
            for _ in 0..MAX_IN_FLIGHT {
                match kind {
                    FrameKind::Node => node.begins.recv().await.expect("the node serves the request"),
                    _ => node.given_up.recv().await.expect("the node aborts the request"),
                }
            }
        }
        let one_more = Frame { kind: FrameKind::Node, id: MAX_IN_FLIGHT as u64, body: Bytes::new() };
        frame::write(&mut stream, &one_more).await.expect("the connection is open");
        node.begins.recv().await.expect("the node serves the request");
    };
    tokio::time::timeout(HANG_TIMEOUT, frames).await.expect("the node has room again");
    node.end().await;
}

/// A crashed caller sends no withdrawal: only its connection closes.
#[tokio::test]
async fn requests_end_at_the_answering_node_with_their_connection() {
    let mut node = PendingNode::start().await;
    for lane in [Lane::Request, Lane::Urgent] {
        let mut stream = connect(&node.address, lane).await.expect("a connection");
        for id in 1..=3 {
            let request = Frame { kind: FrameKind::Node, id, body: "wait".into() };
            frame::write(&mut stream, &request).await.expect("the connection is open");
            node.begins.recv().await.expect("the node serves the request");
        }
        drop(stream);
        for _ in 1..=3 {
            node.gives_up().await;
        }
    }
    node.end().await;
}
