//! HTTP clients of the tests, without TLS.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::sync::Arc;

/// The default builder of reqwest would load the CAs of the system, and these machines may have none.
pub fn builder() -> reqwest::ClientBuilder {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.expect("ring supports TLS 1.3").with_root_certificates(rustls::RootCertStore::empty());
    reqwest::Client::builder().no_proxy().tls_backend_preconfigured(config.with_no_client_auth())
}

pub fn client() -> reqwest::Client {
    builder().build().expect("valid options")
}

pub async fn get(url: impl reqwest::IntoUrl) -> reqwest::Result<reqwest::Response> {
    client().get(url).send().await
}
