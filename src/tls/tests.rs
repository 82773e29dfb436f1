//! Certificates for tests, and connections between nodes with them.

use std::path::Path;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::peer::Lane;
use crate::peer::handshake::{self, Incarnations, PeerIdentity, PeerRefusal};
use crate::types::NodeId;

/// A CA with its folder of certificates.
pub(crate) struct Authority {
    pub folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let (folder, key) = (TempDir::new().expect("a folder"), KeyPair::generate().expect("a key"));
        let certificate = params.self_signed(&key).expect("a certificate");
        std::fs::write(folder.path().join("ca.pem"), certificate.pem()).expect("writable");
        Authority { folder, issuer: Issuer::new(params, key) }
    }

    /// Writes the certificate of a node, valid until the end of `year`.
    pub fn issue(&self, cluster: &str, node: NodeId, year: i32) {
        let uri = node_uri(cluster, node).try_into().expect("ASCII");
        self.write(&format!("node-{node}"), vec![SanType::URI(uri)], year);
    }

    fn write(&self, name: &str, names: Vec<SanType>, year: i32) {
        self.write_with(name, names, |params| params.not_after = rcgen::date_time_ymd(year, 12, 31));
    }

    /// Writes a certificate for both ends of a connection, unless `change` says something else.
    fn write_with(&self, name: &str, names: Vec<SanType>, change: impl FnOnce(&mut CertificateParams)) {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        std::fs::write(self.path(&format!("{name}.pem")), certificate.pem()).expect("writable");
        std::fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).expect("writable");
    }

    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    pub fn settings(&self) -> TlsSettings {
        TlsSettings::new(self.path("ca.pem"), self.path("node-{node}.pem"), self.path("node-{node}.key"))
    }

    /// The certificates of a node, which are made if they are missing.
    pub fn node(&self, cluster: &str, node: NodeId) -> NodeTls {
        if !self.path(&format!("node-{node}.pem")).exists() {
            self.issue(cluster, node, 2099);
        }
        NodeTls::load(&self.settings(), cluster, node).expect("the certificates are valid")
    }

    pub fn node_with(&self, cluster: &str, node: NodeId, settings: TlsSettings) -> NodeTls {
        self.issue(cluster, node, 2099);
        NodeTls::load(&settings, cluster, node).expect("the certificates are valid")
    }
}

/// Both ends of a TCP connection.
async fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
    (near.expect("it listens"), far.expect("a connection").0)
}

/// Connects a node to the node `target`, and passes a message. Returns the results of both ends.
async fn connect(
    caller: &NodeTls,
    target: NodeId,
    answering: &NodeTls,
) -> (Result<(), String>, Result<Option<PeerCertificate>, String>) {
    let (near, far) = tcp().await;
    let called = async {
        let mut stream = caller.connect_peer(near, target).await.map_err(|error| error.to_string())?;
        // With TLS 1.3, the caller learns with the first answer that its certificate was refused.
        stream.write_all(b"ping").await.map_err(|error| error.to_string())?;
        stream.read_exact(&mut [0; 4]).await.map_err(|error| error.to_string())?;
        Ok(())
    };
    let answered = async {
        let (mut stream, certificate) = answering.accept_peer(far).await.map_err(|error| error.to_string())?;
        stream.read_exact(&mut [0; 4]).await.map_err(|error| error.to_string())?;
        stream.write_all(b"pong").await.map_err(|error| error.to_string())?;
        stream.flush().await.map_err(|error| error.to_string())?;
        Ok(certificate)
    };
    let both = async { tokio::join!(called, answered) };
    tokio::time::timeout(Duration::from_secs(10), both).await.expect("no end hangs")
}

#[tokio::test]
async fn nodes_of_one_cluster_connect() {
    let ca = Authority::new();
    let (called, answered) = connect(&ca.node("a", 1), 2, &ca.node("a", 2)).await;
    assert_eq!(called, Ok(()));
    let certificate = answered.expect("a connection").expect("a certificate");
    assert!(certificate.is_of("a", 1) && !certificate.is_of("a", 2) && !certificate.is_of("b", 1));
    assert_eq!(certificate.names(), "tenure://a/node/1");
}

#[tokio::test]
async fn caller_refuses_certificates_of_others() {
    let ca = Authority::new();
    let (one, two) = (ca.node("a", 1), ca.node("a", 2));
    let (called, answered) = connect(&one, 3, &two).await;
    let why = called.expect_err("another node");
    assert!(why.contains("names tenure://a/node/2: expected tenure://a/node/3"), "{why}");
    assert!(answered.is_err());
    let stranger = Authority::new();
    let (called, answered) = connect(&one, 2, &stranger.node("a", 2)).await;
    let why = called.expect_err("another CA");
    assert!(why.contains("UnknownIssuer") || why.contains("BadSignature"), "{why}");
    assert!(answered.is_err());
    ca.issue("a", 4, 2020);
    let expired = NodeTls::load(&ca.settings(), "a", 4).expect("an expired certificate loads");
    let (called, _) = connect(&one, 4, &expired).await;
    let why = called.expect_err("an expired certificate");
    assert!(why.contains("xpired"), "{why}");
}

/// The URI of the shorter id is the beginning of the other one.
#[tokio::test]
async fn certificate_names_only_its_own_node() {
    let ca = Authority::new();
    let (one, eleven, other) = (ca.node("a", 1), ca.node("a", 11), ca.node("a", 2));
    for (node, id, wrong) in [(&eleven, 11, 1), (&one, 1, 11)] {
        let (_, answered) = connect(node, 2, &other).await;
        let certificate = answered.expect("a connection").expect("a certificate");
        assert!(certificate.is_of("a", id) && !certificate.is_of("a", wrong), "node {id} as node {wrong}");
        let (called, _) = connect(&other, wrong, node).await;
        let why = called.expect_err("another node");
        let names = format!("names tenure://a/node/{id}: expected tenure://a/node/{wrong}");
        assert!(why.contains(&names), "{why}");
    }
    for end in ["pem", "key"] {
        std::fs::copy(ca.path(&format!("node-11.{end}")), ca.path(&format!("node-1.{end}"))).expect("writable");
    }
    let refused = NodeTls::load(&ca.settings(), "a", 1).expect_err("the certificate of node 11");
    assert!(matches!(refused, TlsError::OtherNode { .. }), "{refused}");
}

#[tokio::test]
async fn listener_refuses_certificates_of_another_ca() {
    let (ca, stranger) = (Authority::new(), Authority::new());
    let (trusting, own) = (stranger.path("both.pem"), stranger.node("a", 1));
    drop(own);
    // The stranger trusts both CAs, and only its own certificate is wrong.
    let both = ["ca.pem"].map(|name| std::fs::read_to_string(ca.path(name)).expect("a file")).concat()
        + &std::fs::read_to_string(stranger.path("ca.pem")).expect("a file");
    std::fs::write(&trusting, both).expect("writable");
    let settings = TlsSettings { ca: trusting, ..stranger.settings() };
    let caller = NodeTls::load(&settings, "a", 1).expect("valid files");
    let (called, answered) = connect(&caller, 2, &ca.node("a", 2)).await;
    assert!(called.is_err(), "{called:?}");
    let why = answered.expect_err("another CA");
    assert!(why.contains("UnknownIssuer") || why.contains("BadSignature"), "{why}");
}

struct AcceptAll;

impl Incarnations for AcceptAll {
    fn joined(&self, _: NodeId) -> Option<u64> {
        None
    }

    fn is_removed(&self, _: NodeId) -> bool {
        false
    }

    fn observe(&self, _: NodeId, _: u64) {}
}

#[tokio::test]
async fn node_cannot_use_the_id_of_another() {
    let ca = Authority::new();
    let (_, answered) = connect(&ca.node("a", 3), 2, &ca.node("a", 2)).await;
    let certificate = answered.expect("a connection").expect("a certificate");
    let identity = |node: NodeId| {
        let vote_lease = Duration::from_millis(300);
        PeerIdentity { cluster: "a".to_owned(), node, incarnation: node, vote_lease }
    };
    for (claimed, refusal) in [(3, None), (1, Some(PeerRefusal::OtherCertificate { node: 1, cluster: "a".to_owned() }))]
    {
        let (mut near, mut far) = tokio::io::duplex(1024);
        let (caller, answering) = (identity(claimed), identity(2));
        let (called, answered) = tokio::join!(
            handshake::call(&mut near, &caller, 2, Lane::Log, &AcceptAll),
            handshake::answer(&mut far, &answering, &AcceptAll, Some(&certificate)),
        );
        assert_eq!(called.expect("no I/O error").err(), refusal, "node {claimed}");
        assert_eq!(answered.expect("no I/O error").err(), refusal, "node {claimed}");
    }
}

#[tokio::test]
async fn modes_decide_which_peers_connect() {
    let ca = Authority::new();
    let of = |node, mode| ca.node_with("a", node, ca.settings().mode(mode));
    use TlsMode::{Allow, Prefer, Require};
    for (caller, answering, expected) in [
        (Allow, Allow, Some(false)),
        (Allow, Prefer, Some(false)),
        (Allow, Require, None),
        (Prefer, Allow, Some(true)),
        (Prefer, Prefer, Some(true)),
        (Prefer, Require, Some(true)),
        (Require, Allow, Some(true)),
        (Require, Prefer, Some(true)),
        (Require, Require, Some(true)),
    ] {
        let (called, answered) = connect(&of(1, caller), 2, &of(2, answering)).await;
        let encrypted = answered.as_ref().ok().map(Option::is_some);
        assert_eq!(encrypted, expected, "{caller:?} to {answering:?}: {called:?} {answered:?}");
        assert_eq!(called.is_ok(), expected.is_some(), "{caller:?} to {answering:?}");
    }
}

#[tokio::test]
async fn tls_1_2_needs_a_setting() {
    let ca = Authority::new();
    let old = ca.node_with("a", 1, ca.settings().min_version(TlsVersion::V1_2));
    assert_eq!(old.settings().versions().len(), 2);
    let config = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS12])
        .expect("supported")
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    for (accepts, version) in [(false, TlsVersion::V1_3), (true, TlsVersion::V1_2)] {
        let node = ca.node_with("a", 2, ca.settings().min_version(version));
        let (near, far) = tcp().await;
        let name = rustls::pki_types::ServerName::try_from("node").expect("valid");
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config.clone()));
        let (_, accepted) = tokio::join!(connector.connect(name, near), node.accept_client(far));
        let why = accepted.err().expect("the client trusts no CA").to_string();
        // The client of an accepted version then refuses the certificate.
        assert_eq!(!why.contains("Tls12NotOfferedOrEnabled"), accepts, "{why}");
    }
}

#[test]
fn unusable_files_are_refused_with_the_reason() {
    let ca = Authority::new();
    let refused = |why: &str| {
        let error = NodeTls::load(&ca.settings(), "a", 1).expect_err(why).to_string();
        assert!(error.contains(why), "{error}: expected {why}");
    };
    refused("cannot read");
    ca.issue("a", 2, 2099);
    let copy = |from: &str, to: &str| _ = std::fs::copy(ca.path(from), ca.path(to)).expect("writable");
    copy("node-2.pem", "node-1.pem");
    copy("node-2.key", "node-1.key");
    refused("expected the URI tenure://a/node/1 among its subject alternative names, found tenure://a/node/2");
    ca.issue("a", 1, 2099);
    copy("node-2.key", "node-1.key");
    refused("node-1.key is invalid");
    std::fs::write(ca.path("node-1.key"), "no key").expect("writable");
    refused("expected one private key");
    std::fs::write(ca.path("ca.pem"), "").expect("writable");
    refused("ca.pem is invalid: expected a certificate");
}

#[tokio::test]
async fn changed_files_are_used_and_invalid_ones_are_not() {
    let ca = Authority::new();
    let (one, two) = (ca.node("a", 1), ca.node("a", 2));
    let before = two.expires();
    ca.issue("a", 2, 2098);
    two.reload();
    let after = two.expires();
    assert!(after < before, "the new certificate ends earlier");
    std::fs::write(ca.path("node-2.pem"), "half a fi").expect("writable");
    two.reload();
    assert_eq!(two.expires(), after, "the old certificate stays");
    let (called, answered) = connect(&one, 2, &two).await;
    assert!(called.is_ok() && answered.is_ok(), "{called:?} {answered:?}");
    ca.issue("b", 2, 2099);
    two.reload();
    assert_eq!(two.expires(), after, "the certificate of another cluster is not used");
    ca.issue("a", 2, 2097);
    two.reload();
    assert!(two.expires() < after, "the node looks again after an invalid file");
}

/// A node counts the same damage once. After the file was valid again, it counts the damage again.
#[test]
fn each_change_of_a_file_counts_once() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, || {
        let ca = Authority::new();
        let node = ca.node("a", 2);
        node.reload();
        let whole = std::fs::read(ca.path("node-2.pem")).expect("readable");
        for text in [b"half a fi", &whole[..], b"half a fi", b"half a fi"] {
            std::fs::write(ca.path("node-2.pem"), text).expect("writable");
            node.reload();
        }
        ca.issue("a", 2, 2098);
        node.reload();
        node.reload();
    });
    let metrics = recorder.handle().render();
    for (result, count) in [("failed", 2), ("ok", 1)] {
        let line = format!("tenure_tls_reloads_total{{result=\"{result}\"}} {count}\n");
        assert!(metrics.contains(&line), "no {line} in {metrics}");
    }
}

/// Its files are valid, and no other node would accept the certificate: after a restart the node would be alone.
#[tokio::test]
async fn changed_certificate_that_no_node_accepts_is_not_used() {
    let (ca, stranger) = (Authority::new(), Authority::new());
    let (one, two) = (ca.node("a", 1), ca.node("a", 2));
    let before = two.expires();
    let copy = || {
        for file in ["node-2.pem", "node-2.key"] {
            std::fs::copy(stranger.path(file), ca.path(file)).expect("writable");
        }
    };
    stranger.issue("a", 2, 2098);
    copy();
    two.reload();
    assert_eq!(two.expires(), before, "of another CA");
    ca.issue("a", 2, 2020);
    two.reload();
    assert_eq!(two.expires(), before, "expired");
    let (called, answered) = connect(&one, 2, &two).await;
    assert!(called.is_ok() && answered.is_ok(), "{called:?} {answered:?}");
    // The file of the CA arrives after the certificate.
    copy();
    two.reload();
    std::fs::copy(stranger.path("ca.pem"), ca.path("ca.pem")).expect("writable");
    two.reload();
    assert!(two.expires() < before, "the new CA has signed it");
    // From an expired certificate, each change is used.
    let four = {
        ca.issue("a", 4, 2020);
        NodeTls::load(&ca.settings(), "a", 4).expect("an expired certificate loads")
    };
    ca.issue("a", 4, 2021);
    let expired = four.expires();
    four.reload();
    assert!(four.expires() > expired);
}

/// Other nodes would refuse it at one end of a connection.
#[test]
fn changed_certificate_for_one_end_is_not_used() {
    let ca = Authority::new();
    let node = ca.node("a", 2);
    let before = node.expires();
    let uri = || vec![SanType::URI(node_uri("a", 2).try_into().expect("ASCII"))];
    for usage in [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth] {
        ca.write_with("node-2", uri(), |params| {
            params.extended_key_usages = vec![usage.clone()];
            params.not_after = rcgen::date_time_ymd(2098, 12, 31);
        });
        node.reload();
        assert_eq!(node.expires(), before, "{usage:?}");
    }
    ca.issue("a", 2, 2098);
    node.reload();
    assert!(node.expires() < before, "a certificate for both ends is used");
}

/// The node looks at its files every 5 s.
#[cfg(feature = "cli")]
#[test]
fn node_warns_once_a_day_from_14_days_before_the_expiry() {
    const DAY: Duration = Duration::from_secs(86_400);
    const HOUR: Duration = Duration::from_secs(3_600);

    #[derive(Clone, Default)]
    struct Lines(Arc<parking_lot::Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let ca = Authority::new();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let write = |days: u32| {
        let uri = node_uri("a", 1).try_into().expect("ASCII");
        ca.write_with("node-1", vec![SanType::URI(uri)], |params| {
            params.not_after = rcgen::date_time_ymd(1970, 1, 1) + now + days * DAY;
        });
    };
    for (days, warnings) in [(15, 0), (13, 1)] {
        write(days);
        let written = Lines::default();
        let lines = written.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || lines.clone()).with_ansi(false).finish();
        tracing::subscriber::with_default(subscriber, || {
            let text = || String::from_utf8(written.0.lock().clone()).expect("log lines are UTF-8");
            let said = |expected: usize, when: &str| {
                let text = text();
                assert_eq!(text.matches("expires soon").count(), expected, "{days} days, {when}: {text}");
            };
            let node = ca.node("a", 1);
            for _ in 0..3 {
                node.reload();
            }
            said(warnings, "several looks at the files");
            write(12);
            node.reload();
            node.reload();
            said(warnings + 1, "another certificate");
            let warned = std::time::SystemTime::now();
            node.report_expiry(warned + 23 * HOUR);
            said(warnings + 1, "the same day");
            node.report_expiry(warned + 24 * HOUR);
            said(warnings + 2, "the next day");
        });
    }
}

/// A new CA is added to the file before its first certificates are issued.
#[tokio::test]
async fn changed_file_of_cas_is_used() {
    let (ca, next) = (Authority::new(), Authority::new());
    let (one, two) = (ca.node("a", 1), next.node("a", 2));
    let cas = [&ca, &next].map(|ca| std::fs::read_to_string(ca.path("ca.pem")).expect("readable")).concat();
    std::fs::write(next.path("ca.pem"), &cas).expect("writable");
    two.reload();
    let (called, answered) = connect(&one, 2, &two).await;
    assert!(called.is_err() || answered.is_err(), "node 1 does not trust the new CA yet");
    std::fs::write(ca.path("ca.pem"), &cas).expect("writable");
    one.reload();
    let (called, answered) = connect(&one, 2, &two).await;
    assert!(called.is_ok() && answered.is_ok(), "{called:?} {answered:?}");
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn clients_present_certificates_if_the_node_requires_them() {
    let ca = Authority::new();
    let host = SanType::DnsName("localhost".try_into().expect("ASCII"));
    let uri = SanType::URI(node_uri("a", 1).try_into().expect("ASCII"));
    ca.write("node-1", vec![host, uri], 2099);
    ca.write("client", vec![], 2099);
    let ca_path = ca.path("ca.pem");
    let with = ClientTls::with_certificate(&ca_path, ca.path("client.pem"), ca.path("client.key")).expect("valid");
    let without = ClientTls::trusting(&ca_path).expect("valid");
    for (client_cert, tls, expected) in [
        (ClientCertificates::Optional, &without, Some(false)),
        (ClientCertificates::Optional, &with, Some(true)),
        (ClientCertificates::Require, &without, None),
        (ClientCertificates::Require, &with, Some(true)),
    ] {
        let node = NodeTls::load(&ca.settings().client_cert(client_cert), "a", 1).expect("valid");
        let (near, far) = tcp().await;
        let connector = tokio_rustls::TlsConnector::from(Arc::new(tls.config()));
        let name = rustls::pki_types::ServerName::try_from("localhost").expect("valid");
        let (_, accepted) = tokio::join!(connector.connect(name, near), node.accept_client(far));
        let presented = accepted.ok().map(|stream| stream.certificate().is_some());
        assert_eq!(presented, expected, "{client_cert:?}");
    }
    let missing: &Path = &ca.path("missing.pem");
    assert!(ClientTls::trusting(missing).is_err());
}

#[test]
fn certificate_names_a_client_of_its_own_cluster() {
    let ca = Authority::new();
    let node = ca.node("a", 1);
    let name_of = |uris: &[String]| {
        let uris = uris.iter().cloned().map(|uri| SanType::URI(uri.try_into().expect("ASCII")));
        ca.write("client", uris.collect(), 2099);
        let certificate = CertificateDer::from_pem_file(ca.path("client.pem")).expect("a certificate");
        node.client_name(&certificate).map(|name| name.as_str().to_owned())
    };
    let name = |uri: String| name_of(&[uri]);
    assert_eq!(name(client_uri("a", "ops")).as_deref(), Some("ops"));
    // Other systems add their own URI.
    let second = name_of(&["spiffe://a.example/ops".to_owned(), client_uri("a", "ops")]);
    assert_eq!(second.as_deref(), Some("ops"));
    for other in [client_uri("b", "ops"), node_uri("a", 1), client_uri("a", "ops/1"), "https://ops".to_owned()] {
        assert_eq!(name(other.clone()), None, "{other}");
    }
}

/// A resumed session would have the certificate of the first connection, which can expire meanwhile.
#[cfg(feature = "tls")]
#[tokio::test]
async fn each_connection_of_a_client_presents_its_certificate() {
    let ca = Authority::new();
    let host = SanType::DnsName("localhost".try_into().expect("ASCII"));
    ca.write("node-1", vec![host, SanType::URI(node_uri("a", 1).try_into().expect("ASCII"))], 2099);
    ca.write("client", vec![], 2099);
    let read = |name| (ca.path(name), std::fs::read(ca.path(name)).expect("readable"));
    let (roots, chain, key) = (read("ca.pem"), read("client.pem"), read("client.key"));
    let roots = certificate::roots(&roots.0, &roots.1).expect("valid");
    let chain = certificate::certificates(&chain.0, &chain.1).expect("valid");
    let key = certificate::key(&key.0, &key.1).expect("valid");
    let node = NodeTls::load(&ca.settings().min_version(TlsVersion::V1_2), "a", 1).expect("valid");
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let mut config = rustls::ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[version])
            .expect("supported")
            .with_root_certificates(roots.clone())
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .expect("the key belongs to the certificate");
        config.resumption = rustls::client::Resumption::in_memory_sessions(8);
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        for connection in ["first", "second"] {
            let (near, far) = tcp().await;
            let name = rustls::pki_types::ServerName::try_from("localhost").expect("valid");
            let (connected, accepted) = tokio::join!(connector.connect(name, near), node.accept_client(far));
            let (mut near, mut far) = (connected.expect("trusted"), accepted.expect("trusted"));
            // The client receives a ticket with the first bytes.
            far.write_all(b"pong").await.expect("open");
            near.read_exact(&mut [0; 4]).await.expect("open");
            let handshake = near.get_ref().1.handshake_kind();
            assert_eq!(handshake, Some(rustls::HandshakeKind::Full), "{version:?}, {connection} connection");
            assert!(far.certificate().is_some());
        }
    }
}

/// As after a change of the CA of the cluster: the client runs on, and its file has both CAs.
#[cfg(feature = "tls")]
#[tokio::test]
async fn client_reads_a_changed_file_of_cas() {
    let (ca, next) = (Authority::new(), Authority::new());
    for authority in [&ca, &next] {
        let host = SanType::DnsName("localhost".try_into().expect("ASCII"));
        let uri = SanType::URI(node_uri("a", 1).try_into().expect("ASCII"));
        authority.write("node-1", vec![host, uri], 2099);
        authority.write("client", vec![], 2099);
    }
    let path = ca.path("ca.pem");
    let clients = [
        ClientTls::trusting(&path).expect("valid"),
        ClientTls::with_certificate(&path, ca.path("client.pem"), ca.path("client.key")).expect("valid"),
    ];
    let node = NodeTls::load(&next.settings().client_cert(ClientCertificates::Optional), "a", 1).expect("valid");
    let connects = async |tls: &ClientTls| {
        let (near, far) = tcp().await;
        let connector = tokio_rustls::TlsConnector::from(Arc::new(tls.config()));
        let name = rustls::pki_types::ServerName::try_from("localhost").expect("valid");
        let (connected, _) = tokio::join!(connector.connect(name, near), node.accept_client(far));
        connected.is_ok()
    };
    for tls in &clients {
        assert!(!connects(tls).await, "the file does not have the new CA yet");
    }
    let both = [&ca, &next].map(|ca| std::fs::read_to_string(ca.path("ca.pem")).expect("readable")).concat();
    std::fs::write(&path, both).expect("writable");
    tokio::time::sleep(client::RELOAD_INTERVAL).await;
    for tls in &clients {
        assert!(connects(tls).await, "the client has not read the file again");
    }
    std::fs::write(&path, "half a fi").expect("writable");
    tokio::time::sleep(client::RELOAD_INTERVAL).await;
    for tls in &clients {
        assert!(connects(tls).await, "the client uses an invalid file");
    }
}
