//! A network of namespaces: each node in one of its own, on a bridge in another, where the clients are.
//!
//! What one node may hear of another is decided in the listener's namespace, so every cut is a set of pairs of a listener
//! and somebody that it does not hear. Clients hear and are heard by everybody whose link is up.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Every namespace's name begins with this, the process id of the run behind it.
pub const PREFIX: &str = "tenure-faults-";
/// Where the clients are.
const HUB: u8 = 254;

/// Pairs of a listener and a node that it does not hear.
pub type Cut = BTreeSet<(u64, u64)>;

/// The namespaces of a run. Gone when dropped.
pub struct Network {
    prefix: String,
    nodes: u64,
    /// What each node's namespace was told last.
    rules: BTreeMap<u64, String>,
}

impl Network {
    /// Namespaces, links and addresses for so many nodes.
    pub fn new(nodes: u64) -> Result<Network> {
        let network = Network { prefix: format!("{PREFIX}{}-", std::process::id()), nodes, rules: BTreeMap::new() };
        let hub = network.hub();
        ip(&["netns", "add", &hub])?;
        ip(&["-n", &hub, "link", "set", "lo", "up"])?;
        ip(&["-n", &hub, "link", "add", "br0", "type", "bridge", "forward_delay", "0"])?;
        ip(&["-n", &hub, "addr", "add", &format!("{}/24", address(HUB)), "dev", "br0"])?;
        ip(&["-n", &hub, "link", "set", "br0", "up"])?;
        for node in 1..=nodes {
            let (namespace, port) = (network.namespace(node), format!("node{node}"));
            ip(&["netns", "add", &namespace])?;
            let link = ["link", "add", &port, "netns", &hub, "type", "veth", "peer", "name", "eth0"];
            ip(&[&link[..], &["netns", &namespace]].concat())?;
            ip(&["-n", &hub, "link", "set", &port, "master", "br0", "up"])?;
            ip(&["-n", &namespace, "link", "set", "lo", "up"])?;
            ip(&["-n", &namespace, "addr", "add", &format!("{}/24", node_address(node)), "dev", "eth0"])?;
            ip(&["-n", &namespace, "link", "set", "eth0", "up"])?;
        }
        Ok(network)
    }

    /// Moves this thread, and those that it starts from now on, to the clients' place.
    pub fn enter_hub(&self) -> Result<()> {
        enter(&self.hub())
    }

    pub fn namespace(&self, node: u64) -> String {
        format!("{}{node}", self.prefix)
    }

    fn hub(&self) -> String {
        format!("{}hub", self.prefix)
    }

    /// From now on exactly these are not heard, and what comes to these nodes goes through their queue first.
    pub fn set(&mut self, cut: &Cut, queued: &BTreeSet<u64>) -> Result<()> {
        for node in 1..=self.nodes {
            let rules = rules(node, cut, queued.contains(&node));
            if self.rules.get(&node) != Some(&rules) {
                self.tell(node, &rules)?;
                self.rules.insert(node, rules);
            }
        }
        Ok(())
    }

    /// Connects or disconnects a node, from everybody.
    pub fn link(&self, node: u64, up: bool) -> Result<()> {
        let port = format!("node{node}");
        ip(&["-n", &self.hub(), "link", "set", &port, if up { "up" } else { "down" }])
    }

    fn tell(&self, node: u64, rules: &str) -> Result<()> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(node), "iptables-restore"]).stdin(Stdio::piped());
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
        for name in (1..=self.nodes).map(|node| self.namespace(node)).chain([self.hub()]) {
            // Fails for one that was not made yet, which is as good.
            let _ = ip(&["netns", "del", &name]);
        }
    }
}

pub fn node_address(node: u64) -> Ipv4Addr {
    address(u8::try_from(node).expect("few nodes"))
}

fn address(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, last)
}

/// The file that stands for a namespace.
pub fn file(namespace: &str) -> PathBuf {
    PathBuf::from("/run/netns").join(namespace)
}

/// Moves this thread into a namespace.
pub fn enter(namespace: &str) -> Result<()> {
    let file = File::open(file(namespace)).with_context(|| namespace.to_owned())?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).with_context(|| namespace.to_owned())
}

/// All rules of a node's namespace. `--queue-bypass`: without anybody at the queue everything passes.
fn rules(node: u64, cut: &Cut, queued: bool) -> String {
    let mut text = "*filter\n:INPUT ACCEPT [0:0]\n".to_owned();
    for (_, unheard) in cut.iter().filter(|(listener, _)| *listener == node) {
        text.push_str(&format!("-A INPUT -s {} -j DROP\n", node_address(*unheard)));
    }
    if queued {
        text.push_str("-A INPUT -s 10.77.0.0/24 -j NFQUEUE --queue-num 0 --queue-bypass\n");
    }
    text + "COMMIT\n"
}

/// Both ways between these and all others.
pub fn apart(some: &[u64], nodes: u64) -> Cut {
    let others = (1..=nodes).filter(|other| !some.contains(other));
    others.flat_map(|other| some.iter().flat_map(move |one| [(*one, other), (other, *one)])).collect()
}

/// In this order each hears only its two neighbours.
pub fn ring(order: &[u64]) -> Cut {
    pairs(order, |one, other| {
        let distance = one.abs_diff(other);
        distance == 1 || distance == order.len() - 1
    })
}

/// The first one hears and is heard by everybody; the two halves of the rest do not hear each other.
pub fn bridge(order: &[u64]) -> Cut {
    let half = order.len().div_ceil(2);
    pairs(order, |one, other| one == 0 || other == 0 || (one < half) == (other < half))
}

/// All pairs whose places do not hear each other.
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
    fn the_two_sides_of_a_cut_hear_themselves_only() {
        let cut = apart(&[2, 5], 5);
        assert_eq!(heard(&cut, 2, 5), [5]);
        assert_eq!(heard(&cut, 1, 5), [3, 4]);
    }

    #[test]
    fn in_a_ring_everybody_hears_two() {
        let cut = ring(&[3, 1, 5, 2, 4]);
        assert_eq!(heard(&cut, 3, 5), [1, 4]);
        assert_eq!(heard(&cut, 5, 5), [1, 2]);
        assert!((1..=5).all(|node| heard(&cut, node, 5).len() == 2));
        assert!(ring(&[1, 2, 3]).is_empty());
    }

    #[test]
    fn over_a_bridge_two_halves_hear_one_node_between_them() {
        let cut = bridge(&[4, 1, 2, 3, 5]);
        assert_eq!(heard(&cut, 4, 5), [1, 2, 3, 5]);
        assert_eq!(heard(&cut, 1, 5), [2, 4]);
        assert_eq!(heard(&cut, 5, 5), [3, 4]);
        let cut = bridge(&[3, 1, 2]);
        assert_eq!((heard(&cut, 1, 3), heard(&cut, 2, 3)), (vec![3], vec![3]));
    }

    #[test]
    fn a_listener_drops_who_it_does_not_hear_and_queues_the_rest() {
        let text = rules(1, &Cut::from([(1, 2), (2, 1)]), true);
        assert_eq!(text.matches("DROP").count(), 1);
        assert!(text.contains("-s 10.77.0.2 -j DROP") && text.contains("--queue-bypass"), "{text}");
    }
}
