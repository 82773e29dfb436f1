//! The guardian: a process of its own between `tenure run` and the command, which ends the command by the deadline
//! although `tenure run` is stopped, killed or stuck.
//!
//! It knows no lease and no cluster: times come over a socket, and not being told of a later one is enough. Everything
//! that the command starts is below it, because it is a subreaper. It writes to nothing but the socket: from its
//! process group a terminal can stop a writer.

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

use super::messages::{self, Order, Report, Times};
use super::{OURSELVES, codes, descendants};
use crate::clock::{Clock, SystemClock};

/// Timers stand still while the machine is suspended, and deadlines do not: the clock is looked at this often.
const LOOK: Duration = Duration::from_millis(100);
/// Between two walks that kill: what is being forked during one is found by the next.
const KILL_AGAIN: Duration = Duration::from_millis(3);
/// For so long after the time for KILL.
const AT_ONCE: Duration = Duration::from_secs(1);
/// What would end or stop the guardian though it was meant for the command: a supervisor signals every process that
/// it sees.
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

/// Guards one command to its end.
pub fn run(arguments: Arguments) -> ExitCode {
    match begin(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        // Nobody but `tenure run` starts this, and it takes the end of the socket for what it is.
        Err(_) => ExitCode::from(codes::OURS),
    }
}

fn begin(arguments: Arguments) -> std::io::Result<()> {
    // Not `tenure`: whoever kills by that name means the keeper.
    rustix::thread::set_name(c"guards-a-lease")?;
    set_child_subreaper(Some(getpid()))?;
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let stdin = messages::take(&socket)?;
    socket.set_nonblocking(true)?;
    // One thread, because the command dies with the thread that started it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        for survived in SURVIVED {
            // Once listened to it stays harmless, whether or not anybody listens on.
            drop(signal(SignalKind::from_raw(survived.as_raw()))?);
        }
        let reports = socket.try_clone()?;
        let mut orders = BufReader::new(tokio::net::UnixStream::from_std(socket)?).lines();
        let Some(Order::Start { times, grace, group }) = next(&mut orders).await else { return Ok(()) };
        let mut guard =
            Guard { reports, times, grace, group, main: None, code: None, stopping: false, rest: Rest::Unseen };
        guard.launch(arguments.command, stdin);
        guard.watch(orders).await
    })
}

struct Guard {
    /// Never blocks.
    reports: UnixStream,
    times: Times,
    grace: Option<Duration>,
    group: Option<i32>,
    /// The command, until it is reaped: as long its number and its group's are nobody else's.
    main: Option<Pid>,
    code: Option<u8>,
    stopping: bool,
    rest: Rest,
}

/// What is left of a command that has ended.
#[derive(Clone, Copy)]
enum Rest {
    Unseen,
    /// First seen then.
    Seen(Duration),
    Told,
}

impl Guard {
    /// Starts the command. If that fails nothing is below this process, which ends the watch.
    fn launch(&mut self, command: Vec<OsString>, stdin: OwnedFd) {
        let before = self.times.term_at.or(self.times.kill_at);
        if before.is_some_and(|before| SystemClock.elapsed() >= before) {
            return self.say(&Report::TooLate);
        }
        let mut launcher = Command::new(OURSELVES);
        launcher.arg0("tenure").arg("run-launch").args(["--parent", &getpid().as_raw_pid().to_string()]);
        launcher.args(before.map(|before| format!("--before={}", before.as_nanos())));
        launcher.arg("--").args(command).stdin(Stdio::from(stdin)).process_group(self.group.unwrap_or(0));
        match launcher.spawn() {
            Ok(child) => self.main = Some(Pid::from_child(&child)),
            Err(error) => self.say(&Report::Failed(format!("the command cannot be started: {error}"))),
        }
    }

    /// Until nothing runs below this process.
    async fn watch(mut self, mut orders: Lines<BufReader<tokio::net::UnixStream>>) -> std::io::Result<()> {
        let mut child_ended = signal(SignalKind::child())?;
        let mut is_kept = true;
        loop {
            let is_running = descendants::reap(|pid, status| {
                if self.main == Some(pid) {
                    (self.main, self.code) = (None, Some(codes::of(status)));
                }
            });
            if !is_running {
                if let Some(code) = self.code {
                    self.say(&Report::Ended { code, was_stopped: self.stopping });
                }
                return Ok(());
            }
            self.look_at_the_rest();
            let pause = self.look();
            tokio::select! {
                order = next(&mut orders), if is_kept => match order {
                    Some(order) => self.obey(order),
                    // The keeper is gone, and nobody will renew the lease.
                    None => {
                        is_kept = false;
                        self.stop(self.grace.unwrap_or_default());
                    }
                },
                _ = child_ended.recv() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Says once that the command has ended and something of it has not; most of that ends in a moment.
    fn look_at_the_rest(&mut self) {
        let (Some(code), false) = (self.code, self.stopping) else { return };
        let now = SystemClock.elapsed();
        self.rest = match self.rest {
            Rest::Seen(since) if now >= since + LOOK => {
                self.say(&Report::Draining { code });
                Rest::Told
            }
            Rest::Unseen => Rest::Seen(now),
            as_it_was => as_it_was,
        };
    }

    /// Does what is due. Returns when to look again.
    fn look(&mut self) -> Duration {
        let now = SystemClock.elapsed();
        if let Some(at) = self.times.kill_at.filter(|at| *at <= now) {
            self.begin_to_stop();
            self.signal_all(Signal::KILL);
            // What withstands that waits for a disk, or is not ours to kill.
            return if now < at + AT_ONCE { KILL_AGAIN } else { LOOK };
        }
        if !self.stopping && self.times.term_at.is_some_and(|at| at <= now) {
            self.stop(Duration::MAX);
        }
        let next = if self.stopping { self.times.kill_at } else { self.times.term_at.or(self.times.kill_at) };
        next.map_or(LOOK, |next| next.saturating_sub(now).min(LOOK))
    }

    fn obey(&mut self, order: Order) {
        match order {
            // What has been told to stop is not told to go on.
            Order::Keep(times) if !self.stopping => self.times = times,
            Order::Stop { kill_at } => self.stop(kill_at.saturating_sub(SystemClock.elapsed())),
            Order::Pass(number) => {
                if let Some(signal) = Signal::from_named_raw(number) {
                    self.pass(signal);
                }
            }
            Order::Keep(_) | Order::Start { .. } => {}
        }
    }

    /// Asks everything to end, and kills it after the grace, or when it would be killed anyhow.
    fn stop(&mut self, grace: Duration) {
        let by = SystemClock.elapsed().checked_add(grace);
        self.times.kill_at = [by, self.times.kill_at].into_iter().flatten().min();
        if !self.stopping && self.grace.is_some() {
            self.signal_all(Signal::TERM);
            // One that is stopped sees it only when it goes on.
            self.signal_all(Signal::CONT);
        }
        self.begin_to_stop();
    }

    fn begin_to_stop(&mut self) {
        if !std::mem::replace(&mut self.stopping, true) {
            self.say(&Report::Stopping);
        }
    }

    /// To the command's group at once, then to everything else below.
    fn signal_all(&self, signal: Signal) {
        let group = self.main.filter(|_| self.group.is_none());
        if let Some(group) = group {
            // Fails when it is the launcher, which has not made the group yet.
            let _ = kill_process_group(group, signal);
        }
        descendants::signal_all(signal, group);
    }

    /// As a terminal would: to the command's group; when the command has ended, to what is left.
    fn pass(&self, signal: Signal) {
        // Fails for what has just ended.
        let _ = match (self.main, self.group) {
            (Some(main), None) => kill_process_group(main, signal),
            (Some(main), Some(_)) => kill_process(main, signal),
            (None, _) => return descendants::signal_all(signal, None),
        };
    }

    /// A keeper that is gone or stuck hears nothing, and must not keep the guardian from anything.
    fn say(&self, report: &Report) {
        let _ = (&self.reports).write(&messages::line(report));
    }
}

/// `None`: the keeper is gone, or is no keeper.
async fn next(orders: &mut Lines<BufReader<tokio::net::UnixStream>>) -> Option<Order> {
    let line = orders.next_line().await.ok()??;
    serde_json::from_str(&line).ok()
}
