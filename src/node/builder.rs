//! The builder that configures and starts a node.

use std::path::{Path, PathBuf};

use tokio::net::TcpListener;

use super::Node;
use crate::backup::{self, RestoreError, RestoreOptions, Restored};
use crate::config::{self, BackupSchedule, Config, LeaseSettings, MemberConfig, Problems, RaftTimings, TtlPolicy};
use crate::node::lifecycle::start::{NodeConfig, NodeParts, StartError};
use crate::peer::{PeerListener, TcpPeerListener};
use crate::raft::FeatureLevel;
use crate::tls::{NodeTls, TlsSettings};
use crate::types::NodeId;

/// The settings of a node before it starts. See [`Node::builder`].
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
    backup: Option<BackupSchedule>,
    tls: Option<Tls>,
    allow_insecure_network: bool,
    join: bool,
    listen_peer: Option<String>,
    peer_listener: Option<TcpListener>,
}

/// The TLS settings of a file, or the certificates that the program has loaded.
#[derive(Debug)]
enum Tls {
    Settings(TlsSettings),
    Loaded(NodeTls),
}

impl Node {
    /// Builds a node of the named cluster.
    ///
    /// The name is also the cluster id: nodes refuse peers of another cluster. All nodes of a cluster use the same
    /// settings except [`id`](NodeBuilder::id) and [`data`](NodeBuilder::data).
    ///
    /// # Examples
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
            backup: None,
            tls: None,
            allow_insecure_network: false,
            join: false,
            listen_peer: None,
            peer_listener: None,
        }
    }

    /// Builds the node with this id from a cluster configuration file.
    pub fn builder_from(config: &Config, id: NodeId) -> NodeBuilder {
        NodeBuilder {
            cluster: config.cluster.clone(),
            id: Some(id),
            members: config.members(),
            data: config.node(id).map(|entry| entry.data.clone()),
            raft: config.raft,
            lease: config.lease,
            ttl: config.ttl,
            backup: config.backup.clone(),
            tls: config.tls.clone().map(Tls::Settings),
            allow_insecure_network: config.allow_insecure_network,
            join: false,
            listen_peer: config.node(id).map(|entry| entry.listen_peer.clone()),
            peer_listener: None,
        }
    }
}

impl NodeBuilder {
    /// Sets the member id of this node.
    pub fn id(self, id: NodeId) -> NodeBuilder {
        NodeBuilder { id: Some(id), ..self }
    }

    /// Adds one member of the cluster. Add every member, this node included, in any order. A node that
    /// [joins](Self::join) needs only itself and one more.
    ///
    /// The members form the cluster. Later, [`Node::change_members`] changes them. Both addresses are `host:port`. `http`
    /// is the address of the member's [router](Node::router): nodes report it to clients and do not listen on it. `peer`
    /// is the address that the other nodes connect to.
    pub fn member(mut self, id: NodeId, http: impl Into<String>, peer: impl Into<String>) -> NodeBuilder {
        self.members.push(MemberConfig { id, http: http.into(), peer: peer.into() });
        self
    }

    /// Sets the data directory. Only this node may use it. A start creates it if it is missing.
    pub fn data(self, data: impl Into<PathBuf>) -> NodeBuilder {
        NodeBuilder { data: Some(data.into()), ..self }
    }

    /// Sets the replication timings, which must be equal on all nodes. The default is [`RaftTimings::lan`].
    pub fn timings(self, raft: RaftTimings) -> NodeBuilder {
        NodeBuilder { raft, ..self }
    }

    /// Sets the bounds of the lease machine. The settings of the current leader apply.
    pub fn lease(self, lease: LeaseSettings) -> NodeBuilder {
        NodeBuilder { lease, ..self }
    }

    /// Sets the ttls that this node accepts in requests.
    pub fn ttl(self, ttl: TtlPolicy) -> NodeBuilder {
        NodeBuilder { ttl, ..self }
    }

    /// Writes backups on schedule while this node leads.
    pub fn backup(self, schedule: BackupSchedule) -> NodeBuilder {
        NodeBuilder { backup: Some(schedule), ..self }
    }

    /// Encrypts and authenticates the connections between the nodes with these certificates. The connections of clients
    /// are those of the program's own server, or of [`http::serve`](crate::http::serve).
    pub fn tls(self, tls: NodeTls) -> NodeBuilder {
        NodeBuilder { tls: Some(Tls::Loaded(tls)), ..self }
    }

    /// Declares that the network between the nodes and their clients is trusted, although not all connections on it are
    /// encrypted. Without this setting, and without [`tls`](Self::tls) for all connections, a start accepts loopback
    /// addresses only.
    pub fn allow_insecure_network(self) -> NodeBuilder {
        NodeBuilder { allow_insecure_network: true, ..self }
    }

    /// Joins an existing cluster: the node forms no cluster, and waits until the cluster adds it as a member. Add this
    /// node and at least one member of the cluster with [`member`](Self::member).
    pub fn join(self) -> NodeBuilder {
        NodeBuilder { join: true, ..self }
    }

    /// Binds the peer listener to this `host:port` instead of this member's peer address. They differ in a container or
    /// behind NAT.
    pub fn listen_peer(self, address: impl Into<String>) -> NodeBuilder {
        NodeBuilder { listen_peer: Some(address.into()), ..self }
    }

    /// Accepts peer connections on this listener instead of binding this member's peer address.
    pub fn peer_listener(self, listener: TcpListener) -> NodeBuilder {
        NodeBuilder { peer_listener: Some(listener), ..self }
    }

    /// Starts the node on the current tokio runtime.
    ///
    /// Returns when the node accepts requests; it may not know a leader yet.
    ///
    /// On every start except the first, the node is silent for a time: it takes no part in elections, because a promise
    /// that it gave before the restart may still be in force. It waits for one leadership lease
    /// ([`election_timeout_max_ms`](RaftTimings::election_timeout_max_ms)) plus
    /// [`drift_permille`](RaftTimings::drift_permille): 328 ms with the default timings, 4.04 s with [`RaftTimings::wan`].
    /// If the previous run had a longer leadership lease, it waits for that one.
    ///
    /// # Errors
    ///
    /// [`StartError::Invalid`] lists every invalid setting, before the node binds or opens anything. Every other
    /// [`StartError`] is returned after the node has released all its resources.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the start. A background task then releases all resources.
    pub async fn start(self) -> Result<Node, StartError> {
        let listen_peer = self.listen_peer.clone();
        let (config, listener, tls) = self.check().map_err(StartError::Invalid)?;
        let tls = match tls {
            Some(Tls::Loaded(tls)) => Some(tls),
            Some(Tls::Settings(settings)) => Some(NodeTls::load(&settings, &config.cluster, config.id)?),
            None => None,
        };
        let listener = match listener {
            Some(listener) => listener,
            None => {
                let own = config.members.iter().find(|member| member.id == config.id);
                let own = own.expect("check() requires the id to be a member");
                let address = listen_peer.unwrap_or_else(|| own.peer.clone());
                let bound = TcpListener::bind(&address).await;
                bound.map_err(|source| StartError::Listen { address, source })?
            }
        };
        let listener = TcpPeerListener::new(listener, tls.clone());
        let parts = listener.closed_during(NodeParts::on_disk(&config, tls)).await?;
        Node::start(config, parts, listener).await
    }

    /// Restores a backup into the empty data directory of this node, which must have the lowest id of a new cluster.
    ///
    /// Then start this node, and the other members with empty directories. Every lease of the backup ends. The tokens of
    /// the new cluster are above all tokens of the lost one: see `docs/guarantees.md` for the conditions. Blocks on the
    /// disk.
    ///
    /// # Errors
    ///
    /// See [`RestoreError`].
    pub fn restore(self, file: impl AsRef<Path>, options: RestoreOptions) -> Result<Restored, RestoreError> {
        let (config, ..) = self.check().map_err(RestoreError::Settings)?;
        let NodeConfig { cluster, id, members, data, .. } = config;
        backup::restore(file.as_ref(), backup::Target { cluster, id, members }, data, options)
    }

    fn check(self) -> Result<(NodeConfig, Option<TcpListener>, Option<Tls>), Problems> {
        let NodeBuilder {
            cluster,
            id,
            members,
            data,
            raft,
            lease,
            ttl,
            backup,
            tls,
            allow_insecure_network,
            join,
            listen_peer,
            peer_listener,
        } = self;
        let settings = match &tls {
            Some(Tls::Settings(settings)) => Some(settings),
            Some(Tls::Loaded(tls)) => Some(tls.settings()),
            None => None,
        };
        let may_be_reached = config::may_be_reached(allow_insecure_network, settings);
        let mut problems = config::problems(&cluster, &members, may_be_reached, &raft, &lease, &ttl, backup.as_ref());
        // A listener is used in place of the address.
        let listen = match &peer_listener {
            Some(listener) => listener.local_addr().ok().map(|address| ("peer_listener", address.to_string())),
            None => listen_peer.map(|address| ("listen_peer", address)),
        };
        problems.extend(listen.and_then(|(name, address)| {
            config::listen_problem(&address, may_be_reached).map(|problem| format!("{name}: {problem}"))
        }));
        let is_member = id.is_some_and(|id| members.iter().any(|member| member.id == id));
        match id {
            None => problems.push("id: is missing".to_owned()),
            Some(id) if !is_member => {
                let ids: Vec<String> = members.iter().map(|member| member.id.to_string()).collect();
                problems.push(format!("id: {id} is not a member: expected one of {}", ids.join(", ")));
            }
            Some(_) => {}
        }
        match (id, data) {
            (Some(id), Some(data)) if problems.is_empty() && !data.as_os_str().is_empty() => {
                let feature_level = FeatureLevel::SUPPORTED;
                let config = NodeConfig {
                    cluster,
                    id,
                    members,
                    join,
                    data,
                    raft,
                    lease,
                    ttl,
                    backup,
                    may_be_reached,
                    feature_level,
                };
                Ok((config, peer_listener, tls))
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
        builder.check().expect_err("the settings are invalid").0
    }

    #[test]
    fn complete_settings_pass() {
        let (config, listener, _) = three().check().expect("the settings are valid");
        assert_eq!((config.id, config.members.len(), listener.is_none()), (1, 3, true));
        let dev = Config::dev(std::path::Path::new("data"));
        let (config, ..) = Node::builder_from(&dev, 2).check().expect("the settings are valid");
        assert_eq!((config.id, config.data), (2, dev.nodes[1].data.clone()));
    }

    /// Every key of the file has a value that is not its default.
    #[test]
    fn node_of_a_file_has_all_settings_of_the_file() {
        let text = r#"
            cluster = "orders"
            allow_insecure_network = true
            [[node]]
            id = 1
            http = "10.0.0.1:8001"
            peer = "10.0.0.1:9001"
            data = "one"
            [[node]]
            id = 2
            http = "10.0.0.2:8001"
            peer = "10.0.0.2:9001"
            data = "two"
            [raft]
            profile = "wan"
            heartbeat_interval_ms = 100
            election_timeout_min_ms = 400
            election_timeout_max_ms = 700
            drift_permille = 20
            snapshot_every = 30000
            snapshot_keep = 3000
            [lease]
            default_ttl_ms = 40000
            min_ttl_ms = 200
            max_ttl_ms = 50000000
            allow_infinite_ttl = false
            max_leases = 1000
            max_waiters = 100
            waiter_timeout_ms = 20000
            history = 8
            ended_keep_ms = 1000
            ended_keep = 50
            tick_ms = 500
            [backup]
            dir = "backups"
            every_ms = 2000
            keep = 3
            "#;
        let config = Config::parse(text, std::path::Path::new("/var")).expect("the file is valid");
        let (settings, listener, _) = Node::builder_from(&config, 2).check().expect("the settings are valid");
        assert!(listener.is_none());
        assert_eq!((settings.cluster.as_str(), settings.id), ("orders", 2));
        assert_eq!(settings.members, config.members());
        assert_eq!(settings.data, std::path::Path::new("/var/two"));
        let timings = RaftTimings {
            heartbeat_interval_ms: 100,
            election_timeout_min_ms: 400,
            election_timeout_max_ms: 700,
            drift_permille: 20,
            snapshot_every: 30_000,
            snapshot_keep: 3_000,
        };
        assert_eq!(settings.raft, timings);
        let limits = config::Limits {
            max_leases: 1_000,
            max_waiters: 100,
            history: 8,
            ended_keep_ms: 1_000,
            ended_keep: 50,
            waiter_timeout_ms: 20_000,
        };
        assert_eq!(settings.lease, LeaseSettings { limits, tick_ms: 500 });
        let ttl = TtlPolicy { default_ms: 40_000, min_ms: 200, max_ms: 50_000_000, infinite: false };
        assert_eq!(settings.ttl, ttl);
        let backup = BackupSchedule { dir: "/var/backups".into(), every_ms: 2_000, keep: 3 };
        assert_eq!(settings.backup, Some(backup));
    }

    #[tokio::test]
    async fn start_reports_all_problems_at_once() {
        let bad = Node::builder("no spaces")
            .id(7)
            .member(1, "127.0.0.1:8001", "127.0.0.1:8001")
            .member(0, "127.0.0.1", "10.0.0.1:9001")
            .timings(RaftTimings { heartbeat_interval_ms: 9, election_timeout_min_ms: 400, ..RaftTimings::lan() })
            .lease(LeaseSettings { tick_ms: 1, ..LeaseSettings::default() })
            .ttl(TtlPolicy { default_ms: 1_000, min_ms: 2_000, ..TtlPolicy::default() })
            .backup(BackupSchedule { dir: "backups".into(), every_ms: 999, keep: 0 });
        let error = bad.start().await.err().expect("the settings are invalid").to_string();
        let lines: Vec<&str> = error.lines().skip(1).map(str::trim).collect();
        let keys = [
            "cluster: ",
            "node 0: id: 0 is outside",
            "node 0: http: ",
            "node 0: peer: \"10.0.0.1:9001\" is not a loopback address",
            "node: address 127.0.0.1:8001",
            "backup.every_ms: 999",
            "backup.keep: 0",
            "lease.tick_ms: 1",
            "raft.heartbeat_interval_ms: 9",
            "raft.election_timeout_min_ms: 400",
            "lease.default_ttl_ms: 1000",
            "id: 7",
            "data: is missing",
        ];
        assert_eq!(lines.len(), keys.len(), "{error}");
        for (line, key) in lines.iter().zip(keys) {
            assert!(line.starts_with(key), "{line:?} does not start with {key:?}");
        }
    }

    #[test]
    fn missing_settings_are_named() {
        assert_eq!(problems(Node::builder("test")).len(), 3, "members, id and data");
        assert_eq!(problems(three().data("")), ["data: is missing"]);
    }

    #[test]
    fn non_loopback_members_need_allow_insecure_network() {
        let open = || three().member(4, "10.0.0.4:8001", "10.0.0.4:9001");
        assert_eq!(problems(open()).len(), 2);
        assert!(open().allow_insecure_network().check().is_ok());
    }

    #[test]
    fn non_loopback_peer_listener_needs_allow_insecure_network() {
        let open = || three().listen_peer("0.0.0.0:9001");
        let found = problems(open());
        let is_refused = |line: &str| line.starts_with("listen_peer: \"0.0.0.0:9001\" is not a loopback address");
        assert!(matches!(found.as_slice(), [one] if is_refused(one)), "{found:?}");
        assert!(open().allow_insecure_network().check().is_ok());
        assert_eq!(problems(three().listen_peer("127.0.0.1")), ["listen_peer: \"127.0.0.1\" must be host:port"]);
    }

    #[tokio::test]
    async fn exposed_peer_listener_needs_allow_insecure_network() {
        let open = TcpListener::bind("0.0.0.0:0").await.expect("a free port");
        let found = problems(three().listen_peer("127.0.0.1:0").peer_listener(open));
        assert!(matches!(found.as_slice(), [one] if one.starts_with("peer_listener: ")), "{found:?}");
        let local = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        assert!(three().listen_peer("0.0.0.0:9001").peer_listener(local).check().is_ok(), "it is used instead");
    }

    #[test]
    fn cluster_has_1_to_15_members() {
        let members = |count: u64| {
            let address = |base: u64, id: u64| format!("127.0.0.1:{}", base + id);
            let named = Node::builder("c".repeat(100)).id(1).data("data/1");
            (1..=count).fold(named, |builder, id| builder.member(id, address(8000, id), address(9000, id)))
        };
        let (config, ..) = members(15).check().expect("the name and the members are at their bounds");
        assert_eq!((config.cluster.len(), config.members.len()), (100, 15));
        assert_eq!(problems(members(16)), ["node: a cluster has 1 to 15 nodes, found 16"]);
        let found = problems(NodeBuilder { cluster: "c".repeat(101), ..three() });
        assert!(matches!(found.as_slice(), [one] if one.contains("must be at most 100 letters")), "{found:?}");
    }
}
