//! Free ports for nodes.

use std::net::TcpListener;

/// The first port for outgoing connections (`net.ipv4.ip_local_port_range`). The ports of nodes lie below it: no
/// connection may take the port of a node that is down for a moment.
const FIRST_EPHEMERAL: u16 = 32768;
const FIRST: u16 = 10240;

/// Returns a port that was free at the time of the call.
pub fn free() -> u16 {
    let free = std::iter::repeat_with(|| rand::random_range(FIRST..FIRST_EPHEMERAL))
        .take(1000)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.expect("one of a thousand ports is free")
}
