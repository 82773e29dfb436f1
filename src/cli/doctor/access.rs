//! The certificates and the access token that the checks use.

use std::path::PathBuf;
use std::time::Duration;

use super::super::CredentialArguments;
use super::certificate;
use super::finding::Finding;
use crate::access::AccessToken;
use crate::client::{Endpoints, Remote};
use crate::config::Config;
use crate::tls::{ClientTls, Inspector, TlsError};
use crate::types::NodeId;

/// The certificates and the access token of this client.
#[derive(Debug, Default)]
pub struct ClientAccess {
    token: Option<AccessToken>,
    /// `None`: the CAs of the system.
    tls: Option<ClientTls>,
    /// `None`: a file cannot be used.
    pub inspector: Option<Inspector>,
}

/// The files of a client: the CA, and the certificate with its key.
struct ClientFiles {
    ca: Option<PathBuf>,
    own: Option<(PathBuf, PathBuf)>,
}

impl ClientFiles {
    /// The files of the options. Without `--ca`, those of the configuration: on the machine of a node, the certificate
    /// of the node identifies this client, too.
    fn choose(arguments: &CredentialArguments, config: Option<&Config>, node: Option<NodeId>) -> ClientFiles {
        let own = arguments.cert.clone().zip(arguments.key.clone());
        match (&arguments.ca, config.and_then(|config| config.tls.as_ref())) {
            (None, Some(settings)) => {
                let files = settings.of_node(node.unwrap_or_default());
                let own = node.is_some().then_some((files.cert, files.key));
                ClientFiles { ca: Some(files.ca), own }
            }
            (ca, _) => ClientFiles { ca: ca.clone(), own },
        }
    }

    fn load(&self) -> Result<(Option<ClientTls>, Inspector), TlsError> {
        let own = self.own.as_ref().map(|(cert, key)| (cert.as_path(), key.as_path()));
        let tls = match (self.ca.as_deref(), own) {
            (Some(ca), Some((cert, key))) => Some(ClientTls::with_certificate(ca, cert, key)?),
            (Some(ca), None) => Some(ClientTls::trusting(ca)?),
            (None, _) => None,
        };
        Ok((tls, Inspector::new(self.ca.as_deref(), own)?))
    }
}

impl ClientAccess {
    /// Reads the files. A file that cannot be used is a finding.
    pub fn load(
        arguments: &CredentialArguments,
        config: Option<&Config>,
        node: Option<NodeId>,
    ) -> (ClientAccess, Vec<Finding>) {
        let mut findings = Vec::new();
        let token = arguments.token().unwrap_or_else(|failure| {
            findings.push(unusable(&failure.message(), "correct the file or the variable of the access token"));
            None
        });
        let files = ClientFiles::choose(arguments, config, node);
        let mut loaded = files.load();
        if loaded.is_err() && files.own.is_some() && arguments.ca.is_none() {
            // The check of the node's files reports them. Without a certificate, more checks are possible than without
            // a CA.
            loaded = ClientFiles { own: None, ..files }.load();
        }
        match loaded {
            Ok((tls, inspector)) => (ClientAccess { token, tls, inspector: Some(inspector) }, findings),
            Err(error) => {
                findings.push(unusable(
                    &certificate::message(error),
                    "correct --ca, --cert and --key, or [tls] of the configuration file",
                ));
                (ClientAccess { token, tls: None, inspector: None }, findings)
            }
        }
    }

    /// A client of one address.
    ///
    /// # Errors
    ///
    /// A message: the URL is invalid.
    pub fn remote(&self, url: &str, limit: Duration) -> Result<Remote, String> {
        let endpoints: Endpoints = url.parse().map_err(|error| format!("{error}"))?;
        let remote = Remote::new(endpoints).with_timeout(limit);
        let remote = self.token.iter().fold(remote, Remote::with_token);
        Ok(self.tls.iter().fold(remote, Remote::with_tls))
    }
}

fn unusable(facts: &str, advice: &str) -> Finding {
    Finding::problem("credentials", facts, advice)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        credentials: CredentialArguments,
    }

    /// The file of a cluster is also on machines without a node.
    #[test]
    fn options_of_a_client_override_the_files_of_a_node() {
        let text = "cluster = \"a\"\n\
                    [[node]]\nid = 1\nhttp = \"127.0.0.1:1\"\npeer = \"127.0.0.1:2\"\ndata = \"1\"\n\
                    [tls]\nca = \"ca.pem\"\ncert = \"node-{node}.pem\"\nkey = \"node-{node}.key\"\n";
        let config = Config::parse(text, Path::new("/etc/tenure")).expect("valid");
        let chosen = |line: &str| {
            let words = line.split_whitespace();
            let CommandLine { credentials } = CommandLine::try_parse_from(words).expect("a command line");
            let files = ClientFiles::choose(&credentials, Some(&config), Some(1));
            let (cert, key) = files.own.unzip();
            [files.ca, cert, key].map(|file| file.expect("a file").display().to_string())
        };
        let of_node = ["/etc/tenure/ca.pem", "/etc/tenure/node-1.pem", "/etc/tenure/node-1.key"];
        assert_eq!(chosen("doctor"), of_node);
        assert_eq!(chosen("doctor --ca a.pem --cert b.pem --key b.key"), ["a.pem", "b.pem", "b.key"]);
    }
}
