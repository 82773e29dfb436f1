//! Shutdown signals.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::failure::Failure;

/// Receives SIGINT and SIGTERM from its creation on.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    pub fn listen() -> Result<Signals, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::Other(error.into()));
        Ok(Signals { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    /// Waits for the next signal, and returns its name.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}

/// The code that a shell shows for a process that this signal ended.
pub fn exit_code(signal: &str) -> u8 {
    match signal {
        "SIGINT" => 130,
        _ => 143,
    }
}
