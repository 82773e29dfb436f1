//! The launcher: a process between the guardian and the command. It sets the parent-death signal, so that the kernel
//! kills the command with the guardian, and then executes the command.

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
    /// Process id of the guardian
    #[arg(long)]
    parent: i32,
    /// Do not execute the command after this time, in nanoseconds of the boot-time clock
    #[arg(long)]
    before: Option<u64>,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Returns only if the command could not be executed.
pub fn run(arguments: Arguments) -> ExitCode {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        message!("tenure: cannot set the parent-death signal: {error}");
        return ExitCode::from(codes::FAILED);
    }
    // If the guardian died before the call above, the kernel sends no signal.
    if getppid() != Pid::from_raw(arguments.parent) {
        return ExitCode::from(codes::FAILED);
    }
    if arguments.before.is_some_and(|before| SystemClock.elapsed() >= Duration::from_nanos(before)) {
        return ExitCode::from(codes::LOST);
    }
    let [program, rest @ ..] = &arguments.command[..] else { return ExitCode::from(codes::FAILED) };
    let error = Command::new(program).args(rest).exec();
    message!("tenure: cannot execute {}: {error}", program.display());
    ExitCode::from(if error.kind() == ErrorKind::NotFound { codes::NOT_FOUND } else { codes::NOT_EXECUTABLE })
}
