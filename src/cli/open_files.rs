//! How many files and connections this process may have open. The system's default is often 1,024, and a process without
//! any left can take no peer's connection and open no file of its store: clients must not get to the last one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// Kept from clients, for each node: the peers' connections, the store's files, and what else a process opens.
const RESERVED: u64 = 512;
/// Below this there is no use in serving.
const LEAST_CONNECTIONS: usize = 16;

/// Allows this process as many as the system lets it, and says how many of the `wanted` connections of clients each of
/// so many nodes in it can take. Warns if that is not all of them.
pub fn connections(wanted: usize, nodes: usize) -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        warn!(%error, "cannot raise the number of open files");
    }
    let allowed = getrlimit(Resource::Nofile).current;
    let room = room(allowed, nodes);
    if room < wanted {
        warn!(allowed, "at most {room} clients can connect: let this process open more files (ulimit -n, LimitNOFILE)");
    }
    wanted.min(room)
}

/// Connections for each of so many nodes in a process that may open so many files; `None`: without a limit.
fn room(files: Option<u64>, nodes: usize) -> usize {
    let left = files.map_or(u64::MAX, |files| files.saturating_sub(RESERVED * nodes as u64));
    usize::try_from(left / nodes as u64).unwrap_or(usize::MAX).max(LEAST_CONNECTIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_itself_needs_is_left_out() {
        assert_eq!(room(Some(1024), 1), 512);
        assert_eq!(room(Some(4096), 3), (4096 - 3 * 512) / 3);
        assert_eq!(room(Some(100), 1), LEAST_CONNECTIONS, "a node that takes few clients still runs");
        assert_eq!(room(None, 1), usize::MAX);
    }
}
