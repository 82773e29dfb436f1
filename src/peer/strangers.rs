//! Callers that belong to no node. Each of them returns its connection permit, so the listener still admits nodes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::frame::{self, Frame, FrameKind};
use super::handshake::{self, Hello};
use super::listener::{HANDSHAKE_TIMEOUT, MAX_CONNECTIONS};
use super::tests::{AcceptAll, HANG_TIMEOUT, Uncalled, connect, identity};
use super::{Lane, PeerIdentity, PeerListener as _, Service, Services, TcpPeerListener};
use crate::types::NodeId;

/// Returns each body as its answer.
struct Echo;

impl Service for Echo {
    async fn serve(&self, _: NodeId, body: Bytes) -> Bytes {
        body
    }
}

/// The listener of node 2.
struct TestListener {
    address: String,
    stop: CancellationToken,
    served: JoinHandle<()>,
}

impl TestListener {
    async fn start() -> TestListener {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("the listener is bound").to_string();
        let stop = CancellationToken::new();
        let served = tokio::spawn(TcpPeerListener::new(listener, None).serve(
            identity(2),
            Arc::new(AcceptAll),
            Services { raft: Uncalled, node: Echo },
            stop.clone(),
        ));
        TestListener { address, stop, served }
    }

    async fn stream(&self) -> TcpStream {
        TcpStream::connect(&self.address).await.expect("the listener accepts connections")
    }

    /// Connects as node 1 and makes one call.
    async fn serves_a_node(&self, after: &str) {
        let admitted = async {
            loop {
                if let Ok(stream) = connect(&self.address, Lane::Request).await {
                    return stream;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let admitted = tokio::time::timeout(HANG_TIMEOUT, admitted).await;
        let mut stream = admitted.unwrap_or_else(|_| panic!("node 1 is not admitted after {after}"));
        assert_eq!(echoed(&mut stream).await.expect("an answer"), "hello");
    }

    async fn end(self) {
        self.stop.cancel();
        self.served.await.expect("no panic");
    }
}

async fn echoed(stream: &mut TcpStream) -> io::Result<Bytes> {
    frame::write(stream, &Frame { kind: FrameKind::Node, id: 1, body: "hello".into() }).await?;
    let answer = frame::read(stream, Lane::Request.max_body()).await?;
    Ok(answer.expect("the connection is open").body)
}

/// Waits until the other end closes or resets the connection.
async fn closed(mut stream: TcpStream, who: &str) {
    let mut rest = Vec::new();
    let read = tokio::time::timeout(HANG_TIMEOUT, stream.read_to_end(&mut rest)).await;
    let _may_be_reset = read.unwrap_or_else(|_| panic!("the connection of {who} stays open"));
}

fn hello(identity: PeerIdentity, to: NodeId, lane: u8) -> Hello {
    let PeerIdentity { cluster, node: from, incarnation, vote_lease } = identity;
    Hello { cluster, from, incarnation, vote_lease_ms: vote_lease.as_millis() as u64, to, lane, refused: None }
}

async fn bytes_of(hello: Hello) -> Vec<u8> {
    let mut bytes = Vec::new();
    handshake::write_hello(&mut bytes, &hello).await.expect("a vector accepts all bytes");
    bytes
}

async fn frame_after_hello(kind: FrameKind) -> Vec<u8> {
    let mut bytes = bytes_of(hello(identity(1), 2, Lane::Request.code())).await;
    frame::write(&mut bytes, &Frame { kind, id: 1, body: "hello".into() }).await.expect("a vector accepts all bytes");
    bytes
}

/// The first bytes of refused callers.
async fn refused() -> Vec<(&'static str, Vec<u8>)> {
    let lane = Lane::Request.code();
    let valid = bytes_of(hello(identity(1), 2, lane)).await;
    let with = |rest: &[u8]| [&b"TENUREp\x02"[..], rest].concat();
    let after_hello = |rest: &[u8]| [&valid[..], rest].concat();
    vec![
        ("an HTTP client", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        ("a newer protocol", b"TENUREp\x03".to_vec()),
        ("a hello that is too long", with(&u32::MAX.to_be_bytes())),
        ("an unreadable hello", with(&[0, 0, 0, 4, 255, 255, 255, 255])),
        ("an unknown lane", bytes_of(hello(identity(1), 2, 99)).await),
        (
            "another cluster",
            bytes_of(hello(PeerIdentity { cluster: "other".to_owned(), ..identity(1) }, 2, lane)).await,
        ),
        ("a caller of another node", bytes_of(hello(identity(1), 3, lane)).await),
        ("a node with the same id", bytes_of(hello(identity(2), 2, lane)).await),
        ("a frame of an unknown kind", after_hello(&[0, 0, 0, 9, 99, 0, 0, 0, 0, 0, 0, 0, 1])),
        ("a frame that is too long", after_hello(&u32::MAX.to_be_bytes())),
        ("an answer instead of a request", frame_after_hello(FrameKind::Response).await),
    ]
}

#[tokio::test]
async fn refused_callers_return_their_connection_permits() {
    for (who, bytes) in refused().await {
        let listener = TestListener::start().await;
        for _ in 0..=MAX_CONNECTIONS {
            let mut stream = listener.stream().await;
            stream.write_all(&bytes).await.expect("the bytes fit into the send buffer");
            closed(stream, who).await;
        }
        listener.serves_a_node(who).await;
        listener.end().await;
    }
}

/// These callers close their connections at different times.
#[tokio::test]
async fn callers_that_hang_up_return_their_connection_permits() {
    let valid = bytes_of(hello(identity(1), 2, Lane::Request.code())).await;
    let request = frame_after_hello(FrameKind::Node).await;
    for (when, bytes) in [
        ("before the hello", &[][..]),
        ("inside the hello", &valid[..valid.len() / 2]),
        ("after the hello", &valid[..]),
        ("inside a frame", &request[..request.len() - 1]),
        ("after a request", &request[..]),
    ] {
        let listener = TestListener::start().await;
        for _ in 0..=MAX_CONNECTIONS {
            let mut stream = listener.stream().await;
            stream.write_all(bytes).await.expect("the bytes fit into the send buffer");
            drop(stream);
        }
        listener.serves_a_node(&format!("callers that hung up {when}")).await;
        listener.end().await;
    }
}

/// A node may be silent for longer than a caller without a complete hello.
#[tokio::test]
async fn silent_callers_lose_their_connections() {
    let listener = TestListener::start().await;
    let mut node = connect(&listener.address, Lane::Urgent).await.expect("node 1 is admitted");
    let valid = bytes_of(hello(identity(1), 2, Lane::Request.code())).await;
    let mut silent = Vec::new();
    for number in 1..MAX_CONNECTIONS {
        let mut stream = listener.stream().await;
        let begun = &valid[..number % valid.len()];
        stream.write_all(begun).await.expect("the bytes fit into the send buffer");
        silent.push(stream);
    }
    // The listener accepts connections in order, so this one is above the limit.
    closed(listener.stream().await, "the caller above the limit").await;
    connect(&listener.address, Lane::Request).await.expect_err("the silent callers have all connections");
    tokio::time::pause();
    tokio::time::advance(HANDSHAKE_TIMEOUT + Duration::from_millis(1)).await;
    tokio::time::resume();
    for stream in silent {
        closed(stream, "a silent caller").await;
    }
    listener.serves_a_node("silent callers").await;
    assert_eq!(echoed(&mut node).await.expect("the connection of node 1 is open"), "hello");
    listener.end().await;
}
