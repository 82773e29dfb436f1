//! Signals that the supervisor forwards to the command.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// The forwarded signals.
const FORWARDED: [Signal; 6] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];
/// Signals that a terminal sends directly to a command in its foreground group.
const FROM_TERMINAL: [Signal; 3] = [Signal::INT, Signal::QUIT, Signal::HUP];
/// Signals that ask a command to stop. HUP asks many commands to read their configuration again.
const STOPPING: [Signal; 3] = [Signal::TERM, Signal::INT, Signal::QUIT];

/// The name of a forwarded signal, as `kill -l` shows it.
pub fn name(signal: Signal) -> &'static str {
    match signal {
        Signal::TERM => "TERM",
        Signal::INT => "INT",
        Signal::HUP => "HUP",
        Signal::QUIT => "QUIT",
        Signal::USR1 => "USR1",
        Signal::USR2 => "USR2",
        _ => "another signal",
    }
}

/// Receives the forwarded signals of this process from its creation on.
pub struct ForwardedSignals {
    streams: Vec<(Signal, Stream)>,
    asked_to_stop: bool,
}

impl ForwardedSignals {
    /// Installs handlers. A signal that this process already ignores (HUP below `nohup`) stays ignored, and the command
    /// inherits that.
    pub fn listen() -> io::Result<ForwardedSignals> {
        let listened = not_ignored(&FORWARDED);
        let stream = |forwarded: Signal| Ok((forwarded, signal(SignalKind::from_raw(forwarded.as_raw()))?));
        let streams = listened.map(stream).collect::<io::Result<_>>()?;
        Ok(ForwardedSignals { streams, asked_to_stop: false })
    }

    /// Whether a signal of [`STOPPING`] has been received.
    pub fn asked_to_stop(&self) -> bool {
        self.asked_to_stop
    }

    /// Waits for the next signal.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, no signal is lost.
    pub async fn next(&mut self) -> Signal {
        let received = poll_fn(|context| {
            let received = self.streams.iter_mut().find_map(|(forwarded, stream)| match stream.poll_recv(context) {
                Poll::Ready(Some(())) => Some(*forwarded),
                _ => None,
            });
            received.map_or(Poll::Pending, Poll::Ready)
        })
        .await;
        self.asked_to_stop |= STOPPING.contains(&received);
        received
    }

    /// Waits for a signal other than USR1 and USR2.
    pub async fn end_requested(&mut self) -> Signal {
        loop {
            match self.next().await {
                Signal::USR1 | Signal::USR2 => {}
                end => return end,
            }
        }
    }
}

/// Whether a command in the terminal's foreground group gets this signal directly.
pub fn is_from_terminal(signal: Signal) -> bool {
    FROM_TERMINAL.contains(&signal)
}

/// The signals that this process does not ignore.
pub fn not_ignored(signals: &[Signal]) -> impl Iterator<Item = Signal> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = read_ignored(&status).unwrap_or_default();
    signals.iter().copied().filter(move |signal| ignored & bit(*signal) == 0)
}

fn read_ignored(status: &str) -> Option<u64> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

fn bit(signal: Signal) -> u64 {
    1 << (signal.as_raw() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_parsed() {
        let nohup = "Name:\tsh\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000001\nSigCgt:\t0000000000000000\n";
        assert_eq!(read_ignored(nohup), Some(bit(Signal::HUP)));
        assert_eq!(read_ignored(""), None);
    }
}
