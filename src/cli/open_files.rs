//! The limit of open files, which also limits connections.
//!
//! The default of the system is often 1,024. At the limit, a node cannot accept connections of peers and cannot open
//! files of its store. Client connections must therefore never use all file descriptors.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// File descriptors per node that clients cannot use: for connections of peers, files of the store and other files.
const RESERVED: u64 = 512;
/// Minimum number of client connections of a node, also if the limit of open files is too low for it.
const MIN_CONNECTIONS: usize = 16;

/// Raises the limit of open files to its maximum, and returns the number of client connections for each of `nodes`
/// nodes in this process. The result is at most `wanted`; a lower result logs a warning.
pub fn connections(wanted: usize, nodes: usize) -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        warn!(%error, "cannot raise the limit of open files");
    }
    let allowed = getrlimit(Resource::Nofile).current;
    let max_clients = max_clients(allowed, nodes);
    if max_clients < wanted {
        warn!(
            allowed,
            "at most {max_clients} of {wanted} clients can connect: raise the limit of open files (ulimit -n, LimitNOFILE)"
        );
    }
    wanted.min(max_clients)
}

/// The action for a limit that is too low.
pub const ADVICE: &str = "raise the limit of open files: LimitNOFILE of the service, or `ulimit -Hn`";

/// The highest limit that this process can set; `None`: no limit.
pub fn maximum() -> Option<u64> {
    getrlimit(Resource::Nofile).maximum
}

/// Client connections for each of `nodes` nodes in a process that may open `files` files, or any number if `None`.
pub fn max_clients(files: Option<u64>, nodes: usize) -> usize {
    let left = files.map_or(u64::MAX, |files| files.saturating_sub(RESERVED * nodes as u64));
    usize::try_from(left / nodes as u64).unwrap_or(usize::MAX).max(MIN_CONNECTIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_clients_excludes_reserved_files() {
        assert_eq!(max_clients(Some(1024), 1), 512);
        assert_eq!(max_clients(Some(4096), 3), (4096 - 3 * 512) / 3);
        assert_eq!(max_clients(Some(100), 1), MIN_CONNECTIONS, "a node with few files still serves some clients");
        assert_eq!(max_clients(None, 1), usize::MAX);
    }
}
