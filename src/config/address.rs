//! Listener addresses: `host:port`.

use std::net::IpAddr;

/// Checks that an address has a reachable host and a port.
///
/// # Errors
///
/// The problem, without the key's name.
pub(super) fn check(address: &str) -> Result<(), String> {
    check_listen(address)?;
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    if ip(host).is_some_and(|ip| ip.is_unspecified()) {
        return Err(format!(
            "{address:?} is sent to clients and other nodes, and {host} is not reachable: use a host name or IP \
             address of this machine, and listen_http or listen_peer for the address to bind"
        ));
    }
    Ok(())
}

/// Checks that an address has a host and a port. The host may be `0.0.0.0` or `[::]`: all addresses of the machine.
///
/// # Errors
///
/// The problem, without the key's name.
pub(super) fn check_listen(address: &str) -> Result<(), String> {
    let Some((host, port)) = address.rsplit_once(':') else {
        return Err(format!("{address:?} must be host:port"));
    };
    if !matches!(port.parse::<u16>(), Ok(1..)) {
        return Err(format!("{address:?} must end in a port from 1 to 65535"));
    }
    match ip(host) {
        Some(_) => Ok(()),
        None if is_hostname(host) => Ok(()),
        None => Err(format!("{address:?} must have a host name or IP address (IPv6 in brackets) before the port")),
    }
}

/// Whether an address is a loopback address, which only this machine can reach.
pub fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.eq_ignore_ascii_case("localhost") || ip(host).is_some_and(|ip| ip.is_loopback())
}

fn ip(host: &str) -> Option<IpAddr> {
    match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(v6) => v6.parse().ok().map(IpAddr::V6),
        None => host.parse().ok().map(IpAddr::V4),
    }
}

fn is_hostname(host: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    // A last label of only digits is an invalid IPv4 address, never a host name.
    let last_is_number = host.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()));
    host.len() <= 253 && host.split('.').all(label) && !last_is_number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_needs_host_and_port() {
        for good in ["127.0.0.1:7101", "[::1]:7101", "localhost:1", "node-1.example.net:65535", "10.0.0.1:7101"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in ["", "7101", ":7101", "host", "host:0", "host:65536", "host:x", "::1:7101", "a b:1", "0.0.0.0:7101"]
        {
            assert!(check(bad).is_err(), "{bad}");
        }
        for bad in ["[::]:7101", "1.2.3:7101", "256.1.1.1:7101", "http://host:7101"] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn is_loopback_knows_names_and_ip_addresses() {
        for local in ["127.0.0.1:7101", "127.8.8.8:1", "[::1]:7101", "LocalHost:7101"] {
            assert!(is_loopback(local), "{local}");
        }
        for remote in ["10.0.0.1:7101", "[2001:db8::1]:7101", "localhost.example.net:7101", "node-1:7101"] {
            assert!(!is_loopback(remote), "{remote}");
        }
    }
}
