//! The certificates of the HTTP client.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption, WantsClientCert, WebPkiServerVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ConfigBuilder, DigitallySignedStruct, RootCertStore, SignatureScheme, WantsVerifier};

use super::certificate;
use super::{TlsError, provider};

/// The client reads its files again if a new connection needs them after this time.
pub(super) const RELOAD_INTERVAL: Duration = Duration::from_secs(5);

/// The certificates of an HTTP client: the CAs that it trusts, and its own certificate if it has one.
#[derive(Clone, Debug)]
pub struct ClientTls(ClientConfig);

/// Trusts no CA.
impl Default for ClientTls {
    fn default() -> ClientTls {
        ClientTls(builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth())
    }
}

impl ClientTls {
    /// Trusts the CAs of the system, and presents no certificate.
    pub fn system() -> ClientTls {
        let mut roots = RootCertStore::empty();
        // A certificate that cannot be parsed is skipped. Without any, each connection fails with the reason.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        ClientTls(builder().with_root_certificates(roots).with_no_client_auth())
    }

    /// Trusts the CAs of a PEM file, and presents no certificate. The client reads the file again when it changes; it
    /// keeps the old CAs if the new file is invalid.
    ///
    /// # Errors
    ///
    /// The file cannot be read or is invalid.
    pub fn trusting(ca: impl AsRef<Path>) -> Result<ClientTls, TlsError> {
        Ok(ClientTls::without_resumption(trusting(ca.as_ref())?.with_no_client_auth()))
    }

    /// Trusts the CAs of a PEM file, and presents a certificate. The client reads the files again when they change;
    /// it keeps the old content if the new one is invalid.
    ///
    /// # Errors
    ///
    /// A file cannot be read or is invalid, or the key does not belong to the certificate.
    pub fn with_certificate(
        ca: impl AsRef<Path>,
        cert: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<ClientTls, TlsError> {
        let (cert, key) = (cert.as_ref().to_owned(), key.as_ref().to_owned());
        let current = Reloaded::new(read_certified(&cert, &key)?);
        let resolver = CertificateFiles { cert, key, current };
        Ok(ClientTls::without_resumption(trusting(ca.as_ref())?.with_client_cert_resolver(Arc::new(resolver))))
    }

    /// A resumed session would not check the certificate of the node against the current CAs.
    fn without_resumption(mut config: ClientConfig) -> ClientTls {
        config.resumption = Resumption::disabled();
        ClientTls(config)
    }

    pub(crate) fn config(&self) -> ClientConfig {
        self.0.clone()
    }
}

fn builder() -> ConfigBuilder<ClientConfig, WantsVerifier> {
    let builder = ClientConfig::builder_with_provider(provider());
    builder.with_safe_default_protocol_versions().expect("the provider supports TLS 1.3")
}

fn trusting(ca: &Path) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, TlsError> {
    let verifier = CaFile { current: Reloaded::new(read_verifier(ca)?), ca: ca.to_owned() };
    Ok(builder().dangerous().with_custom_certificate_verifier(Arc::new(verifier)))
}

fn read_verifier(ca: &Path) -> Result<WebPkiServerVerifier, TlsError> {
    let roots = certificate::roots(ca, &certificate::read(ca)?)?;
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build();
    // Nothing else has a reference to the new verifier.
    verifier
        .map(|verifier| Arc::into_inner(verifier).expect("one reference"))
        .map_err(|error| TlsError::Invalid { path: ca.to_owned(), reason: error.to_string() })
}

fn read_certified(cert: &Path, key: &Path) -> Result<CertifiedKey, TlsError> {
    let chain = certificate::certificates(cert, &certificate::read(cert)?)?;
    let private = certificate::key(key, &certificate::read(key)?)?;
    CertifiedKey::from_der(chain, private, &provider())
        .map_err(|error| TlsError::Invalid { path: key.to_owned(), reason: error.to_string() })
}

/// A value from files, read again when they may have changed.
#[derive(Debug)]
struct Reloaded<T>(Mutex<Last<T>>);

#[derive(Debug)]
struct Last<T> {
    read: Instant,
    valid: Arc<T>,
}

impl<T> Reloaded<T> {
    fn new(value: T) -> Reloaded<T> {
        Reloaded(Mutex::new(Last { read: Instant::now(), valid: Arc::new(value) }))
    }

    /// The last valid value.
    fn current(&self, read: impl FnOnce() -> Result<T, TlsError>) -> Arc<T> {
        let mut last = self.0.lock();
        if last.read.elapsed() >= RELOAD_INTERVAL {
            last.read = Instant::now();
            match read() {
                Ok(value) => last.valid = Arc::new(value),
                Err(error) => tracing::warn!(%error, "a new file is invalid: the client keeps the old content"),
            }
        }
        last.valid.clone()
    }
}

/// The client's certificate.
#[derive(Debug)]
struct CertificateFiles {
    cert: PathBuf,
    key: PathBuf,
    current: Reloaded<CertifiedKey>,
}

impl ResolvesClientCert for CertificateFiles {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.current.current(|| read_certified(&self.cert, &self.key)))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Checks the certificates of nodes against the CAs of a file.
#[derive(Debug)]
struct CaFile {
    ca: PathBuf,
    current: Reloaded<WebPkiServerVerifier>,
}

impl CaFile {
    fn verifier(&self) -> Arc<WebPkiServerVerifier> {
        self.current.current(|| read_verifier(&self.ca))
    }
}

impl ServerCertVerifier for CaFile {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.verifier().verify_server_cert(certificate, intermediates, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier().verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier().verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier().supported_verify_schemes()
    }
}
