//! Exit codes of `tenure run` beside the command's own.

use rustix::process::WaitStatus;

/// The lease was lost, and the command stopped.
pub const LOST: u8 = 123;
/// The lease was not acquired, and the command not started.
pub const NOT_ACQUIRED: u8 = 124;
/// Neither the lease's nor the command's doing.
pub const OURS: u8 = 125;
/// The command was found and could not be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// The command was not found.
pub const NOT_FOUND: u8 = 127;
/// Ended by a signal: this and its number.
const SIGNALLED: i32 = 128;

/// The exit code that a shell would have for this end.
pub fn of(status: WaitStatus) -> u8 {
    let code = status.exit_status().or(status.terminating_signal().map(|signal| SIGNALLED + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(OURS)
}
