//! `[tls]`: the certificates of the nodes.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::reader::Found;
use crate::tls::{ClientCertificates, TlsMode, TlsSettings, TlsVersion};

/// `[tls]`. An absent path is empty.
#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct TlsSection {
    ca: String,
    cert: String,
    key: String,
    mode: TlsMode,
    client_cert: ClientCertificates,
    min_version: TlsVersion,
}

impl TlsSection {
    pub fn settings(self, folder: &Path, found: &mut Found) -> TlsSettings {
        let TlsSection { ca, cert, key, mode, client_cert, min_version } = self;
        for (name, path) in [("ca", &ca), ("cert", &cert), ("key", &key)] {
            if path.is_empty() {
                found.add_first(format!("tls.{name}"), "must be set");
            }
        }
        TlsSettings::new(folder.join(ca), folder.join(cert), folder.join(key))
            .mode(mode)
            .client_cert(client_cert)
            .min_version(min_version)
    }
}
