//! `[[node]]`: the nodes of the cluster and their addresses.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::address;
use super::reader::{Found, within};
use crate::types::NodeId;

/// Maximum number of nodes in a cluster.
pub const MAX_NODES: usize = 15;
/// Largest node id: the largest integer of TOML.
pub(crate) const MAX_ID: NodeId = i64::MAX as u64;

/// One `[[node]]` of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeEntry {
    /// The id of the node.
    pub id: NodeId,
    /// `host:port` of the public listener, as clients reach it.
    pub http: String,
    /// `host:port` of the peer listener, as other nodes reach it.
    pub peer: String,
    /// `host:port` that the public listener binds; by default `http`. It differs in a container or behind NAT.
    pub listen_http: String,
    /// `host:port` that the peer listener binds; by default `peer`.
    pub listen_peer: String,
    /// The node's data directory.
    pub data: PathBuf,
}

impl NodeEntry {
    pub(super) fn member(&self) -> MemberConfig {
        MemberConfig { id: self.id, http: self.http.clone(), peer: self.peer.clone() }
    }
}

/// The id and addresses of a node, as its cluster stores them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberConfig {
    pub id: NodeId,
    /// `host:port` of the public listener.
    pub http: String,
    /// `host:port` for the other nodes.
    pub peer: String,
}

/// `[[node]]`. An absent value is 0 or empty.
#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub(super) struct NodeSection {
    #[serde(deserialize_with = "within::<_, _, 1, MAX_ID>")]
    id: NodeId,
    http: String,
    peer: String,
    listen_http: String,
    listen_peer: String,
    data: String,
}

impl NodeSection {
    fn entry(self, folder: &Path) -> NodeEntry {
        NodeEntry {
            id: self.id,
            listen_http: bound(&self.listen_http, &self.http).to_owned(),
            listen_peer: bound(&self.listen_peer, &self.peer).to_owned(),
            http: self.http,
            peer: self.peer,
            data: folder.join(self.data),
        }
    }
}

/// The address that a listener binds: its setting, or else the address at which it is reached.
fn bound<'a>(listen: &'a str, reached: &'a str) -> &'a str {
    if listen.is_empty() { reached } else { listen }
}

/// The nodes of a file in `folder`. Adds all problems of the nodes.
pub(super) fn entries(
    nodes: Vec<NodeSection>,
    folder: &Path,
    may_be_reached: bool,
    found: &mut Found,
) -> Vec<NodeEntry> {
    for (number, node) in (1..).zip(&nodes) {
        let NodeSection { id, http, peer, listen_http, listen_peer, data } = node;
        let values =
            [("id", *id == 0), ("http", http.is_empty()), ("peer", peer.is_empty()), ("data", data.is_empty())];
        for (key, _) in values.into_iter().filter(|(_, is_absent)| *is_absent) {
            found.add_first(format!("node[{number}].{key}"), "must be set");
        }
        for (key, listen) in [("listen_http", listen_http), ("listen_peer", listen_peer)] {
            let problem = Some(listen).filter(|listen| !listen.is_empty());
            if let Some(problem) = problem.and_then(|listen| listen_problem(listen, may_be_reached)) {
                found.add_first(format!("node[{number}].{key}"), problem);
            }
        }
        // Without both settings, `http` and `peer` are duplicates.
        let is_set = !listen_http.is_empty() || !listen_peer.is_empty();
        if is_set && bound(listen_http, http) == bound(listen_peer, peer) {
            let (key, other) = match listen_peer.is_empty() {
                true => ("listen_http", "peer"),
                false if listen_http.is_empty() => ("listen_peer", "http"),
                false => ("listen_peer", "listen_http"),
            };
            found.add_first(format!("node[{number}].{key}"), format!("must differ from {other}"));
        }
    }
    let folders: Vec<String> = nodes.iter().map(|node| node.data.clone()).filter(|data| !data.is_empty()).collect();
    let entries: Vec<NodeEntry> = nodes.into_iter().map(|node| node.entry(folder)).collect();
    let members: Vec<MemberConfig> = entries.iter().map(NodeEntry::member).collect();
    validate(&members, may_be_reached, |index, key| format!("node[{}].{key}", index + 1), found);
    add_duplicates("data", folders.iter().map(|data| folder.join(data).display().to_string()), found);
    entries
}

/// Adds all problems of a member list. `path` is the path of a member's setting.
pub(super) fn validate(
    members: &[MemberConfig],
    may_be_reached: bool,
    path: impl Fn(usize, &str) -> String,
    found: &mut Found,
) {
    if !(1..=MAX_NODES).contains(&members.len()) {
        found.add("node", format!("a cluster has 1 to {MAX_NODES} nodes, found {}", members.len()));
    }
    for (index, member) in members.iter().enumerate() {
        if !(1..=MAX_ID).contains(&member.id) {
            found.add_first(path(index, "id"), format!("{} is outside 1 to {MAX_ID}", member.id));
        }
        for (key, address) in [("http", &member.http), ("peer", &member.peer)] {
            if let Some(problem) = address_problem(address, may_be_reached) {
                found.add_first(path(index, key), problem);
            }
        }
    }
    add_duplicates("id", members.iter().filter(|member| member.id > 0).map(|member| member.id.to_string()), found);
    let addresses = members.iter().flat_map(|member| [member.http.clone(), member.peer.clone()]);
    add_duplicates("address", addresses.filter(|address| !address.is_empty()), found);
}

/// The problem of an address that a listener binds. It may be `0.0.0.0` or `[::]`.
pub(crate) fn listen_problem(text: &str, may_be_reached: bool) -> Option<String> {
    match address::check_listen(text) {
        Err(problem) => Some(problem),
        Ok(()) => exposure_problem(text, may_be_reached),
    }
}

/// The problem of an address that nodes and clients connect to.
pub(crate) fn address_problem(text: &str, may_be_reached: bool) -> Option<String> {
    match address::check(text) {
        Err(problem) => Some(problem),
        Ok(()) => exposure_problem(text, may_be_reached),
    }
}

/// The problem of a valid address that other machines may reach.
fn exposure_problem(text: &str, may_be_reached: bool) -> Option<String> {
    let is_safe = may_be_reached || address::is_loopback(text);
    (!is_safe).then(|| {
        format!(
            "{text:?} is not a loopback address, and not all connections are encrypted: use a loopback address, \
             configure [tls] with mode = \"require\", or set allow_insecure_network = true if you trust all machines in \
             this network"
        )
    })
}

fn add_duplicates(name: &str, values: impl Iterator<Item = String>, found: &mut Found) {
    let mut uses = BTreeMap::new();
    for value in values {
        *uses.entry(value).or_insert(0) += 1;
    }
    for (value, times) in uses.into_iter().filter(|(_, times)| *times > 1) {
        found.add("node", format!("{name} {value} is used {times} times; each must be unique"));
    }
}
