//! Findings about the cluster, from the answers of its nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::super::{duration, open_files};
use super::clock::{self, LabelledClock};
use super::finding::{Finding, Status};
use super::probe::{Answers, ListenerKind, NoAnswer, OpenFiles, Reached};
use crate::api::{Cluster, MemberInfo};
use crate::config::{Config, RaftTimings};
use crate::types::{DiskState, MemberState, NodeId, Role};

/// A node that uses this share of its files soon accepts no connections, as for the alert of deploy/prometheus.
const FILES_SHARE: f64 = 0.8;

/// The view of a node of the configured cluster, best of a leader, else of a node with a quorum. Without one, any view.
pub fn view<'r>(reached: &'r [Reached], config: Option<&Config>) -> Option<&'r Cluster> {
    let is_other = |view: &Cluster| config.is_some_and(|config| config.cluster != view.cluster_id);
    let leads = |view: &Cluster| view.quorum && view.leader == Some(view.node);
    reached.iter().filter_map(Reached::cluster).min_by_key(|view| (is_other(view), !leads(view), !view.quorum))
}

/// All findings about the cluster.
pub fn judge(reached: &[Reached], config: Option<&Config>) -> Vec<Finding> {
    let asked: Vec<&Reached> = reached.iter().filter(|reached| reached.target.listener == ListenerKind::Http).collect();
    let view = view(reached, config);
    let cluster = config.map(|config| &*config.cluster).or_else(|| view.map(|view| &*view.cluster_id));
    let members = view.filter(|view| is_of(view, cluster)).map(|view| &*view.members);
    let mut findings: Vec<Finding> = asked.iter().map(|reached| address(reached, cluster, members)).collect();
    let peers = reached.iter().filter(|reached| reached.target.listener == ListenerKind::Peer);
    findings.extend(peers.map(|reached| address(reached, cluster, members)));
    findings.push(quorum(&asked, cluster));
    if let Some(view) = view {
        findings.extend(view.members.iter().map(member));
        findings.extend(config.map(|config| same_cluster(config, view)));
    }
    if asked.is_empty() {
        return findings;
    }
    let nodes: Vec<(String, Option<&Answers>)> =
        asked.iter().map(|reached| (label(reached), reached.answers.as_ref())).collect();
    findings.push(versions(&nodes));
    findings.push(files(&nodes, config.map(|config| config.http.max_connections)));
    let no_connection = NoAnswer::Failed("no connection".to_owned());
    let leader = view.and_then(|view| view.leader);
    let clocks: Vec<LabelledClock<'_>> = asked
        .iter()
        .map(|reached| LabelledClock {
            label: label(reached),
            is_leader: leader.is_some() && id(reached) == leader,
            clock: reached.answers.as_ref().map_or(Err(&no_connection), |answers| answers.clock.as_ref().copied()),
        })
        .collect();
    let drift = config.map_or(RaftTimings::lan().drift_permille, |config| config.raft.drift_permille);
    findings.push(clock::rates(&clocks, drift));
    findings.push(clock::walls(&clocks));
    findings
}

fn id(reached: &Reached) -> Option<NodeId> {
    reached.cluster().map(|view| view.node).or(reached.target.node)
}

fn label(reached: &Reached) -> String {
    id(reached).map_or_else(|| reached.target.address.clone(), |id| format!("node {id}"))
}

/// Whether an address is reachable, and the expected node of this cluster answers there. `members`: of this cluster, if
/// they are known.
fn address(reached: &Reached, cluster: Option<&str>, members: Option<&[MemberInfo]>) -> Finding {
    let address = &reached.target.address;
    let name = format!("address.{}", reached.target.subject());
    let elapsed = match &reached.connected {
        Ok(elapsed) => elapsed.as_secs_f64() * 1e3,
        Err(why) => {
            let is_member = |node| members.is_none_or(|members| members.iter().any(|member| member.id == node));
            let advice = match reached.target.node {
                Some(node) if !is_member(node) => {
                    let facts = format!("cannot connect to {address}: {why}; node {node} is no member");
                    let advice = format!(
                        "if node {node} was removed, do not start it again, and correct the files of all nodes; else: \
                         `tenure member add`"
                    );
                    return Finding::warning(name, facts, advice);
                }
                Some(node) => format!("start node {node}, or correct its address; check the network and its firewalls"),
                None => "start the node, or correct the endpoint; check the network and its firewalls".to_owned(),
            };
            return Finding::problem(name, format!("cannot connect to {address}: {why}"), advice);
        }
    };
    let facts = format!("connected to {address} in {elapsed:.1} ms");
    let answer = reached.answers.as_ref().map(|answers| &answers.cluster);
    match (answer, reached.target.node) {
        (Some(Ok(view)), _) if !is_of(view, cluster) => {
            let expected = cluster.unwrap_or_default();
            let facts = format!("{facts}; a node of cluster {} answers, expected cluster {expected}", view.cluster_id);
            let advice = "correct the address: the endpoint, or `tenure member update` and the file";
            Finding::problem(name, facts, advice)
        }
        (Some(Ok(view)), Some(expected)) if view.node != expected => {
            let facts = format!("{facts}; node {} answers, expected node {expected}", view.node);
            let advice = format!("correct the address of node {expected}: `tenure member update`, and the file");
            Finding::problem(name, facts, advice)
        }
        (Some(Err(NoAnswer::Failed(why))), _) => {
            let advice = "see the log of the node: it may be starting, suspended or overloaded; with TLS, see the \
                          certificates below";
            Finding::problem(name, format!("{facts}, but no answer: {why}"), advice)
        }
        (Some(Err(NoAnswer::Denied(why))), _) => Finding::ok(name, format!("{facts}; {why}")),
        _ => Finding::ok(name, facts),
    }
}

/// Whether the view is of this cluster. All views are if its name is unknown.
fn is_of(view: &Cluster, cluster: Option<&str>) -> bool {
    cluster.is_none_or(|cluster| view.cluster_id == cluster)
}

/// Whether a majority works, as all nodes of this cluster that answer see it.
fn quorum(asked: &[&Reached], cluster: Option<&str>) -> Finding {
    let name = "quorum";
    let views = asked.iter().filter_map(|reached| reached.cluster());
    let views: Vec<&Cluster> = views.filter(|view| is_of(view, cluster)).collect();
    let ids = |has_quorum: bool| {
        // Two addresses can belong to one node.
        let ids: BTreeSet<NodeId> =
            views.iter().filter(|view| view.quorum == has_quorum).map(|view| view.node).collect();
        ids.iter().map(NodeId::to_string).collect::<Vec<_>>().join(", ")
    };
    let (with, without) = (ids(true), ids(false));
    if asked.is_empty() {
        return Finding::unknown(name, "no node was asked", "give --endpoints, or a valid --config");
    }
    if views.is_empty() && asked.iter().any(|reached| reached.is_denied()) {
        let advice = "give --ca, --cert and --key, or --node on the machine of a node; with access control also \
                      --access-token-file; replace expired certificates";
        return Finding::unknown(name, "the nodes and this client do not accept each other", advice);
    }
    if views.is_empty() {
        let advice = "start the nodes; if they run, correct the addresses, the network or the certificates";
        return Finding::problem(name, "no node answers", advice);
    }
    if with.is_empty() {
        let advice = "start nodes until a majority of the voters runs; after the loss of their disks, restore a backup: \
                      docs/operations.md, Failures";
        return Finding::problem(name, format!("no lease changes: no majority is reached by node {without}"), advice);
    }
    if !without.is_empty() {
        let facts = format!("no leader with a majority is reached by node {without}, but one is by node {with}");
        let advice = format!("check the network between the `peer` addresses of node {without} and of the others");
        return Finding::problem(name, facts, advice);
    }
    // Every view with a quorum has a leader.
    let newest = views.iter().max_by_key(|view| view.term).expect("there is a view");
    let leader = newest.leader.map_or("unknown".to_owned(), |leader| leader.to_string());
    Finding::ok(name, format!("node {leader} leads in term {}, as seen by node {with}", newest.term))
}

fn member(member: &MemberInfo) -> Finding {
    let name = format!("member.{}", member.id);
    let contact = match member.last_contact_ms {
        Some(ms) => format!("last contact {} ago", duration::show(ms)),
        None => "no known contact".to_owned(),
    };
    let lag = member.lag.map_or("unknown lag".to_owned(), |lag| format!("lag {lag}"));
    let facts = format!("{}, {}, {lag}, {contact}", member.role.as_str(), member.state.as_str());
    if member.disk == Some(DiskState::Stalled) {
        return Finding::problem(
            name,
            format!("{facts}, disk stalled"),
            "its disk does not finish a write: check the disk",
        );
    }
    match (&member.state, &member.role) {
        (MemberState::Unreachable, role) => {
            let id = member.id;
            let replacement = match role {
                // The cluster refuses to replace a node without a vote.
                Role::Learner => format!("`tenure member remove {id}`, and `tenure member add` with another id"),
                _ => format!("`tenure member replace {id} --with ID`"),
            };
            let peer = &member.peer;
            let advice =
                format!("start node {id}, or check the network to {peer}; after the loss of its disk: {replacement}");
            Finding::problem(name, facts, advice)
        }
        (MemberState::Lagging, _) => {
            let advice = "wait while it catches up; if its lag does not fall, check its disk and its network";
            Finding::warning(name, facts, advice)
        }
        (MemberState::Ok, Role::Leader | Role::Follower) => Finding::ok(name, facts),
        (MemberState::Ok, Role::Learner) => {
            let advice = format!(
                "it has no vote; it gets one when it has caught up, or run `tenure member promote {}`",
                member.id
            );
            Finding::warning(name, facts, advice)
        }
        (MemberState::Ok, _) | (MemberState::Other, _) => {
            Finding::unknown(name, facts, "use the version of this command that the nodes have")
        }
    }
}

/// Whether the configuration file describes the cluster that answers.
fn same_cluster(config: &Config, view: &Cluster) -> Finding {
    let name = "configuration.members";
    if config.cluster != view.cluster_id {
        let facts = format!("the file has cluster {}, but cluster {} answers", config.cluster, view.cluster_id);
        return Finding::problem(name, facts, "use the file of this cluster, or correct the addresses");
    }
    type Addresses<'a> = (&'a str, &'a str);
    let of_file: BTreeMap<NodeId, Addresses<'_>> =
        config.nodes.iter().map(|node| (node.id, (&*node.http, &*node.peer))).collect();
    let of_cluster: BTreeMap<NodeId, Addresses<'_>> =
        view.members.iter().map(|member| (member.id, (&*member.http, &*member.peer))).collect();
    let mut differences = Vec::new();
    for (id, addresses) in &of_cluster {
        match of_file.get(id) {
            None => differences.push(format!("the file lacks node {id}")),
            Some(file) if file != addresses => {
                differences.push(format!("node {id} has {} and {} in the cluster", addresses.0, addresses.1));
            }
            Some(_) => {}
        }
    }
    let removed = of_file.keys().filter(|id| !of_cluster.contains_key(id));
    differences.extend(removed.map(|id| format!("node {id} of the file is no member")));
    if differences.is_empty() {
        return Finding::ok(name, format!("cluster {}; the file lists its {} members", view.cluster_id, of_file.len()));
    }
    let advice = "the members of the cluster count: correct the files of all nodes, or use `tenure member`";
    Finding::warning(name, differences.join("; "), advice)
}

fn versions(nodes: &[(String, Option<&Answers>)]) -> Finding {
    let name = "versions";
    let own = env!("CARGO_PKG_VERSION");
    let mut shown = vec![format!("this command {own}")];
    let mut status = Status::Ok;
    let mut formats = Vec::new();
    for (label, answers) in nodes {
        match answers.and_then(|answers| answers.version.as_ref().ok()) {
            Some(version) => {
                shown.push(format!("{label} {} (data format {})", version.version, version.data_format));
                formats.push(version.data_format);
                if version.version != own || formats[0] != version.data_format {
                    status = Status::Warning;
                }
            }
            None => {
                status = status.max(Status::Unknown);
                shown.push(format!("{label} unknown"));
            }
        }
    }
    let advice = "finish the upgrade: run one version on all nodes and clients: docs/operations.md, Upgrades";
    Finding::of_nodes(status, name, shown.join(", "), advice)
}

fn files(nodes: &[(String, Option<&Answers>)], wanted: Option<usize>) -> Finding {
    let name = "open_files.nodes";
    let (mut status, mut shown) = (Status::Ok, Vec::new());
    for (label, answers) in nodes {
        match answers.map(|answers| &answers.files) {
            Some(Ok(OpenFiles { open, limit })) => {
                let connections = open_files::max_clients(limit.is_finite().then_some(*limit as u64), 1);
                let is_low = wanted.is_some_and(|wanted| connections < wanted);
                if open / limit > FILES_SHARE || is_low {
                    status = Status::Warning;
                }
                let capacity = if is_low { format!(", room for {connections} clients") } else { String::new() };
                shown.push(format!("{label} uses {open} of {limit}{capacity}"));
            }
            Some(Err(why)) => {
                status = status.max(Status::Unknown);
                shown.push(format!("{label} unknown ({})", why.message()));
            }
            None => {
                status = status.max(Status::Unknown);
                shown.push(format!("{label} unknown (no connection)"));
            }
        }
    }
    Finding::of_nodes(status, name, shown.join("; "), open_files::ADVICE)
}

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod tests;
