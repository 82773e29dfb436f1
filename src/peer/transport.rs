//! The calling end: one connection for each node and lane. The first call opens it, and a call reopens it after it broke.
//!
//! A connection carries concurrent requests and matches answers to them by id.

use std::collections::{BTreeSet, HashMap};
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::io::BufReader;
use tokio::sync::{OwnedMutexGuard, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::dial;
use super::frame::{self, Frame, FrameKind};
use super::handshake::{self, Incarnations, PeerIdentity};
use super::{Lane, Payload, PeerError, Transport};
use crate::tls::{NodeTls, Reader, Stream, Writer};
use crate::types::NodeId;

/// Maximum time to open a connection and complete the handshake.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A [`Transport`] over TCP, with or without TLS.
#[derive(Clone)]
pub struct TcpTransport {
    pool: Arc<ConnectionPool>,
}

struct ConnectionPool {
    identity: PeerIdentity,
    incarnations: Arc<dyn Incarnations>,
    tls: Option<NodeTls>,
    slots: Mutex<HashMap<(NodeId, Lane), ConnectionSlot>>,
    unreachable: Mutex<BTreeSet<NodeId>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// An async mutex, so that concurrent callers wait for one connection attempt.
type ConnectionSlot = Arc<tokio::sync::Mutex<Option<Arc<Connection>>>>;

impl TcpTransport {
    pub fn new(identity: PeerIdentity, incarnations: Arc<dyn Incarnations>, tls: Option<NodeTls>) -> TcpTransport {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        TcpTransport {
            pool: Arc::new(ConnectionPool {
                identity,
                incarnations,
                tls,
                slots: Mutex::default(),
                unreachable: Mutex::default(),
                tasks,
                stop,
            }),
        }
    }

    async fn connection(&self, target: NodeId, address: &str, lane: Lane) -> Result<Arc<Connection>, PeerError> {
        let slot = self.pool.slots.lock().entry((target, lane)).or_default().clone();
        let slot = slot.lock_owned().await;
        if let Some(open) = slot.as_ref().filter(|open| !open.is_closed() && open.address() == address) {
            return Ok(open.clone());
        }
        // On a slow network, this takes more round trips than a call waits. So it continues without its caller.
        let opening = self.pool.tasks.spawn(self.clone().open(slot, target, address.to_owned(), lane));
        opening.await.unwrap_or_else(|error| {
            Err(PeerError::NotSent { target, address: address.to_string(), reason: error.to_string() })
        })
    }

    /// Opens a connection and keeps it in its slot.
    async fn open(
        self,
        mut slot: OwnedMutexGuard<Option<Arc<Connection>>>,
        target: NodeId,
        address: String,
        lane: Lane,
    ) -> Result<Arc<Connection>, PeerError> {
        let connected = self.connect(target, &address, lane).await;
        if lane == Lane::Control {
            self.log_change(target, connected.as_ref().err());
        }
        let connection = connected?;
        if let Some(old) = slot.replace(connection.clone()) {
            old.close();
        }
        // Drops the write half of the closed connection, even if no other call follows. The socket closes with it.
        let (slot, closing) = (OwnedMutexGuard::mutex(&slot).clone(), connection.clone());
        self.pool.tasks.spawn(async move {
            closing.closed.cancelled().await;
            drop(slot.lock().await.take_if(|kept| Arc::ptr_eq(kept, &closing)));
        });
        Ok(connection)
    }

    /// Logs once when a node becomes unreachable, and once when it is reached again.
    fn log_change(&self, target: NodeId, error: Option<&PeerError>) {
        if self.pool.stop.is_cancelled() {
            return;
        }
        let mut unreachable = self.pool.unreachable.lock();
        match error {
            Some(error) if unreachable.insert(target) => tracing::warn!(node = target, %error, "a node is unreachable"),
            None if unreachable.remove(&target) => tracing::info!(node = target, "a node is reachable again"),
            _ => {}
        }
    }

    async fn connect(&self, target: NodeId, address: &str, lane: Lane) -> Result<Arc<Connection>, PeerError> {
        let pool = &self.pool;
        let not_sent = |reason: String| PeerError::NotSent { target, address: address.to_string(), reason };
        let attempt = async {
            let stream = dial::connect_soon(address).await?;
            super::prepare(&stream)?;
            let mut stream = match &pool.tls {
                Some(tls) => tls.connect_peer(stream, target).await?,
                None => Stream::Plain(stream),
            };
            let outcome = handshake::call(&mut stream, &pool.identity, target, lane, &*pool.incarnations).await?;
            io::Result::Ok((stream, outcome))
        };
        let attempted = tokio::select! {
            biased;
            () = pool.stop.cancelled() => return Err(not_sent("this node is shutting down".into())),
            attempted = tokio::time::timeout(CONNECT_TIMEOUT, attempt) => attempted,
        };
        let (stream, outcome) = match attempted {
            Ok(Ok(opened)) => opened,
            Ok(Err(error)) => return Err(not_sent(error.to_string())),
            Err(_) => return Err(not_sent(format!("no connection within {CONNECT_TIMEOUT:?}"))),
        };
        outcome.map_err(|reason| PeerError::Refused { target, address: address.to_string(), reason })?;
        Ok(Connection::start(stream, address, lane, &pool.tasks, &pool.stop))
    }
}

impl Transport for TcpTransport {
    async fn call(
        &self,
        target: NodeId,
        address: &str,
        lane: Lane,
        payload: Payload,
        timeout: Duration,
    ) -> Result<Bytes, PeerError> {
        lane.check_request(target, &payload)?;
        let began = Instant::now();
        let deadline = began + timeout;
        let timed_out = || PeerError::Timeout { target, timeout };
        let is_raft = matches!(payload, Payload::Raft(_));
        let connection = match tokio::time::timeout_at(deadline, self.connection(target, address, lane)).await {
            Ok(connection) => connection?,
            Err(_) => {
                let reason = format!("no connection within {timeout:?}");
                return Err(PeerError::NotSent { target, address: address.to_string(), reason });
            }
        };
        match tokio::time::timeout_at(deadline, connection.call(payload)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(ConnectionError::BeforeSending(reason))) => {
                Err(PeerError::NotSent { target, address: address.to_string(), reason })
            }
            Ok(Err(ConnectionError::AfterSending(reason))) => Err(PeerError::Lost { target, reason }),
            Ok(Err(ConnectionError::NoAnswer(reason))) => Err(PeerError::NoAnswer { target, reason }),
            Err(_) => {
                // After a partition the kernel can retry for minutes on the old connection, so open a new one. But a
                // connection that was opened meanwhile had less time for the answer. And a question about a node can have
                // less time than a round trip, beside Raft's calls.
                let is_broken = if is_raft { connection.opened <= began } else { connection.is_silent() };
                if !matches!(lane, Lane::Request | Lane::Urgent) && is_broken {
                    connection.close();
                }
                Err(timed_out())
            }
        }
    }

    async fn is_refused(&self, _: NodeId, address: &str) -> bool {
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, dial::connect(address)).await;
        matches!(connected, Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused)
    }

    async fn shutdown(&self) {
        self.pool.stop.cancel();
        self.pool.tasks.close();
        self.pool.tasks.wait().await;
    }
}

/// One connection to another node.
struct Connection {
    address: String,
    opened: Instant,
    /// Time of the last frame from the other end.
    heard: Mutex<Instant>,
    next_id: AtomicU64,
    writer: Arc<tokio::sync::Mutex<Writer>>,
    waiting: Mutex<HashMap<u64, oneshot::Sender<CallResult>>>,
    /// Cancelled when the connection closes: later sends fail, and waiting calls return.
    closed: CancellationToken,
    tasks: TaskTracker,
}

/// The answer to a call, or the reason why the other end cannot send it.
type CallResult = Result<Bytes, String>;

/// The reason why a call on a connection has no answer.
#[derive(Debug)]
enum ConnectionError {
    BeforeSending(String),
    AfterSending(String),
    /// The connection stays usable.
    NoAnswer(String),
}

impl Connection {
    /// Starts to read answers after the handshake. The reader runs in `tasks` until the connection breaks or `stop`.
    fn start(
        stream: Stream,
        address: &str,
        lane: Lane,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Arc<Connection> {
        let (reader, writer) = stream.into_split();
        let connection = Arc::new(Connection {
            address: address.to_string(),
            opened: Instant::now(),
            heard: Mutex::new(Instant::now()),
            next_id: AtomicU64::new(0),
            writer: Arc::new(tokio::sync::Mutex::new(writer)),
            waiting: Mutex::default(),
            closed: stop.child_token(),
            tasks: tasks.clone(),
        });
        tasks.spawn(connection.clone().read_answers(reader, lane));
        connection
    }

    fn address(&self) -> &str {
        &self.address
    }

    fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Whether the other end has sent nothing for longer than a connection takes to open.
    fn is_silent(&self) -> bool {
        self.heard.lock().elapsed() >= CONNECT_TIMEOUT
    }

    fn close(&self) {
        self.closed.cancel();
    }

    /// Sends one request and waits for its answer. Dropping the future before the answer withdraws the request.
    async fn call(self: &Arc<Self>, payload: Payload) -> Result<Bytes, ConnectionError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        self.waiting.lock().insert(id, answer);
        let mut pending = PendingCall { connection: self, id, sent: false };
        let before_sending = |error: io::Error| ConnectionError::BeforeSending(error.to_string());
        let writer = self.turn().await.map_err(before_sending)?;
        pending.sent = true;
        if let Err(error) = self.clone().send(writer, Frame::request(id, payload)).await {
            pending.sent = false;
            return Err(before_sending(error));
        }
        let answer = tokio::select! {
            biased;
            answer = answered => answer.ok(),
            () = self.closed.cancelled() => None,
        };
        pending.sent = false;
        let answer = answer.ok_or_else(|| ConnectionError::AfterSending("the connection closed".into()))?;
        answer.map_err(ConnectionError::NoAnswer)
    }

    /// Waits until no other frame is being written.
    async fn turn(&self) -> io::Result<OwnedMutexGuard<Writer>> {
        let writer = tokio::select! {
            biased;
            () = self.closed.cancelled() => return Err(io::ErrorKind::NotConnected.into()),
            writer = self.writer.clone().lock_owned() => writer,
        };
        // The frame before this one may have been cut in the meantime.
        if self.is_closed() { Err(io::ErrorKind::NotConnected.into()) } else { Ok(writer) }
    }

    /// Sends a frame. Dropping the future does not stop the write, so that it disturbs no other call.
    async fn send(self: Arc<Self>, writer: OwnedMutexGuard<Writer>, frame: Frame) -> io::Result<()> {
        let tasks = self.tasks.clone();
        let mut writing = Box::pin(self.write(writer, frame));
        match poll_fn(|context| Poll::Ready(writing.as_mut().poll(context))).await {
            Poll::Ready(written) => written,
            // The kernel does not take the whole frame now.
            Poll::Pending => tasks.spawn(writing).await.unwrap_or_else(|error| Err(io::Error::other(error))),
        }
    }

    /// Writes a whole frame or closes the connection: a partial frame would corrupt all frames after it.
    async fn write(self: Arc<Self>, mut writer: OwnedMutexGuard<Writer>, frame: Frame) -> io::Result<()> {
        // It closes before the next frame gets its turn.
        let close_unless_done = self.closed.clone().drop_guard();
        tokio::select! {
            // A frame that is written completely counts as sent.
            biased;
            written = frame::write(&mut *writer, &frame) => written?,
            () = self.closed.cancelled() => return Err(io::ErrorKind::NotConnected.into()),
        }
        close_unless_done.disarm();
        Ok(())
    }

    fn answered(&self, id: u64, answer: CallResult) {
        if let Some(waiting) = self.waiting.lock().remove(&id) {
            // The caller may have dropped its future.
            let _ = waiting.send(answer);
        }
    }

    async fn read_answers(self: Arc<Self>, reader: Reader, lane: Lane) {
        let mut reader = BufReader::with_capacity(64 << 10, reader);
        let _closed_at_the_end = self.closed.clone().drop_guard();
        loop {
            let frame = tokio::select! {
                biased;
                () = self.closed.cancelled() => break,
                frame = frame::read(&mut reader, lane.max_body()) => frame,
            };
            if let Ok(Some(_)) = &frame {
                *self.heard.lock() = Instant::now();
            }
            match frame {
                Ok(Some(Frame { kind: FrameKind::Response, id, body })) => self.answered(id, Ok(body)),
                Ok(Some(Frame { kind: FrameKind::NoAnswer, id, body })) => {
                    self.answered(id, Err(String::from_utf8_lossy(&body).into_owned()));
                }
                Ok(Some(frame)) => {
                    let kind = frame.kind;
                    tracing::warn!(
                        peer = self.address,
                        ?kind,
                        "the answering node sent a frame that only callers send"
                    );
                    break;
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(peer = self.address, %error, "peer connection lost");
                    break;
                }
            }
        }
        self.waiting.lock().clear();
    }
}

/// A call in flight. If it is dropped after its frame has begun and before the answer, it sends a withdrawal.
struct PendingCall<'a> {
    connection: &'a Arc<Connection>,
    id: u64,
    sent: bool,
}

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        self.connection.waiting.lock().remove(&self.id);
        if self.sent && !self.connection.is_closed() {
            // Without a runtime the node is shutting down, and the closed connection ends the request.
            let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
            let (connection, id) = (self.connection.clone(), self.id);
            let withdraw = Frame { kind: FrameKind::Withdraw, id, body: Bytes::new() };
            let send = async move { connection.clone().send(connection.turn().await?, withdraw).await };
            self.connection.tasks.spawn_on(send, &runtime);
        }
    }
}

#[cfg(all(test, feature = "cli"))]
mod tests {
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::JoinHandle;

    use super::*;
    use crate::telemetry::tests::capture;

    struct AcceptAll;

    impl Incarnations for AcceptAll {
        fn joined(&self, _: NodeId) -> Option<u64> {
            None
        }

        fn is_removed(&self, _: NodeId) -> bool {
            false
        }

        fn observe(&self, _: NodeId, _: u64) {}
    }

    #[tokio::test]
    async fn reachability_change_is_logged_once() {
        let (written, _logged_here) = capture();
        let vote_lease = Duration::from_secs(1);
        let identity = PeerIdentity { cluster: "test".to_owned(), node: 1, incarnation: 1, vote_lease };
        let transport = TcpTransport::new(identity, Arc::new(AcceptAll), None);
        for lane in [Lane::Control, Lane::Control, Lane::Log, Lane::Control] {
            let closed = transport.connection(2, "127.0.0.1:1", lane).await;
            assert!(matches!(closed, Err(PeerError::NotSent { .. })));
        }
        transport.log_change(2, None);
        transport.log_change(2, None);
        transport.shutdown().await;
        let lines = written.text();
        let count = |words: &str| lines.lines().filter(|line| line.contains(words)).count();
        assert_eq!((count("a node is unreachable"), count("a node is reachable again")), (1, 1), "{lines}");
    }

    #[tokio::test]
    async fn request_above_the_lane_limit_is_not_sent() {
        let vote_lease = Duration::from_secs(1);
        let identity = PeerIdentity { cluster: "test".to_owned(), node: 1, incarnation: 1, vote_lease };
        let transport = TcpTransport::new(identity, Arc::new(AcceptAll), None);
        for lane in [Lane::Control, Lane::Log, Lane::Snapshot, Lane::Request, Lane::Urgent] {
            let body = Payload::Raft(vec![0; lane.max_body() + 1].into());
            let error =
                transport.call(2, "127.0.0.1:1", lane, body, vote_lease).await.expect_err("the body is too large");
            assert!(error.certainly_not_done() && error.to_string().contains("are allowed"), "{error}");
        }
    }

    async fn received(far: &mut TcpStream) -> u64 {
        frame::read(far, Lane::Request.max_body()).await.expect("readable").expect("the connection is open").id
    }

    #[tokio::test]
    async fn ended_calls_leave_no_entry() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("the listener is bound").to_string();
        let near = TcpStream::connect(&address).await.expect("the listener accepts connections");
        let (mut far, _) = listener.accept().await.expect("a connection");
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let connection = Connection::start(Stream::Plain(near), &address, Lane::Request, &tasks, &stop);
        let call = || -> JoinHandle<Result<Bytes, ConnectionError>> {
            let connection = connection.clone();
            tokio::spawn(async move { connection.call(Payload::Node("hello".into())).await })
        };
        let waiting = || connection.waiting.lock().len();

        let answered = call();
        let id = received(&mut far).await;
        assert_eq!(waiting(), 1);
        let answer = Frame { kind: FrameKind::Response, id, body: Bytes::new() };
        frame::write(&mut far, &answer).await.expect("the connection is open");
        answered.await.expect("no panic").expect("an answer");
        assert_eq!(waiting(), 0, "answered");

        let dropped = call();
        let id = received(&mut far).await;
        dropped.abort();
        assert_eq!(received(&mut far).await, id, "the withdrawal");
        assert_eq!(waiting(), 0, "dropped");

        let lost = call();
        received(&mut far).await;
        connection.close();
        let lost = lost.await.expect("no panic");
        assert!(matches!(lost, Err(ConnectionError::AfterSending(_))), "{lost:?}");
        let refused = connection.call(Payload::Node("hello".into())).await;
        assert!(matches!(refused, Err(ConnectionError::BeforeSending(_))), "{refused:?}");
        assert_eq!(waiting(), 0, "closed");
        stop.cancel();
        tasks.close();
        tokio::time::timeout(Duration::from_secs(20), tasks.wait()).await.expect("all tasks end");
    }
}
