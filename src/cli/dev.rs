//! `tenure dev`: a three-node cluster in one process.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::failure::Failure;
use super::host::{Host, stop_all};
use super::output;
use super::signals::Signals;
use crate::config::Config;
use crate::node::{Node, WatchEnd};
use crate::service;
use crate::telemetry::{self, LogFormat};

/// Interval at which the command checks for a new leader.
const LEADER_POLL: Duration = Duration::from_millis(200);

#[derive(Args)]
pub struct Arguments {
    /// Folder for the nodes' data; it remains after the exit, and you can delete it to start with no leases
    #[arg(long, default_value = "tenure-dev")]
    data: PathBuf,
    /// Log filter, in the syntax of tracing's EnvFilter, for instance `info`
    #[arg(long, env = telemetry::LOG_VARIABLE, default_value = telemetry::DEV_LOG, value_name = "FILTER")]
    log: String,
}

pub async fn run(arguments: Arguments) -> Result<(), Failure> {
    let logs = telemetry::log(&arguments.log, LogFormat::Text).map_err(|error| Failure::Usage(error.to_string()))?;
    let config = Config::dev(&arguments.data);
    let mut signals = Signals::listen()?;
    let metrics = telemetry::Metrics::install(None, &logs)?;
    announce(&config);
    // Concurrently, because the first start of a cluster needs all nodes.
    let start = |entry| Host::start(&config, entry, false, config.nodes.len(), Some(metrics.render()));
    let hosts = tokio::select! {
        hosts = futures_util::future::try_join_all(config.nodes.iter().map(start)) => hosts?,
        _ = signals.next() => return Ok(()),
    };
    let ended = tokio::select! {
        ended = show(&hosts) => ended,
        never = metrics.keep_up() => match never {},
        signal = signals.next() => {
            message!("\n{signal}: shutting down (send it again to exit at once)");
            Ok(())
        }
    };
    stop_all(hosts, &mut signals, &logs).await;
    ended
}

fn announce(config: &Config) {
    for node in &config.nodes {
        message!("node {}: http://{}  peers {}  data {}", node.id, node.http, node.peer, node.data.display());
    }
    message!(
        "\nTry, in another terminal:\n  \
         tenure lease acquire jobs --holder me --ttl 30s\n  \
         tenure lease list\n  \
         curl -s http://{}/v1/leases/jobs/acquire --json '{{\"holder\": \"me\", \"ttl_ms\": 30000}}'\n",
        config.nodes[0].http
    );
}

/// Prints leader changes and transitions of leases until a node fails.
async fn show(hosts: &[Host]) -> Result<(), Failure> {
    let failed = hosts.iter().map(|host| Box::pin(host.node.wait_failed()));
    let node = &hosts[0].node;
    tokio::select! {
        (why, index, _) = futures_util::future::select_all(failed) => {
            let id = hosts[index].node.id();
            Err(Failure::Other(anyhow::anyhow!("node {id} cannot go on: {why}")))
        }
        ended = show_leaders(node) => ended,
        ended = show_transitions(node) => ended,
    }
}

async fn show_leaders(node: &Node) -> Result<(), Failure> {
    let mut poll = tokio::time::interval(LEADER_POLL);
    let mut shown = None;
    loop {
        poll.tick().await;
        let status = node.status().await;
        let now = (status.leader, status.term);
        if shown.is_none_or(|shown: (Option<u64>, u64)| shown.0 != now.0) {
            match status.leader {
                Some(leader) => message!("node {leader} leads in term {}", status.term),
                None => message!("no leader"),
            }
            shown = Some(now);
        }
    }
}

async fn show_transitions(node: &Node) -> Result<(), Failure> {
    loop {
        let Ok(mut watch) = node.transitions(None) else {
            // The node is installing a snapshot.
            tokio::task::yield_now().await;
            continue;
        };
        let end = loop {
            match watch.next().await {
                Ok(transition) => output::line(&output::transition(&service::event(&transition)))?,
                Err(end) => break end,
            }
        };
        if end == WatchEnd::Stopped {
            return Ok(());
        }
        message!("(some transitions are not shown: the node has already dropped them)");
    }
}
