//! `[[node]]`: who belongs to the cluster and where it listens.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::address;
use super::reader::Reader;
use crate::types::NodeId;

/// Most nodes of one cluster.
pub const MAX_NODES: usize = 15;
/// Largest id of a node: TOML's largest integer.
const MAX_ID: NodeId = i64::MAX as u64;

/// One node of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEntry {
    pub id: NodeId,
    /// `host:port` of the public listener.
    pub http: String,
    /// `host:port` for the other nodes.
    pub peer: String,
    /// Its data directory.
    pub data: PathBuf,
}

/// What the other nodes know of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    let ids = doubles("id", nodes.iter().filter_map(|node| node.id.map(|id| id.to_string())));
    let entries: Vec<NodeEntry> = nodes.into_iter().map(ReadNode::into_entry).collect();
    let addresses = doubles("address", entries.iter().flat_map(|node| [node.http.clone(), node.peer.clone()]));
    let folders = entries.iter().filter(|node| node.data != folder).map(|node| node.data.display().to_string());
    for problem in [ids, addresses, doubles("data", folders)].concat() {
        root.problem(problem);
    }
    entries
}

/// Everything that is wrong with members that a program named.
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
    problems.extend(doubles("id", members.iter().map(|member| member.id.to_string())));
    problems.extend(doubles("address", members.iter().flat_map(|member| [member.http.clone(), member.peer.clone()])));
    problems
}

fn check_count(count: usize) -> Option<String> {
    let wrong = !(1..=MAX_NODES).contains(&count);
    wrong.then(|| format!("node: a cluster has 1 to {MAX_NODES} nodes, found {count}"))
}

/// A node before it is known that nothing is missing.
struct ReadNode {
    id: Option<NodeId>,
    http: String,
    peer: String,
    data: PathBuf,
}

impl ReadNode {
    fn into_entry(self) -> NodeEntry {
        NodeEntry { id: self.id.unwrap_or_default(), http: self.http, peer: self.peer, data: self.data }
    }
}

fn read_node(node: &mut Reader, folder: &Path, allow_insecure_network: bool) -> ReadNode {
    let id = node.required_number("id", 1, MAX_ID);
    let http = read_address(node, "http", allow_insecure_network);
    let peer = read_address(node, "peer", allow_insecure_network);
    let data = folder.join(node.required_text("data"));
    ReadNode { id, http, peer, data }
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
            "{text:?} can be reached from other machines, and nothing there is encrypted or authenticated: loopback \
             only, unless allow_insecure_network = true says that this network is trusted"
        )),
        Ok(()) => None,
    }
}

fn doubles(what: &str, values: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen = BTreeMap::new();
    for value in values.filter(|value| !value.is_empty()) {
        *seen.entry(value).or_insert(0) += 1;
    }
    let doubles = seen.into_iter().filter(|(_, times)| *times > 1);
    doubles
        .map(|(value, times)| format!("node: {what} {value} is given {times} times; every node needs its own"))
        .collect()
}
