//! `tenure serve`: one node of a cluster.

use std::convert::Infallible;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use tracing::{info, warn};

use super::block_on_runtime;
use super::failure::Failure;
use super::host::{Host, stop_all};
use super::signals::Signals;
use crate::config::{Config, NodeEntry};
use crate::node::{Node, NodeFailure, PeerRefusal};
use crate::telemetry::{self, LogFormat, Logs};

/// Pause between two attempts to turn access control off.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

#[derive(Args)]
#[command(after_help = "\
On SIGTERM or SIGINT, the node transfers leadership, drains requests and exits with 0 within 10 s. A second signal \
exits at once.
If the node fails, for instance because its disk is full, it prints the reason and exits with 1. If the cluster removed \
it, it exits with 8: do not start it again.")]
pub struct Arguments {
    /// Configuration file of the cluster, the same for all nodes
    #[arg(long, default_value = "cluster.toml", env = "TENURE_CONFIG")]
    config: PathBuf,
    /// Id of the node to run, from the file
    #[arg(long, env = "TENURE_NODE", value_name = "ID")]
    node: u64,
    /// Join an existing cluster: the node forms none, and waits until `tenure member add` adds it
    #[arg(long)]
    join: bool,
    /// Turn access control off once the cluster has a leader, for instance after the loss of all tokens of administrators
    #[arg(long)]
    disable_access_control: bool,
    /// Log filter, in the syntax of tracing's EnvFilter, for instance `debug` or `info,tenure::raft=debug`
    #[arg(long, env = telemetry::LOG_VARIABLE, default_value = telemetry::SERVE_LOG, value_name = "FILTER")]
    log: String,
    /// Log format
    #[arg(long, env = "TENURE_LOG_FORMAT", default_value = "text")]
    log_format: LogFormat,
}

pub fn run(arguments: Arguments) -> Result<(), Failure> {
    let config = Config::load(&arguments.config)?;
    let entry = find(&config, &arguments)?;
    let logs =
        telemetry::log(&arguments.log, arguments.log_format).map_err(|error| Failure::Usage(error.to_string()))?;
    announce(&config, entry, &arguments, &logs);
    // The exporter has its own threads. It begins and ends outside the runtime.
    #[cfg(feature = "otlp")]
    let _traces = telemetry::Traces::install(Some((&config.cluster, entry.id))).unwrap_or_else(|error| {
        warn!("{error}");
        None
    });
    block_on_runtime(serve(&config, entry, &arguments, &logs)).map_err(|failure| failure.print(&logs))
}

async fn serve(config: &Config, entry: &NodeEntry, arguments: &Arguments, logs: &Logs) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    let metrics = telemetry::Metrics::install(Some(entry.id), logs)?;
    let host = tokio::select! {
        host = Host::start(config, entry, arguments.join, 1, Some(metrics.render())) => host?,
        signal = signals.next() => {
            info!(signal, "stopped before the node had started");
            return Ok(());
        }
    };
    info!(node = entry.id, "the node has started");
    tokio::select! {
        why = host.node.wait_failed() => {
            let message = format!("node {} cannot go on: {why}", entry.id);
            Err(match why {
                NodeFailure::Refused(PeerRefusal::Removed { .. }) => {
                    host.stop_removed().await;
                    Failure::Removed(message)
                }
                _ => Failure::Other(anyhow!(message)),
            })
        }
        never = metrics.keep_up() => match never {},
        never = disable_access_control(&host.node), if arguments.disable_access_control => match never {},
        signal = signals.next() => {
            info!(signal, "shutting down");
            stop_all(vec![host], &mut signals, logs).await;
            info!("stopped");
            Ok(())
        }
    }
}

/// Turns access control off, and stays pending.
async fn disable_access_control(node: &Node) -> Infallible {
    while let Err(error) = node.enable_access(false).await {
        warn!(%error, "cannot turn access control off yet");
        tokio::time::sleep(RETRY_PAUSE).await;
    }
    warn!("access control is off: create a token, turn it on, and remove --disable-access-control");
    std::future::pending().await
}

fn find<'a>(config: &'a Config, arguments: &Arguments) -> Result<&'a NodeEntry, Failure> {
    config.node(arguments.node).ok_or_else(|| {
        let ids: Vec<String> = config.nodes.iter().map(|node| node.id.to_string()).collect();
        let file = arguments.config.display();
        Failure::Usage(format!("{file} has no node {}: expected one of {}", arguments.node, ids.join(", ")))
    })
}

/// Logs the node and its addresses, then the warnings of the configuration.
fn announce(config: &Config, entry: &NodeEntry, arguments: &Arguments, logs: &Logs) {
    let NodeEntry { id, http, peer, data, .. } = entry;
    let (cluster, data) = (&config.cluster, data.display());
    match arguments.log_format {
        LogFormat::Text => {
            logs.print(format_args!("tenure: node {id} of cluster {cluster}: http {http}, peer {peer}, data {data}"));
        }
        LogFormat::Json => info!(node = id, cluster, http, peer, %data, "starting"),
    }
    // The file of a joining node need not list all members.
    if !arguments.join {
        config.warnings().iter().for_each(|warning| warn!("{warning}"));
    }
}
