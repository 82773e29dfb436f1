//! `tenure run`: a command that runs while a lease is held.
//!
//! | file | contents |
//! |---|---|
//! | `arguments` | the command line |
//! | `session` | the supervisor: it holds the lease while the command runs |
//! | `guard` | the guardian: a separate process that ends the command by the deadline |
//! | `guarded` | the supervisor's handle to the guardian |
//! | `messages` | the messages between supervisor and guardian |
//! | `launch` | the process that executes the command |
//! | `descendants` | all descendants of a process |
//! | `forwarded` | signals that the supervisor forwards to the command |
//! | `codes` | exit codes |
//!
//! The supervisor (this process) holds the lease and starts the guardian. The guardian knows the deadline and starts
//! the command. If the supervisor or the guardian stops or dies, the other one ends the command.
//!
//! Linux only, because it needs subreapers, pidfds and the parent-death signal.

pub mod arguments;
pub mod codes;
mod descendants;
pub mod forwarded;
pub mod guard;
mod guarded;
pub mod launch;
mod messages;
pub mod session;

pub use arguments::Arguments;

use std::process::ExitCode;

/// The running executable, also if its file was replaced.
const SELF_EXE: &str = "/proc/self/exe";

pub const HELP: &str = "\
The command runs without a shell while the lease is held. The lease is renewed until the command and all its child \
processes have exited, and is then released.

Environment of the command:
  TENURE_LEASE      name of the lease
  TENURE_TOKEN      fencing token, a decimal integer: send it with every write
  TENURE_HOLDER     holder name
  TENURE_ENDPOINTS  URLs of the nodes

If the lease cannot be renewed, the command and its child processes get TERM one grace before the deadline, and KILL \
by the deadline. If the lease is revoked or handed over, they get TERM at once, and KILL after the grace or by the \
deadline. A second process (the guardian) enforces this, also if this process is stopped, stuck or killed.

Limits: processes of another user and processes that a daemon starts are not signalled. If this process and the \
guardian are stopped together, the command may continue to run. A resource that compares fencing tokens rejects its \
late writes.

Signals: TERM, INT, HUP, QUIT, USR1 and USR2 are forwarded to the command, which has its own process group. If stdin \
is a terminal, the command stays in the process group of this process, so that it can read from the terminal and gets \
Ctrl-C and Ctrl-Z directly. There, until the command exits, only TERM, USR1 and USR2 are forwarded. Ctrl-Z also stops \
the renewals: without `fg` in time, the command is killed and the lease is lost.

Exit codes:
  N    the exit code of the command, or 128 + N if signal N ended the command
  123  the lease was lost, and the command was stopped
  124  the lease was not acquired: another holder has it, the wait timed out, or a signal came first
  125  any other error: no node reachable, invalid arguments
  126  the command could not be executed
  127  the command was not found";

/// Runs the command until it exits.
pub async fn run(arguments: Arguments) -> ExitCode {
    let (plan, wait) = match arguments.plan() {
        Ok(planned) => planned,
        Err(why) => {
            message!("tenure: {why}");
            return ExitCode::from(codes::FAILED);
        }
    };
    ExitCode::from(session::run(plan, wait).await)
}
