//! Accepts the connections of a listener, also after failures.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

/// Pause after a failed accept. The usual cause is a lack of file descriptors, and an immediate retry would spin.
const PAUSE: Duration = Duration::from_millis(50);
/// The log repeats a failure only after this time.
const SILENCE: Duration = Duration::from_secs(10);

pub(crate) struct Acceptor<'a> {
    listener: &'a TcpListener,
    /// The name of its connections in the log.
    kind: &'static str,
    /// When a failure was logged.
    logged: Option<Instant>,
}

impl<'a> Acceptor<'a> {
    pub fn new(listener: &'a TcpListener, kind: &'static str) -> Acceptor<'a> {
        Acceptor { listener, kind, logged: None }
    }

    /// Waits for the next connection. Cancel safe.
    pub async fn next(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok(accepted) => return accepted,
                Err(error) if self.may_log() => tracing::warn!(%error, "cannot accept a {}", self.kind),
                Err(_) => {}
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn may_log(&mut self) -> bool {
        let may_log = self.logged.is_none_or(|at| at.elapsed() >= SILENCE);
        if may_log {
            self.logged = Some(Instant::now());
        }
        may_log
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failed_accepts_are_logged_every_10_s() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let mut acceptor = Acceptor::new(&listener, "connection");
        for _ in 0..2 {
            assert!(acceptor.may_log());
            tokio::time::advance(Duration::from_millis(9_999)).await;
            assert!(!acceptor.may_log());
            tokio::time::advance(Duration::from_millis(1)).await;
        }
    }
}
