//! A cluster of one node with an HTTP server on a real socket.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::net::SocketAddr;
use std::time::Duration;

use tempfile::TempDir;
use tenure::http::{self, NodeRef, Settings};
use tenure::node::{Node, NodeBuilder};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The limit for waits that end soon unless the code hangs.
const SOON: Duration = Duration::from_secs(20);

pub struct Served {
    pub node: Node,
    pub address: SocketAddr,
    stop: CancellationToken,
    _listener: DropGuard,
    data: TempDir,
}

impl Served {
    /// Starts a node and waits until it is ready.
    pub async fn start(settings: Settings) -> Served {
        Served::start_on(TempDir::new().expect("a folder"), settings, |node| node).await
    }

    /// Starts a node on existing data, with changed node settings.
    pub async fn start_on(
        data: TempDir,
        settings: Settings,
        change: impl FnOnce(NodeBuilder) -> NodeBuilder,
    ) -> Served {
        let http_listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let peer_listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = http_listener.local_addr().expect("the listener is bound");
        let peer = peer_listener.local_addr().expect("the listener is bound").to_string();
        let builder = Node::builder("test").id(1).member(1, address.to_string(), peer).data(data.path().join("1"));
        let node = change(builder).peer_listener(peer_listener).start().await.expect("the node starts");
        let stop = CancellationToken::new();
        tokio::spawn(http::serve(http_listener, NodeRef::from(&node), settings, stop.clone()));
        let served = Served { node, address, stop: stop.clone(), _listener: stop.drop_guard(), data };
        let ready = async {
            while served.node.health().not_ready.is_some() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(SOON, ready).await.expect("the node is ready in time");
        served
    }

    /// Shuts the listener down, and leaves the node running.
    pub fn stop_listening(&self) {
        self.stop.cancel();
    }

    /// Shuts the node down and returns its data folder.
    pub async fn end(self) -> TempDir {
        self.node.shutdown().await;
        self.data
    }
}
