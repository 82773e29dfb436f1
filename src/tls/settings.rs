//! The TLS settings of a node.

use std::path::PathBuf;

use rustls::SupportedProtocolVersion;
use serde::{Deserialize, Serialize};

use crate::types::NodeId;

/// Stands for the node id in the paths of [`TlsSettings`].
const NODE: &str = "{node}";

/// The TLS settings of a node. In paths, `{node}` stands for the id of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsSettings {
    /// PEM file with the certificates of the CAs that sign nodes and clients.
    pub ca: PathBuf,
    /// PEM file with the certificate of the node, then those of intermediate CAs.
    pub cert: PathBuf,
    /// PEM file with the key of the certificate.
    pub key: PathBuf,
    /// Which connections use TLS.
    pub mode: TlsMode,
    /// Whether clients need a certificate.
    pub client_cert: ClientCertificates,
    /// The oldest version of TLS that the node accepts.
    pub min_version: TlsVersion,
}

/// Which connections of a node use TLS. The modes before [`Require`](TlsMode::Require) exist to migrate a running cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum TlsMode {
    /// The node accepts connections with and without TLS, and connects to other nodes without TLS.
    Allow,
    /// The node accepts connections with and without TLS, and connects to other nodes with TLS.
    Prefer,
    /// The node accepts and opens only connections with TLS.
    #[default]
    Require,
}

/// Whether a client needs a certificate of the CA. A certificate that a client presents is always checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ClientCertificates {
    /// A client needs none.
    #[default]
    Optional,
    /// A client needs one.
    Require,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum TlsVersion {
    /// TLS 1.2.
    #[serde(rename = "1.2")]
    V1_2,
    /// TLS 1.3.
    #[default]
    #[serde(rename = "1.3")]
    V1_3,
}

impl TlsSettings {
    /// Settings with these files that require TLS 1.3 on all connections, and no certificates of clients.
    pub fn new(ca: impl Into<PathBuf>, cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> TlsSettings {
        TlsSettings {
            ca: ca.into(),
            cert: cert.into(),
            key: key.into(),
            mode: TlsMode::default(),
            client_cert: ClientCertificates::default(),
            min_version: TlsVersion::default(),
        }
    }

    /// Sets which connections use TLS.
    pub fn mode(self, mode: TlsMode) -> TlsSettings {
        TlsSettings { mode, ..self }
    }

    /// Sets whether clients need a certificate.
    pub fn client_cert(self, client_cert: ClientCertificates) -> TlsSettings {
        TlsSettings { client_cert, ..self }
    }

    /// Sets the oldest version of TLS that the node accepts.
    pub fn min_version(self, min_version: TlsVersion) -> TlsSettings {
        TlsSettings { min_version, ..self }
    }

    /// Whether no connection goes without TLS.
    pub(crate) fn encrypts_all(&self) -> bool {
        self.mode == TlsMode::Require
    }

    /// The settings with the paths of one node.
    pub(crate) fn of_node(&self, node: NodeId) -> TlsSettings {
        let path = |path: &PathBuf| match path.to_str() {
            Some(text) => PathBuf::from(text.replace(NODE, &node.to_string())),
            None => path.clone(),
        };
        TlsSettings { ca: path(&self.ca), cert: path(&self.cert), key: path(&self.key), ..*self }
    }

    pub(super) fn versions(&self) -> &'static [&'static SupportedProtocolVersion] {
        static FROM_1_2: [&SupportedProtocolVersion; 2] = [&rustls::version::TLS13, &rustls::version::TLS12];
        match self.min_version {
            TlsVersion::V1_2 => &FROM_1_2,
            TlsVersion::V1_3 => &FROM_1_2[..1],
        }
    }
}
