//! One node with its two listeners, from start to shutdown.

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
use crate::node::{Node, PeerRefusal, StartError};
use crate::telemetry::Logs;
use crate::tls::NodeTls;

/// Maximum time of a shutdown. After it, the process exits in any case.
pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time in which a removed node responds to the requests in progress.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(3);

/// A running node.
pub struct Host {
    pub node: Node,
    http: Http,
}

/// The public listener. It serves health requests before the node has started.
///
/// It has a separate runtime. A runtime runs its tasks in turn, so many client requests would delay the messages
/// between nodes. With separate threads, the kernel shares the CPU between both.
struct Http {
    /// `None` only during drop.
    runtime: Option<Runtime>,
    task: JoinHandle<()>,
    stop: CancellationToken,
}

impl Host {
    /// Opens the public listener, then starts the node. `join`: it joins an existing cluster. `nodes` is the number of
    /// nodes in this process.
    ///
    /// `/livez` and `/readyz` respond while the node starts.
    pub async fn start(
        config: &Config,
        entry: &NodeEntry,
        join: bool,
        nodes: usize,
        metrics: Option<RenderMetrics>,
    ) -> Result<Host, Failure> {
        let http_listener = listen(&entry.listen_http, entry.id).await?;
        let node_ref = NodeRef::empty();
        let max_connections = open_files::connections(config.http.max_connections, nodes);
        let limits = HttpLimits { max_connections, ..config.http };
        let tls = match &config.tls {
            Some(settings) => Some(NodeTls::load(settings, &config.cluster, entry.id).map_err(|error| {
                let error = anyhow!(error).context(format!("node {} cannot use TLS", entry.id));
                Failure::Other(error)
            })?),
            None => None,
        };
        let require_identity = Some(config.requires_identity(entry));
        let settings = Settings { metrics, limits, tls: tls.clone(), require_identity, ..Settings::new(entry.id) };
        let http = Http::start(http_listener, node_ref.clone(), settings).map_err(Failure::Other)?;
        let builder = Node::builder_from(config, entry.id);
        let builder = if join { builder.join() } else { builder };
        let builder = if let Some(tls) = tls { builder.tls(tls) } else { builder };
        let node = builder.start().await.map_err(|error| match error {
            StartError::Refused(PeerRefusal::Removed { .. }) => {
                Failure::Removed(format!("node {} cannot start: {error}", entry.id))
            }
            error => Failure::Other(anyhow!(error).context(format!("node {} cannot start", entry.id))),
        })?;
        node_ref.fill(&node);
        Ok(Host { node, http })
    }

    /// Shuts the node down (it transfers leadership and drains requests), then the public listener.
    pub async fn stop(self) {
        self.node.shutdown().await;
        self.http.stop().await;
    }

    /// Stops the public listener of a node that the cluster has removed. One of the requests in progress may be the
    /// removal, and its client has no response yet.
    pub async fn stop_removed(self) {
        if tokio::time::timeout(REMOVAL_TIMEOUT, self.http.stop()).await.is_err() {
            warn!("requests are in progress {REMOVAL_TIMEOUT:?} after the removal; exiting");
        }
    }
}

impl Http {
    fn start(listener: TcpListener, node_ref: NodeRef, settings: Settings) -> anyhow::Result<Http> {
        let runtime = runtime::Builder::new_multi_thread().thread_name("http").enable_all().build()?;
        let stop = CancellationToken::new();
        let listener = {
            // `from_std` registers the socket with the current runtime.
            let _entered = runtime.enter();
            TcpListener::from_std(listener.into_std()?)?
        };
        let task = runtime.spawn(http::serve(listener, node_ref, settings, stop.clone()));
        Ok(Http { runtime: Some(runtime), task, stop })
    }

    /// Returns after the response to the last request.
    async fn stop(mut self) {
        self.stop.cancel();
        if let Err(error) = (&mut self.task).await {
            warn!(%error, "the task of the public listener failed");
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

/// Stops hosts within [`SHUTDOWN_TIMEOUT`]; a second signal ends the process at once.
pub async fn stop_all(hosts: Vec<Host>, signals: &mut Signals, logs: &Logs) {
    let stopping = futures_util::future::join_all(hosts.into_iter().map(Host::stop));
    tokio::select! {
        stopped = tokio::time::timeout(SHUTDOWN_TIMEOUT, stopping) => {
            if stopped.is_err() {
                warn!("the shutdown is not complete after {SHUTDOWN_TIMEOUT:?}; exiting");
            }
        }
        signal = signals.next() => {
            logs.print(format_args!("tenure: second {signal}: exiting at once"));
            logs.flush();
            std::process::exit(1);
        }
    }
}

async fn listen(address: &str, node: u64) -> Result<TcpListener, Failure> {
    let listener = TcpListener::bind(address).await;
    let context = || format!("node {node} cannot listen for clients on {address}");
    listener.with_context(context).map_err(Failure::Other)
}
