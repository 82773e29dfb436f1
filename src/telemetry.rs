//! Logs, metrics and traces of the binary. The library installs none of them: a program that embeds a node installs its own.

mod process;
mod queue;
#[cfg(feature = "otlp")]
mod trace;

use std::convert::Infallible;
use std::fmt::Display;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use metrics::{counter, describe_counter, describe_gauge, gauge};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;

use crate::http::RenderMetrics;
use crate::storage::disk::directory;
use crate::types::NodeId;
use queue::{LogFlush, LogQueue, report_panics};
#[cfg(feature = "otlp")]
pub use trace::Traces;

/// Environment variable with the log filter.
pub const LOG_VARIABLE: &str = "TENURE_LOG";
/// The default log filter of `tenure serve`.
pub const SERVE_LOG: &str = crate::LOG_FILTER;
/// The default log filter of `tenure dev`.
pub const DEV_LOG: &str = "warn,openraft=error,sled=warn";

/// Interval at which histograms move their samples to buckets.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Bucket bounds of duration histograms, in seconds: from a read in memory to a request that waits for a lease.
const SECONDS: [f64; 16] =
    [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Plain text
    Text,
    /// One JSON object per line
    Json,
}

/// The process's logs. A drop waits up to 1 s for the last lines.
pub struct Logs {
    queue: LogQueue,
    flush: LogFlush,
}

impl Logs {
    /// Writes a line to stderr, after the lines before it. Does not wait for stderr.
    pub fn print(&self, line: impl Display) {
        // The queue accepts each write.
        let _ = self.queue.clone().write(format!("{line}\n").as_bytes());
    }

    /// Waits until all lines are written, at most 1 s.
    pub fn flush(&self) {
        self.flush.wait();
    }
}

/// Installs a subscriber that writes the process's logs to stderr, from a thread of its own, and a hook that writes panics
/// there. A line that cannot be written is lost, also if stderr blocks and 10,000 lines or 4 MiB wait.
///
/// # Errors
///
/// The filter is invalid, the process already has a subscriber, or there is no thread or file descriptor left.
pub fn log(filter: &str, format: LogFormat) -> Result<Logs, LogError> {
    let filter = with_audit(filter)?;
    // Not `std::io::stderr`: a write that blocks would hold its lock.
    let stderr = std::io::stderr().as_fd().try_clone_to_owned().map(File::from);
    let started = stderr.and_then(LogQueue::start);
    let (queue, flush) = started.map_err(|error| LogError(error.to_string()))?;
    let logs = Logs { queue: queue.clone(), flush };
    report_panics(queue.clone());
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(move || queue.clone()).with_ansi(colours());
    let installed = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    installed.map_err(|error| LogError(error.to_string()))?;
    Ok(logs)
}

/// The filter with the audit log at each level. Only a directive for the target of the audit log turns it off.
fn with_audit(filter: &str) -> Result<EnvFilter, LogError> {
    // An empty filter means errors.
    let filter = if filter.trim().is_empty() { "error" } else { filter };
    // A later directive for the same target takes precedence.
    EnvFilter::try_new(format!("tenure::audit=info,{filter}")).map_err(|error| LogError(error.to_string()))
}

/// Colours only on a terminal, and only if `NO_COLOR` is unset or empty (<https://no-color.org>).
fn colours() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// An error of [`log`].
#[derive(Debug, thiserror::Error)]
#[error("cannot install the log subscriber: {0}")]
pub struct LogError(String);

/// The process's metrics.
pub struct Metrics {
    handle: PrometheusHandle,
    lost_lines: Arc<dyn Fn() -> u64 + Send + Sync>,
}

impl Metrics {
    /// Installs a recorder for the process's metrics. With `node`, all metrics get the label `node`.
    ///
    /// # Errors
    ///
    /// The process already has a recorder.
    pub fn install(node: Option<NodeId>, logs: &Logs) -> anyhow::Result<Metrics> {
        let mut builder = PrometheusBuilder::new();
        if let Some(node) = node {
            builder = builder.add_global_label("node", node.to_string());
        }
        let seconds = Matcher::Suffix("_seconds".to_owned());
        let handle = builder.set_buckets_for_metric(seconds, &SECONDS)?.install_recorder()?;
        crate::http::describe_metrics();
        crate::node::describe_metrics();
        process::begin();
        describe_counter!("tenure_log_lines_lost_total", "Log lines that stderr did not accept");
        describe_gauge!(
            "tenure_build_info",
            "Always 1; the labels have the version and the newest data format of this binary"
        );
        let data_format = directory::FORMAT.to_string();
        gauge!("tenure_build_info", "version" => env!("CARGO_PKG_VERSION"), "data_format" => data_format).set(1.0);
        Ok(Metrics { handle, lost_lines: Arc::new(logs.flush.lost()) })
    }

    /// Renders the metrics in the Prometheus text format.
    pub fn render(&self) -> RenderMetrics {
        let (handle, lost_lines) = (self.handle.clone(), self.lost_lines.clone());
        Arc::new(move || {
            process::update();
            counter!("tenure_log_lines_lost_total").absolute(lost_lines());
            handle.render()
        })
    }

    /// Moves the samples of histograms to their buckets at a fixed interval. Without it, the memory for samples would
    /// grow until the next scrape. Never returns.
    pub async fn keep_up(&self) -> Infallible {
        let mut interval = tokio::time::interval(UPKEEP_INTERVAL);
        loop {
            interval.tick().await;
            self.handle.run_upkeep();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io;

    use parking_lot::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    pub(crate) struct Written(Arc<Mutex<Vec<u8>>>);

    impl Written {
        pub(crate) fn text(&self) -> String {
            String::from_utf8(self.0.lock().clone()).expect("log lines are UTF-8")
        }
    }

    /// Collects the log lines of this thread while the guard lives.
    pub(crate) fn capture() -> (Written, tracing::subscriber::DefaultGuard) {
        let written = Written::default();
        let writer = written.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
        (written, tracing::subscriber::set_default(subscriber))
    }

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The debug output of a recorder has the number of samples that a histogram has moved to its buckets.
    #[tokio::test(start_paused = true)]
    async fn samples_move_to_their_buckets_without_a_scrape() {
        let seconds = Matcher::Suffix("_seconds".to_owned());
        let builder = PrometheusBuilder::new().set_buckets_for_metric(seconds, &SECONDS).expect("there are buckets");
        let recorder = builder.build_recorder();
        let kept = Metrics { handle: recorder.handle(), lost_lines: Arc::new(|| 0) };
        let load = async {
            for count in 1..=3 {
                metrics::with_local_recorder(&recorder, || metrics::histogram!("test_seconds").record(0.5));
                tokio::time::sleep(2 * UPKEEP_INTERVAL).await;
                let moved = format!("{recorder:?}");
                assert!(moved.contains(&format!("count: {count},")), "{count} samples: {moved}");
            }
        };
        tokio::select! {
            never = kept.keep_up() => match never {},
            () = load => {}
        }
    }

    /// The messages that pass a filter, of these four.
    fn passed(filter: &str) -> Vec<&'static str> {
        let written = Written::default();
        let writer = written.clone();
        let builder = tracing_subscriber::fmt().with_env_filter(with_audit(filter).expect("a valid filter"));
        let subscriber = builder.with_writer(move || writer.clone()).with_ansi(false).finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(target: "tenure::audit", "one change");
            tracing::error!(target: "tenure::node", "one error");
            tracing::info!(target: "tenure::node", "one event");
            tracing::debug!(target: "tenure::raft", "one detail");
        });
        let text = written.text();
        let each = ["one change", "one error", "one event", "one detail"];
        each.into_iter().filter(|message| text.contains(message)).collect()
    }

    #[test]
    fn audit_log_does_not_depend_on_the_level() {
        assert_eq!(passed("info,tenure::raft=debug"), ["one change", "one error", "one event", "one detail"]);
        assert_eq!(passed("warn"), ["one change", "one error"]);
        assert_eq!(passed("tenure=error"), ["one change", "one error"]);
        assert_eq!(passed(""), ["one change", "one error"]);
        assert_eq!(passed("off"), ["one change"]);
        assert_eq!(passed("info,tenure::audit=off"), ["one error", "one event"]);
        assert!(with_audit("tenure=loud").is_err());
    }
}
