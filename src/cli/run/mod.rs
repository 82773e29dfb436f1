//! `tenure run`: a command that runs while a lease is held.
//!
//! | file | noun |
//! |---|---|
//! | `arguments` | the command line |
//! | `session` | one command under one lease, from the acquire to the release |
//! | `guarded` | the command as this process sees it: a guardian that is spoken to |
//! | `messages` | what is said |
//! | `guard` | the guardian: a process of its own that ends the command in time |
//! | `launch` | the process that becomes the command |
//! | `descendants` | every process below one |
//! | `passed` | signals that are meant for the command |
//! | `codes` | exit codes |
//!
//! Three processes stand in a row: this one holds the lease, the guardian has the deadline, and the command is below
//! the guardian. Whichever of the first two stops or dies, the other ends the command. Linux only: nothing else has
//! all of subreapers, handles of processes, and a death signal.

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

/// This program, though its file may have been replaced meanwhile.
const OURSELVES: &str = "/proc/self/exe";

pub const HELP: &str = "\
The command is executed directly, without a shell, while the lease is held. The lease is renewed until the command and \
every process that it started have ended; then it is released.

Environment of the command:
  TENURE_LEASE      the lease's name
  TENURE_TOKEN      the fencing token, a decimal integer: send it with every write
  TENURE_HOLDER     who holds it
  TENURE_ENDPOINTS  the nodes

When the lease cannot be kept, everything that the command started gets TERM at the deadline less the grace, and KILL by \
the deadline. When the lease is taken away (revoked, handed over) TERM comes when that is noticed, and KILL after the \
grace or by the deadline. That holds also when this process is stopped, stuck or killed: a second process sees to it.

Not caught: processes that run as another user, or that a daemon starts on request; this process and its guardian being \
stopped at once. A late write is kept out by the resource that compares tokens.

Signals: TERM, INT, HUP, QUIT, USR1 and USR2 are passed to the command's process group, which is its own. At a terminal \
(stdin) the command stays in this process's group, so that it can read, and Ctrl-C and Ctrl-Z reach it from the terminal. \
Ctrl-Z stops the renewals too: unless continued in time, the command is killed and the lease is lost.

Exit codes:
  N    the command's own; 128 + N when signal N ended it
  123  the lease was lost, and the command stopped
  124  the lease was not acquired: held by somebody else, the wait ended, or a signal came first
  125  something else: no cluster, invalid arguments
  126  the command could not be executed
  127  the command was not found";

/// Runs the command to its end.
pub async fn run(arguments: Arguments) -> ExitCode {
    let (plan, wait) = match arguments.plan() {
        Ok(planned) => planned,
        Err(why) => {
            eprintln!("tenure: {why}");
            return ExitCode::from(codes::OURS);
        }
    };
    ExitCode::from(session::run(plan, wait).await)
}
