//! Shutdown signals.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::failure::Failure;

/// Receives SIGINT and SIGTERM from its creation on.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
}

impl Signals {
    pub fn listen() -> Result<Signals, Failure> {
        let (interrupt, terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
        Ok(Signals { interrupt, terminate, hangup: None })
    }

    /// Also receives the SIGHUP of a terminal that closes, unless this process ignores it (below `nohup`).
    pub fn listen_with_hangup() -> Result<Signals, Failure> {
        let hangup = if ignores_hangup() { None } else { Some(listen(SignalKind::hangup())?) };
        Ok(Signals { hangup, ..Signals::listen()? })
    }

    /// Waits for the next signal, and returns its name.
    pub async fn next(&mut self) -> &'static str {
        let Signals { interrupt, terminate, hangup } = self;
        let hung_up = async {
            match hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupt.recv() => "SIGINT",
            _ = terminate.recv() => "SIGTERM",
            _ = hung_up => "SIGHUP",
        }
    }
}

fn listen(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| Failure::Other(error.into()))
}

#[cfg(target_os = "linux")]
fn ignores_hangup() -> bool {
    super::run::forwarded::not_ignored(&[rustix::process::Signal::HUP]).next().is_none()
}

/// Other systems do not show it in a file.
#[cfg(not(target_os = "linux"))]
fn ignores_hangup() -> bool {
    true
}

/// The code that a shell shows for a process that this signal ended.
pub fn exit_code(signal: &str) -> u8 {
    match signal {
        "SIGHUP" => 129,
        "SIGINT" => 130,
        _ => 143,
    }
}
