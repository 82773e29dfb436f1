//! Full load for a long time: the rate of writes, and the memory and data of each node, as curves.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use plotters::prelude::*;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::http::Connection;
use crate::pairs;

const CLIENTS: usize = 256;
const SAMPLE_EVERY: Duration = Duration::from_secs(10);
/// In pixels.
const PICTURE: (u32, u32) = (720, 240);

/// The state at the end of a period of [`SAMPLE_EVERY`].
struct Sample {
    pairs_per_second: f64,
    slowest_ms: f64,
    memory_mib: Vec<f64>,
    data_mib: Vec<f64>,
}

/// Pairs so far, and the slowest acquire since the last sample in microseconds.
#[derive(Default)]
struct Progress {
    pairs: AtomicU64,
    slowest: AtomicU64,
}

/// Writes the curves to `dir`. The result has the median and the maximum of each quarter of the time.
pub async fn run(cluster: &Cluster, time: Duration, dir: &Path) -> Value {
    assert!(time >= SAMPLE_EVERY, "the shortest time is {SAMPLE_EVERY:?}");
    let until = Instant::now() + time;
    let progress = Arc::new(Progress::default());
    let leader = cluster.leader_address().await;
    let workers: Vec<_> =
        (0..CLIENTS).map(|client| tokio::spawn(repeat(leader.clone(), client, until, progress.clone()))).collect();
    let samples = take_samples(cluster, until, &progress).await;
    for worker in workers {
        worker.await.expect("the client task does not panic");
    }
    let curves = [
        ("endurance-rate", "pairs per second", curve(&samples, |sample| vec![sample.pairs_per_second])),
        ("endurance-slowest", "slowest acquire in each 10 s, ms", curve(&samples, |sample| vec![sample.slowest_ms])),
        ("endurance-memory", "memory of each node, MiB", curve(&samples, |sample| sample.memory_mib.clone())),
        ("endurance-data", "data of each node, MiB", curve(&samples, |sample| sample.data_mib.clone())),
    ];
    let mut result = json!({
        "workload": "endurance", "clients": CLIENTS, "seconds": time.as_secs(),
        "pairs": progress.pairs.load(Ordering::Relaxed),
    });
    for (name, title, lines) in curves {
        draw(&dir.join(name).with_extension("svg"), title, &lines).expect("the picture is writable");
        result[name] = lines.iter().map(|line| quarters(line)).collect();
    }
    result
}

/// The work of one client.
async fn repeat(leader: String, client: usize, until: Instant, progress: Arc<Progress>) {
    let mut connection = Connection::open(&leader).await.expect("the leader accepts connections");
    let mut number = 0;
    while Instant::now() < until {
        let acquired = pairs::pair(&mut connection, &format!("endurance-{client}-{}", number % 1000), client).await;
        number += 1;
        progress.pairs.fetch_add(1, Ordering::Relaxed);
        progress.slowest.fetch_max(acquired.as_micros() as u64, Ordering::Relaxed);
    }
}

async fn take_samples(cluster: &Cluster, until: Instant, progress: &Progress) -> Vec<Sample> {
    let mib = |bytes: Vec<u64>| bytes.into_iter().map(|bytes| bytes as f64 / f64::from(1 << 20)).collect();
    let (mut samples, mut before, mut start) = (Vec::new(), 0, Instant::now());
    while start + SAMPLE_EVERY <= until {
        tokio::time::sleep_until((start + SAMPLE_EVERY).into()).await;
        let pairs = progress.pairs.load(Ordering::Relaxed);
        samples.push(Sample {
            pairs_per_second: (pairs - before) as f64 / start.elapsed().as_secs_f64(),
            slowest_ms: progress.slowest.swap(0, Ordering::Relaxed) as f64 / 1e3,
            memory_mib: mib(cluster.memory()),
            data_mib: mib(cluster.data_sizes()),
        });
        (before, start) = (pairs, Instant::now());
    }
    samples
}

/// One line for each value of a sample.
fn curve(samples: &[Sample], values: fn(&Sample) -> Vec<f64>) -> Vec<Vec<f64>> {
    let rows: Vec<Vec<f64>> = samples.iter().map(values).collect();
    (0..rows[0].len()).map(|line| rows.iter().map(|row| row[line]).collect()).collect()
}

/// The rounded median and maximum of each quarter.
fn quarters(line: &[f64]) -> Value {
    let of = |part: &[f64]| {
        let mut sorted = part.to_vec();
        sorted.sort_by(f64::total_cmp);
        json!({"median": sorted[sorted.len() / 2].round(), "max": sorted[sorted.len() - 1].round()})
    };
    line.chunks(line.len().div_ceil(4)).map(of).collect()
}

fn draw(path: &Path, title: &str, lines: &[Vec<f64>]) -> Result<(), Box<dyn std::error::Error>> {
    let minutes = |sample: usize| (sample + 1) as f64 * SAMPLE_EVERY.as_secs_f64() / 60.0;
    let highest = lines.iter().flatten().copied().fold(0.0, f64::max);
    let area = SVGBackend::new(path, PICTURE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 16))
        .margin(8)
        .x_label_area_size(30)
        .y_label_area_size(50)
        .build_cartesian_2d(0.0..minutes(lines[0].len() - 1), 0.0..highest * 1.1)?;
    chart.configure_mesh().disable_x_mesh().x_desc("minutes").draw()?;
    for (line, color) in lines.iter().zip([BLUE, RED, GREEN]) {
        let points = line.iter().enumerate().map(|(sample, value)| (minutes(sample), *value));
        chart.draw_series(LineSeries::new(points, color))?;
    }
    area.present()?;
    Ok(())
}
