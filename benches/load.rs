//! Clients that work side by side for a time, and what they saw.

use std::future::Future;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cluster::Cluster;

/// Time before measuring in which caches and connections settle.
const WARM_UP: Duration = Duration::from_secs(1);

/// What one client counts while it works.
pub struct Tally {
    until: Instant,
    measure_from: Instant,
    /// Of each operation that was timed inside the measured time.
    latencies: Vec<Duration>,
}

impl Tally {
    pub fn goes_on(&self) -> bool {
        Instant::now() < self.until
    }

    /// Counts an operation that began at `start` and has just ended.
    pub fn count(&mut self, start: Instant) {
        if start >= self.measure_from {
            self.latencies.push(start.elapsed());
        }
    }
}

/// Runs `clients` copies of `work` and tells rates and times. `weight` operations are counted for each one timed.
pub async fn run<F, W>(cluster: &Cluster, name: &str, clients: usize, time: Duration, weight: u32, work: F) -> Value
where
    F: Fn(usize, Tally) -> W,
    W: Future<Output = Tally> + Send + 'static,
{
    let measure_from = Instant::now() + WARM_UP;
    let until = measure_from + time;
    let tally = || Tally { until, measure_from, latencies: Vec::new() };
    let workers: Vec<_> = (0..clients).map(|client| tokio::spawn(work(client, tally()))).collect();
    tokio::time::sleep_until(measure_from.into()).await;
    let cpu_before = cluster.cpu();
    tokio::time::sleep_until(until.into()).await;
    let cpu = cluster.cpu() - cpu_before;
    let mut latencies = Vec::new();
    for worker in workers {
        latencies.extend(worker.await.expect("a client that works").latencies);
    }
    let operations = latencies.len() as f64 * f64::from(weight);
    let mut result = json!({
        "workload": name,
        "clients": clients,
        "operations": operations as u64,
        "per_second": (operations / time.as_secs_f64()).round(),
        "server_cpu_us_each": round(cpu.as_secs_f64() * 1e6 / operations),
    });
    result.as_object_mut().expect("an object").extend(spread(latencies));
    result
}

/// Percentiles in milliseconds.
pub fn spread(mut samples: Vec<Duration>) -> serde_json::Map<String, Value> {
    samples.sort();
    let at = |part: f64| match samples.len() {
        0 => Value::Null,
        count => json!(round(samples[((count - 1) as f64 * part) as usize].as_secs_f64() * 1e3)),
    };
    let points = [("min_ms", 0.0), ("p50_ms", 0.5), ("p95_ms", 0.95), ("p99_ms", 0.99), ("max_ms", 1.0)];
    points.into_iter().map(|(name, part)| (name.to_string(), at(part))).collect()
}

pub fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
