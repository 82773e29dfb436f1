//! How many files this process may open: every connection is one.

use rustix::process::{Resource, getrlimit, setrlimit};
use tracing::warn;

/// Files that are kept for everything but clients: data, the other nodes, logs.
const RESERVED: u64 = 512;

/// Raises the limit of open files as far as this process may, and says how many of the `wanted` connections each of
/// so many nodes in it can take. Warns if that is not all of them.
pub fn connections(wanted: usize, nodes: usize) -> usize {
    let limits = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limits.maximum, ..limits });
    // What cannot be raised stays as it is.
    let files = if raised.is_ok() { limits.maximum } else { limits.current };
    let possible = possible(files, nodes);
    if possible < wanted {
        warn!(
            files,
            max_connections = possible,
            "this process may open too few files for {wanted} connections; raise its limit (RLIMIT_NOFILE)"
        );
    }
    wanted.min(possible)
}

/// Connections for each of so many nodes in a process that may open so many files; `None`: without a limit.
fn possible(files: Option<u64>, nodes: usize) -> usize {
    let left = files.map_or(u64::MAX, |files| files.saturating_sub(RESERVED * nodes as u64));
    usize::try_from(left / nodes as u64).unwrap_or(usize::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_itself_needs_is_left_out() {
        assert_eq!(possible(Some(1024), 1), 512);
        assert_eq!(possible(Some(4096), 3), (4096 - 3 * 512) / 3);
        assert_eq!(possible(Some(100), 1), 1, "a node that takes one client at a time still runs");
        assert_eq!(possible(None, 1), usize::MAX);
    }
}
