//! What a program says before its node starts.

use std::path::PathBuf;

use tokio::net::TcpListener;

use super::Node;
use crate::config::{self, Config, LeaseSettings, MemberConfig, Problems, RaftTimings, TtlPolicy};
use crate::node::lifecycle::assemble::{NodeConfig, StartError};
use crate::types::NodeId;

/// The settings of a node that is to start. See [`Node::builder`].
#[derive(Debug)]
#[must_use = "a builder does nothing until it is started"]
pub struct NodeBuilder {
    cluster: String,
    id: Option<NodeId>,
    members: Vec<MemberConfig>,
    data: Option<PathBuf>,
    raft: RaftTimings,
    lease: LeaseSettings,
    ttl: TtlPolicy,
    allow_insecure_network: bool,
    peer_listener: Option<TcpListener>,
}

impl Node {
    /// A node of the cluster with this name, which is also its id: nodes of another one are refused. All nodes of a
    /// cluster are built alike, but for their [`id`](NodeBuilder::id) and [`data`](NodeBuilder::data).
    ///
    /// ```no_run
    /// use tenure::config::RaftTimings;
    /// use tenure::node::Node;
    ///
    /// # async fn example() -> Result<(), tenure::node::StartError> {
    /// let node = Node::builder("orders")
    ///     .id(2)
    ///     .member(1, "127.0.0.1:8001", "127.0.0.1:9001")
    ///     .member(2, "127.0.0.1:8002", "127.0.0.1:9002")
    ///     .member(3, "127.0.0.1:8003", "127.0.0.1:9003")
    ///     .data("/var/lib/orders/tenure")
    ///     .timings(RaftTimings::wan())
    ///     .start()
    ///     .await?;
    /// # node.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(cluster: impl Into<String>) -> NodeBuilder {
        NodeBuilder {
            cluster: cluster.into(),
            id: None,
            members: Vec::new(),
            data: None,
            raft: RaftTimings::default(),
            lease: LeaseSettings::default(),
            ttl: TtlPolicy::default(),
            allow_insecure_network: false,
            peer_listener: None,
        }
    }

    /// The node with this id of a cluster's file.
    pub fn builder_from(config: &Config, id: NodeId) -> NodeBuilder {
        NodeBuilder {
            cluster: config.cluster.clone(),
            id: Some(id),
            members: config.members(),
            data: config.node(id).map(|entry| entry.data.clone()),
            raft: config.raft,
            lease: config.lease,
            ttl: config.ttl,
            allow_insecure_network: config.allow_insecure_network,
            peer_listener: None,
        }
    }
}

impl NodeBuilder {
    /// Which of the members this one is.
    pub fn id(self, id: NodeId) -> NodeBuilder {
        NodeBuilder { id: Some(id), ..self }
    }

    /// One member of the cluster, this one included; all of them are named. The order does not matter, and who they are
    /// is fixed when the cluster is formed.
    ///
    /// Both addresses are `host:port`. `http` is where clients reach the member's [router](Node::router): it is told to
    /// them and not listened on. `peer` is where the other nodes reach it.
    pub fn member(mut self, id: NodeId, http: impl Into<String>, peer: impl Into<String>) -> NodeBuilder {
        self.members.push(MemberConfig { id, http: http.into(), peer: peer.into() });
        self
    }

    /// The data directory, which is this node's alone. It is made if it is not there.
    pub fn data(self, data: impl Into<PathBuf>) -> NodeBuilder {
        NodeBuilder { data: Some(data.into()), ..self }
    }

    /// Timings of the replication: the same on all nodes. [`RaftTimings::lan`] if nothing is said.
    pub fn timings(self, raft: RaftTimings) -> NodeBuilder {
        NodeBuilder { raft, ..self }
    }

    /// Bounds of the lease machine; those of the node that leads count.
    pub fn lease(self, lease: LeaseSettings) -> NodeBuilder {
        NodeBuilder { lease, ..self }
    }

    /// Which ttls requests to this node may ask for.
    pub fn ttl(self, ttl: TtlPolicy) -> NodeBuilder {
        NodeBuilder { ttl, ..self }
    }

    /// Says that the network between the nodes, and to their clients, is trusted: nothing on it is encrypted or
    /// authenticated. Without it only loopback addresses are accepted.
    pub fn allow_insecure_network(self) -> NodeBuilder {
        NodeBuilder { allow_insecure_network: true, ..self }
    }

    /// Listens for the other nodes here, instead of on this member's own peer address.
    pub fn peer_listener(self, listener: TcpListener) -> NodeBuilder {
        NodeBuilder { peer_listener: Some(listener), ..self }
    }

    /// Starts the node, on the runtime that this is called on. Returns when it takes requests; it may not know a leader
    /// yet. On every start but the first it first keeps still for one leadership lease.
    ///
    /// # Errors
    ///
    /// [`StartError::Invalid`] with everything that is wrong with the settings, before anything is bound or opened;
    /// otherwise what kept it from starting. Whatever it had begun has ended then. Dropping the future gives the start
    /// up, and that ends by itself.
    pub async fn start(self) -> Result<Node, StartError> {
        let (config, listener) = self.check().map_err(StartError::Invalid)?;
        let listener = match listener {
            Some(listener) => listener,
            None => {
                let own = config.members.iter().find(|member| member.id == config.id);
                let address = own.expect("the check found it").peer.clone();
                let bound = TcpListener::bind(&address).await;
                bound.map_err(|source| StartError::Listen { address, source })?
            }
        };
        Node::start(config, listener).await
    }

    fn check(self) -> Result<(NodeConfig, Option<TcpListener>), Problems> {
        let NodeBuilder { cluster, id, members, data, raft, lease, ttl, allow_insecure_network, peer_listener } = self;
        let mut problems = config::problems(&cluster, &members, allow_insecure_network, &raft, &lease, &ttl);
        let is_member = id.is_some_and(|id| members.iter().any(|member| member.id == id));
        match id {
            None => problems.push("id: is missing".to_owned()),
            Some(id) if !is_member => {
                let ids: Vec<String> = members.iter().map(|member| member.id.to_string()).collect();
                problems.push(format!("id: {id} is none of the members; they are {}", ids.join(", ")));
            }
            Some(_) => {}
        }
        match (id, data) {
            (Some(id), Some(data)) if problems.is_empty() && !data.as_os_str().is_empty() => {
                Ok((NodeConfig { cluster, id, members, data, raft, lease, ttl }, peer_listener))
            }
            (_, data) => {
                if data.is_none_or(|data| data.as_os_str().is_empty()) {
                    problems.push("data: is missing".to_owned());
                }
                Err(Problems(problems))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> NodeBuilder {
        Node::builder("test")
            .id(1)
            .member(1, "127.0.0.1:8001", "127.0.0.1:9001")
            .member(2, "127.0.0.1:8002", "127.0.0.1:9002")
            .member(3, "127.0.0.1:8003", "127.0.0.1:9003")
            .data("data/1")
    }

    fn problems(builder: NodeBuilder) -> Vec<String> {
        builder.check().expect_err("it has problems").0
    }

    #[test]
    fn settings_that_are_whole_pass() {
        let (config, listener) = three().check().expect("nothing is wrong");
        assert_eq!((config.id, config.members.len(), listener.is_none()), (1, 3, true));
        let dev = Config::dev(std::path::Path::new("data"));
        let (config, _) = Node::builder_from(&dev, 2).check().expect("nothing is wrong");
        assert_eq!((config.id, config.data), (2, dev.nodes[1].data.clone()));
    }

    #[tokio::test]
    async fn everything_that_is_wrong_is_said_at_once() {
        let bad = Node::builder("no spaces")
            .id(7)
            .member(1, "127.0.0.1:8001", "127.0.0.1:8001")
            .member(0, "127.0.0.1", "10.0.0.1:9001")
            .timings(RaftTimings { heartbeat_interval_ms: 9, election_timeout_min_ms: 400, ..RaftTimings::lan() })
            .lease(LeaseSettings { tick_ms: 1, ..LeaseSettings::default() })
            .ttl(TtlPolicy { default_ms: 1_000, min_ms: 2_000, ..TtlPolicy::default() });
        let error = bad.start().await.err().expect("it does not start").to_string();
        let lines: Vec<&str> = error.lines().skip(1).map(str::trim).collect();
        let keys = [
            "cluster: ",
            "node: id 0",
            "node 0: http: ",
            "node 0: peer: \"10.0.0.1:9001\" can be reached",
            "node: address 127.0.0.1:8001",
            "raft.heartbeat_interval_ms: 9",
            "raft.election_timeout_min_ms: 400",
            "lease.default_ttl_ms: 1000",
            "lease.tick_ms: 1",
            "id: 7",
            "data: is missing",
        ];
        assert_eq!(lines.len(), keys.len(), "{error}");
        for (line, key) in lines.iter().zip(keys) {
            assert!(line.starts_with(key), "{line:?} should be about {key:?}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        assert_eq!(problems(Node::builder("test")).len(), 3, "members, id and data");
        assert_eq!(problems(three().data("")), ["data: is missing"]);
    }

    #[test]
    fn an_open_network_must_be_asked_for() {
        let open = || three().member(4, "10.0.0.4:8001", "10.0.0.4:9001");
        assert_eq!(problems(open()).len(), 2);
        assert!(open().allow_insecure_network().check().is_ok());
    }

    #[test]
    fn a_program_names_1_to_15_members() {
        let members = |count: u64| {
            let address = |base: u64, id: u64| format!("127.0.0.1:{}", base + id);
            let named = Node::builder("c".repeat(100)).id(1).data("data/1");
            (1..=count).fold(named, |builder, id| builder.member(id, address(8000, id), address(9000, id)))
        };
        let (config, _) = members(15).check().expect("both are at their bound");
        assert_eq!((config.cluster.len(), config.members.len()), (100, 15));
        assert_eq!(problems(members(16)), ["node: a cluster has 1 to 15 nodes, found 16"]);
        let found = problems(NodeBuilder { cluster: "c".repeat(101), ..three() });
        assert!(matches!(found.as_slice(), [one] if one.contains("must be at most 100 letters")), "{found:?}");
    }
}
