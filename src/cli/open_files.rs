//! How many files and connections this process may have open. The system's default is often 1,024, and a process without
//! any left can take no peer's connection and open no file of its store: clients must not get to the last one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// Kept from clients: the peers' connections, the store's files, and what else a process opens.
const RESERVED: usize = 512;
/// Below this there is no use in serving.
const LEAST_CONNECTIONS: usize = 16;

/// Allows this process as many as the system lets it, and says how many connections of clients there may be of `wanted`.
pub fn connections(wanted: usize) -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        warn!(%error, "cannot raise the number of open files");
    }
    let allowed = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |files| files as usize);
    let room = allowed.saturating_sub(RESERVED).max(LEAST_CONNECTIONS);
    if room < wanted {
        warn!(allowed, "at most {room} clients can connect: let this process open more files (ulimit -n, LimitNOFILE)");
    }
    wanted.min(room)
}
