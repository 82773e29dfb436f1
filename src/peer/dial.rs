//! Connects to the first address of a name that answers.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::sleep;

/// The next address gets an attempt after this time. A heartbeat with the timings `lan` waits 75 ms for its connection.
const HEAD_START: Duration = Duration::from_millis(20);

/// A lost first packet is followed by another one after this time. The kernel waits 1 s, and longer each time.
const AGAIN: Duration = Duration::from_millis(200);

/// Connects like [`connect`], and begins again at an interval until an attempt ends. So a peer that becomes reachable is
/// reached soon.
pub(super) async fn connect_soon(address: &str) -> io::Result<TcpStream> {
    let addresses: Vec<SocketAddr> = lookup_host(address).await?.collect();
    repeat(|| connect_any(addresses.iter().copied())).await
}

/// The end of the first attempt that ends.
async fn repeat<T, F: Future<Output = T>>(attempt: impl Fn() -> F) -> T {
    let mut attempts = FuturesUnordered::new();
    loop {
        attempts.push(attempt());
        tokio::select! {
            biased;
            Some(ended) = attempts.next() => return ended,
            () = sleep(AGAIN) => {}
        }
    }
}

/// Connects to `host:port`. The name may have several addresses, and some of them may drop all packets.
pub(crate) async fn connect(address: &str) -> io::Result<TcpStream> {
    connect_any(lookup_host(address).await?).await
}

/// Connects to the first of these addresses that answers.
pub(crate) async fn connect_any(addresses: impl IntoIterator<Item = SocketAddr>) -> io::Result<TcpStream> {
    race(addresses, TcpStream::connect).await
}

/// Starts an attempt for each address: after [`HEAD_START`], or at once after a failure. The first success wins.
async fn race<T, F: Future<Output = io::Result<T>>>(
    addresses: impl IntoIterator<Item = SocketAddr>,
    attempt: impl Fn(SocketAddr) -> F,
) -> io::Result<T> {
    let mut addresses = addresses.into_iter().peekable();
    let (mut attempts, mut failed) = (FuturesUnordered::new(), Vec::new());
    loop {
        if let Some(address) = addresses.next() {
            let attempt = attempt(address);
            attempts.push(async move { (address, attempt.await) });
        }
        tokio::select! {
            biased;
            ended = attempts.next() => match ended {
                Some((_, Ok(connected))) => return Ok(connected),
                Some((address, Err(error))) => failed.push((address, error)),
                None => return Err(failure(failed)),
            },
            () = sleep(HEAD_START), if addresses.peek().is_some() => {}
        }
    }
}

/// The errors of all addresses as one.
fn failure(mut failed: Vec<(SocketAddr, io::Error)>) -> io::Error {
    let Some((last, error)) = failed.pop() else {
        return io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    };
    if failed.is_empty() {
        return error;
    }
    failed.push((last, error));
    // A node listens on one of the addresses. So the name refuses connections only if each address does that this machine
    // can use.
    let is_usable =
        |kind: &io::ErrorKind| !matches!(kind, io::ErrorKind::NetworkUnreachable | io::ErrorKind::AddrNotAvailable);
    let kinds = || failed.iter().map(|(_, error)| error.kind());
    let other = kinds().filter(is_usable).find(|kind| *kind != io::ErrorKind::ConnectionRefused);
    let kind = other.or_else(|| kinds().find(is_usable)).unwrap_or(io::ErrorKind::NetworkUnreachable);
    let each: Vec<String> = failed.iter().map(|(address, error)| format!("{address}: {error}")).collect();
    io::Error::new(kind, each.join("; "))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::TcpListener;

    use parking_lot::Mutex;
    use tokio::time::{Instant, timeout};

    use super::*;

    fn address(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    /// The times at which the attempts of the ports 1 to 5 start. Odd ports fail at once, 2 drops packets, 4 answers.
    async fn starts(ports: &[u16]) -> (Vec<(u16, u64)>, io::Result<u16>) {
        let (began, started) = (Instant::now(), Mutex::new(Vec::new()));
        let attempt = async |to: SocketAddr| {
            started.lock().push((to.port(), began.elapsed().as_millis() as u64));
            match to.port() {
                2 => std::future::pending().await,
                4 => Ok(4),
                5 => Err(io::ErrorKind::HostUnreachable.into()),
                _ => Err(io::ErrorKind::ConnectionRefused.into()),
            }
        };
        let ended = race(ports.iter().map(|port| address(*port)), attempt).await;
        (started.into_inner(), ended)
    }

    #[tokio::test(start_paused = true)]
    async fn next_address_starts_after_20_ms_or_a_failure() {
        let (started, ended) = starts(&[2, 1, 2, 4]).await;
        assert_eq!(started, [(2, 0), (1, 20), (2, 20), (4, 40)]);
        assert_eq!(ended.expect("port 4 answers"), 4);
        let (started, _) = starts(&[4, 2]).await;
        assert_eq!(started, [(4, 0)], "the first address answers");
    }

    /// As after a partition that ends between the second and the third attempt.
    #[tokio::test(start_paused = true)]
    async fn attempt_begins_again_each_200_ms() {
        let (began, started) = (Instant::now(), Cell::new(0));
        let ended = repeat(async || {
            let number = started.replace(started.get() + 1);
            sleep(Duration::from_millis(if number < 2 { 10_000 } else { 100 })).await;
            number
        });
        assert_eq!((ended.await, began.elapsed().as_millis()), (2, 500));
    }

    /// As with a slow network: no later attempt ends before the first one.
    #[tokio::test(start_paused = true)]
    async fn first_attempt_goes_on_beside_later_ones() {
        let (began, started) = (Instant::now(), Cell::new(0));
        let ended = repeat(async || {
            let number = started.replace(started.get() + 1);
            sleep(Duration::from_millis(450)).await;
            number
        });
        let ended = timeout(Duration::from_secs(10), ended).await.expect("the first attempt answers");
        assert_eq!((ended, began.elapsed().as_millis()), (0, 450));
    }

    #[tokio::test(start_paused = true)]
    async fn failure_names_each_address() {
        let (_, ended) = starts(&[1, 3]).await;
        let expected = "127.0.0.1:1: connection refused; 127.0.0.1:3: connection refused";
        assert_eq!(ended.expect_err("all addresses refuse").to_string(), expected);
        let (_, ended) = starts(&[1]).await;
        assert_eq!(ended.expect_err("it refuses").to_string(), "connection refused");
        let (_, ended) = starts(&[]).await;
        assert_eq!(ended.expect_err("no address").to_string(), "the name has no address");
    }

    /// A node listens on one address of its name, and the others refuse connections.
    #[tokio::test(start_paused = true)]
    async fn name_is_refused_if_all_its_addresses_refuse() {
        let (refused, unreachable) = (io::ErrorKind::ConnectionRefused, io::ErrorKind::HostUnreachable);
        for (ports, expected) in [([1_u16, 3], refused), ([5, 1], unreachable), ([1, 5], unreachable)] {
            let (_, ended) = starts(&ports).await;
            assert_eq!(ended.expect_err("no address answers").kind(), expected, "{ports:?}");
        }
    }

    /// Linux drops the packets of a new connection while the queue of its listener is full.
    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn address_that_drops_packets_does_not_hide_the_next() {
        let full = TcpListener::bind("127.0.0.1:0").expect("a free port");
        rustix::net::listen(&full, 0).expect("it listens");
        let dead = full.local_addr().expect("bound");
        let mut waiting = Vec::new();
        while let Ok(stream) = std::net::TcpStream::connect_timeout(&dead, Duration::from_millis(200)) {
            waiting.push(stream);
        }
        let live = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let live = live.local_addr().expect("bound");
        let connected = timeout(Duration::from_secs(20), connect_any([dead, live])).await;
        let connected = connected.expect("the second address answers").expect("it listens");
        assert_eq!(connected.peer_addr().expect("connected"), live);
    }
}
