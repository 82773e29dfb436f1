//! One connection for each node and lane. The first call opens it, and a call reopens it after it broke.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connection::{Connection, ConnectionError};
use super::handshake::{self, Identity, Incarnations};
use super::{Lane, PeerError, Transport};
use crate::types::NodeId;

/// Maximum time to open a connection and complete the handshake.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A [`Transport`] over TCP.
#[derive(Clone)]
pub struct TcpTransport {
    pool: Arc<ConnectionPool>,
}

struct ConnectionPool {
    identity: Identity,
    incarnations: Arc<dyn Incarnations>,
    slots: Mutex<HashMap<(NodeId, Lane), ConnectionSlot>>,
    unreachable: Mutex<BTreeSet<NodeId>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// An async mutex, so that concurrent callers wait for one connection attempt.
type ConnectionSlot = Arc<tokio::sync::Mutex<Option<Arc<Connection>>>>;

impl TcpTransport {
    pub fn new(identity: Identity, incarnations: Arc<dyn Incarnations>) -> TcpTransport {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        TcpTransport {
            pool: Arc::new(ConnectionPool {
                identity,
                incarnations,
                slots: Mutex::default(),
                unreachable: Mutex::default(),
                tasks,
                stop,
            }),
        }
    }

    async fn connection(&self, target: NodeId, address: &str, lane: Lane) -> Result<Arc<Connection>, PeerError> {
        let slot = self.pool.slots.lock().entry((target, lane)).or_default().clone();
        let mut slot = slot.lock().await;
        if let Some(open) = slot.as_ref().filter(|open| !open.is_closed() && open.address() == address) {
            return Ok(open.clone());
        }
        let connected = self.connect(target, address, lane).await;
        if lane == Lane::Control {
            self.log_change(target, connected.as_ref().err());
        }
        let connection = connected?;
        if let Some(old) = slot.replace(connection.clone()) {
            old.close();
        }
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
        if pool.stop.is_cancelled() {
            return Err(not_sent("this node is shutting down".into()));
        }
        let attempt = async {
            let mut stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let outcome = handshake::call(&mut stream, &pool.identity, target, lane, &*pool.incarnations).await?;
            io::Result::Ok((stream, outcome))
        };
        let (stream, outcome) = match tokio::time::timeout(CONNECT_TIMEOUT, attempt).await {
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
        body: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, PeerError> {
        lane.check_request(target, &body)?;
        let deadline = tokio::time::Instant::now() + timeout;
        let timed_out = || PeerError::Timeout { target, timeout };
        let connection = match tokio::time::timeout_at(deadline, self.connection(target, address, lane)).await {
            Ok(connection) => connection?,
            Err(_) => {
                let reason = format!("no connection within {timeout:?}");
                return Err(PeerError::NotSent { target, address: address.to_string(), reason });
            }
        };
        match tokio::time::timeout_at(deadline, connection.call(body)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(ConnectionError::BeforeSending(reason))) => {
                Err(PeerError::NotSent { target, address: address.to_string(), reason })
            }
            Ok(Err(ConnectionError::AfterSending(reason))) => Err(PeerError::Lost { target, reason }),
            Ok(Err(ConnectionError::NoAnswer(reason))) => Err(PeerError::NoAnswer { target, reason }),
            Err(_) => {
                // After a partition the kernel can retry for minutes on the old connection, so open a new one.
                if !matches!(lane, Lane::Request | Lane::Urgent) {
                    connection.close();
                }
                Err(timed_out())
            }
        }
    }

    async fn shutdown(&self) {
        self.pool.stop.cancel();
        self.pool.tasks.close();
        self.pool.tasks.wait().await;
        // Drop the write halves. The readers have ended.
        self.pool.slots.lock().clear();
    }
}

#[cfg(all(test, feature = "cli"))]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no holder panics").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct AcceptAll;

    impl Incarnations for AcceptAll {
        fn are_read(&self) -> bool {
            true
        }

        fn joined(&self, _: NodeId) -> Option<u64> {
            None
        }

        fn observe(&self, _: NodeId, _: u64) {}
    }

    #[tokio::test]
    async fn reachability_change_is_logged_once() {
        let written = Lines::default();
        let lines = written.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || lines.clone()).with_ansi(false).finish();
        let _logged_here = tracing::subscriber::set_default(subscriber);
        let promise = Duration::from_secs(1);
        let identity = Identity { cluster: "test".to_owned(), node: 1, incarnation: 1, promise };
        let transport = TcpTransport::new(identity, Arc::new(AcceptAll));
        for lane in [Lane::Control, Lane::Control, Lane::Log, Lane::Control] {
            let closed = transport.connection(2, "127.0.0.1:1", lane).await;
            assert!(matches!(closed, Err(PeerError::NotSent { .. })));
        }
        transport.log_change(2, None);
        transport.log_change(2, None);
        transport.shutdown().await;
        let lines =
            String::from_utf8(written.0.lock().expect("no holder panics").clone()).expect("log lines are UTF-8");
        let count = |words: &str| lines.lines().filter(|line| line.contains(words)).count();
        assert_eq!((count("a node is unreachable"), count("a node is reachable again")), (1, 1), "{lines}");
    }

    #[tokio::test]
    async fn request_above_the_lane_limit_is_not_sent() {
        let promise = Duration::from_secs(1);
        let identity = Identity { cluster: "test".to_owned(), node: 1, incarnation: 1, promise };
        let transport = TcpTransport::new(identity, Arc::new(AcceptAll));
        for lane in [Lane::Control, Lane::Log, Lane::Snapshot, Lane::Request, Lane::Urgent] {
            let body = Bytes::from(vec![0; lane.max_body() + 1]);
            let error = transport.call(2, "127.0.0.1:1", lane, body, promise).await.expect_err("the body is too large");
            assert!(error.certainly_not_done() && error.to_string().contains("are allowed"), "{error}");
        }
    }
}
