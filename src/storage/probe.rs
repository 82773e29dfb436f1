//! Measures how fast a disk makes a small write durable.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use rand::RngExt;

use super::StorageError;
use crate::rng::rng;

/// The approximate size of one small commit.
const PROBE_BYTES: usize = 512;
/// The start of the name of a probe's file.
const PROBE_FILE: &str = "fsync-probe";

/// Times `n` rounds of a small append and `fdatasync` in `dir`, and returns the durations in ascending order. It begins
/// no round after `longest`.
///
/// One commit of the store takes about this long. At its start a node warns if the disk is too slow for its timings.
/// Several processes can measure at the same time. A probe removes the file of one that was killed.
///
/// # Errors
///
/// [`StorageError::Io`] if `dir` does not exist or a write, sync or removal in it fails.
pub fn measure_fsync(dir: &Path, n: usize, longest: Duration) -> Result<Vec<Duration>, StorageError> {
    remove_left_files(dir);
    let path = dir.join(format!("{PROBE_FILE}.{:08x}", rng().random::<u32>()));
    let file = File::options().write(true).create_new(true).open(&path);
    let mut file = file.map_err(|error| StorageError::io("create", &path, &error))?;
    let began = Instant::now();
    let timed = (0..n).take_while(|round| *round == 0 || began.elapsed() < longest).map(|_| {
        let start = Instant::now();
        file.write_all(&[0; PROBE_BYTES])?;
        file.sync_data()?;
        Ok(start.elapsed())
    });
    let timed = timed.collect::<std::io::Result<Vec<_>>>();
    let removed = match fs::remove_file(&path) {
        // Another probe has removed it.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    };
    let mut durations = timed.map_err(|error| StorageError::io("write and sync", &path, &error))?;
    removed.map_err(|error| StorageError::io("remove", &path, &error))?;
    durations.sort_unstable();
    Ok(durations)
}

/// Ignores errors: such a file does not disturb.
fn remove_left_files(dir: &Path) {
    let items = fs::read_dir(dir).into_iter().flatten().flatten();
    for item in items.filter(|item| item.file_name().to_string_lossy().starts_with(PROBE_FILE)) {
        let _ = fs::remove_file(item.path());
    }
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

    /// The doctor measures as another user and at the same time as a starting node.
    #[test]
    fn probes_do_not_disturb_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let (left, other) = (dir.path().join("fsync-probe.0"), dir.path().join("fsync-probe"));
        fs::write(&left, "").unwrap();
        // A file that this process cannot replace or remove.
        fs::create_dir(&other).unwrap();
        measure_fsync(dir.path(), 1, Duration::MAX).unwrap();
        assert!(!left.exists(), "the file of a killed probe");
        fs::remove_dir(&other).unwrap();
        let measure = || (0..50).for_each(|_| drop(measure_fsync(dir.path(), 1, Duration::MAX).unwrap()));
        std::thread::scope(|scope| {
            scope.spawn(measure);
            scope.spawn(measure);
        });
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn probe_error_names_the_missing_directory() {
        let error = measure_fsync(Path::new("/nowhere/at/all"), 1, Duration::MAX).unwrap_err();
        assert!(error.to_string().starts_with("could not create /nowhere/at/all/fsync-probe"), "{error}");
    }
}
