//! One node that is a whole cluster, served over a real socket.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::net::SocketAddr;
use std::time::Duration;

use tempfile::TempDir;
use tenure::http::{self, NodeRef, Settings};
use tenure::node::{Node, NodeBuilder};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Long enough that only a hang exceeds it.
const SOON: Duration = Duration::from_secs(20);

pub struct Served {
    pub node: Node,
    pub address: SocketAddr,
    _listener: DropGuard,
    data: TempDir,
}

impl Served {
    /// Returns when it is ready.
    pub async fn start(settings: Settings) -> Served {
        Served::start_on(TempDir::new().expect("a folder"), settings, |node| node).await
    }

    /// The same on the data of an earlier node, with settings of the node that are changed.
    pub async fn start_on(
        data: TempDir,
        settings: Settings,
        change: impl FnOnce(NodeBuilder) -> NodeBuilder,
    ) -> Served {
        let http_listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let peer_listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = http_listener.local_addr().expect("it is bound");
        let peer = peer_listener.local_addr().expect("it is bound").to_string();
        let builder = Node::builder("test").id(1).member(1, address.to_string(), peer).data(data.path().join("1"));
        let node = change(builder).peer_listener(peer_listener).start().await.expect("it starts");
        let stop = CancellationToken::new();
        tokio::spawn(http::serve(http_listener, NodeRef::from(&node), settings, stop.clone()));
        let served = Served { node, address, _listener: stop.drop_guard(), data };
        let ready = async {
            while served.node.health().not_ready.is_some() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(SOON, ready).await.expect("it is ready soon");
        served
    }

    /// Ends the node, and leaves its data.
    pub async fn end(self) -> TempDir {
        self.node.shutdown().await;
        self.data
    }
}
