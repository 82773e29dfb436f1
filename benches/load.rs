//! Concurrent clients that repeat an operation for a time, and the measured times.

use std::future::Future;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::percentiles::{percentiles, round};

/// Time before the measurement, for caches and connections.
const WARM_UP: Duration = Duration::from_secs(1);

/// Records the operations of one client.
pub struct Recorder {
    until: Instant,
    measure_from: Instant,
    /// Times of the operations that start in the measured period.
    latencies: Vec<Duration>,
}

impl Recorder {
    /// Whether the measurement continues.
    pub fn is_running(&self) -> bool {
        Instant::now() < self.until
    }

    /// Records an operation that started at `start` and ends now.
    pub fn record(&mut self, start: Instant) {
        if start >= self.measure_from {
            self.latencies.push(start.elapsed());
        }
    }
}

/// Runs `work` on `clients` tasks and returns rates and times. Each recorded operation counts as `weight` operations.
pub async fn run<F, W>(cluster: &Cluster, name: &str, clients: usize, time: Duration, weight: u32, work: F) -> Value
where
    F: Fn(usize, Recorder) -> W,
    W: Future<Output = Recorder> + Send + 'static,
{
    let measure_from = Instant::now() + WARM_UP;
    let until = measure_from + time;
    let new_recorder = || Recorder { until, measure_from, latencies: Vec::new() };
    let workers: Vec<_> = (0..clients).map(|client| tokio::spawn(work(client, new_recorder()))).collect();
    tokio::time::sleep_until(measure_from.into()).await;
    let cpu_before = cluster.cpu();
    tokio::time::sleep_until(until.into()).await;
    let cpu = cluster.cpu() - cpu_before;
    let mut latencies = Vec::new();
    for worker in workers {
        latencies.extend(worker.await.expect("the client task does not panic").latencies);
    }
    let operations = latencies.len() as f64 * f64::from(weight);
    let mut result = json!({
        "workload": name,
        "clients": clients,
        "operations": operations as u64,
        "per_second": (operations / time.as_secs_f64()).round(),
        "server_cpu_us_each": round(cpu.as_secs_f64() * 1e6 / operations),
    });
    result.as_object_mut().expect("a JSON object").extend(percentiles(latencies));
    result
}
