//! Clocks of a node that are not the machine's, by libfaketime.
//!
//! It stands between a program and the C library. So it reaches the wall clock (`SystemTime`) and, unless it is told not to,
//! the clock of `Instant`, by which tokio's timers run and openraft measures; it does not reach
//! [`SystemClock`](tenure::clock::SystemClock), which asks the kernel for `CLOCK_BOOTTIME` without the C library. A rate is
//! therefore one of a node's timers: its heartbeats and elections come too early or too late, while cluster time runs true.
//! The product takes the time that slow timers lose for a suspend, and asks a majority before it reads. Clocks of other
//! rates in every place are the simulation's.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

/// Where packages put the library.
const PLACES: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib64/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
];

type Environment = Vec<(String, String)>;

pub fn library() -> Option<&'static str> {
    PLACES.into_iter().find(|place| Path::new(place).exists())
}

/// A wall clock that jumps to where [`jump`] says.
pub fn jumping(folder: &Path, node: u64) -> Result<Environment> {
    jump(folder, node, 0)?;
    let file = file(folder, node);
    Ok(preloaded(&[
        ("FAKETIME_TIMESTAMP_FILE", &file.display().to_string()),
        ("FAKETIME_NO_CACHE", "1"),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
    ]))
}

/// Sets the wall clock of a node this many seconds off. In one step: the library reads the file whenever it likes.
pub fn jump(folder: &Path, node: u64, seconds: i64) -> Result<()> {
    let new = folder.join(format!("wall{node}.new"));
    fs::write(&new, format!("{seconds:+}\n"))?;
    Ok(fs::rename(new, file(folder, node))?)
}

/// The wall clock and the one of timers at a rate of their own.
pub fn at_rate(rate: f64) -> Environment {
    preloaded(&[("FAKETIME", &format!("+0 x{rate}"))])
}

/// What the library shares with its process's children, and leaves behind if the process is killed.
fn shared(process: u32) -> [PathBuf; 2] {
    ["faketime_shm", "sem.faketime_sem"].map(|name| Path::new("/dev/shm").join(format!("{name}_{process}")))
}

/// Removes what a process that has ended left behind, if it had a false clock.
pub fn forget(process: u32) {
    for file in shared(process) {
        // Most processes have none.
        let _ = fs::remove_file(file);
    }
}

fn file(folder: &Path, node: u64) -> PathBuf {
    folder.join(format!("wall{node}"))
}

fn preloaded(settings: &[(&str, &str)]) -> Environment {
    let library = library().expect("faults of clocks are planned only with the library");
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
    fn a_killed_process_leaves_nothing_of_its_clock_behind() {
        if library().is_none() {
            // Then no such fault can be planned either: `Run::kinds`.
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let mut sleep = Command::new("sleep");
        sleep.arg("60").envs(at_rate(1.0));
        let process = Process::start("sleep", sleep, None, &folder.path().join("log")).expect("it starts");
        let files = shared(process.id());
        let begun = Instant::now();
        while !files.iter().all(|file| file.exists()) {
            assert!(begun.elapsed() < Duration::from_secs(20), "the library shares its clock in other files");
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(process);
        assert!(files.iter().all(|file| !file.exists()), "{files:?}");
    }
}
