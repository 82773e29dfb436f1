//! The certificates of a running node. The node reads changed files again without a restart.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use metrics::{counter, gauge};
use parking_lot::{Mutex, RwLock};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::certificate::{self, Contents};
use super::settings::{ClientCertificates, TlsMode, TlsSettings};
use super::stream::Stream;
use super::{TlsError, client_uri, node_uri, provider};
use crate::types::{AccessName, NodeId};

/// Interval at which a node looks for changed files.
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);
/// The node warns when its certificate expires within this time.
const EXPIRY_WARNING: Duration = Duration::from_secs(14 * DAY_SECONDS);
/// Interval between two such warnings.
const WARNING_INTERVAL: Duration = Duration::from_secs(DAY_SECONDS);
const DAY_SECONDS: u64 = 24 * 60 * 60;
/// Most nodes whose certificates are remembered. A cluster has at most 15 members, but nodes are replaced.
const MAX_PRESENTED: usize = 1024;
/// The first byte of a TLS connection: the content type `handshake`. No HTTP request and no peer protocol begins with it.
const HANDSHAKE: u8 = 0x16;

/// The certificates of a node. Cheap to clone; clones share the current certificates.
///
/// A running node looks for changed files every 5 s. New connections use the new certificates, and open ones continue. If
/// the new files are invalid, the node logs the reason and keeps the old certificates.
#[derive(Clone, Debug)]
pub struct NodeTls(Arc<CertificateState>);

#[derive(Debug)]
struct CertificateState {
    settings: TlsSettings,
    cluster: String,
    node: NodeId,
    current: RwLock<Arc<Loaded>>,
    watched: Mutex<Watched>,
    /// The end of the validity of the certificate that each node presented last, in seconds since 1970.
    presented: Mutex<BTreeMap<NodeId, i64>>,
}

/// The state of the search for changed files.
#[derive(Debug, Default)]
struct Watched {
    /// The last error, so that the log has it once.
    failed: Option<String>,
    /// The time of the last warning about the expiry.
    warned: Option<SystemTime>,
}

/// The bytes of the three files.
#[derive(Debug, PartialEq, Eq)]
struct CertificateFiles {
    ca: Vec<u8>,
    cert: Vec<u8>,
    key: Vec<u8>,
}

/// Checked certificates, and the configurations for rustls.
#[derive(Debug)]
struct Loaded {
    files: CertificateFiles,
    contents: Contents,
    roots: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    /// For clients.
    http: Arc<ServerConfig>,
    /// For nodes.
    peer: Arc<ServerConfig>,
    /// Checks the certificates of other nodes that connect.
    peers: Arc<dyn ClientCertVerifier>,
}

/// The certificate that a node presented, with a valid signature of the CA.
#[derive(Clone, Debug)]
pub(crate) struct PeerCertificate(Contents);

impl PeerCertificate {
    /// The certificate of the other end of a connection with TLS, which the verifier requires.
    fn of(stream: &Stream) -> io::Result<PeerCertificate> {
        let certificate = stream.certificate().expect("the verifier requires a certificate");
        let contents = Contents::of(certificate).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))?;
        Ok(PeerCertificate(contents))
    }

    /// Whether the certificate is that of a node.
    pub fn is_of(&self, cluster: &str, node: NodeId) -> bool {
        self.0.uris.contains(&node_uri(cluster, node))
    }

    /// The names of the certificate, for a message.
    pub fn names(&self) -> String {
        self.0.uris()
    }
}

impl NodeTls {
    /// Reads and checks the certificates of a node.
    ///
    /// # Errors
    ///
    /// A file cannot be read or is invalid, the key does not belong to the certificate, or the certificate does not name
    /// the node. An expired certificate is no error: the node starts and logs it.
    pub fn load(settings: &TlsSettings, cluster: &str, node: NodeId) -> Result<NodeTls, TlsError> {
        let settings = settings.of_node(node);
        let loaded = Loaded::new(CertificateFiles::read(&settings)?, &settings, cluster, node)?;
        if let Err(error) = loaded.check_chain(&settings.ca) {
            let cert = settings.cert.display();
            tracing::error!(node, %cert, error, "other nodes do not accept the certificate of this node");
        }
        let current = RwLock::new(Arc::new(loaded));
        let tls = NodeTls(Arc::new(CertificateState {
            settings,
            cluster: cluster.to_owned(),
            node,
            current,
            watched: Mutex::default(),
            presented: Mutex::default(),
        }));
        for result in ["ok", "failed"] {
            counter!("tenure_tls_reloads_total", "result" => result).increment(0);
        }
        for listener in ["http", "peer"] {
            counter!("tenure_tls_handshakes_failed_total", "listener" => listener).increment(0);
        }
        tls.report_expiry(SystemTime::now());
        Ok(tls)
    }

    /// The end of the validity of the current certificate, in seconds since 1970.
    pub fn expires(&self) -> i64 {
        self.current().contents.expires
    }

    /// The end of the validity of the certificate that `node` presented in its last connection with this node, in
    /// seconds since 1970. `None` if it presented none since the start of this node.
    pub(crate) fn expires_of(&self, node: NodeId) -> Option<i64> {
        if node == self.0.node {
            return Some(self.expires());
        }
        self.0.presented.lock().get(&node).copied()
    }

    /// Remembers the certificate that `node` presented.
    pub(crate) fn remember(&self, node: NodeId, PeerCertificate(contents): &PeerCertificate) {
        let mut presented = self.0.presented.lock();
        if presented.len() < MAX_PRESENTED || presented.contains_key(&node) {
            presented.insert(node, contents.expires);
        }
    }

    pub(crate) fn node(&self) -> NodeId {
        self.0.node
    }

    pub(crate) fn settings(&self) -> &TlsSettings {
        &self.0.settings
    }

    fn current(&self) -> Arc<Loaded> {
        self.0.current.read().clone()
    }

    /// Looks for changed files until the future is dropped.
    pub(crate) async fn keep_current(self) {
        loop {
            tokio::time::sleep(RELOAD_INTERVAL).await;
            let tls = self.clone();
            // Fails only if it panics or the runtime shuts down.
            let _ = tokio::task::spawn_blocking(move || tls.reload()).await;
        }
    }

    /// Reads the files again, and uses them if they have changed and are valid.
    pub(super) fn reload(&self) {
        let CertificateState { settings, cluster, node, .. } = &*self.0;
        let read = CertificateFiles::read(settings).and_then(|files| match files == self.current().files {
            true => Ok(None),
            false => {
                let loaded = Loaded::new(files, settings, cluster, *node)?;
                match loaded.check_chain(&settings.ca) {
                    // Open connections would hide until the next restart that no node accepts the new certificate.
                    Err(reason) if self.current().check_chain(&settings.ca).is_ok() => {
                        Err(TlsError::Invalid { path: settings.cert.clone(), reason })
                    }
                    _ => Ok(Some(loaded)),
                }
            }
        });
        match read {
            Ok(None) => self.0.watched.lock().failed = None,
            Ok(Some(loaded)) => {
                let expires = loaded.contents.expires;
                *self.0.current.write() = Arc::new(loaded);
                *self.0.watched.lock() = Watched::default();
                counter!("tenure_tls_reloads_total", "result" => "ok").increment(1);
                tracing::info!(node, cert = %settings.cert.display(), expires, "the node uses new certificates");
            }
            Err(error) => {
                let error = match std::error::Error::source(&error) {
                    Some(source) => format!("{error}: {source}"),
                    None => error.to_string(),
                };
                let mut watched = self.0.watched.lock();
                if watched.failed.as_ref() != Some(&error) {
                    counter!("tenure_tls_reloads_total", "result" => "failed").increment(1);
                    tracing::warn!(node, error, "the new certificates are invalid: the node keeps the old ones");
                    watched.failed = Some(error);
                }
            }
        }
        self.report_expiry(SystemTime::now());
    }

    /// Sets the metric, and warns once a day before the certificate expires and after it has expired.
    pub(super) fn report_expiry(&self, now: SystemTime) {
        let expires = self.expires();
        gauge!("tenure_tls_certificate_expiry_timestamp_seconds").set(expires as f64);
        let left = expires.saturating_sub(now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as i64);
        let mut watched = self.0.watched.lock();
        let is_silent = watched.warned.is_some_and(|at| now.duration_since(at).unwrap_or_default() < WARNING_INTERVAL);
        if left > EXPIRY_WARNING.as_secs() as i64 || is_silent {
            return;
        }
        watched.warned = Some(now);
        let (node, cert) = (self.0.node, self.0.settings.cert.display());
        if left <= 0 {
            tracing::error!(node, %cert, "the certificate of this node has expired: other nodes and clients refuse it");
        } else {
            let days = left / DAY_SECONDS as i64;
            tracing::warn!(node, %cert, days, "the certificate of this node expires soon: replace the file");
        }
    }

    /// Whether a node must have TLS for a connection that it opens.
    fn connects(&self) -> bool {
        self.0.settings.mode != TlsMode::Allow
    }

    /// Waits for the first byte of a connection. Returns whether the other end begins a TLS handshake.
    pub(crate) async fn is_offered(&self, stream: &TcpStream) -> io::Result<bool> {
        let mut first = [0];
        if stream.peek(&mut first).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(first == [HANDSHAKE])
    }

    /// Whether the node serves connections without TLS, too.
    pub(crate) fn accepts_plain(&self) -> bool {
        self.0.settings.mode != TlsMode::Require
    }

    /// Completes the handshake with a client.
    pub(crate) async fn accept_client<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> io::Result<Stream<S>> {
        accept(stream, self.current().http.clone()).await
    }

    /// The name of the client that a certificate belongs to: `tenure://CLUSTER/client/NAME`.
    pub(crate) fn client_name(&self, certificate: &CertificateDer<'_>) -> Option<AccessName> {
        let prefix = client_uri(&self.0.cluster, "");
        let contents = Contents::of(certificate).ok()?;
        contents.uris.iter().find_map(|uri| AccessName::new(uri.strip_prefix(&prefix)?).ok())
    }

    /// Completes the handshake with a node, or passes a connection without TLS if the mode allows it.
    pub(crate) async fn accept_peer(&self, stream: TcpStream) -> io::Result<(Stream, Option<PeerCertificate>)> {
        if !self.is_offered(&stream).await? {
            let refused =
                || io::Error::new(io::ErrorKind::InvalidData, "a connection without TLS: this node requires TLS");
            return if self.accepts_plain() { Ok((Stream::Plain(stream), None)) } else { Err(refused()) };
        }
        let stream = accept(stream, self.current().peer.clone()).await?;
        let certificate = PeerCertificate::of(&stream)?;
        Ok((stream, Some(certificate)))
    }

    /// Completes the handshake of a connection to the node `target`, whose certificate must name it.
    pub(crate) async fn connect_peer(&self, stream: TcpStream, target: NodeId) -> io::Result<Stream> {
        if !self.connects() {
            return Ok(Stream::Plain(stream));
        }
        let current = self.current();
        let verifier = NodeVerifier { roots: current.roots.clone(), expected: node_uri(&self.0.cluster, target) };
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(self.0.settings.versions())
            .expect("the provider supports these versions")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_auth_cert(current.chain.clone(), current.key.clone_key())
            .map_err(io::Error::other)?;
        // The verifier checks the URI of the certificate instead of this name.
        let name = ServerName::try_from("node").expect("a valid name");
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        let stream = Stream::Tls(Box::new(stream.into()));
        self.remember(target, &PeerCertificate::of(&stream)?);
        Ok(stream)
    }
}

async fn accept<S: AsyncRead + AsyncWrite + Unpin>(stream: S, config: Arc<ServerConfig>) -> io::Result<Stream<S>> {
    let stream = TlsAcceptor::from(config).accept(stream).await?;
    Ok(Stream::Tls(Box::new(stream.into())))
}

/// A TLS handshake of a listener. It counts as failed unless it is complete, also if a time limit drops it.
pub(crate) struct Handshake {
    listener: &'static str,
    is_complete: bool,
}

impl Handshake {
    pub fn begin(listener: &'static str) -> Handshake {
        Handshake { listener, is_complete: false }
    }

    pub fn complete(mut self) {
        self.is_complete = true;
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        if !self.is_complete {
            counter!("tenure_tls_handshakes_failed_total", "listener" => self.listener).increment(1);
        }
    }
}

impl CertificateFiles {
    fn read(settings: &TlsSettings) -> Result<CertificateFiles, TlsError> {
        let TlsSettings { ca, cert, key, .. } = settings;
        Ok(CertificateFiles {
            ca: certificate::read(ca)?,
            cert: certificate::read(cert)?,
            key: certificate::read(key)?,
        })
    }
}

impl Loaded {
    fn new(files: CertificateFiles, settings: &TlsSettings, cluster: &str, node: NodeId) -> Result<Loaded, TlsError> {
        let invalid = |path: &PathBuf, reason: String| TlsError::Invalid { path: path.clone(), reason };
        let roots = Arc::new(certificate::roots(&settings.ca, &files.ca)?);
        let chain = certificate::certificates(&settings.cert, &files.cert)?;
        let key = certificate::key(&settings.key, &files.key)?;
        let contents = Contents::of(&chain[0]).map_err(|why| invalid(&settings.cert, why))?;
        let expected = node_uri(cluster, node);
        if !contents.uris.contains(&expected) {
            let found = contents.uris();
            return Err(TlsError::OtherNode { path: settings.cert.clone(), expected, found });
        }
        let verifier = |is_optional: bool| {
            let builder = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider());
            let builder = if is_optional { builder.allow_unauthenticated() } else { builder };
            builder.build().map_err(|error| invalid(&settings.ca, error.to_string()))
        };
        let peers = verifier(false)?;
        let server = |verifier: Arc<dyn ClientCertVerifier>| {
            let mut config = ServerConfig::builder_with_provider(provider())
                .with_protocol_versions(settings.versions())
                .expect("the provider supports these versions")
                .with_client_cert_verifier(verifier)
                .with_single_cert(chain.clone(), key.clone_key())
                .map_err(|error| invalid(&settings.key, error.to_string()))?;
            // A resumed session has the certificate of its first connection, which may have expired.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
            Ok(config)
        };
        let mut http = server(verifier(settings.client_cert == ClientCertificates::Optional)?)?;
        http.alpn_protocols = vec![b"http/1.1".to_vec()];
        let peer = Arc::new(server(peers.clone())?);
        Ok(Loaded { files, contents, roots, chain, key, http: Arc::new(http), peer, peers })
    }

    /// Checks whether a node with the same CAs accepts the certificate now, at both ends of a connection.
    fn check_chain(&self, ca: &Path) -> Result<(), String> {
        let (certificate, intermediates) = self.chain.split_first().expect("there is at least one");
        let now = UnixTime::now();
        let algorithms = provider().signature_verification_algorithms.all;
        ParsedCertificate::try_from(certificate)
            .and_then(|parsed| {
                verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, algorithms)
            })
            .and_then(|()| self.peers.verify_client_cert(certificate, intermediates, now).map(drop))
            .map_err(|error| {
                // Without the current time, the log has each reason once.
                let why = match error {
                    rustls::Error::InvalidCertificate(CertificateError::ExpiredContext { .. }) => {
                        "it has expired".to_owned()
                    }
                    rustls::Error::InvalidCertificate(CertificateError::NotValidYetContext { .. }) => {
                        "it is not valid yet".to_owned()
                    }
                    other => other.to_string(),
                };
                format!("nodes that trust {} refuse it: {why}", ca.display())
            })
    }
}

/// Accepts the certificate of one node: signed by the CA, valid now, and with the URI of the node.
#[derive(Debug)]
struct NodeVerifier {
    roots: Arc<RootCertStore>,
    expected: String,
}

impl ServerCertVerifier for NodeVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let algorithms = provider().signature_verification_algorithms.all;
        let parsed = ParsedCertificate::try_from(certificate)?;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, algorithms)?;
        let contents = Contents::of(certificate).map_err(|_| CertificateError::BadEncoding)?;
        if !contents.uris.contains(&self.expected) {
            return Err(rustls::Error::General(format!(
                "the certificate of the other node names {}: expected {}",
                contents.uris(),
                self.expected
            )));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &provider().signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &provider().signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(all(test, feature = "cli"))]
mod tests {
    use crate::telemetry::tests::capture;
    use crate::tls::tests::Authority;

    #[test]
    fn certificate_that_no_node_accepts_is_logged_at_the_start() {
        let (ca, stranger) = (Authority::new(), Authority::new());
        let line = "other nodes do not accept the certificate of this node";
        let (written, _logged_here) = capture();
        drop(ca.node("a", 1));
        assert!(!written.text().contains(line), "{}", written.text());
        stranger.issue("a", 2, 2099);
        for file in ["node-2.pem", "node-2.key"] {
            std::fs::copy(stranger.path(file), ca.path(file)).expect("writable");
        }
        drop(ca.node("a", 2));
        let lines = written.text();
        assert!(lines.lines().any(|found| found.contains("ERROR") && found.contains(line)), "{lines}");
    }
}
