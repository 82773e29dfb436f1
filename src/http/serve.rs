//! Connections of the public listener.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use metrics::{counter, gauge};
use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinError, JoinSet};
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use super::app::{App, Settings};
use super::{NodeRef, observe, routes};

/// Pause after a failed accept: out of file descriptors is the usual reason, and trying at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// A client that says nothing for so long is asked whether it is there, then so often and so many times.
const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(15);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEP_ALIVE_PROBES: u32 = 3;
/// Connections above the limit that are told so in good order, and for how long each may take. More are closed sooner.
const REFUSALS: usize = 64;
const REFUSED_WITHIN: Duration = Duration::from_secs(1);
/// Largest request head that is always taken, in bytes. The read that passes it may bring the rest of a longer one, of less
/// than twice as many bytes.
const MAX_HEAD_BYTES: usize = 32 * 1024;

/// What a connection above the limit is told before it is closed. Its request was not looked at, so nothing was done.
const TOO_MANY_CONNECTIONS: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
    content-type: application/problem+json\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 181\r\n\r\n\
    {\"type\":\"urn:tenure:problem:not_ready\",\"title\":\"The node is not ready\",\"status\":503,\
    \"detail\":\"the node has as many connections as it takes\",\"code\":\"not_ready\",\"retry_after_ms\":1000}";

/// Serves requests until `shutdown`, and returns when the last connection is done with its request.
///
/// A request that waits for a lease is ended by its node's shutdown, a watch by `shutdown`. Dropping the future
/// closes every connection at once, which is how a caller bounds the wait. Metrics go to the recorder that is
/// installed when this is called.
pub async fn serve(listener: TcpListener, node: NodeRef, settings: Settings, shutdown: CancellationToken) {
    let permits = Arc::new(Semaphore::new(settings.limits.max_connections));
    let refusals = Arc::new(Semaphore::new(REFUSALS));
    let timeouts = Timeouts { head: settings.head_timeout, write: settings.write_timeout };
    let router = routes::whole(App::new(node, settings, shutdown.clone()));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            Some(ended) = connections.join_next() => {
                report(ended);
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => match permits.clone().try_acquire_owned() {
                Ok(permit) => {
                    connections.spawn(connection(stream, router.clone(), timeouts, shutdown.clone(), permit));
                }
                Err(_) => {
                    counter!("tenure_http_connections_refused_total").increment(1);
                    match refusals.clone().try_acquire_owned() {
                        Ok(permit) => {
                            connections.spawn(refuse(stream, shutdown.clone(), permit));
                        }
                        // The buffer of a new socket is empty, so this is taken whole or the peer is gone already.
                        Err(_) => _ = stream.try_write(TOO_MANY_CONNECTIONS),
                    }
                }
            },
            Err(error) => {
                warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    while let Some(ended) = connections.join_next().await {
        report(ended);
    }
}

/// How long a client may take.
#[derive(Clone, Copy)]
struct Timeouts {
    head: Duration,
    write: Duration,
}

async fn connection(
    stream: TcpStream,
    router: Router,
    timeouts: Timeouts,
    shutdown: CancellationToken,
    _permit: OwnedSemaphorePermit,
) {
    // An answer is one small write: with Nagle's algorithm it would wait for the acknowledgement of the one before.
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%error, "cannot set TCP_NODELAY");
    }
    if let Err(error) = notice_absence(&stream, timeouts.write) {
        debug!(%error, "cannot have the kernel look whether a client is there");
    }
    let open = observe::Open::new(gauge!("tenure_http_connections"));
    // Counted only while the client takes nothing: one that reads slowly is served.
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
    // Clients come and go in the middle of things; that is theirs to tell.
    if let Err(error) = ended {
        debug!(%error, "connection ended");
    }
    drop(open);
}

/// Has the kernel end a connection whose client is silently gone: one that waits for a lease would keep its place. And one
/// whose client does not read, though all of its answer fits into the kernel's memory.
fn notice_absence(stream: &TcpStream, write_timeout: Duration) -> io::Result<()> {
    set_socket_keepalive(stream, true)?;
    set_tcp_keepidle(stream, KEEP_ALIVE_AFTER)?;
    set_tcp_keepintvl(stream, KEEP_ALIVE_INTERVAL)?;
    set_tcp_keepcnt(stream, KEEP_ALIVE_PROBES)?;
    #[cfg(target_os = "linux")]
    rustix::net::sockopt::set_tcp_user_timeout(stream, write_timeout.as_millis() as u32)?;
    Ok(())
}

/// Answers that there are too many connections. A client takes an answer that comes before its request for a mistake, and
/// never sees one whose connection is closed with a part of the request unread.
async fn refuse(mut stream: TcpStream, shutdown: CancellationToken, _permit: OwnedSemaphorePermit) {
    let refused = async {
        // One that asks nothing is told all the same.
        let _ = tokio::time::timeout(REFUSED_WITHIN, stream.peek(&mut [0])).await;
        stream.write_all(TOO_MANY_CONNECTIONS).await?;
        stream.shutdown().await?;
        let mut unread = tokio::io::sink();
        let _ = tokio::time::timeout(REFUSED_WITHIN, tokio::io::copy(&mut stream, &mut unread)).await;
        io::Result::Ok(())
    };
    tokio::select! {
        // An error is a client that has gone.
        _ = refused => {}
        () = shutdown.cancelled() => {}
    }
}

fn report(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        error!(%error, "a request made its connection's task panic");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_of_a_connection_is_a_complete_answer() {
        let text = std::str::from_utf8(TOO_MANY_CONNECTIONS).expect("it is text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.ends_with(&format!("content-length: {}", body.len())), "{}", body.len());
        let problem: crate::api::Problem = serde_json::from_str(body).expect("a problem");
        assert_eq!(problem.code, crate::api::Code::NotReady);
    }
}
