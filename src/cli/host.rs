//! One node with its two listeners, from start to end.

use std::time::Duration;

use anyhow::{Context, anyhow};
use tokio::net::TcpListener;
use tokio::runtime::{self, Runtime};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::failure::Failure;
use super::open_files;
use super::signals::Signals;
use crate::config::{Config, HttpLimits, NodeEntry};
use crate::http::{self, NodeRef, RenderMetrics, Settings};
use crate::node::Node;

/// A node that was asked to stop has stopped after this long, one way or the other.
pub const STOP_WITHIN: Duration = Duration::from_secs(10);

/// A running node.
pub struct Host {
    pub node: Node,
    http: Http,
}

/// The public listener, which serves health before the node has started.
///
/// It has threads of its own. However many requests there are, what the nodes say to each other does not wait behind
/// them: the kernel shares the processors among threads, and a runtime serves its tasks in turn.
struct Http {
    /// Taken out at its end.
    runtime: Option<Runtime>,
    task: JoinHandle<()>,
    stop: CancellationToken,
}

impl Host {
    /// Listens, then starts the node, one of so many `nodes` in this process. While it starts, `/livez` and `/readyz`
    /// answer already.
    pub async fn start(
        config: &Config,
        entry: &NodeEntry,
        nodes: usize,
        metrics: Option<RenderMetrics>,
    ) -> Result<Host, Failure> {
        let http_listener = listen(&entry.http, entry.id).await?;
        let slot = NodeRef::empty();
        let max_connections = open_files::connections(config.http.max_connections, nodes);
        let limits = HttpLimits { max_connections, ..config.http };
        let settings = Settings { metrics, limits, ..Settings::new(entry.id) };
        let http = Http::start(http_listener, slot.clone(), settings).map_err(Failure::Other)?;
        let node = Node::builder_from(config, entry.id)
            .start()
            .await
            .map_err(|error| Failure::Other(anyhow!(error).context(format!("node {} cannot start", entry.id))))?;
        slot.fill(&node);
        Ok(Host { node, http })
    }

    /// Hands leadership on, drains and leaves; then ends the public listener.
    pub async fn stop(self) {
        self.node.shutdown().await;
        self.http.stop().await;
    }
}

impl Http {
    fn start(listener: TcpListener, slot: NodeRef, settings: Settings) -> anyhow::Result<Http> {
        let runtime = runtime::Builder::new_multi_thread().thread_name("http").enable_all().build()?;
        let stop = CancellationToken::new();
        let listener = {
            let _of_its_own = runtime.enter();
            TcpListener::from_std(listener.into_std()?)?
        };
        let task = runtime.spawn(http::serve(listener, slot, settings, stop.clone()));
        Ok(Http { runtime: Some(runtime), task, stop })
    }

    /// Returns when the last request is answered.
    async fn stop(mut self) {
        self.stop.cancel();
        if let Err(error) = (&mut self.task).await {
            warn!(%error, "the public listener did not end well");
        }
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
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
