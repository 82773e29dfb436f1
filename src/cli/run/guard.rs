//! The guardian: a process between the supervisor (`tenure run`) and the command. It ends the command by the deadline,
//! also if the supervisor is stopped, killed or stuck.
//!
//! The guardian knows no lease and no cluster. It receives deadlines over a socket. Without a later deadline, it stops
//! the command at the last one. It is a subreaper, so all processes that the command starts are its descendants.
//!
//! It writes only to the socket, because a terminal can stop a background process that writes to it (SIGTTOU).

use std::ffi::OsString;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Args;
use rustix::process::{Pid, Signal, getpid, kill_process, kill_process_group, set_child_subreaper};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::signal::unix::{SignalKind, signal};

use super::forwarded::{is_from_terminal, not_ignored};
use super::messages::{self, Deadlines, GuardianReport, Instruction};
use super::{SELF_EXE, codes, descendants};
use crate::clock::{Clock, SystemClock};

/// Interval at which the guardian reads the clock. Timers stop during suspend, but deadlines do not.
const CLOCK_INTERVAL: Duration = Duration::from_millis(100);
/// Interval between two rounds of KILL. A process that is forked during one round gets KILL in the next one.
const KILL_INTERVAL: Duration = Duration::from_millis(3);
/// The guardian repeats KILL at [`KILL_INTERVAL`] for this time, and then at [`CLOCK_INTERVAL`].
const FAST_KILL_PERIOD: Duration = Duration::from_secs(1);
/// Signals for the command that the guardian must survive: a process manager such as systemd signals all processes of a
/// service.
const SURVIVED: [Signal; 10] = [
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    Signal::TSTP,
    Signal::TTIN,
    Signal::TTOU,
];

#[derive(Args)]
pub struct Arguments {
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Guards one command until it and all its descendants have exited.
pub fn run(arguments: Arguments) -> ExitCode {
    match begin(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        // The supervisor detects the closed socket, so no message is needed.
        Err(_) => ExitCode::from(codes::FAILED),
    }
}

fn begin(arguments: Arguments) -> std::io::Result<()> {
    // A different name: `pkill tenure` must end the supervisor only.
    rustix::thread::set_name(c"guards-a-lease")?;
    set_child_subreaper(Some(getpid()))?;
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let stdin = messages::receive_file(&socket)?;
    socket.set_nonblocking(true)?;
    // A single thread: the parent-death signal of the command fires when the thread that started it ends.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // The command inherits an ignored signal, and a signal with a handler gets its default again.
        for survived in not_ignored(&SURVIVED) {
            // tokio keeps the handler after the drop, so the signal keeps having no effect.
            drop(signal(SignalKind::from_raw(survived.as_raw()))?);
        }
        let reports = socket.try_clone()?;
        let mut instructions = BufReader::new(tokio::net::UnixStream::from_std(socket)?).lines();
        let Some(Instruction::Start { deadlines, grace, group }) = next(&mut instructions).await else {
            return Ok(());
        };
        let mut guardian = Guardian {
            reports,
            deadlines,
            grace,
            group,
            main: None,
            code: None,
            stopping: false,
            draining: Draining::No,
        };
        guardian.launch(arguments.command, stdin);
        guardian.watch(instructions).await
    })
}

struct Guardian {
    /// Non-blocking.
    reports: UnixStream,
    deadlines: Deadlines,
    grace: Option<Duration>,
    group: Option<i32>,
    /// The command, until it is reaped. Until then, the kernel does not reuse its process id and group id.
    main: Option<Pid>,
    code: Option<u8>,
    stopping: bool,
    draining: Draining,
}

/// Whether descendants of an exited command still run.
#[derive(Clone, Copy)]
enum Draining {
    No,
    /// Since this time.
    Since(Duration),
    Reported,
}

impl Guardian {
    /// Starts the command. If this fails, the guardian has no child, so `watch` returns at once.
    fn launch(&mut self, command: Vec<OsString>, stdin: OwnedFd) {
        let before = self.deadlines.term_at.or(self.deadlines.kill_at);
        if before.is_some_and(|before| SystemClock.elapsed() >= before) {
            return self.report(&GuardianReport::TooLate);
        }
        let mut launcher = Command::new(SELF_EXE);
        launcher.arg0("tenure").arg("run-launch").args(["--parent", &getpid().as_raw_pid().to_string()]);
        launcher.args(before.map(|before| format!("--before={}", before.as_nanos())));
        launcher.arg("--").args(command).stdin(Stdio::from(stdin)).process_group(self.group.unwrap_or(0));
        match launcher.spawn() {
            Ok(child) => self.main = Some(Pid::from_child(&child)),
            Err(error) => {
                self.report(&GuardianReport::Failed(format!("cannot start the launcher of the command: {error}")))
            }
        }
    }

    /// Returns when the guardian has no descendants.
    async fn watch(mut self, mut instructions: Lines<BufReader<tokio::net::UnixStream>>) -> std::io::Result<()> {
        let mut child_ended = signal(SignalKind::child())?;
        let mut supervisor_is_alive = true;
        loop {
            let is_running = descendants::reap(|pid, status| {
                if self.main == Some(pid) {
                    (self.main, self.code) = (None, Some(codes::of(status)));
                }
            });
            if !is_running {
                if let Some(code) = self.code {
                    self.report(&GuardianReport::Ended { code, was_stopped: self.stopping });
                }
                return Ok(());
            }
            self.report_draining();
            let pause = self.check_deadlines();
            tokio::select! {
                instruction = next(&mut instructions), if supervisor_is_alive => match instruction {
                    Some(instruction) => self.handle(instruction),
                    // The supervisor has died, so no process renews the lease.
                    None => {
                        supervisor_is_alive = false;
                        self.stop(self.grace.unwrap_or_default());
                    }
                },
                _ = child_ended.recv() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Reports once that the command has exited but descendants still run. Most descendants exit at the same time, so
    /// the report has a delay.
    fn report_draining(&mut self) {
        let (Some(code), false) = (self.code, self.stopping) else { return };
        let now = SystemClock.elapsed();
        self.draining = match self.draining {
            Draining::Since(since) if now >= since + CLOCK_INTERVAL => {
                self.report(&GuardianReport::Draining { code });
                Draining::Reported
            }
            Draining::No => Draining::Since(now),
            unchanged => unchanged,
        };
    }

    /// Sends the signals that are due. Returns the time until the next check.
    fn check_deadlines(&mut self) -> Duration {
        let now = SystemClock.elapsed();
        if let Some(at) = self.deadlines.kill_at.filter(|at| *at <= now) {
            self.begin_to_stop();
            self.signal_all(Signal::KILL);
            // A process that survives KILL is in uninterruptible I/O, or belongs to another user.
            return if now < at + FAST_KILL_PERIOD { KILL_INTERVAL } else { CLOCK_INTERVAL };
        }
        if !self.stopping && self.deadlines.term_at.is_some_and(|at| at <= now) {
            self.stop(Duration::MAX);
        }
        let next =
            if self.stopping { self.deadlines.kill_at } else { self.deadlines.term_at.or(self.deadlines.kill_at) };
        next.map_or(CLOCK_INTERVAL, |next| next.saturating_sub(now).min(CLOCK_INTERVAL))
    }

    fn handle(&mut self, instruction: Instruction) {
        match instruction {
            // A command that is stopping must not continue.
            Instruction::Extend(deadlines) if !self.stopping => self.deadlines = deadlines,
            Instruction::Stop { kill_at } => self.stop(kill_at.saturating_sub(SystemClock.elapsed())),
            Instruction::Forward(number) => {
                if let Some(signal) = Signal::from_named_raw(number) {
                    self.forward(signal);
                }
            }
            Instruction::Extend(_) | Instruction::Start { .. } => {}
        }
    }

    /// Sends TERM to all descendants. KILL follows after the grace, or at the deadline if that is earlier.
    fn stop(&mut self, grace: Duration) {
        let by = SystemClock.elapsed().checked_add(grace);
        self.deadlines.kill_at = [by, self.deadlines.kill_at].into_iter().flatten().min();
        if !self.stopping && self.grace.is_some() {
            self.signal_all(Signal::TERM);
            // A stopped process handles TERM only after CONT.
            self.signal_all(Signal::CONT);
        }
        self.begin_to_stop();
    }

    fn begin_to_stop(&mut self) {
        if !std::mem::replace(&mut self.stopping, true) {
            self.report(&GuardianReport::Stopping);
        }
    }

    /// Signals the command's process group in one call, then all other descendants.
    fn signal_all(&self, signal: Signal) {
        let group = self.main.filter(|_| self.group.is_none());
        if let Some(group) = group {
            // Fails if the launcher has not created the group yet.
            let _ = kill_process_group(group, signal);
        }
        descendants::signal_all(signal, group);
    }

    /// Signals the command's process group, like a terminal does. If the command has exited, signals all descendants, except
    /// those that the terminal has signalled.
    fn forward(&self, signal: Signal) {
        // Fails if the process has just exited.
        let _ = match (self.main, self.group) {
            (Some(main), None) => kill_process_group(main, signal),
            (Some(main), Some(_)) => kill_process(main, signal),
            (None, group) => {
                let signalled = group.filter(|_| is_from_terminal(signal)).and_then(Pid::from_raw);
                return descendants::signal_all(signal, signalled);
            }
        };
    }

    /// Ignores errors: a dead or stuck supervisor must not block the guardian.
    fn report(&self, report: &GuardianReport) {
        let _ = (&self.reports).write(&messages::line(report));
    }
}

/// The next instruction, or `None` if the supervisor has died or sent an invalid line.
async fn next(instructions: &mut Lines<BufReader<tokio::net::UnixStream>>) -> Option<Instruction> {
    let line = instructions.next_line().await.ok()??;
    serde_json::from_str(&line).ok()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use super::*;

    /// The supervisor can be suspended between the grant and the start.
    #[test]
    fn command_does_not_start_after_a_deadline() {
        let passed = Some(Duration::ZERO);
        for (term_at, kill_at) in [(None, passed), (passed, Some(Duration::MAX))] {
            let (reports, mut supervisor) = UnixStream::pair().expect("a socket pair");
            let mut guardian = Guardian {
                reports,
                deadlines: Deadlines { term_at, kill_at },
                grace: None,
                group: None,
                main: None,
                code: None,
                stopping: false,
                draining: Draining::No,
            };
            let stdin = File::open("/dev/null").expect("it can be read");
            guardian.launch(vec!["true".into()], stdin.into());
            assert_eq!(guardian.main, None, "TERM at {term_at:?}, KILL at {kill_at:?}");
            drop(guardian);
            let mut reported = Vec::new();
            supervisor.read_to_end(&mut reported).expect("the socket is open");
            assert_eq!(reported, messages::line(&GuardianReport::TooLate));
        }
    }
}
