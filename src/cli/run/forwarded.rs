//! Signals that are meant for the command.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// Those that are listened to.
const PASSED: [Signal; 6] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];
/// Those that a terminal sends to the command itself when it runs in the terminal's group.
const OF_THE_TERMINAL: [Signal; 3] = [Signal::INT, Signal::QUIT, Signal::HUP];

/// The signals of this process, from when it is made.
pub struct ForwardedSignals(Vec<(Signal, Stream)>);

impl ForwardedSignals {
    /// What this process was started to ignore (HUP below `nohup`) is left ignored, here and by the command.
    pub fn listen() -> io::Result<ForwardedSignals> {
        let ignored = ignored();
        let listened = PASSED.into_iter().filter(|forwarded| ignored & bit(*forwarded) == 0);
        let stream = |forwarded: Signal| Ok((forwarded, signal(SignalKind::from_raw(forwarded.as_raw()))?));
        Ok(ForwardedSignals(listened.map(stream).collect::<io::Result<_>>()?))
    }

    /// Waits for the next one. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            let came = self.0.iter_mut().find_map(|(forwarded, stream)| match stream.poll_recv(context) {
                Poll::Ready(Some(())) => Some(*forwarded),
                _ => None,
            });
            came.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Waits for one that asks to end.
    pub async fn asked_to_end(&mut self) -> Signal {
        loop {
            match self.next().await {
                Signal::USR1 | Signal::USR2 => {}
                end => return end,
            }
        }
    }
}

/// Whether the command has had it already when it runs in the terminal's group.
pub fn is_of_the_terminal(signal: Signal) -> bool {
    OF_THE_TERMINAL.contains(&signal)
}

fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    read_ignored(&status).unwrap_or_default()
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
    fn what_is_ignored_is_read() {
        let nohup = "Name:\tsh\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000001\nSigCgt:\t0000000000000000\n";
        assert_eq!(read_ignored(nohup), Some(bit(Signal::HUP)));
        assert_eq!(read_ignored(""), None);
    }
}
