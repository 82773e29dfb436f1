//! Findings about certificates: in files, and presented at addresses.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::finding::{Finding, Status};
use super::probe::{ListenerKind, Reached};
use crate::config::Config;
use crate::tls::{Inspected, Inspector, NodeTls, TlsError, node_uri};
use crate::types::NodeId;

/// A certificate that expires within this time is a warning, as for the alerts of deploy/prometheus.
const WARNING_DAYS: i64 = 30;
/// A certificate that expires within this time is a problem.
const PROBLEM_DAYS: i64 = 7;
const DAY_SECONDS: i64 = 24 * 60 * 60;

const REPLACE: &str = "replace it (`tenure tls issue`): nodes read changed files within 5 s, without a restart";

/// Seconds since 1970.
pub fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as i64
}

/// Judges the end of a validity, and describes it.
fn expiry(expires: i64, now: i64) -> (Status, String) {
    let seconds = Duration::from_secs(u64::try_from(expires).unwrap_or_default());
    let date = humantime::format_rfc3339_seconds(UNIX_EPOCH + seconds).to_string();
    let left = expires - now;
    let days = left / DAY_SECONDS;
    let status = match left {
        ..=0 => return (Status::Problem, format!("expired at {date}")),
        _ if left < PROBLEM_DAYS * DAY_SECONDS => Status::Problem,
        _ if left < WARNING_DAYS * DAY_SECONDS => Status::Warning,
        _ => Status::Ok,
    };
    (status, format!("expires in {days} days, at {date}"))
}

/// The finding about the certificate of an address, if the address uses TLS and accepts connections.
pub fn at_address(reached: &Reached, cluster: Option<&str>, now: i64) -> Option<Finding> {
    let name = format!("certificate.{}", reached.target.subject());
    let inspected = match reached.certificate.as_ref()? {
        Ok(inspected) => inspected,
        Err(why) => {
            let advice = "compare [tls] of the configuration file with that of the node, and see the log of the node";
            return Some(Finding::problem(
                name,
                format!("no TLS handshake at {}: {why}", reached.target.address),
                advice,
            ));
        }
    };
    let is_peer = reached.target.listener == ListenerKind::Peer;
    let expected = cluster.zip(reached.target.node).map(|(cluster, node)| node_uri(cluster, node));
    let (status, expiry) = expiry(inspected.expires, now);
    let names = names(inspected);
    // Other nodes check the URI, and clients check the host.
    if is_peer && let Some(expected) = expected.filter(|uri| !inspected.uris.contains(uri)) {
        let facts = format!("it names {names}, expected {expected}; {expiry}");
        return Some(Finding::problem(name, facts, format!("give the node a certificate with the URI {expected}")));
    }
    if let Some(why) = inspected.other_host.as_ref().filter(|_| !is_peer) {
        let facts = format!("clients refuse it at {}: {why}; {expiry}", reached.target.address);
        let advice = "give the node a certificate with this host among its subject alternative names";
        return Some(Finding::problem(name, facts, advice));
    }
    Some(judged(name, inspected, status, format!("{expiry}; names {names}")))
}

/// A certificate that names the right node.
fn judged(name: impl Into<String>, inspected: &Inspected, status: Status, facts: String) -> Finding {
    match &inspected.untrusted {
        // An expired certificate is also not trusted.
        Some(why) if status != Status::Problem => {
            let advice = "use a certificate that is valid now and has a CA of `tls.ca` or --ca, or add its CA there";
            Finding::problem(name, format!("not trusted: {why}; {facts}"), advice)
        }
        _ => Finding::new(status, name, facts, REPLACE),
    }
}

fn names(inspected: &Inspected) -> String {
    if inspected.uris.is_empty() { "no URI".to_owned() } else { inspected.uris.join(", ") }
}

/// The message of an error with its cause.
pub fn message(error: TlsError) -> String {
    format!("{:#}", anyhow::Error::from(error))
}

/// Reads and checks the certificate files of a node, by the same rules as `tenure serve`.
pub fn node_files(config: &Config, node: NodeId, now: i64) -> Option<Finding> {
    let name = "certificate.files";
    let settings = config.tls.as_ref()?.of_node(node);
    let unusable = |error| {
        let advice = "correct the files or [tls]: the node does not start with these, or keeps its old ones";
        Finding::problem(name, message(error), advice)
    };
    if let Err(error) = NodeTls::load(&settings, &config.cluster, node) {
        return Some(unusable(error));
    }
    let inspected = Inspector::new(Some(&settings.ca), None).and_then(|inspector| inspector.file(&settings.cert));
    Some(match inspected {
        Ok(inspected) => file(name, &inspected, &settings.cert, &settings.key, now),
        Err(error) => unusable(error),
    })
}

/// Judges a certificate whose key belongs to it.
fn file(name: &str, inspected: &Inspected, cert: &Path, key: &Path, now: i64) -> Finding {
    let (status, expiry) = expiry(inspected.expires, now);
    with_key(judged(name, inspected, status, format!("{} {expiry}", cert.display())), key)
}

/// The finding about a certificate, or a warning, with the fact that others can read its key.
fn with_key(finding: Finding, key: &Path) -> Finding {
    if !is_open(key) {
        return finding;
    }
    let facts = format!("other users can read or write {}; {}", key.display(), finding.facts);
    let close = format!("run `chmod 600 {}`", key.display());
    match finding.advice {
        None => Finding::warning(finding.name, facts, close),
        Some(advice) => Finding::new(finding.status, finding.name, facts, format!("{close}, and {advice}")),
    }
}

fn is_open(key: &Path) -> bool {
    std::fs::metadata(key).is_ok_and(|metadata| metadata.permissions().mode() & 0o007 != 0)
}

/// Checks the certificate that this client presents, and its key. Only servers need a chain to `tls.ca`.
pub fn client_file(cert: &Path, key: &Path, now: i64) -> Finding {
    let name = "certificate.client";
    match Inspector::new(Some(cert), None).and_then(|inspector| inspector.file(cert)) {
        Ok(inspected) => {
            let (status, expiry) = expiry(inspected.expires, now);
            let facts = format!("{} {expiry}; names {}", cert.display(), names(&inspected));
            with_key(judged(name, &Inspected { untrusted: None, ..inspected }, status, facts), key)
        }
        Err(error) => Finding::problem(name, message(error), "correct --cert and --key"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::super::probe::ProbeTarget;
    use super::*;
    use crate::tls::tests::Authority;

    const NOW: i64 = 1_700_000_000;
    const DAY: i64 = DAY_SECONDS;

    fn inspected(left: i64, uri: &str) -> Inspected {
        Inspected { uris: vec![uri.to_owned()], expires: NOW + left, untrusted: None, other_host: None }
    }

    fn at(listener: ListenerKind, certificate: Result<Inspected, String>) -> Finding {
        let target = ProbeTarget::new(1, listener, "127.0.0.1:7101", true);
        let connected = Ok(Duration::from_millis(1));
        let reached = Reached { target, connected, certificate: Some(certificate), answers: None };
        at_address(&reached, Some("a"), NOW).expect("it uses TLS")
    }

    #[test]
    fn expiry_is_a_warning_before_30_days_and_a_problem_before_7() {
        let status = |left| at(ListenerKind::Peer, Ok(inspected(left, "tenure://a/node/1"))).status;
        assert_eq!(status(30 * DAY), Status::Ok);
        assert_eq!(status(30 * DAY - 1), Status::Warning);
        assert_eq!(status(7 * DAY), Status::Warning);
        assert_eq!(status(7 * DAY - 1), Status::Problem);
        let expired = at(ListenerKind::Peer, Ok(inspected(0, "tenure://a/node/1")));
        assert_eq!(expired.status, Status::Problem);
        assert!(expired.facts.starts_with("expired at 2023-11-14T22:13:20Z"), "{expired:?}");
    }

    #[test]
    fn peer_certificate_must_name_the_cluster_and_the_node() {
        for (uri, status) in [
            ("tenure://a/node/1", Status::Ok),
            ("tenure://a/node/2", Status::Problem),
            ("tenure://b/node/1", Status::Problem),
        ] {
            assert_eq!(at(ListenerKind::Peer, Ok(inspected(99 * DAY, uri))).status, status, "{uri}");
        }
    }

    #[test]
    fn certificate_must_be_trusted_and_name_the_host_for_clients() {
        let good = inspected(99 * DAY, "tenure://a/node/1");
        let other_host = Inspected { other_host: Some("not valid for name".to_owned()), ..good.clone() };
        assert_eq!(at(ListenerKind::Http, Ok(other_host.clone())).status, Status::Problem);
        assert_eq!(at(ListenerKind::Peer, Ok(other_host)).status, Status::Ok, "nodes check the URI instead");
        let untrusted = Inspected { untrusted: Some("UnknownIssuer".to_owned()), ..good };
        let finding = at(ListenerKind::Peer, Ok(untrusted));
        assert_eq!(finding.status, Status::Problem);
        assert!(finding.facts.contains("not trusted: UnknownIssuer"), "{finding:?}");
        assert_eq!(at(ListenerKind::Http, Err("eof".to_owned())).status, Status::Problem);
    }

    #[test]
    fn key_that_others_can_read_is_a_warning() {
        let dir = tempfile::tempdir().expect("a folder");
        let key = dir.path().join("key");
        std::fs::write(&key, "secret").expect("writable");
        let status = |mode| {
            std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).expect("own file");
            file("certificate.files", &inspected(99 * DAY, "u"), Path::new("cert"), &key, NOW).status
        };
        assert_eq!([status(0o640), status(0o644)], [Status::Ok, Status::Warning]);
    }

    /// The files of a client certificate whose key has this mode, with the end of the validity.
    fn of_client(authority: &Authority, mode: u32) -> (PathBuf, PathBuf, i64) {
        authority.issue("a", 1, 2040);
        let (cert, key) = (authority.path("node-1.pem"), authority.path("node-1.key"));
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).expect("own file");
        let inspected = Inspector::new(Some(&cert), None).and_then(|inspector| inspector.file(&cert));
        (cert, key, inspected.expect("a certificate").expires)
    }

    #[test]
    fn expired_certificate_of_the_client_is_a_problem() {
        let authority = Authority::new();
        let (cert, key, expires) = of_client(&authority, 0o600);
        let status = |left| client_file(&cert, &key, expires - left).status;
        assert_eq!([status(30 * DAY), status(30 * DAY - 1)], [Status::Ok, Status::Warning]);
        assert_eq!([status(7 * DAY - 1), status(0)], [Status::Problem; 2]);
    }

    #[test]
    fn key_of_the_client_that_others_can_read_is_a_warning() {
        let authority = Authority::new();
        let (cert, key, expires) = of_client(&authority, 0o644);
        let finding = client_file(&cert, &key, expires - 99 * DAY);
        assert_eq!(finding.status, Status::Warning, "{finding:?}");
        assert!(finding.facts.starts_with("other users can read or write"), "{finding:?}");
    }

    #[test]
    fn certificate_that_ends_soon_does_not_hide_an_open_key() {
        let authority = Authority::new();
        let (cert, key, expires) = of_client(&authority, 0o644);
        for (left, status) in [(29 * DAY, Status::Warning), (DAY, Status::Problem)] {
            let inspected = Inspected { expires, ..inspected(0, "u") };
            let finding = file("certificate.files", &inspected, &cert, &key, expires - left);
            assert_eq!(finding.status, status, "{finding:?}");
            assert!(finding.facts.contains("other users can read or write"), "{finding:?}");
            let advice = finding.advice.expect("it is no success");
            assert!(advice.contains("chmod 600") && advice.contains("replace it"), "{advice}");
        }
    }
}
