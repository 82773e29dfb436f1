//! The certificates of the HTTP client.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, SignatureScheme};

use super::certificate;
use super::{TlsError, provider};

/// The client reads its certificate again if a new connection needs it after this time.
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);

/// The certificates of an HTTP client: the CAs that it trusts, and its own certificate if it has one.
#[derive(Clone, Debug)]
pub struct ClientTls(ClientConfig);

/// Trusts no CA.
impl Default for ClientTls {
    fn default() -> ClientTls {
        ClientTls(trusting(RootCertStore::empty()).with_no_client_auth())
    }
}

impl ClientTls {
    /// Trusts the CAs of the system, and presents no certificate.
    pub fn system() -> ClientTls {
        let mut roots = RootCertStore::empty();
        // A certificate that cannot be parsed is skipped. Without any, each connection fails with the reason.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        ClientTls(trusting(roots).with_no_client_auth())
    }

    /// Trusts the CAs of a PEM file, and presents no certificate.
    ///
    /// # Errors
    ///
    /// The file cannot be read or is invalid.
    pub fn trusting(ca: impl AsRef<Path>) -> Result<ClientTls, TlsError> {
        Ok(ClientTls(trusting(read_roots(ca.as_ref())?).with_no_client_auth()))
    }

    /// Trusts the CAs of a PEM file, and presents a certificate. The client reads the files of the certificate again
    /// when they change; it keeps the old one if the new one is invalid.
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
        let current = read_certified(&cert, &key)?;
        let resolver = CertificateFiles { cert, key, current: Mutex::new((Instant::now(), Arc::new(current))) };
        let config = trusting(read_roots(ca.as_ref())?);
        Ok(ClientTls(config.with_client_cert_resolver(Arc::new(resolver))))
    }

    pub(crate) fn config(&self) -> ClientConfig {
        self.0.clone()
    }
}

fn trusting(roots: RootCertStore) -> rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert> {
    let builder = ClientConfig::builder_with_provider(provider());
    builder.with_safe_default_protocol_versions().expect("the provider supports TLS 1.3").with_root_certificates(roots)
}

fn read_roots(ca: &Path) -> Result<RootCertStore, TlsError> {
    certificate::roots(ca, &certificate::read(ca)?)
}

fn read_certified(cert: &Path, key: &Path) -> Result<CertifiedKey, TlsError> {
    let chain = certificate::certificates(cert, &certificate::read(cert)?)?;
    let private = certificate::key(key, &certificate::read(key)?)?;
    CertifiedKey::from_der(chain, private, &provider())
        .map_err(|error| TlsError::Invalid { path: key.to_owned(), reason: error.to_string() })
}

/// The client's certificate, read again when it may have changed.
#[derive(Debug)]
struct CertificateFiles {
    cert: PathBuf,
    key: PathBuf,
    /// The time of the last read, and the last valid certificate.
    current: Mutex<(Instant, Arc<CertifiedKey>)>,
}

impl ResolvesClientCert for CertificateFiles {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let mut current = self.current.lock();
        if current.0.elapsed() >= RELOAD_INTERVAL {
            current.0 = Instant::now();
            match read_certified(&self.cert, &self.key) {
                Ok(certified) => current.1 = Arc::new(certified),
                Err(error) => tracing::warn!(%error, "the new certificate is invalid: the client keeps the old one"),
            }
        }
        Some(current.1.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}
