//! The command as `tenure run` sees it: a guardian that is spoken to.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, getpgrp, getpid, set_child_subreaper};
use rustix::termios::tcgetpgrp;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::messages::{self, Order, Report};
use super::{OURSELVES, descendants};

/// A guardian that has not taken an order after this long does not run.
const TAKEN_WITHIN: Duration = Duration::from_secs(1);
/// Between two walks that kill.
const KILL_AGAIN: Duration = Duration::from_millis(3);
/// A process that is still there so long after KILL waits for a disk or is a debugger's: nothing more can be done.
const DEAD_WITHIN: Duration = Duration::from_secs(5);

/// A guardian, and the command below it.
pub struct Guarded {
    orders: OwnedWriteHalf,
    reports: Lines<BufReader<OwnedReadHalf>>,
    _process: Child,
}

impl Guarded {
    /// Starts the guardian, which starts nothing before it is told.
    pub fn prepare(command: &[OsString], environment: [(&str, String); 4]) -> io::Result<Guarded> {
        // Whatever loses the guardian becomes a child of this process, and is found.
        set_child_subreaper(Some(getpid()))?;
        let (here, there) = UnixStream::pair()?;
        let mut guardian = Command::new(OURSELVES);
        guardian.arg0("tenure").args(["run-guard", "--"]).args(command).envs(environment);
        // A group of its own: what the terminal sends to this one must not reach it.
        let process = guardian.stdin(Stdio::from(OwnedFd::from(there))).process_group(0).spawn()?;
        messages::hand(here.as_fd(), io::stdin().as_fd())?;
        here.set_nonblocking(true)?;
        let (reports, orders) = tokio::net::UnixStream::from_std(here)?.into_split();
        Ok(Guarded { orders, reports: BufReader::new(reports).lines(), _process: process })
    }

    /// Fails when the guardian is gone or does not run.
    pub async fn tell(&mut self, order: &Order) -> io::Result<()> {
        let line = messages::line(order);
        tokio::time::timeout(TAKEN_WITHIN, self.orders.write_all(&line)).await?
    }

    /// The next report; `None` when there will be none any more. Dropping the future loses nothing.
    pub async fn report(&mut self) -> Option<Report> {
        let line = self.reports.next_line().await.ok()??;
        serde_json::from_str(&line).ok()
    }

    /// The report that says that all is over, if it is there already.
    pub async fn report_by_now(&mut self) -> Option<Report> {
        let last = async {
            loop {
                match self.report().await {
                    Some(Report::Draining { .. } | Report::Stopping) => {}
                    last => return last,
                }
            }
        };
        // A moment rather than none: what is there may take several reads.
        tokio::time::timeout(Duration::from_millis(1), last).await.ok().flatten()
    }

    /// Kills everything, the guardian too. Returns whether nothing is left.
    pub async fn put_down(self) -> bool {
        let killed = async {
            while descendants::reap(|_, _| {}) {
                descendants::signal_all(Signal::KILL, None);
                tokio::time::sleep(KILL_AGAIN).await;
            }
        };
        tokio::time::timeout(DEAD_WITHIN, killed).await.is_ok()
    }
}

/// The group to run the command in when a terminal is to go on talking to it: this process's own, if that is the one
/// in the foreground of the terminal on stdin.
pub fn terminal_group() -> Option<Pid> {
    tcgetpgrp(io::stdin()).ok().filter(|foreground| *foreground == getpgrp())
}
