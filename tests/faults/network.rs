//! A network of namespaces. Each host has a namespace, and a bridge in the namespace of the clients connects them.
//!
//! The rules of a listener drop packets of other hosts. So a cut is a set of pairs: a listener, and a host that it does
//! not hear. Clients and hosts hear each other if the link of the host is up.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The prefix of all namespaces. The process id of the run follows.
pub const PREFIX: &str = "tenure-faults-";
/// The last byte of the address of the clients.
const HUB: u8 = 254;

/// Pairs of a listener and a host whose packets it drops.
pub type Cut = BTreeSet<(u64, u64)>;

/// The namespaces of a run. Dropping it removes them.
pub struct Network {
    prefix: String,
    hosts: u64,
    /// The rules that each namespace has.
    rules: BTreeMap<u64, String>,
}

impl Network {
    /// Creates namespaces, links and addresses for `hosts` hosts.
    pub fn new(hosts: u64) -> Result<Network> {
        let network = Network { prefix: format!("{PREFIX}{}-", std::process::id()), hosts, rules: BTreeMap::new() };
        let hub = network.hub();
        ip(&["netns", "add", &hub])?;
        ip(&["-n", &hub, "link", "set", "lo", "up"])?;
        ip(&["-n", &hub, "link", "add", "br0", "type", "bridge", "forward_delay", "0"])?;
        ip(&["-n", &hub, "addr", "add", &format!("{}/24", address(HUB)), "dev", "br0"])?;
        ip(&["-n", &hub, "link", "set", "br0", "up"])?;
        for host in network.hosts() {
            let (namespace, port) = (network.namespace(host), port(host));
            ip(&["netns", "add", &namespace])?;
            let link = ["link", "add", &port, "netns", &hub, "type", "veth", "peer", "name", "eth0"];
            ip(&[&link[..], &["netns", &namespace]].concat())?;
            ip(&["-n", &hub, "link", "set", &port, "master", "br0", "up"])?;
            ip(&["-n", &namespace, "link", "set", "lo", "up"])?;
            ip(&["-n", &namespace, "addr", "add", &format!("{}/24", host_address(host)), "dev", "eth0"])?;
            ip(&["-n", &namespace, "link", "set", "eth0", "up"])?;
        }
        Ok(network)
    }

    /// Moves this thread, and the threads that it starts later, into the namespace of the clients.
    pub fn enter_hub(&self) -> Result<()> {
        enter(&self.hub())
    }

    /// The numbers of all hosts.
    pub fn hosts(&self) -> RangeInclusive<u64> {
        1..=self.hosts
    }

    pub fn namespace(&self, host: u64) -> String {
        format!("{}{host}", self.prefix)
    }

    fn hub(&self) -> String {
        format!("{}hub", self.prefix)
    }

    /// Replaces all cuts, and routes the incoming packets of the `queued` hosts through their packet queues.
    pub fn set(&mut self, cut: &Cut, queued: &BTreeSet<u64>) -> Result<()> {
        for host in self.hosts() {
            let rules = rules(host, cut, queued.contains(&host));
            if self.rules.get(&host) != Some(&rules) {
                self.apply_rules(host, &rules)?;
                self.rules.insert(host, rules);
            }
        }
        Ok(())
    }

    /// Connects a host to the network, or disconnects it.
    pub fn link(&self, host: u64, up: bool) -> Result<()> {
        ip(&["-n", &self.hub(), "link", "set", &port(host), if up { "up" } else { "down" }])
    }

    fn apply_rules(&self, host: u64, rules: &str) -> Result<()> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(host), "iptables-restore"]).stdin(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().context("iptables-restore")?;
        child.stdin.take().expect("piped").write_all(rules.as_bytes())?;
        let output = child.wait_with_output()?;
        if !output.status.success() {
            bail!("iptables-restore of {rules:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in self.hosts().map(|host| self.namespace(host)).chain([self.hub()]) {
            // The namespace may not exist yet.
            let _ = ip(&["netns", "del", &name]);
        }
    }
}

pub fn host_address(host: u64) -> Ipv4Addr {
    address(u8::try_from(host).expect("a run has at most 10 hosts"))
}

/// The name of a host's link at the bridge.
fn port(host: u64) -> String {
    format!("host{host}")
}

fn address(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, last)
}

/// The file of a namespace.
pub fn file(namespace: &str) -> PathBuf {
    PathBuf::from("/run/netns").join(namespace)
}

/// Moves this thread into a namespace.
pub fn enter(namespace: &str) -> Result<()> {
    let file = File::open(file(namespace)).with_context(|| namespace.to_owned())?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).with_context(|| namespace.to_owned())
}

/// The rules of a namespace. With `--queue-bypass`, packets pass while no program reads the queue.
fn rules(host: u64, cut: &Cut, queued: bool) -> String {
    let mut text = "*filter\n:INPUT ACCEPT [0:0]\n".to_owned();
    for (_, unheard) in cut.iter().filter(|(listener, _)| *listener == host) {
        text.push_str(&format!("-A INPUT -s {} -j DROP\n", host_address(*unheard)));
    }
    if queued {
        text.push_str("-A INPUT -s 10.77.0.0/24 -j NFQUEUE --queue-num 0 --queue-bypass\n");
    }
    text + "COMMIT\n"
}

/// A cut in both directions between `some` hosts and all others.
pub fn apart(some: &[u64], hosts: u64) -> Cut {
    let others = (1..=hosts).filter(|other| !some.contains(other));
    others.flat_map(|other| some.iter().flat_map(move |one| [(*one, other), (other, *one)])).collect()
}

/// A cut that leaves each host its two neighbours in this order.
pub fn ring(order: &[u64]) -> Cut {
    pairs(order, |one, other| {
        let distance = one.abs_diff(other);
        distance == 1 || distance == order.len() - 1
    })
}

/// A cut between two halves of the hosts. The first one belongs to both halves.
pub fn bridge(order: &[u64]) -> Cut {
    let half = order.len().div_ceil(2);
    pairs(order, |one, other| one == 0 || other == 0 || (one < half) == (other < half))
}

/// The cut of all pairs that do not hear each other. `hear` takes positions in `order`.
fn pairs(order: &[u64], hear: impl Fn(usize, usize) -> bool) -> Cut {
    let places = (0..order.len()).flat_map(|one| (0..order.len()).map(move |other| (one, other)));
    let cut = places.filter(|(one, other)| one != other && !hear(*one, *other));
    cut.map(|(one, other)| (order[one], order[other])).collect()
}

fn ip(words: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(words).output().context("ip")?;
    if !output.status.success() {
        bail!("ip {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(cut: &Cut, listener: u64, nodes: u64) -> Vec<u64> {
        (1..=nodes).filter(|other| *other != listener && !cut.contains(&(listener, *other))).collect()
    }

    #[test]
    fn cut_sides_hear_only_themselves() {
        let cut = apart(&[2, 5], 5);
        assert_eq!(heard(&cut, 2, 5), [5]);
        assert_eq!(heard(&cut, 1, 5), [3, 4]);
    }

    #[test]
    fn ring_node_hears_two_neighbours() {
        let cut = ring(&[3, 1, 5, 2, 4]);
        assert_eq!(heard(&cut, 3, 5), [1, 4]);
        assert_eq!(heard(&cut, 5, 5), [1, 2]);
        assert!((1..=5).all(|node| heard(&cut, node, 5).len() == 2));
        assert!(ring(&[1, 2, 3]).is_empty());
    }

    #[test]
    fn bridge_halves_hear_one_common_node() {
        let cut = bridge(&[4, 1, 2, 3, 5]);
        assert_eq!(heard(&cut, 4, 5), [1, 2, 3, 5]);
        assert_eq!(heard(&cut, 1, 5), [2, 4]);
        assert_eq!(heard(&cut, 5, 5), [3, 4]);
        let cut = bridge(&[3, 1, 2]);
        assert_eq!((heard(&cut, 1, 3), heard(&cut, 2, 3)), (vec![3], vec![3]));
    }

    #[test]
    fn listener_drops_cut_nodes_and_queues_the_rest() {
        let text = rules(1, &Cut::from([(1, 2), (2, 1)]), true);
        assert_eq!(text.matches("DROP").count(), 1);
        assert!(text.contains("-s 10.77.0.2 -j DROP") && text.contains("--queue-bypass"), "{text}");
    }
}
