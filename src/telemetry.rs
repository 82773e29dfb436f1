//! Logs and metrics of the binary. The library itself installs neither: a program that embeds a node has its own.

use std::convert::Infallible;
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;

use crate::http::RenderMetrics;
use crate::types::NodeId;

/// Environment variable that says what to log.
pub const LOG_VARIABLE: &str = "TENURE_LOG";
/// What `tenure serve` logs if nothing is said.
pub const SERVE_LOG: &str = crate::LOG_FILTER;
/// What `tenure dev` logs if nothing is said.
pub const DEV_LOG: &str = "warn,openraft=error,sled=warn";

/// How long histograms collect before they are folded.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Bounds of duration histograms, in seconds: from a read in memory to a request that waits for a lease.
const SECONDS: [f64; 16] =
    [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people
    Text,
    /// One JSON object on each line
    Json,
}

/// Sends the process's logs to stderr.
///
/// # Errors
///
/// The filter cannot be read, or the process has a subscriber already.
pub fn log(filter: &str, format: LogFormat) -> Result<(), LogError> {
    let filter = EnvFilter::try_new(filter).map_err(|error| LogError(error.to_string()))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours());
    let installed = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    installed.map_err(|error| LogError(error.to_string()))
}

/// Colours are for terminals, and for people who have not said that they want none.
fn colours() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Why nothing is logged.
#[derive(Debug, thiserror::Error)]
#[error("cannot log: {0}")]
pub struct LogError(String);

/// The process's metrics.
pub struct Metrics(PrometheusHandle);

impl Metrics {
    /// Collects the process's metrics from now on, with a `node` label if the process is one node.
    ///
    /// # Errors
    ///
    /// The process has a recorder already.
    pub fn install(node: Option<NodeId>) -> anyhow::Result<Metrics> {
        let mut builder = PrometheusBuilder::new();
        if let Some(node) = node {
            builder = builder.add_global_label("node", node.to_string());
        }
        let seconds = Matcher::Suffix("_seconds".to_owned());
        let handle = builder.set_buckets_for_metric(seconds, &SECONDS)?.install_recorder()?;
        crate::http::describe_metrics();
        Ok(Metrics(handle))
    }

    /// Renders the metrics in the Prometheus text format.
    pub fn render(&self) -> RenderMetrics {
        let handle = self.0.clone();
        Arc::new(move || handle.render())
    }

    /// Folds what histograms have collected into their buckets, for ever. Without it they would grow for as long as
    /// nobody asks for the metrics.
    pub async fn keep_up(&self) -> Infallible {
        let mut interval = tokio::time::interval(UPKEEP_INTERVAL);
        loop {
            interval.tick().await;
            self.0.run_upkeep();
        }
    }
}
