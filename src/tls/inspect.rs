//! Certificates as an operator sees them: in files, and presented at an address.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::certificate::{self, Contents};
use super::{TlsError, provider};

/// Reads certificates and checks them against the CAs that it trusts.
#[derive(Debug)]
pub(crate) struct Inspector {
    roots: RootCertStore,
    /// The certificate that it presents.
    own: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
}

/// The facts of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inspected {
    /// The URIs among the subject alternative names.
    pub uris: Vec<String>,
    /// The end of its validity, in seconds since 1970.
    pub expires: i64,
    /// Why the certificate is not valid for a server, if it is not: its time, or its chain to a trusted CA.
    pub untrusted: Option<String>,
    /// Why it is not valid for the host of the address, if it is not.
    pub other_host: Option<String>,
}

impl Inspector {
    /// Trusts the CAs of a PEM file, or those of the system. Presents the certificate `own`: its file and the file of its
    /// key.
    pub fn new(ca: Option<&Path>, own: Option<(&Path, &Path)>) -> Result<Inspector, TlsError> {
        let roots = match ca {
            Some(ca) => certificate::roots(ca, &certificate::read(ca)?)?,
            None => {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                roots
            }
        };
        let own = match own {
            Some((cert, key)) => {
                let chain = certificate::certificates(cert, &certificate::read(cert)?)?;
                Some((chain, certificate::key(key, &certificate::read(key)?)?))
            }
            None => None,
        };
        Ok(Inspector { roots, own })
    }

    /// Completes a TLS handshake with any certificate, and returns the facts of this certificate. Sends nothing else.
    ///
    /// # Errors
    ///
    /// The handshake fails, or the certificate cannot be parsed.
    pub async fn handshake(&self, stream: TcpStream, host: &str) -> io::Result<Inspected> {
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("the provider supports TLS 1.3")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate));
        let config = match &self.own {
            Some((chain, key)) => {
                config.with_client_auth_cert(chain.clone(), key.clone_key()).map_err(io::Error::other)?
            }
            None => config.with_no_client_auth(),
        };
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).map_err(io::Error::other)?;
        let stream = TlsConnector::from(Arc::new(config)).connect(name.clone(), stream).await?;
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let mut inspected = self.inspect(chain).map_err(io::Error::other)?;
        let parsed = ParsedCertificate::try_from(&chain[0]).map_err(io::Error::other)?;
        inspected.other_host = verify_server_name(&parsed, &name).err().map(|error| error.to_string());
        Ok(inspected)
    }

    /// The facts of the first certificate in a PEM file. The others are those of intermediate CAs.
    pub fn file(&self, path: &Path) -> Result<Inspected, TlsError> {
        let chain = certificate::certificates(path, &certificate::read(path)?)?;
        self.inspect(&chain).map_err(|reason| TlsError::Invalid { path: path.to_owned(), reason })
    }

    fn inspect(&self, chain: &[CertificateDer<'_>]) -> Result<Inspected, String> {
        let (first, intermediates) = chain.split_first().ok_or("no certificate")?;
        let Contents { uris, expires } = Contents::of(first)?;
        let parsed = ParsedCertificate::try_from(first).map_err(|error| error.to_string())?;
        let algorithms = provider().signature_verification_algorithms.all;
        let now = UnixTime::now();
        let checked = verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, algorithms);
        Ok(Inspected { uris, expires, untrusted: checked.err().map(|error| error.to_string()), other_host: None })
    }
}

/// Accepts each certificate whose key the other end has.
#[derive(Debug)]
struct AnyCertificate;

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
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
