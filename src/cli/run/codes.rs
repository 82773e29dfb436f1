//! Exit codes of `tenure run` other than those of the command.

use rustix::process::WaitStatus;

/// The lease was lost, and the command was stopped.
pub const LOST: u8 = 123;
/// The lease was not acquired, and the command was not started.
pub const NOT_ACQUIRED: u8 = 124;
/// Any other error of `tenure` itself.
pub const FAILED: u8 = 125;
/// The command exists but could not be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// The command was not found.
pub const NOT_FOUND: u8 = 127;
/// Added to the number of the signal that ended the command.
const SIGNALLED: i32 = 128;

/// The exit code that a shell returns for this status.
pub fn of(status: WaitStatus) -> u8 {
    let code = status.exit_status().or(status.terminating_signal().map(|signal| SIGNALLED + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED)
}
