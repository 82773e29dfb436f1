//! TLS and access control of a run: the addresses, certificates and access tokens with which its programs reach the nodes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tenure::access::AccessToken;
use tenure::client::{Endpoints, Remote};
use tenure::tls::ClientTls;

use super::network;

pub const HTTP_PORT: u16 = 7101;

/// The section `[tls]` of a configuration file. `tenure tls init` writes the certificates to the folder `tls`.
pub const TLS_SECTION: &str = "[tls]\nca = \"tls/ca.pem\"\ncert = \"tls/node-{node}.pem\"\nkey = \"tls/node-{node}.key\"\n\
                               client_cert = \"require\"\n";

/// The credentials of a client.
#[derive(Clone, Default)]
pub struct Security {
    certificates: Option<Certificates>,
    token: Option<String>,
}

#[derive(Clone)]
struct Certificates {
    folder: PathBuf,
    /// For the HTTP client of the run.
    config: ClientConfig,
    /// For the client library.
    tls: ClientTls,
}

impl Security {
    /// Reads the certificates of the client from a folder that `tenure tls init` made.
    pub fn load(tls: Option<&Path>) -> Result<Security> {
        Ok(Security { certificates: tls.map(Certificates::read).transpose()?, token: None })
    }

    pub fn with_token(&self, token: String) -> Security {
        Security { token: Some(token), ..self.clone() }
    }

    /// The URL of a host.
    pub fn url(&self, host: u64) -> String {
        let scheme = if self.certificates.is_some() { "https" } else { "http" };
        format!("{scheme}://{}:{HTTP_PORT}", network::host_address(host))
    }

    /// The builder of an HTTP client.
    pub fn http(&self) -> Result<reqwest::ClientBuilder> {
        let builder = match &self.certificates {
            Some(certificates) => {
                reqwest::Client::builder().no_proxy().tls_backend_preconfigured(certificates.config.clone())
            }
            None => crate::plain_http::builder(),
        };
        let Some(token) = &self.token else { return Ok(builder) };
        let bearer = (AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {token}"))?);
        Ok(builder.default_headers(HeaderMap::from_iter([bearer])))
    }

    /// A client of the library.
    pub fn remote(&self, endpoints: Endpoints) -> Result<Remote> {
        let mut remote = Remote::new(endpoints);
        if let Some(certificates) = &self.certificates {
            remote = remote.with_tls(&certificates.tls);
        }
        match &self.token {
            Some(token) => Ok(remote.with_token(&token.parse::<AccessToken>()?)),
            None => Ok(remote),
        }
    }

    /// The environment of a `tenure` command, or of a holder.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let file = |name: &str| self.folder().map(|folder| folder.join(name).display().to_string());
        let variables = [
            ("TENURE_CA", file("ca.pem")),
            ("TENURE_CERT", file("client.pem")),
            ("TENURE_KEY", file("client.key")),
            ("TENURE_ACCESS_TOKEN", self.token.clone()),
        ];
        variables.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    /// The folder of the certificates.
    pub fn folder(&self) -> Option<&Path> {
        self.certificates.as_ref().map(|certificates| certificates.folder.as_path())
    }
}

impl Certificates {
    fn read(folder: &Path) -> Result<Certificates> {
        let [ca, cert, key] = ["ca.pem", "client.pem", "client.key"].map(|name| folder.join(name));
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&ca).with_context(|| ca.display().to_string())?)?;
        let own = CertificateDer::from_pem_file(&cert).with_context(|| cert.display().to_string())?;
        let private = PrivateKeyDer::from_pem_file(&key).with_context(|| key.display().to_string())?;
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![own], private)?;
        let tls = ClientTls::with_certificate(ca, cert, key)?;
        Ok(Certificates { folder: folder.to_owned(), config, tls })
    }
}
