//! Text from operators and clients: the configuration, the command line, headers and queries.

use std::fmt::{Debug, Display};
use std::path::Path;
use std::str::FromStr;
#[cfg(feature = "cli")]
use std::time::Duration;

#[cfg(feature = "fence-http")]
use axum::http::{HeaderMap, HeaderValue};

use super::{Input, input, texts};
#[cfg(feature = "cli")]
use crate::api::TtlMs;
use crate::api::{EventId, Timestamp};
#[cfg(feature = "cli")]
use crate::cli::{duration, metadata};
use crate::client::Endpoints;
use crate::config::{self, Config};
use crate::http::reads;
use crate::service;
use crate::token::FencingToken;
use crate::types::{HolderId, LeaseName, MAX_HOLDER_BYTES, MAX_NAME_BYTES};

pub(super) fn inputs() -> Vec<Input> {
    vec![
        input("config", 4096, config, configs),
        input("names", 256, names, || texts(["jobs:nightly.7_a-b", "a holder / of any kind"])),
        input("token", 64, token, || texts(["281474976710661", "00000000000000000007", "9223372036854775807"])),
        input("watch_place", 64, |bytes| parsed::<EventId>(bytes).is_some(), || texts(["17", "17.0"])),
        input("list_cursor", 256, list_cursor, || texts(["jobs~7", "a~18446744073709551615"])),
        input("timestamp", 64, timestamp, || texts(["\"2026-01-31T12:00:00.000Z\"", "\"1970-01-01T00:00:00Z\""])),
        input("endpoints", 512, endpoints, || texts([" http://127.0.0.1:7101/, node-2:7101 ,[::1]:7101,https://x/y"])),
        #[cfg(feature = "cli")]
        input("cli_duration", 64, cli_duration, || texts(["500ms", "1m30s", "30d", "infinite"])),
        #[cfg(feature = "cli")]
        input("cli_note", 256, cli_metadata, || texts(["pid=7", "=", "a=b=c"])),
        #[cfg(feature = "fence-http")]
        input("fence_header", 128, fence_header, || texts(["281474976710661", "007"])),
    ]
}

/// Parses text, and asserts that the value survives formatting and parsing.
fn parsed<T: FromStr + Display + PartialEq + Debug>(bytes: &[u8]) -> Option<T> {
    let value: T = std::str::from_utf8(bytes).ok()?.parse().ok()?;
    assert!(value.to_string().parse().is_ok_and(|again: T| again == value), "{value} does not read back");
    Some(value)
}

/// A configuration file. An accepted one also passes the checks for embedded nodes. A refused one has at least one
/// problem, and each problem has a text.
fn config(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    match Config::parse(text, Path::new("/etc/tenure")) {
        Ok(config) => {
            let Config { cluster, raft, lease, ttl, backup, tls, allow_insecure_network, .. } = &config;
            let members = config.members();
            let may_be_reached = config::may_be_reached(*allow_insecure_network, tls.as_ref());
            let again = config::problems(cluster, &members, may_be_reached, raft, lease, ttl, backup.as_ref());
            assert_eq!(again, Vec::<String>::new());
            assert!(config.nodes.iter().all(|node| config.node(node.id) == Some(node)));
            config.warnings();
            true
        }
        Err(problems) => {
            assert!(!problems.0.is_empty() && problems.0.iter().all(|problem| !problem.is_empty()), "{problems:?}");
            false
        }
    }
}

fn configs() -> Vec<Vec<u8>> {
    let node = "[[node]]\nid = 1\nhttp = \"127.0.0.1:7101\"\npeer = \"[::1]:7201\"\ndata = \"data/1\"\n";
    let timings = "profile = \"wan\"\nheartbeat_interval_ms = 400\n";
    let leases = "default_ttl_ms = 5000\nmin_ttl_ms = 100\nallow_infinite_ttl = false\nmax_waiters = 0\n";
    vec![
        include_bytes!("../../../cluster.toml").to_vec(),
        format!("cluster = \"a\"\n{node}").into_bytes(),
        format!("cluster = \"a\"\nallow_insecure_network = true\n{node}[raft]\n{timings}[lease]\n{leases}")
            .into_bytes(),
    ]
}

/// The name of a lease, or a holder id.
fn names(bytes: &[u8]) -> bool {
    let name = parsed::<LeaseName>(bytes);
    assert!(name.as_ref().is_none_or(|name| (1..=MAX_NAME_BYTES).contains(&name.as_str().len())), "{name:?}");
    let holder = parsed::<HolderId>(bytes);
    assert!(holder.as_ref().is_none_or(|holder| (1..=MAX_HOLDER_BYTES).contains(&holder.as_str().len())), "{holder:?}");
    name.is_some() || holder.is_some()
}

/// A fencing token in decimal form. Its other forms are equivalent.
fn token(bytes: &[u8]) -> bool {
    let Some(token) = parsed::<FencingToken>(bytes) else { return false };
    assert_eq!(token.padded().parse(), Ok(token));
    assert_eq!(FencingToken::try_from(token.as_u64()), Ok(token));
    assert!(token.as_i64() >= 0 && token.padded().len() == 20, "{token}");
    true
}

fn list_cursor(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(cursor) = reads::read_cursor(text) else { return false };
    assert_eq!(reads::read_cursor(&service::write_cursor(&cursor)).expect("it reads back"), cursor);
    true
}

fn timestamp(bytes: &[u8]) -> bool {
    super::json::<Timestamp>(bytes).is_some()
}

fn endpoints(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(endpoints) = text.parse::<Endpoints>() else { return false };
    let shown = endpoints.to_string();
    let again: Endpoints = shown.parse().expect("it reads back");
    assert_eq!((again.len(), again.to_string()), (endpoints.len(), shown));
    true
}

#[cfg(feature = "cli")]
fn cli_duration(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let parsed = duration::parse(text);
    let as_ttl = |long: Duration| TtlMs::Millis(long.as_millis() as u64);
    let expected = if text == "infinite" { Some(TtlMs::Infinite) } else { parsed.clone().ok().map(as_ttl) };
    assert_eq!(duration::parse_ttl(text).ok(), expected);
    if let Ok(long) = parsed {
        assert!(long <= Duration::from_secs(30 * 24 * 60 * 60), "{long:?}");
        assert_eq!(duration::parse(&format!("{}ms", long.as_millis())), Ok(long));
        assert!(!duration::show(long.as_millis() as u64).is_empty());
    }
    parsed.is_ok() || text == "infinite"
}

#[cfg(feature = "cli")]
fn cli_metadata(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok((key, value)) = metadata::read(text) else { return false };
    assert_eq!(format!("{key}={value}"), text);
    assert!(!key.contains('='), "{key}");
    true
}

/// The fencing headers of a request to a protected resource. Tabs separate them in the input.
#[cfg(feature = "fence-http")]
fn fence_header(bytes: &[u8]) -> bool {
    let mut headers = HeaderMap::new();
    for value in bytes.split(|byte| *byte == b'\t') {
        let Ok(value) = HeaderValue::from_bytes(value) else { return false };
        headers.append(crate::fence::http::HEADER, value);
    }
    let Ok(token) = crate::fence::http::token(&headers) else { return false };
    assert!(headers.len() == 1 && std::str::from_utf8(bytes).is_ok_and(|text| text.parse() == Ok(token)), "{token}");
    true
}
