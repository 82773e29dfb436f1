//! The step between the guardian and the command: a process that arranges to die with the guardian, and becomes the
//! command.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Args;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use super::codes;
use crate::clock::{Clock, SystemClock};

#[derive(Args)]
pub struct Arguments {
    /// The guardian
    #[arg(long)]
    parent: i32,
    /// Nanoseconds of the clock that counts suspend: the command is not begun after this
    #[arg(long)]
    before: Option<u64>,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Returns only if the command could not be executed.
pub fn run(arguments: Arguments) -> ExitCode {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        eprintln!("tenure: cannot arrange for the command to end with its guardian: {error}");
        return ExitCode::from(codes::OURS);
    }
    // Had it died before that, nothing would ever come.
    if getppid() != Pid::from_raw(arguments.parent) {
        return ExitCode::from(codes::OURS);
    }
    if arguments.before.is_some_and(|before| SystemClock.elapsed() >= Duration::from_nanos(before)) {
        return ExitCode::from(codes::LOST);
    }
    let [program, rest @ ..] = &arguments.command[..] else { return ExitCode::from(codes::OURS) };
    let error = Command::new(program).args(rest).exec();
    eprintln!("tenure: cannot execute {}: {error}", program.display());
    ExitCode::from(if error.kind() == ErrorKind::NotFound { codes::NOT_FOUND } else { codes::NOT_EXECUTABLE })
}
