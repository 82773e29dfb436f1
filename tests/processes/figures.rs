//! Statistics of measured times, and memory use.

use std::time::Duration;

/// The smallest sample that is at least as large as `percent` of the sorted samples.
pub fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted[rank - 1]
}

/// Prints the count, min, median, p95 and max in milliseconds on one line.
pub fn print(what: &str, samples: &mut [Duration]) {
    samples.sort();
    let at = |percent| percentile(samples, percent).as_millis();
    let (min, max) = (samples[0].as_millis(), at(100));
    println!("{what}: {} samples, min {min} ms, median {} ms, p95 {} ms, max {max} ms", samples.len(), at(50), at(95));
}

/// The resident memory of a process in bytes, without the pages of its program and of other files.
pub fn memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("the status has RssAnon");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib << 10
}

#[test]
fn percentile_is_one_of_the_samples() {
    let samples: Vec<Duration> = (1..=20).map(Duration::from_millis).collect();
    let at = |percent| percentile(&samples, percent).as_millis();
    assert_eq!((at(1), at(50), at(95), at(100)), (1, 10, 19, 20));
    assert_eq!(percentile(&samples[..1], 95), samples[0]);
}
