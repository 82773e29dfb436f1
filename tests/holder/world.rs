//! A cluster of three nodes and its managers.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use tempfile::TempDir;
use tenure::api::Standing;
use tenure::client::{
    CallError, Coordinator, Endpoints, Lease, LeaseManager, LeaseOptions, ManagerOptions, Remote, RetryBudget, Wait,
};
use tenure::http::{NodeRef, Settings};
use tenure::node::{Local, Node};
use tenure::testing::{FakeCluster, Switch};
use tenure::token::FencingToken;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::calm;

/// Short enough for fast tests, and long enough for a busy machine.
pub const TTL: Duration = Duration::from_millis(900);
/// The ttl of tests in which a renewal must come in time, and that do not wait for the expiry of every lease.
pub const LONG_TTL: Duration = Duration::from_millis(3_600);
/// The operation timeout of the managers.
pub const OPERATION: Duration = Duration::from_secs(2);
/// An upper bound for waits. Only a hang exceeds it.
pub const LONG: Duration = Duration::from_secs(20);

/// The transport of the managers to the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    InProcess,
    OverTheNetwork,
}

/// Three nodes with real stores and listeners.
pub struct World {
    transport: Transport,
    nodes: Vec<Node>,
    addresses: Vec<SocketAddr>,
    stop: CancellationToken,
    _dir: TempDir,
}

/// A manager, and the switch that controls its connection to the cluster.
pub struct Holder {
    pub manager: LeaseManager,
    pub switch: Switch,
}

impl World {
    /// Returns when all nodes are ready.
    pub async fn start(transport: Transport) -> World {
        let dir = in_memory();
        let mut listeners = Vec::new();
        for _ in 0..3 {
            let bind = || async { TcpListener::bind("127.0.0.1:0").await.expect("a free port") };
            listeners.push((bind().await, bind().await));
        }
        let address = |listener: &TcpListener| listener.local_addr().expect("the listener is bound");
        let members: Vec<(u64, String, String)> = (1..)
            .zip(&listeners)
            .map(|(id, (http, peer))| (id, address(http).to_string(), address(peer).to_string()))
            .collect();
        let stop = CancellationToken::new();
        let (mut nodes, mut addresses) = (Vec::new(), Vec::new());
        for (id, (http, peer)) in (1..).zip(listeners) {
            let mut builder = Node::builder("holders").id(id).data(dir.path().join(id.to_string()));
            for (id, http, peer) in &members {
                builder = builder.member(*id, http, peer);
            }
            let node = builder.timings(calm::timings()).peer_listener(peer).start().await.expect("the node starts");
            addresses.push(address(&http));
            tokio::spawn(tenure::http::serve(http, NodeRef::from(&node), Settings::new(id), stop.clone()));
            nodes.push(node);
        }
        let ready = async {
            while nodes.iter().any(|node| node.health().not_ready.is_some()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LONG, ready).await.expect("all nodes are ready in time");
        World { transport, nodes, addresses, stop, _dir: dir }
    }

    /// Creates a holder like one in another process.
    pub fn holder(&self) -> Holder {
        self.holder_with(ManagerOptions::new())
    }

    pub fn holder_with(&self, options: ManagerOptions) -> Holder {
        let switch = match self.transport {
            Transport::InProcess => Switch::new(Local::new(self.nodes[self.nodes.len() - 1].clone())),
            Transport::OverTheNetwork => Switch::new(self.remote()),
        };
        let manager =
            LeaseManager::with_options(switch.clone(), options.operation_timeout(OPERATION)).expect("valid options");
        Holder { manager, switch }
    }

    /// A client for requests outside the managers.
    pub fn remote(&self) -> Remote {
        let urls: Vec<String> = self.addresses.iter().map(|address| format!("http://{address}")).collect();
        Remote::new(urls.join(",").parse::<Endpoints>().expect("URLs"))
    }

    /// The HTTP address of the node with this index.
    pub fn address(&self, index: usize) -> SocketAddr {
        self.addresses[index]
    }

    pub async fn end(self) {
        self.stop.cancel();
        join_all(self.nodes.iter().map(Node::shutdown)).await;
    }
}

/// A directory in memory, if the machine has one. A slow disk can hang for a second, which expires every lease with
/// [`TTL`].
fn in_memory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory")
}

/// The options of most tests.
pub fn short() -> LeaseOptions {
    LeaseOptions::new().ttl(TTL)
}

/// Whether the holder of this lease is in its queue.
pub async fn is_waiting(cluster: &FakeCluster, lease: &Lease) -> bool {
    let budget = RetryBudget::within(OPERATION);
    let explanation = cluster.explain(lease.name().clone(), lease.holder().clone(), budget).await;
    matches!(explanation.expect("the cluster answers").standing, Some(Standing::Waits { .. }))
}

/// Waits for the lease in a task, and returns when its claim is in the queue.
pub async fn wait_in_queue(
    cluster: &FakeCluster,
    lease: &Lease,
    wait: Duration,
) -> JoinHandle<Result<FencingToken, CallError>> {
    let claimed = lease.clone();
    let waiting = tokio::spawn(async move { claimed.acquire(Wait::UpTo(wait)).await });
    while !is_waiting(cluster, lease).await {
        tokio::task::yield_now().await;
    }
    waiting
}

/// Polls until the condition holds.
pub async fn until(condition: &str, mut holds: impl FnMut() -> bool) {
    let begun = tokio::time::Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LONG, "not within {LONG:?}: {condition}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Runs each case over both transports.
macro_rules! over_both_transports {
    ($($case:ident),* $(,)?) => {
        mod in_process {
            $(#[test]
            fn $case() {
                $crate::steady::run(async || {
                    let world = $crate::world::World::start($crate::world::Transport::InProcess).await;
                    super::$case(&world).await;
                    world.end().await;
                });
            })*
        }

        mod over_the_network {
            $(#[test]
            fn $case() {
                $crate::steady::run(async || {
                    let world = $crate::world::World::start($crate::world::Transport::OverTheNetwork).await;
                    super::$case(&world).await;
                    world.end().await;
                });
            })*
        }
    };
}
pub(crate) use over_both_transports;
