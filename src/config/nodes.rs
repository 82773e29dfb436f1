//! `[[node]]`: who belongs to the cluster and where it listens.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::address;
use super::reader::Reader;
use crate::types::NodeId;

/// Most nodes of one cluster.
pub const MAX_NODES: usize = 15;

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
    if nodes.is_empty() || nodes.len() > MAX_NODES {
        root.problem(format!("node: 1 to {MAX_NODES} [[node]] tables are needed, found {}", nodes.len()));
    }
    report_doubles(root, "id", nodes.iter().filter_map(|node| node.id.map(|id| id.to_string())));
    let entries: Vec<NodeEntry> = nodes.into_iter().map(ReadNode::into_entry).collect();
    let addresses = entries.iter().flat_map(|node| [&node.http, &node.peer]).filter(|address| !address.is_empty());
    report_doubles(root, "address", addresses.cloned());
    let folders = entries.iter().filter(|node| node.data != folder).map(|node| node.data.display().to_string());
    report_doubles(root, "data", folders);
    entries
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
    let id = node.required_number("id", 1, i64::MAX as u64);
    let http = read_address(node, "http", allow_insecure_network);
    let peer = read_address(node, "peer", allow_insecure_network);
    let data = folder.join(node.required_text("data"));
    ReadNode { id, http, peer, data }
}

fn read_address(node: &mut Reader, key: &'static str, allow_insecure_network: bool) -> String {
    let text = node.required_text(key);
    if text.is_empty() {
        return text;
    }
    match address::check(&text) {
        Err(problem) => node.problem(format!("{key}: {problem}")),
        Ok(()) if !allow_insecure_network && !address::is_loopback(&text) => node.problem(format!(
            "{key}: {text:?} can be reached from other machines, and nothing there is encrypted or authenticated: \
             loopback only, unless allow_insecure_network = true says that this network is trusted"
        )),
        Ok(()) => {}
    }
    text
}

fn report_doubles(root: &mut Reader, what: &str, values: impl Iterator<Item = String>) {
    let mut seen = BTreeMap::new();
    for value in values {
        *seen.entry(value).or_insert(0) += 1;
    }
    for (value, times) in seen.into_iter().filter(|(_, times)| *times > 1) {
        root.problem(format!("node: {what} {value} is given {times} times; every node needs its own"));
    }
}
