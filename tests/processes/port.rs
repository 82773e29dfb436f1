//! Ports that nobody uses.

use std::net::TcpListener;

/// The kernel gives outgoing connections ports from here on (`net.ipv4.ip_local_port_range`). A node that is down for
/// a moment must find its port free when it comes back, so no port of a node is taken from there.
const FIRST_EPHEMERAL: u16 = 32768;
const FIRST: u16 = 10240;

/// A port that was free a moment ago.
pub fn free() -> u16 {
    let free = std::iter::repeat_with(|| rand::random_range(FIRST..FIRST_EPHEMERAL))
        .take(1000)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.expect("one of a thousand ports is free")
}
