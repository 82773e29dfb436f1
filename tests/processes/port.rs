//! Free ports for nodes.

use std::net::TcpListener;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};

/// The ports of nodes lie below the first port for outgoing connections (`net.ipv4.ip_local_port_range`, from 32768):
/// no connection may take the port of a node that is down for a moment.
const FIRST: u16 = 10240;
const COUNT: u16 = 32768 - FIRST;

/// The place of the next port. Each process begins at a random one.
static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| AtomicU16::new(rand::random()));

/// Returns a port that was free at the time of the call. No port is returned a second time.
pub fn free() -> u16 {
    let next = || FIRST + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
    let free = std::iter::repeat_with(next).take(1000).find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.expect("one of a thousand ports is free")
}
