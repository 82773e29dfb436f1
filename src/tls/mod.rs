//! TLS of the nodes and of the HTTP client, with rustls and ring.
//!
//! A node has one certificate for its clients and for the other nodes, signed by the CA of the cluster. For other nodes,
//! it must name the cluster and the node id in a URI: `tenure://CLUSTER/node/ID`. So no certificate of a client or of
//! another cluster passes for a node.

mod certificate;
#[cfg(feature = "tls")]
mod client;
#[cfg(feature = "cli")]
mod inspect;
#[cfg(feature = "server")]
mod node;
#[cfg(feature = "server")]
mod settings;
#[cfg(feature = "server")]
mod stream;
#[cfg(all(test, feature = "server"))]
pub(crate) mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;

#[cfg(feature = "tls")]
pub use client::ClientTls;
#[cfg(feature = "cli")]
pub(crate) use inspect::{Inspected, Inspector};
#[cfg(feature = "server")]
pub use node::NodeTls;
#[cfg(feature = "server")]
pub(crate) use node::{Handshake, PeerCertificate};
#[cfg(feature = "server")]
pub use settings::{ClientCertificates, TlsMode, TlsSettings, TlsVersion};
#[cfg(feature = "server")]
pub(crate) use stream::{Reader, Stream, Writer};

/// A reason why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
    /// A file does not hold the expected certificates or key.
    #[error("{} is invalid: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// The certificate does not name the node.
    #[error("{} does not name this node: expected the URI {expected} among its subject alternative names, found {found}", path.display())]
    OtherNode {
        /// The file of the certificate.
        path: PathBuf,
        /// The missing URI.
        expected: String,
        /// The URIs of the certificate.
        found: String,
    },
}

/// The URI that the certificate of a node must have among its subject alternative names.
pub fn node_uri(cluster: &str, node: u64) -> String {
    format!("tenure://{cluster}/node/{node}")
}

/// The URI with which the certificate of a client names a principal.
pub fn client_uri(cluster: &str, principal: &str) -> String {
    format!("tenure://{cluster}/client/{principal}")
}

/// The algorithms of all connections. An explicit provider works in programs with any default provider.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
