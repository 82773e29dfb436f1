//! The supervisor's handle to the guardian.

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

use super::messages::{self, GuardianReport, Instruction};
use super::{SELF_EXE, descendants};

/// A guardian that does not read an instruction within this time counts as stuck.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval between two rounds of KILL.
const KILL_INTERVAL: Duration = Duration::from_millis(3);
/// After this time, a process that survived KILL is in uninterruptible I/O or is traced by a debugger.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// The guardian process with the command.
pub struct GuardianHandle {
    instructions: OwnedWriteHalf,
    reports: Lines<BufReader<OwnedReadHalf>>,
    _process: Child,
}

impl GuardianHandle {
    /// Starts the guardian. It starts the command after [`Instruction::Start`].
    pub fn spawn<'a>(
        command: &[OsString],
        environment: impl IntoIterator<Item = (&'a str, OsString)>,
    ) -> io::Result<GuardianHandle> {
        // If the guardian dies, its descendants become children of this process, which can then find them.
        set_child_subreaper(Some(getpid()))?;
        let (here, there) = UnixStream::pair()?;
        let mut guardian = Command::new(SELF_EXE);
        guardian.arg0("tenure").args(["run-guard", "--"]).args(command).envs(environment);
        // A separate process group, so that signals of the terminal do not reach the guardian.
        let process = guardian.stdin(Stdio::from(OwnedFd::from(there))).process_group(0).spawn()?;
        messages::send_file(here.as_fd(), io::stdin().as_fd())?;
        here.set_nonblocking(true)?;
        let (reports, instructions) = tokio::net::UnixStream::from_std(here)?.into_split();
        Ok(GuardianHandle { instructions, reports: BufReader::new(reports).lines(), _process: process })
    }

    /// Sends an instruction. Fails if the guardian is dead or stuck.
    pub async fn send(&mut self, instruction: &Instruction) -> io::Result<()> {
        let line = messages::line(instruction);
        tokio::time::timeout(SEND_TIMEOUT, self.instructions.write_all(&line)).await?
    }

    /// The next report, or `None` if the guardian is dead.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, no report is lost.
    pub async fn report(&mut self) -> Option<GuardianReport> {
        let line = self.reports.next_line().await.ok()??;
        serde_json::from_str(&line).ok()
    }

    /// The final report, if it has already arrived.
    pub async fn received_final_report(&mut self) -> Option<GuardianReport> {
        let last = async {
            loop {
                match self.report().await {
                    Some(GuardianReport::Draining { .. } | GuardianReport::Stopping) => {}
                    last => return last,
                }
            }
        };
        // Not zero: received data may need several reads.
        tokio::time::timeout(Duration::from_millis(1), last).await.ok().flatten()
    }

    /// Kills the guardian, the command and all its descendants. Returns false if some survived.
    pub async fn kill_all(self) -> bool {
        let killed = async {
            while descendants::reap(|_, _| {}) {
                descendants::signal_all(Signal::KILL, None);
                tokio::time::sleep(KILL_INTERVAL).await;
            }
        };
        tokio::time::timeout(KILL_TIMEOUT, killed).await.is_ok()
    }
}

/// The process group of a command that uses the terminal: this process's group, if it is the foreground group of the
/// terminal on stdin.
pub fn terminal_group() -> Option<Pid> {
    tcgetpgrp(io::stdin()).ok().filter(|foreground| *foreground == getpgrp())
}
