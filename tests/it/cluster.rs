//! One node that is a whole cluster, served over a real socket.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tenure::http::{self, NodeSlot, Settings};
use tenure::node::Node;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Long enough that only a hang exceeds it.
pub const SOON: Duration = Duration::from_secs(10);

pub struct Cluster {
    pub node: Node,
    pub address: SocketAddr,
    stop: CancellationToken,
    pub client: reqwest::Client,
    _data: TempDir,
}

impl Cluster {
    pub async fn start() -> Cluster {
        Cluster::start_with(|_| {}).await
    }

    /// With a listener whose settings are changed.
    pub async fn start_with(change: impl FnOnce(&mut Settings)) -> Cluster {
        let http_listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let peer_listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = http_listener.local_addr().expect("it is bound");
        let peer = peer_listener.local_addr().expect("it is bound").to_string();
        let data = TempDir::new().expect("a folder");
        let node = Node::builder("test")
            .id(1)
            .member(1, address.to_string(), peer)
            .data(data.path().join("1"))
            .peer_listener(peer_listener)
            .start()
            .await
            .expect("it starts");
        let mut settings = Settings::new(1);
        change(&mut settings);
        let stop = CancellationToken::new();
        tokio::spawn(http::serve(http_listener, NodeSlot::from(&node), settings, stop.clone()));
        let cluster = Cluster { node, address, stop, client: reqwest::Client::new(), _data: data };
        let ready = async { while cluster.get("/readyz").await.0 != 200 {} };
        tokio::time::timeout(SOON, ready).await.expect("it is ready soon");
        cluster
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        read(self.client.get(self.url(path))).await
    }

    pub async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        read(self.client.post(self.url(path)).json(&body)).await
    }

    pub async fn acquire(&self, name: &str, holder: &str) -> String {
        let (status, lease) = self.post(&format!("/v1/leases/{name}/acquire"), json!({"holder": holder})).await;
        assert_eq!(status, 200, "{lease}");
        lease["token"].as_str().expect("a token is a string").to_owned()
    }

    pub async fn end(self) {
        self.node.shutdown().await;
        self.stop.cancel();
    }
}

pub async fn read(request: reqwest::RequestBuilder) -> (u16, Value) {
    let response = request.send().await.expect("an answer");
    assert_eq!(response.headers()["x-tenure-node"], "1");
    (response.status().as_u16(), response.json().await.expect("JSON"))
}
