//! The settings of a cluster: `cluster.toml`, validated as a whole.
//!
//! All nodes use the same file. The parser reports all problems at once, each with its key and its line. It gives up
//! after 100 unknown keys and values that it cannot read. A [`Config`] value is always valid. This module only reads the
//! file: it binds no address and opens no data directory.

mod address;
mod backup;
mod http;
mod lease;
mod nodes;
mod raft;
mod reader;
mod source;
mod tls;

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use backup::BackupSection;
use lease::LeaseSection;
use nodes::NodeSection;
use raft::{Profile, RaftSection};
use reader::Found;
use source::Source;
use tls::TlsSection;

pub use crate::lease::Limits;
use address::is_loopback;
pub use backup::BackupSchedule;
pub use http::HttpLimits;
pub use lease::{LeaseSettings, TtlPolicy, TtlRefused};
pub(crate) use nodes::{MAX_ID, MemberConfig, address_problem, listen_problem};
pub use nodes::{MAX_NODES, NodeEntry};
pub use raft::RaftTimings;

use crate::tls::TlsSettings;

/// Maximum size of a configuration file, in bytes.
pub const MAX_CONFIG_BYTES: u64 = 1024 * 1024;
/// Maximum length of a cluster name, in bytes.
pub const MAX_CLUSTER_BYTES: usize = 100;

/// Base ports of `tenure dev`: its nodes listen for clients on 7101 to 7103, and for each other on 7201 to 7203.
const DEV_HTTP_PORT: u16 = 7100;
const DEV_PEER_PORT: u16 = 7200;
const DEV_NODES: u64 = 3;

/// The settings of a cluster and its nodes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// The cluster's name, which is also its id: a node rejects connections from nodes of another cluster.
    pub cluster: String,
    /// The nodes, in the order of the file.
    pub nodes: Vec<NodeEntry>,
    /// The timings of replication.
    pub raft: RaftTimings,
    /// The bounds of the lease machine.
    pub lease: LeaseSettings,
    /// The ttls that clients may request.
    pub ttl: TtlPolicy,
    /// The limits of the public listener.
    pub http: HttpLimits,
    /// The schedule of backups, if there is one.
    pub backup: Option<BackupSchedule>,
    /// The certificates of the nodes; `None`: connections are neither encrypted nor authenticated.
    pub tls: Option<TlsSettings>,
    /// Whether addresses other than loopback are valid although not all connections are encrypted and authenticated.
    pub allow_insecure_network: bool,
}

impl Config {
    /// Reads a file. Relative paths in the file start at the folder of the file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is larger than [`MAX_CONFIG_BYTES`], or is invalid. [`ConfigError::Invalid`] has all
    /// problems.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let unreadable = |source| ConfigError::Read { path: path.to_owned(), source };
        let bytes = std::fs::metadata(path).map_err(unreadable)?.len();
        if bytes > MAX_CONFIG_BYTES {
            return Err(ConfigError::TooLarge { path: path.to_owned(), bytes });
        }
        // A device has no size.
        let mut text = Vec::new();
        let file = std::fs::File::open(path).map_err(unreadable)?;
        file.take(MAX_CONFIG_BYTES + 1).read_to_end(&mut text).map_err(unreadable)?;
        let bytes = text.len() as u64;
        if bytes > MAX_CONFIG_BYTES {
            return Err(ConfigError::TooLarge { path: path.to_owned(), bytes });
        }
        let invalid = |error| std::io::Error::new(std::io::ErrorKind::InvalidData, error);
        let text = String::from_utf8(text).map_err(|error| unreadable(invalid(error)))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Config::parse(&text, folder).map_err(|problems| ConfigError::Invalid { path: path.to_owned(), problems })
    }

    /// Parses the text of a file in `folder`.
    ///
    /// # Errors
    ///
    /// All problems of the text.
    pub fn parse(text: &str, folder: &Path) -> Result<Config, Problems> {
        let (source, mut values) = Source::parse(text)?;
        let profile = match values.pointer("/raft/profile") {
            Some(profile) if profile == "wan" => Profile::Wan,
            _ => Profile::Lan,
        };
        let mut found = Found::default();
        let has_former_key = lease::accept_former_key(&mut values, &mut found);
        let file = reader::read(&File::of(profile), values, &mut found);
        let config = file.map(|file| file.validate(folder, &mut found));
        if has_former_key {
            lease::name_former_key(&mut found);
        }
        config.filter(|_| found.0.is_empty()).ok_or_else(|| source.locate(found))
    }

    /// The cluster of `tenure dev`: three nodes on fixed loopback ports, with their data in subfolders of `data`.
    pub fn dev(data: &Path) -> Config {
        let node = |id: u64| {
            let [http, peer] = [DEV_HTTP_PORT, DEV_PEER_PORT].map(|base| format!("127.0.0.1:{}", base + id as u16));
            let (listen_http, listen_peer) = (http.clone(), peer.clone());
            NodeEntry { id, http, peer, listen_http, listen_peer, data: data.join(id.to_string()) }
        };
        Config {
            cluster: "dev".to_owned(),
            nodes: (1..=DEV_NODES).map(node).collect(),
            raft: RaftTimings::lan(),
            lease: LeaseSettings::default(),
            ttl: TtlPolicy::default(),
            http: HttpLimits::default(),
            backup: None,
            tls: None,
            allow_insecure_network: false,
        }
    }

    /// The node with this id, if the file lists it.
    pub fn node(&self, id: u64) -> Option<&NodeEntry> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// The initial members of the cluster: all nodes of the file.
    pub(crate) fn members(&self) -> Vec<MemberConfig> {
        self.nodes.iter().map(NodeEntry::member).collect()
    }

    /// Whether the node serves no client without a certificate while access control is off: other machines reach its
    /// public listener, and TLS requires no certificates of clients.
    pub(crate) fn requires_identity(&self, entry: &NodeEntry) -> bool {
        let is_reached = !is_loopback(&entry.http) || !is_loopback(&entry.listen_http);
        !self.allow_insecure_network && self.tls.is_some() && is_reached
    }

    /// Valid settings that are probably a mistake.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let count = self.nodes.len();
        if count.is_multiple_of(2) {
            warnings.push(format!("{count} nodes tolerate no more failures than {} nodes", count - 1));
        }
        if count == 1 {
            warnings.push("one node tolerates no failure: leases are unavailable while it is down".to_owned());
        }
        let remote = self.nodes.iter().any(|node| {
            [&node.http, &node.peer, &node.listen_http, &node.listen_peer]
                .into_iter()
                .any(|address| !is_loopback(address))
        });
        if self.allow_insecure_network && remote {
            warnings.push(
                "allow_insecure_network: every client that reaches these addresses can take, revoke and read all leases, \
                 and remove members"
                    .to_owned(),
            );
        }
        warnings
    }
}

/// The tables and values of a file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    cluster: String,
    allow_insecure_network: bool,
    node: Vec<NodeSection>,
    raft: RaftSection,
    lease: LeaseSection,
    http: HttpLimits,
    backup: BackupSection,
    /// Absent without TLS: no value of it turns TLS on.
    tls: Option<TlsSection>,
}

impl File {
    /// The values of an empty file.
    fn of(profile: Profile) -> File {
        File {
            cluster: String::new(),
            allow_insecure_network: false,
            node: Vec::new(),
            raft: RaftSection::new(profile, &profile.timings()),
            lease: LeaseSection::new(&LeaseSettings::default(), &TtlPolicy::default()),
            http: HttpLimits::default(),
            backup: BackupSection::default(),
            tls: None,
        }
    }

    /// Adds the problems of values that are each within their bounds.
    fn validate(self, folder: &Path, found: &mut Found) -> Config {
        let File { cluster, allow_insecure_network, node, raft, lease, http, backup, tls } = self;
        let backup = backup.schedule(folder);
        let (raft, lease, ttl) = (raft.timings(), lease.settings(), lease.ttl());
        let tls = tls.map(|section| section.settings(folder, found));
        validate_cluster(&cluster, found);
        let nodes = nodes::entries(node, folder, may_be_reached(allow_insecure_network, tls.as_ref()), found);
        raft::validate(&raft, found);
        lease::validate(&ttl, found);
        #[cfg(feature = "compat-leases")]
        if http.compat_leases && lease.limits.history < http::COMPAT_MIN_HISTORY {
            let text = format!("http.compat_leases needs at least {} for its ids", http::COMPAT_MIN_HISTORY);
            found.add("lease.history", text);
        }
        Config { cluster, nodes, raft, lease, ttl, http, backup, tls, allow_insecure_network }
    }
}

/// Whether nodes may have addresses that other machines reach.
pub(crate) fn may_be_reached(allow_insecure_network: bool, tls: Option<&TlsSettings>) -> bool {
    allow_insecure_network || tls.is_some_and(TlsSettings::encrypts_all)
}

fn validate_cluster(cluster: &str, found: &mut Found) {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if cluster.is_empty() {
        found.add_first("cluster", "must be set");
    } else if cluster.len() > MAX_CLUSTER_BYTES || !cluster.chars().all(allowed) {
        let text = format!("{cluster:?} must be at most {MAX_CLUSTER_BYTES} letters, digits, '.', '_' and '-'");
        found.add("cluster", text);
    }
}

/// All problems of settings that a program made, by the same rules as for a file.
pub(crate) fn problems(
    cluster: &str,
    members: &[MemberConfig],
    may_be_reached: bool,
    raft: &RaftTimings,
    lease: &LeaseSettings,
    ttl: &TtlPolicy,
    backup: Option<&BackupSchedule>,
) -> Vec<String> {
    let mut found = Found::default();
    validate_cluster(cluster, &mut found);
    let path = |index: usize, key: &str| format!("node {}: {key}", members[index].id);
    nodes::validate(members, may_be_reached, path, &mut found);
    if backup.is_some_and(|schedule| schedule.dir.as_os_str().is_empty()) {
        found.add("backup.dir", "must be set");
    }
    let defaults = File::of(Profile::Lan);
    let (raft, lease) = (RaftSection::new(Profile::Lan, raft), LeaseSection::new(lease, ttl));
    let backup = backup.map(BackupSection::new).unwrap_or_default();
    let values = reader::to_values(&File { raft, lease, backup, ..File::of(Profile::Lan) });
    if let Some(file) = reader::read(&defaults, values, &mut found) {
        raft::validate(&file.raft.timings(), &mut found);
        lease::validate(&file.lease.ttl(), &mut found);
    }
    found.0.iter().map(ToString::to_string).collect()
}

/// An error of [`Config::load`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
    /// The file is larger than [`MAX_CONFIG_BYTES`].
    #[error("{} has {bytes} bytes: at most {MAX_CONFIG_BYTES} are allowed", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// The text is invalid.
    #[error("{} is invalid:\n{problems}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// All problems of the text.
        problems: Problems,
    },
}

/// All problems of a configuration, one text each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<String>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, problem) in self.0.iter().enumerate() {
            let newline = if number == 0 { "" } else { "\n" };
            write!(f, "{newline}  {}", problem.replace('\n', "\n  "))?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

#[cfg(test)]
mod tests;
