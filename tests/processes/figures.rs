//! Measured times, and how they are printed.

use std::time::Duration;

/// The value below which `percent` of the sorted samples lie.
pub fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted[rank - 1]
}

/// One line: how many, min, median, p95 and max in milliseconds.
pub fn print(what: &str, samples: &mut [Duration]) {
    samples.sort();
    let at = |percent| percentile(samples, percent).as_millis();
    let (min, max) = (samples[0].as_millis(), at(100));
    println!("{what}: {} samples, min {min} ms, median {} ms, p95 {} ms, max {max} ms", samples.len(), at(50), at(95));
}

#[test]
fn a_percentile_is_one_of_the_samples() {
    let samples: Vec<Duration> = (1..=20).map(Duration::from_millis).collect();
    let at = |percent| percentile(&samples, percent).as_millis();
    assert_eq!((at(1), at(50), at(95), at(100)), (1, 10, 19, 20));
    assert_eq!(percentile(&samples[..1], 95), samples[0]);
}
