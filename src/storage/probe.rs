//! Measures how fast a disk makes a small write durable.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use super::StorageError;

/// The approximate size of one small commit.
const PROBE_BYTES: usize = 512;
const PROBE_FILE: &str = "fsync-probe";

/// Times `n` rounds of a small append and `fdatasync` in `dir`, and returns the durations in ascending order. It begins
/// no round after `longest`.
///
/// One commit of the store takes about this long. At its start a node warns if the disk is too slow for its timings.
///
/// # Errors
///
/// [`StorageError::Io`] if `dir` does not exist or a write, sync or removal in it fails.
pub fn measure_fsync(dir: &Path, n: usize, longest: Duration) -> Result<Vec<Duration>, StorageError> {
    let path = dir.join(PROBE_FILE);
    let mut file = File::create(&path).map_err(|error| StorageError::io("create", &path, &error))?;
    let began = Instant::now();
    let timed = (0..n).take_while(|round| *round == 0 || began.elapsed() < longest).map(|_| {
        let start = Instant::now();
        file.write_all(&[0; PROBE_BYTES])?;
        file.sync_data()?;
        Ok(start.elapsed())
    });
    let timed = timed.collect::<std::io::Result<Vec<_>>>();
    let removed = fs::remove_file(&path);
    let mut durations = timed.map_err(|error| StorageError::io("write and sync", &path, &error))?;
    removed.map_err(|error| StorageError::io("remove", &path, &error))?;
    durations.sort_unstable();
    Ok(durations)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_times_every_round_and_removes_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let durations = measure_fsync(dir.path(), 5, Duration::MAX).unwrap();
        assert_eq!(durations.len(), 5);
        assert!(durations.is_sorted());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let bounded = measure_fsync(dir.path(), 5, Duration::ZERO).unwrap();
        assert_eq!(bounded.len(), 1, "no round begins after the limit");
    }

    #[test]
    fn probe_error_names_the_missing_directory() {
        let error = measure_fsync(Path::new("/nowhere/at/all"), 1, Duration::MAX).unwrap_err();
        assert!(error.to_string().starts_with("could not create /nowhere/at/all/fsync-probe"), "{error}");
    }
}
