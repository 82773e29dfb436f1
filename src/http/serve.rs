//! Connections of the public listener.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use metrics::{counter, gauge};
use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinError, JoinSet};
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use tracing::{debug, error, warn};

use super::app::{App, Settings};
use super::auth::Peer;
use super::routes::standalone_router;
use super::socket::Socket;
use super::{NodeRef, observe};
use crate::accept::Acceptor;
use crate::api::{Code, NODE_HEADER, Problem};
use crate::tls::{Handshake, NodeTls, Stream};
use crate::types::NodeId;

/// TCP keep-alive: idle time before the first probe, time between probes, and number of probes without a reply.
const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(15);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEP_ALIVE_PROBES: u32 = 3;
/// Connections above the limit that get a complete 503 response at the same time, and the timeout for each of its
/// steps. Further connections are closed at once.
const MAX_REJECTIONS: usize = 64;
const REJECTION_TIMEOUT: Duration = Duration::from_secs(1);
/// The listener accepts every request head up to this size, in bytes. One read can exceed it, so the listener may
/// accept a head of up to twice this size.
const MAX_HEAD_BYTES: usize = 32 * 1024;

/// The largest number of connections that the kernel completes before the listener accepts them: `net.core.somaxconn`
/// bounds it. The standard library asks for 128. The clients of a lost node connect at once, and a client that finds no
/// place tries again after a second.
const ACCEPT_QUEUE: i32 = i32::MAX;

/// The header `retry-after` of the response on a connection above the limit, in seconds.
const REJECTION_RETRY_SECONDS: u64 = 1;

/// Serves requests until `shutdown` is cancelled, and returns when the last connection has completed its request.
///
/// The node's shutdown ends a request that waits for a lease; `shutdown` ends a watch. The metrics go to the recorder
/// that is installed at the time of the call.
///
/// # Cancel safety
///
/// If the future is dropped, all connections close at once. A caller can bound the shutdown time this way.
pub async fn serve(listener: TcpListener, node: NodeRef, mut settings: Settings, shutdown: CancellationToken) {
    if let Err(error) = rustix::net::listen(&listener, ACCEPT_QUEUE) {
        warn!(%error, "the queue of new connections keeps its length");
    }
    let address = listener.local_addr().ok().map(|address| address.ip());
    settings.require_identity = Some(requires_identity(settings.require_identity, settings.tls.is_some(), address));
    let permits = Arc::new(Semaphore::new(settings.limits.max_connections));
    let rejections = Arc::new(Semaphore::new(MAX_REJECTIONS));
    let rejection = too_many_connections(settings.node);
    let timeouts = ConnectionTimeouts { head: settings.head_timeout, write: settings.write_timeout };
    let tls = settings.tls.clone();
    let router = standalone_router(App::new(node, settings, shutdown.clone()));
    let mut connections = JoinSet::new();
    let mut acceptor = Acceptor::new(&listener, "connection");
    loop {
        let (stream, from) = tokio::select! {
            () = shutdown.cancelled() => break,
            Some(ended) = connections.join_next() => {
                report(ended);
                continue;
            }
            accepted = acceptor.next() => accepted,
        };
        match permits.clone().try_acquire_owned() {
            Ok(permit) => {
                connections.spawn(connection(
                    stream,
                    from.ip(),
                    tls.clone(),
                    router.clone(),
                    timeouts,
                    shutdown.clone(),
                    permit,
                ));
            }
            Err(_) => {
                counter!("tenure_http_connections_refused_total").increment(1);
                match rejections.clone().try_acquire_owned() {
                    Ok(permit) => {
                        connections.spawn(reject(stream, tls.clone(), rejection.clone(), shutdown.clone(), permit));
                    }
                    // The send buffer of a new socket is empty, so the write is complete unless the peer is gone.
                    Err(_) if tls.is_none() => _ = stream.try_write(&rejection),
                    // The response would need a handshake.
                    Err(_) => {}
                }
            }
        }
    }
    drop(listener);
    while let Some(ended) = connections.join_next().await {
        report(ended);
    }
}

/// Whether a listener at this address refuses clients that neither a certificate nor access control identifies.
fn requires_identity(setting: Option<bool>, has_tls: bool, address: Option<IpAddr>) -> bool {
    setting.unwrap_or(has_tls && !address.is_some_and(|address| address.is_loopback()))
}

#[derive(Clone, Copy)]
struct ConnectionTimeouts {
    head: Duration,
    write: Duration,
}

async fn connection(
    stream: TcpStream,
    address: IpAddr,
    tls: Option<NodeTls>,
    router: Router,
    timeouts: ConnectionTimeouts,
    shutdown: CancellationToken,
    _permit: OwnedSemaphorePermit,
) {
    let open = observe::GaugeGuard::new(gauge!("tenure_http_connections"));
    // A response is one small write. With Nagle's algorithm it would wait for the acknowledgement of the previous one.
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%error, "cannot set TCP_NODELAY");
    }
    if let Err(error) = set_keep_alive(&stream, timeouts.write) {
        debug!(%error, "cannot set TCP keep-alive and TCP_USER_TIMEOUT");
    }
    let encrypted = tokio::select! {
        encrypted = tokio::time::timeout(timeouts.head, encrypt(stream, tls.as_ref())) => encrypted,
        () = shutdown.cancelled() => return,
    };
    let stream = match encrypted {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return debug!(%error, "connection ended"),
        Err(_) => return,
    };
    let has_certificate = stream.certificate().is_some();
    let certificate = tls.as_ref().zip(stream.certificate()).and_then(|(tls, cert)| tls.client_name(cert));
    let client = stream.socket().client();
    let peer = Arc::new(Peer { address, has_certificate, certificate, client });
    let router = router.map_request(move |mut request: axum::http::Request<_>| {
        request.extensions_mut().insert(peer.clone());
        request
    });
    // The timeout applies only while the client reads nothing: a slow reader is served.
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(timeouts.write));
    let stream = Box::pin(stream);
    let mut connection = std::pin::pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(timeouts.head)
            .max_buf_size(MAX_HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
    );
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    // A client that disconnects early is normal, so this is no warning.
    if let Err(error) = ended {
        debug!(%error, "connection ended");
    }
    drop(open);
}

/// Completes the TLS handshake. A client without TLS gets a response that says so, unless the node serves it.
async fn encrypt(mut stream: TcpStream, tls: Option<&NodeTls>) -> io::Result<Stream<Socket>> {
    let Some(tls) = tls else { return Ok(Stream::Plain(Socket::new(stream))) };
    if tls.is_offered(&stream).await? {
        let handshake = Handshake::begin("http");
        let stream = tls.accept_client(Socket::new(stream)).await?;
        handshake.complete();
        return Ok(stream);
    }
    if tls.accepts_plain() {
        return Ok(Stream::Plain(Socket::new(stream)));
    }
    counter!("tenure_tls_handshakes_failed_total", "listener" => "http").increment(1);
    let refusal = Problem::new(Code::Invalid, "this node requires TLS: use an https URL");
    let headers = format!("{NODE_HEADER}: {}\r\n", tls.node());
    respond_unread(&mut stream, &response_bytes("400 Bad Request", &headers, &refusal)).await?;
    Err(io::Error::new(io::ErrorKind::InvalidData, "a request without TLS"))
}

/// Lets the kernel close two kinds of connections that the server cannot detect:
///
/// - The client is gone without a FIN. A claim of such a client would stay in the queue. Keep-alive probes find it.
/// - The client does not read, but the whole response fits into the send buffer. `TCP_USER_TIMEOUT` finds it.
fn set_keep_alive(stream: &TcpStream, write_timeout: Duration) -> io::Result<()> {
    set_socket_keepalive(stream, true)?;
    set_tcp_keepidle(stream, KEEP_ALIVE_AFTER)?;
    set_tcp_keepintvl(stream, KEEP_ALIVE_INTERVAL)?;
    set_tcp_keepcnt(stream, KEEP_ALIVE_PROBES)?;
    #[cfg(target_os = "linux")]
    rustix::net::sockopt::set_tcp_user_timeout(stream, write_timeout.as_millis() as u32)?;
    Ok(())
}

/// The response of this node on a connection above the limit. The listener never reads the request, so it is certainly
/// not applied.
fn too_many_connections(node: NodeId) -> Bytes {
    let problem = Problem {
        retry_after_ms: Some(REJECTION_RETRY_SECONDS * 1_000),
        ..Problem::new(Code::NotReady, "the node has as many connections as it takes")
    };
    let headers = format!("{NODE_HEADER}: {node}\r\nretry-after: {REJECTION_RETRY_SECONDS}\r\n");
    response_bytes("503 Service Unavailable", &headers, &problem)
}

fn response_bytes(status: &str, headers: &str, problem: &Problem) -> Bytes {
    let body = serde_json::to_string(problem).expect("API types have string keys and finite numbers");
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/problem+json\r\n{headers}connection: close\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    Bytes::from(head + &body)
}

/// Sends `rejection` after the first byte of the request, and reads the request before it closes.
///
/// HTTP clients treat a response before the request as an error. If unread bytes remain at the close, the kernel sends
/// a reset, and the client may not see the response.
async fn reject(
    stream: TcpStream,
    tls: Option<NodeTls>,
    rejection: Bytes,
    shutdown: CancellationToken,
    _permit: OwnedSemaphorePermit,
) {
    let rejected = async {
        // After the timeout, a client that has sent nothing gets the response, too.
        let _ = tokio::time::timeout(REJECTION_TIMEOUT, stream.peek(&mut [0])).await;
        let encrypted = tokio::time::timeout(REJECTION_TIMEOUT, encrypt(stream, tls.as_ref())).await;
        let mut stream = encrypted.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        respond_unread(&mut stream, &rejection).await
    };
    tokio::select! {
        // An error means that the client has disconnected.
        _ = rejected => {}
        () = shutdown.cancelled() => {}
    }
}

/// Sends a response to a request that is not read, and closes the connection.
async fn respond_unread<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, response: &[u8]) -> io::Result<()> {
    stream.write_all(response).await?;
    stream.shutdown().await?;
    let mut unread = tokio::io::sink();
    let _ = tokio::time::timeout(REJECTION_TIMEOUT, tokio::io::copy(stream, &mut unread)).await;
    Ok(())
}

fn report(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        error!(%error, "a connection's task panicked");
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
    use rustix::net::sockopt::{socket_keepalive, tcp_keepcnt, tcp_keepidle, tcp_keepintvl};
    use tokio::io::AsyncReadExt;
    use tokio::task::JoinHandle;

    use super::*;
    use crate::tls::tests::Authority;

    /// A timeout that only a hang exceeds.
    const HANG_TIMEOUT: Duration = Duration::from_secs(20);

    /// Starts the listener of node 1 with TLS. The node never starts.
    async fn listen(
        ca: &Authority,
        change: impl FnOnce(&mut Settings),
    ) -> (SocketAddr, CancellationToken, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("the listener is bound");
        let mut settings = Settings::new(1);
        settings.tls = Some(ca.node("a", 1));
        change(&mut settings);
        let shutdown = CancellationToken::new();
        let served = tokio::spawn(serve(listener, NodeRef::empty(), settings, shutdown.clone()));
        (address, shutdown, served)
    }

    /// Waits until the metrics have this line.
    async fn until(render: &PrometheusHandle, line: &str) {
        let reached = async {
            while !render.render().lines().any(|found| found == line) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let reached = tokio::time::timeout(HANG_TIMEOUT, reached).await;
        assert!(reached.is_ok(), "no line {line:?} in\n{}", render.render());
    }

    /// Sends a request with TLS until it has an answer, and returns the first bytes of it.
    async fn answer_in_tls(client: &NodeTls, address: SocketAddr) -> [u8; 12] {
        kept_answer_in_tls(client, address).await.0
    }

    /// The same, with the open connection.
    async fn kept_answer_in_tls(client: &NodeTls, address: SocketAddr) -> ([u8; 12], Stream) {
        let ask = async || -> io::Result<([u8; 12], Stream)> {
            let mut stream = client.connect_peer(TcpStream::connect(address).await?, 1).await?;
            stream.write_all(b"GET /livez HTTP/1.1\r\nhost: t\r\n\r\n").await?;
            let mut answer = [0; 12];
            stream.read_exact(&mut answer).await?;
            Ok((answer, stream))
        };
        let asking = async {
            loop {
                // A busy machine may need longer for a handshake than the listener waits.
                match ask().await {
                    Ok(answer) => return answer,
                    Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        };
        tokio::time::timeout(HANG_TIMEOUT, asking).await.expect("an answer in TLS")
    }

    #[tokio::test]
    async fn refusal_of_an_excess_connection_is_in_tls() {
        let ca = Authority::new();
        let (address, shutdown, served) = listen(&ca, |settings| settings.limits.max_connections = 0).await;
        assert_eq!(&answer_in_tls(&ca.node("a", 2), address).await, b"HTTP/1.1 503");
        shutdown.cancel();
        served.await.expect("no panic");
    }

    /// The limit is of refusals at the same time.
    #[tokio::test]
    async fn each_of_many_refused_clients_has_an_answer() {
        let ca = Authority::new();
        let client = ca.node("a", 2);
        let (address, shutdown, served) = listen(&ca, |settings| settings.limits.max_connections = 0).await;
        for number in 0..=MAX_REJECTIONS {
            assert_eq!(&answer_in_tls(&client, address).await, b"HTTP/1.1 503", "client {number}");
        }
        shutdown.cancel();
        served.await.expect("no panic");
    }

    /// Clients that keep their connections after the refusal.
    #[tokio::test]
    async fn refused_clients_that_stay_leave_room_for_others() {
        let ca = Authority::new();
        let client = ca.node("a", 2);
        let (address, shutdown, served) = listen(&ca, |settings| settings.limits.max_connections = 0).await;
        let mut kept = Vec::new();
        for number in 0..=MAX_REJECTIONS {
            let (answer, stream) = kept_answer_in_tls(&client, address).await;
            assert_eq!(&answer, b"HTTP/1.1 503", "client {number}");
            kept.push(stream);
        }
        shutdown.cancel();
        served.await.expect("no panic");
    }

    #[tokio::test]
    async fn silent_excess_clients_leave_room_for_others() {
        let ca = Authority::new();
        let (address, shutdown, served) = listen(&ca, |settings| settings.limits.max_connections = 0).await;
        let mut silent = Vec::new();
        for _ in 0..MAX_REJECTIONS {
            silent.push(TcpStream::connect(address).await.expect("it listens"));
        }
        assert_eq!(&answer_in_tls(&ca.node("a", 2), address).await, b"HTTP/1.1 503");
        shutdown.cancel();
        served.await.expect("no panic");
    }

    #[tokio::test]
    async fn silent_client_loses_its_connection_before_the_handshake() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let render = recorder.handle();
        let _recording = metrics::set_default_local_recorder(&recorder);
        let ca = Authority::new();
        let head_timeout = Duration::from_millis(100);
        let (address, shutdown, served) = listen(&ca, |settings| settings.head_timeout = head_timeout).await;
        for (sent, failed) in [(&b""[..], 0), (&b"\x16"[..], 1)] {
            let mut client = TcpStream::connect(address).await.expect("it listens");
            client.write_all(sent).await.expect("the connection is open");
            let closed = tokio::time::timeout(HANG_TIMEOUT, client.read(&mut [0])).await;
            // A close with an unread byte is a reset.
            let read = closed.unwrap_or_else(|_| panic!("after {sent:?}, the connection stays open"));
            assert!(matches!(read, Ok(0) | Err(_)), "after {sent:?}: {read:?}");
            // Without a byte, no handshake begins.
            until(&render, &format!("tenure_tls_handshakes_failed_total{{listener=\"http\"}} {failed}")).await;
        }
        shutdown.cancel();
        served.await.expect("no panic");
    }

    /// It uses one of the connections that the listener may have.
    #[tokio::test]
    async fn connection_counts_as_open_before_its_handshake() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let render = recorder.handle();
        let _recording = metrics::set_default_local_recorder(&recorder);
        let ca = Authority::new();
        let (address, shutdown, served) = listen(&ca, |settings| assert!(settings.head_timeout > HANG_TIMEOUT)).await;
        let silent = TcpStream::connect(address).await.expect("it listens");
        until(&render, "tenure_http_connections 1").await;
        drop(silent);
        until(&render, "tenure_http_connections 0").await;
        shutdown.cancel();
        served.await.expect("no panic");
    }

    #[tokio::test]
    async fn refusal_without_tls_is_counted_and_names_the_node() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let render = recorder.handle();
        let _recording = metrics::set_default_local_recorder(&recorder);
        let ca = Authority::new();
        let (address, shutdown, served) = listen(&ca, |_| {}).await;
        let mut client = TcpStream::connect(address).await.expect("it listens");
        client.write_all(b"GET /livez HTTP/1.1\r\nhost: t\r\n\r\n").await.expect("the connection is open");
        let mut answer = String::new();
        let read = tokio::time::timeout(HANG_TIMEOUT, client.read_to_string(&mut answer)).await;
        read.expect("the connection closes in time").expect("it is not reset");
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("\r\nx-tenure-node: 1\r\n"), "{answer}");
        until(&render, "tenure_tls_handshakes_failed_total{listener=\"http\"} 1").await;
        shutdown.cancel();
        served.await.expect("no panic");
    }

    #[tokio::test]
    async fn stopped_listener_does_not_wait_for_a_handshake() {
        let ca = Authority::new();
        let (address, shutdown, served) = listen(&ca, |settings| assert!(settings.head_timeout > HANG_TIMEOUT)).await;
        let mut silent = TcpStream::connect(address).await.expect("it listens");
        // The listener accepts connections in order.
        assert_eq!(&answer_in_tls(&ca.node("a", 2), address).await, b"HTTP/1.1 200");
        shutdown.cancel();
        tokio::time::timeout(HANG_TIMEOUT, served).await.expect("it ends in time").expect("no panic");
        assert_eq!(silent.read(&mut [0]).await.expect("it is not reset"), 0);
    }

    #[test]
    fn connection_rejection_is_a_complete_response() {
        let response = too_many_connections(7);
        let text = std::str::from_utf8(&response).expect("the response is UTF-8");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.ends_with(&format!("content-length: {}", body.len())), "{}", body.len());
        assert!(head.contains("\r\nx-tenure-node: 7\r\n") && head.contains("\r\nretry-after: 1\r\n"), "{head}");
        let problem: Problem = serde_json::from_str(body).expect("the body is a problem");
        assert_eq!((problem.code, problem.status), (Code::NotReady, 503));
    }

    #[test]
    fn default_time_limits_are_the_documented_ones() {
        let Settings { head_timeout, body_timeout, write_timeout, watch_keep_alive, .. } = Settings::new(1);
        let seconds = [head_timeout, body_timeout, write_timeout, watch_keep_alive].map(|limit| limit.as_secs());
        assert_eq!(seconds, [60, 10, 30, 10]);
    }

    /// The listener of a busy node accepts none for a while. The kernel leaves a connection that has no place without an
    /// answer.
    #[tokio::test]
    async fn kernel_completes_the_connections_of_many_clients_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("the listener is bound");
        let shutdown = CancellationToken::new();
        let served = tokio::spawn(serve(listener, NodeRef::empty(), Settings::new(1), shutdown.clone()));
        tokio::task::yield_now().await;
        let longest: usize = std::fs::read_to_string("/proc/sys/net/core/somaxconn")
            .map_or(128, |text| text.trim().parse().expect("a number"));
        // Without an await, the listener does not run.
        let clients: Vec<_> = (0..longest.min(300))
            .map(|_| std::net::TcpStream::connect_timeout(&address, Duration::from_millis(900)))
            .collect();
        let refused = clients.iter().filter(|client| client.is_err()).count();
        assert_eq!(refused, 0, "of {}", clients.len());
        drop(clients);
        shutdown.cancel();
        served.await.expect("no panic");
    }

    #[tokio::test]
    async fn kernel_ends_a_connection_without_a_client_after_30_s() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("the listener is bound");
        let mut client = TcpStream::connect(address).await.expect("it listens");
        let (stream, _) = listener.accept().await.expect("a connection");
        let stream = stream.into_std().expect("a socket");
        let socket = stream.try_clone().expect("a free file descriptor");
        let stream = TcpStream::from_std(stream).expect("a socket");
        let (settings, shutdown) = (Settings::new(1), CancellationToken::new());
        let timeouts = ConnectionTimeouts { head: settings.head_timeout, write: settings.write_timeout };
        let router = standalone_router(App::new(NodeRef::empty(), settings, shutdown.clone()));
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("a permit");
        let served = tokio::spawn(connection(
            stream,
            IpAddr::from([127, 0, 0, 1]),
            None,
            router,
            timeouts,
            shutdown.clone(),
            permit,
        ));
        client.write_all(b"GET /livez HTTP/1.1\r\nhost: t\r\n\r\n").await.expect("the connection is open");
        let mut answer = [0; 12];
        client.read_exact(&mut answer).await.expect("an answer");
        assert_eq!(&answer, b"HTTP/1.1 200");
        assert!(socket_keepalive(&socket).expect("a socket"), "the kernel probes the client");
        let (first, next) = (tcp_keepidle(&socket).expect("a socket"), tcp_keepintvl(&socket).expect("a socket"));
        let probes = tcp_keepcnt(&socket).expect("a socket");
        assert_eq!((first, next, probes), (Duration::from_secs(15), Duration::from_secs(5), 3));
        assert_eq!(first + next * probes, Duration::from_secs(30));
        #[cfg(target_os = "linux")]
        assert_eq!(rustix::net::sockopt::tcp_user_timeout(&socket).expect("a socket"), 30_000);
        shutdown.cancel();
        served.await.expect("no panic");
    }

    #[test]
    fn reached_listener_with_tls_requires_an_identity() {
        let reached = ["0.0.0.0", "10.0.0.1", "::"].map(|text| Some(text.parse::<IpAddr>().expect("valid")));
        for address in reached.into_iter().chain([None]) {
            assert!(requires_identity(None, true, address), "{address:?}");
            assert!(!requires_identity(None, false, address), "{address:?}");
            assert!(!requires_identity(Some(false), true, address), "{address:?}");
        }
        for local in ["127.0.0.1", "::1"].map(|text| text.parse().expect("valid")) {
            assert!(!requires_identity(None, true, Some(local)), "{local}");
            assert!(requires_identity(Some(true), false, Some(local)), "{local}");
        }
    }
}
