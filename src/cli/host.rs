//! One node with its two listeners, from start to end.

use std::time::Duration;

use anyhow::{Context, anyhow};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::failure::Failure;
use super::open_files;
use super::signals::Signals;
use crate::config::{Config, NodeEntry};
use crate::http::{self, NodeSlot, RenderMetrics, Settings};
use crate::node::Node;

/// A node that was asked to stop has stopped after this long, one way or the other.
pub const STOP_WITHIN: Duration = Duration::from_secs(10);

/// A running node.
pub struct Host {
    pub node: Node,
    http: Http,
}

/// The public listener, which serves health before the node has started.
struct Http {
    task: JoinHandle<()>,
    stop: CancellationToken,
}

impl Host {
    /// Listens, then starts the node. While it starts, `/livez` and `/readyz` answer already.
    pub async fn start(config: &Config, entry: &NodeEntry, metrics: Option<RenderMetrics>) -> Result<Host, Failure> {
        let http_listener = listen(&entry.http, entry.id).await?;
        let slot = NodeSlot::empty();
        let settings = Settings::new(entry.id);
        let max_connections = open_files::connections(settings.max_connections);
        let settings = Settings { metrics, max_connections, ..settings };
        let stop = CancellationToken::new();
        // If the start is given up, the guard stops the listener.
        let guard = stop.clone().drop_guard();
        let task = tokio::spawn(http::serve(http_listener, slot.clone(), settings, stop.clone()));
        let node = Node::builder_from(config, entry.id)
            .start()
            .await
            .map_err(|error| Failure::Other(anyhow!(error).context(format!("node {} cannot start", entry.id))))?;
        slot.fill(&node);
        guard.disarm();
        Ok(Host { node, http: Http { task, stop } })
    }

    /// Hands leadership on, drains and leaves; then ends the public listener.
    pub async fn stop(self) {
        self.node.shutdown().await;
        self.http.stop.cancel();
        if let Err(error) = self.http.task.await {
            warn!(%error, "the public listener did not end well");
        }
    }
}

/// Stops hosts within [`STOP_WITHIN`]; a second signal ends the process at once.
pub async fn stop_all(hosts: Vec<Host>, signals: &mut Signals) {
    let stopping = futures_util::future::join_all(hosts.into_iter().map(Host::stop));
    tokio::select! {
        stopped = tokio::time::timeout(STOP_WITHIN, stopping) => {
            if stopped.is_err() {
                warn!("not everything had ended after {STOP_WITHIN:?}; leaving it");
            }
        }
        signal = signals.next() => {
            eprintln!("tenure: {signal} again: leaving at once");
            std::process::exit(1);
        }
    }
}

async fn listen(address: &str, node: u64) -> Result<TcpListener, Failure> {
    let listener = TcpListener::bind(address).await;
    let context = || format!("node {node} cannot listen for clients on {address}");
    listener.with_context(context).map_err(Failure::Other)
}
