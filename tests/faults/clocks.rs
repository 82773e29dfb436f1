//! Faulty clocks for a node, with libfaketime.
//!
//! libfaketime replaces the clock functions of the C library. It changes the wall clock (`SystemTime`) and, by default,
//! the clock of `Instant`, which drives the timers of tokio and openraft. It does not change
//! [`SystemClock`](tenure::clock::SystemClock), which reads `CLOCK_BOOTTIME` with a system call.
//!
//! A fault with another rate therefore changes only the timers of a node. Its heartbeats and elections come too early
//! or too late, while cluster time stays correct. The node takes the time that slow timers lose for a suspend, and asks
//! a majority before it reads. The simulation tests other rates for all clocks.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

/// Where Linux distributions install the library.
const LIBRARY_PATHS: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib64/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
];

type Environment = Vec<(String, String)>;

pub fn library() -> Option<&'static str> {
    LIBRARY_PATHS.into_iter().find(|place| Path::new(place).exists())
}

/// The environment of a node whose wall clock follows [`jump`].
pub fn jumping(folder: &Path, node: u64) -> Result<Environment> {
    jump(folder, node, 0)?;
    let file = file(folder, node);
    Ok(preloaded(&[
        ("FAKETIME_TIMESTAMP_FILE", &file.display().to_string()),
        ("FAKETIME_NO_CACHE", "1"),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
    ]))
}

/// Sets the offset of a node's wall clock in seconds. The rename is atomic, because the library may read the file at
/// any time.
pub fn jump(folder: &Path, node: u64, seconds: i64) -> Result<()> {
    let new = folder.join(format!("wall{node}.new"));
    fs::write(&new, format!("{seconds:+}\n"))?;
    Ok(fs::rename(new, file(folder, node))?)
}

/// The environment of a node whose wall clock and timers run at `rate`.
pub fn at_rate(rate: f64) -> Environment {
    preloaded(&[("FAKETIME", &format!("+0 x{rate}"))])
}

/// The files that the library shares with child processes. They remain if the process is killed.
fn shared_files(process: u32) -> [PathBuf; 2] {
    ["faketime_shm", "sem.faketime_sem"].map(|name| Path::new("/dev/shm").join(format!("{name}_{process}")))
}

/// Removes the shared files of a process that has ended.
pub fn remove_shared_files(process: u32) {
    for file in shared_files(process) {
        // Most processes have no shared files.
        let _ = fs::remove_file(file);
    }
}

fn file(folder: &Path, node: u64) -> PathBuf {
    folder.join(format!("wall{node}"))
}

fn preloaded(settings: &[(&str, &str)]) -> Environment {
    let library = library().expect("`Run::kinds` refuses clock faults without libfaketime");
    let settings = settings.iter().copied().chain([("LD_PRELOAD", library)]);
    settings.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::super::process::Process;
    use super::*;

    #[test]
    fn killed_process_leaves_no_shared_clock_files() {
        if library().is_none() {
            // `Run::kinds` refuses clock faults without the library.
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let mut sleep = Command::new("sleep");
        sleep.arg("60").envs(at_rate(1.0));
        let process = Process::start("sleep", sleep, None, &folder.path().join("log")).expect("sleep starts");
        let files = shared_files(process.id());
        let begun = Instant::now();
        while !files.iter().all(|file| file.exists()) {
            assert!(begun.elapsed() < Duration::from_secs(20), "libfaketime did not create {files:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(process);
        assert!(files.iter().all(|file| !file.exists()), "{files:?}");
    }
}
