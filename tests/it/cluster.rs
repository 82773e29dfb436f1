//! A cluster of one node, and its HTTP client.

use std::ops::Deref;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tenure::http::Settings;
use tenure::node::NodeBuilder;

use super::served::Served;

/// Timeout that only a hang exceeds.
pub const SOON: Duration = Duration::from_secs(10);

pub struct Cluster {
    served: Served,
    pub client: reqwest::Client,
}

impl Deref for Cluster {
    type Target = Served;

    fn deref(&self) -> &Served {
        &self.served
    }
}

impl Cluster {
    pub async fn start() -> Cluster {
        Cluster::start_with(|_| {}).await
    }

    /// Starts with changed settings of the listener.
    pub async fn start_with(change: impl FnOnce(&mut Settings)) -> Cluster {
        let mut settings = Settings::new(1);
        change(&mut settings);
        Cluster::connect(Served::start(settings.clone()).await, &settings).await
    }

    /// Starts with changed settings of the node.
    pub async fn start_node(change: impl FnOnce(NodeBuilder) -> NodeBuilder) -> Cluster {
        let settings = Settings::new(1);
        let data = TempDir::new().expect("a temporary directory");
        Cluster::connect(Served::start_on(data, settings.clone(), change).await, &settings).await
    }

    /// Shuts the node down and starts it again, at another address.
    pub async fn restart(self, change: impl FnOnce(NodeBuilder) -> NodeBuilder) -> Cluster {
        let settings = Settings::new(1);
        let data = self.served.end().await;
        Cluster::connect(Served::start_on(data, settings.clone(), change).await, &settings).await
    }

    async fn connect(served: Served, settings: &Settings) -> Cluster {
        // The client must not reuse a connection that the listener closes as idle at that moment.
        let client = crate::plain_http::builder().pool_idle_timeout(settings.head_timeout / 2);
        let client = client.build().expect("plain options");
        let cluster = Cluster { served, client };
        // Opens the first connection.
        assert_eq!(cluster.get("/readyz").await.0, 200);
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
        self.served.end().await;
    }
}

pub async fn read(request: reqwest::RequestBuilder) -> (u16, Value) {
    let response = request.send().await.expect("an answer");
    assert_eq!(response.headers()["x-tenure-node"], "1");
    (response.status().as_u16(), response.json().await.expect("JSON"))
}
