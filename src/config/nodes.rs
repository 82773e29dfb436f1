//! `[[node]]`: the nodes of the cluster and their addresses.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::address;
use super::reader::Reader;
use crate::types::NodeId;

/// Maximum number of nodes in a cluster.
pub const MAX_NODES: usize = 15;
/// Largest node id: the largest integer of TOML.
const MAX_ID: NodeId = i64::MAX as u64;

/// One `[[node]]` of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeEntry {
    /// The id of the node.
    pub id: NodeId,
    /// `host:port` of the public listener.
    pub http: String,
    /// `host:port` for the other nodes.
    pub peer: String,
    /// The node's data directory.
    pub data: PathBuf,
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

pub(super) fn read(root: &mut Reader, folder: &Path, allow_insecure_network: bool) -> Vec<NodeEntry> {
    let nodes = root.tables("node", |node| read_node(node, folder, allow_insecure_network));
    if let Some(problem) = check_count(nodes.len()) {
        root.problem(problem);
    }
    let ids = duplicates("id", nodes.iter().filter_map(|node| node.id.map(|id| id.to_string())));
    let entries: Vec<NodeEntry> = nodes.into_iter().map(PartialNode::into_entry).collect();
    let addresses = duplicates("address", entries.iter().flat_map(|node| [node.http.clone(), node.peer.clone()]));
    let folders = entries.iter().filter(|node| node.data != folder).map(|node| node.data.display().to_string());
    for problem in [ids, addresses, duplicates("data", folders)].concat() {
        root.problem(problem);
    }
    entries
}

/// All problems of a member list that a program passed in.
pub(super) fn problems(members: &[MemberConfig], allow_insecure_network: bool) -> Vec<String> {
    let mut problems: Vec<String> = check_count(members.len()).into_iter().collect();
    for member in members {
        let id = member.id;
        if !(1..=MAX_ID).contains(&id) {
            problems.push(format!("node: id {id} is outside 1 to {MAX_ID}"));
        }
        for (key, address) in [("http", &member.http), ("peer", &member.peer)] {
            let problem = address_problem(address, allow_insecure_network);
            problems.extend(problem.map(|problem| format!("node {id}: {key}: {problem}")));
        }
    }
    problems.extend(duplicates("id", members.iter().map(|member| member.id.to_string())));
    problems
        .extend(duplicates("address", members.iter().flat_map(|member| [member.http.clone(), member.peer.clone()])));
    problems
}

fn check_count(count: usize) -> Option<String> {
    let invalid = !(1..=MAX_NODES).contains(&count);
    invalid.then(|| format!("node: a cluster has 1 to {MAX_NODES} nodes, found {count}"))
}

/// A node that may lack required values. The reader has recorded a problem for each of them.
struct PartialNode {
    id: Option<NodeId>,
    http: String,
    peer: String,
    data: PathBuf,
}

impl PartialNode {
    fn into_entry(self) -> NodeEntry {
        NodeEntry { id: self.id.unwrap_or_default(), http: self.http, peer: self.peer, data: self.data }
    }
}

fn read_node(node: &mut Reader, folder: &Path, allow_insecure_network: bool) -> PartialNode {
    let id = node.required_number("id", 1, MAX_ID);
    let http = read_address(node, "http", allow_insecure_network);
    let peer = read_address(node, "peer", allow_insecure_network);
    let data = folder.join(node.required_text("data"));
    PartialNode { id, http, peer, data }
}

fn read_address(node: &mut Reader, key: &'static str, allow_insecure_network: bool) -> String {
    let text = node.required_text(key);
    if !text.is_empty()
        && let Some(problem) = address_problem(&text, allow_insecure_network)
    {
        node.problem(format!("{key}: {problem}"));
    }
    text
}

fn address_problem(text: &str, allow_insecure_network: bool) -> Option<String> {
    match address::check(text) {
        Err(problem) => Some(problem),
        Ok(()) if !allow_insecure_network && !address::is_loopback(text) => Some(format!(
            "{text:?} is not a loopback address, and connections are neither encrypted nor authenticated: use a \
             loopback address, or set allow_insecure_network = true if you trust all machines in this network"
        )),
        Ok(()) => None,
    }
}

fn duplicates(key: &str, values: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen = BTreeMap::new();
    for value in values.filter(|value| !value.is_empty()) {
        *seen.entry(value).or_insert(0) += 1;
    }
    let duplicates = seen.into_iter().filter(|(_, times)| *times > 1);
    duplicates.map(|(value, times)| format!("node: {key} {value} is used {times} times; each must be unique")).collect()
}
