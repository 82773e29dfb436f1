//! HTTP clients of the tests, without TLS.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The default builder of reqwest would load the CAs of the system, and these machines may have none.
pub fn builder() -> reqwest::ClientBuilder {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.expect("ring supports TLS 1.3").with_root_certificates(rustls::RootCertStore::empty());
    reqwest::Client::builder().no_proxy().tls_backend_preconfigured(config.with_no_client_auth())
}

/// Trusts the CA in a file, and presents a certificate if there is one.
pub fn https_builder(ca: &Path, certificate: Option<(&Path, &Path)>) -> reqwest::ClientBuilder {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).expect("a certificate")).expect("a certificate of a CA");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.expect("ring supports TLS 1.3").with_root_certificates(roots);
    let config = match certificate {
        Some((chain, key)) => {
            let chain = vec![CertificateDer::from_pem_file(chain).expect("a certificate")];
            let key = PrivateKeyDer::from_pem_file(key).expect("a key");
            config.with_client_auth_cert(chain, key).expect("the key of the certificate")
        }
        None => config.with_no_client_auth(),
    };
    reqwest::Client::builder().no_proxy().tls_backend_preconfigured(config)
}

pub fn client() -> reqwest::Client {
    builder().build().expect("valid options")
}

pub async fn get(url: impl reqwest::IntoUrl) -> reqwest::Result<reqwest::Response> {
    client().get(url).send().await
}
