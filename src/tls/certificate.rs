//! PEM files, and the parts of a certificate that rustls does not show.

use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
#[cfg(feature = "server")]
use x509_parser::extensions::GeneralName;
#[cfg(feature = "server")]
use x509_parser::prelude::{FromDer, X509Certificate};

use super::TlsError;

/// The content of a PEM file.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::Read { path: path.to_owned(), source })
}

fn invalid(path: &Path, reason: impl ToString) -> TlsError {
    TlsError::Invalid { path: path.to_owned(), reason: reason.to_string() }
}

/// The certificates of a PEM file. There is at least one.
pub(super) fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match chain {
        Ok(chain) if chain.is_empty() => Err(invalid(path, "expected a certificate in PEM format, found none")),
        Ok(chain) => Ok(chain),
        Err(error) => Err(invalid(path, error)),
    }
}

pub(super) fn key(path: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    // The error names no content of the file.
    PrivateKeyDer::from_pem_slice(pem)
        .map_err(|_| invalid(path, "expected one private key in PEM format without password"))
}

pub(super) fn roots(path: &Path, pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, pem)? {
        roots.add(certificate).map_err(|error| invalid(path, error))?;
    }
    Ok(roots)
}

/// The parts of a certificate that a node needs.
#[cfg(feature = "server")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contents {
    /// The URIs among the subject alternative names.
    pub uris: Vec<String>,
    /// The end of its validity, in seconds since 1970.
    pub expires: i64,
}

#[cfg(feature = "server")]
impl Contents {
    /// # Errors
    ///
    /// The reason why the bytes are no certificate.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Contents, String> {
        let (_, certificate) = X509Certificate::from_der(certificate).map_err(|error| error.to_string())?;
        let names = certificate.subject_alternative_name().map_err(|error| error.to_string())?;
        let names = names.map(|names| names.value.general_names.as_slice()).unwrap_or_default();
        let uri = |name: &GeneralName<'_>| match name {
            GeneralName::URI(uri) => Some((*uri).to_owned()),
            _ => None,
        };
        let expires = certificate.validity().not_after.timestamp();
        Ok(Contents { uris: names.iter().filter_map(uri).collect(), expires })
    }

    /// The URIs for a message.
    pub fn uris(&self) -> String {
        if self.uris.is_empty() { "none".to_owned() } else { self.uris.join(", ") }
    }
}
