//! The calling end of one connection. It carries concurrent requests and matches answers to them by id.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Lane;
use super::frame::{self, Frame, Kind};

pub struct Connection {
    address: String,
    next_id: AtomicU64,
    writer: tokio::sync::Mutex<OwnedWriteHalf>,
    waiting: Mutex<HashMap<u64, oneshot::Sender<CallResult>>>,
    /// Cancelled when the connection closes: later sends fail, and waiting calls return.
    closed: CancellationToken,
    tasks: TaskTracker,
}

/// The answer to a call, or the reason why the other end cannot send it.
type CallResult = Result<Bytes, String>;

/// The reason why a call on a connection has no answer.
#[derive(Debug)]
pub enum ConnectionError {
    BeforeSending(String),
    AfterSending(String),
    /// The connection stays usable.
    NoAnswer(String),
}

impl Connection {
    /// Starts to read answers after the handshake. The reader runs in `tasks` until the connection breaks or `stop`.
    pub fn start(
        stream: TcpStream,
        address: &str,
        lane: Lane,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Arc<Connection> {
        let (reader, writer) = stream.into_split();
        let connection = Arc::new(Connection {
            address: address.to_string(),
            next_id: AtomicU64::new(0),
            writer: tokio::sync::Mutex::new(writer),
            waiting: Mutex::default(),
            closed: stop.child_token(),
            tasks: tasks.clone(),
        });
        tasks.spawn(connection.clone().read_answers(reader, lane));
        connection
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    pub fn close(&self) {
        self.closed.cancel();
    }

    /// Sends one request and waits for its answer. Dropping the future after the send withdraws the request.
    pub async fn call(self: &Arc<Self>, body: Bytes) -> Result<Bytes, ConnectionError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        self.waiting.lock().insert(id, answer);
        let mut pending = PendingCall { connection: self, id, sent: false };
        self.send(Frame { kind: Kind::Request, id, body })
            .await
            .map_err(|e| ConnectionError::BeforeSending(e.to_string()))?;
        pending.sent = true;
        let answer = tokio::select! {
            biased;
            answer = answered => answer.ok(),
            () = self.closed.cancelled() => None,
        };
        pending.sent = false;
        let answer = answer.ok_or_else(|| ConnectionError::AfterSending("the connection closed".into()))?;
        answer.map_err(ConnectionError::NoAnswer)
    }

    /// Writes a whole frame or closes the connection: a partial frame would corrupt all frames after it.
    async fn send(&self, frame: Frame) -> io::Result<()> {
        let mut writer = tokio::select! {
            biased;
            () = self.closed.cancelled() => return Err(io::ErrorKind::NotConnected.into()),
            writer = self.writer.lock() => writer,
        };
        let close_unless_done = self.closed.clone().drop_guard();
        frame::write(&mut *writer, &frame).await?;
        close_unless_done.disarm();
        Ok(())
    }

    fn answered(&self, id: u64, answer: CallResult) {
        if let Some(waiting) = self.waiting.lock().remove(&id) {
            // The caller may have dropped its future.
            let _ = waiting.send(answer);
        }
    }

    async fn read_answers(self: Arc<Self>, reader: OwnedReadHalf, lane: Lane) {
        let mut reader = BufReader::with_capacity(64 << 10, reader);
        let _closed_at_the_end = self.closed.clone().drop_guard();
        loop {
            let frame = tokio::select! {
                biased;
                () = self.closed.cancelled() => break,
                frame = frame::read(&mut reader, lane.max_body()) => frame,
            };
            match frame {
                Ok(Some(Frame { kind: Kind::Response, id, body })) => self.answered(id, Ok(body)),
                Ok(Some(Frame { kind: Kind::NoAnswer, id, body })) => {
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

/// A call in flight. If it is dropped between the send and the answer, it sends a withdrawal to the other end.
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
            let withdraw = Frame { kind: Kind::Withdraw, id, body: Bytes::new() };
            self.connection.tasks.spawn_on(async move { connection.send(withdraw).await }, &runtime);
        }
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use std::time::Duration;

    use tokio::net::TcpListener;
    use tokio::task::JoinHandle;

    use super::*;

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
        let connection = Connection::start(near, &address, Lane::Request, &tasks, &stop);
        let call = || -> JoinHandle<Result<Bytes, ConnectionError>> {
            let connection = connection.clone();
            tokio::spawn(async move { connection.call("hello".into()).await })
        };
        let waiting = || connection.waiting.lock().len();

        let answered = call();
        let id = received(&mut far).await;
        assert_eq!(waiting(), 1);
        let answer = Frame { kind: Kind::Response, id, body: Bytes::new() };
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
        let refused = connection.call("hello".into()).await;
        assert!(matches!(refused, Err(ConnectionError::BeforeSending(_))), "{refused:?}");
        assert_eq!(waiting(), 0, "closed");
        stop.cancel();
        tasks.close();
        tokio::time::timeout(Duration::from_secs(20), tasks.wait()).await.expect("all tasks end");
    }
}
