//! Percentiles of measured times. The load program of scripts/compare uses this file, too.

use std::time::Duration;

use serde_json::{Map, Value, json};

/// Percentiles in milliseconds.
pub fn percentiles(mut samples: Vec<Duration>) -> Map<String, Value> {
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
