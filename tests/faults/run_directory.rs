//! The directory of a run, and the cleanup after killed runs.
//!
//! All names contain the process id of the run. A running process holds a lock in its directory.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use rustix::mount::{UnmountFlags, unmount};

use super::network;

/// The directory of this run, with all files and mounts below it. Dropping it removes them.
pub struct RunDirectory {
    path: PathBuf,
    _lock: File,
}

impl RunDirectory {
    pub fn new() -> Result<RunDirectory> {
        let path = folder(std::process::id());
        fs::create_dir_all(&path)?;
        let lock = File::create(path.join("lock"))?;
        lock.try_lock().context("cannot lock the directory of this run")?;
        Ok(RunDirectory { path, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.path) {
            eprintln!("{}: {error}", self.path.display());
        }
    }
}

fn folder(process: u32) -> PathBuf {
    std::env::temp_dir().join(format!("{}{process}", network::PREFIX))
}

/// Removes namespaces, mounts and directories of runs that have ended. Their node processes ended with them.
pub fn remove_orphans() -> Result<()> {
    for name in names(&network::file(""))?.iter().filter(|name| is_orphan(name)) {
        let _ = Command::new("ip").args(["netns", "del", name]).output()?;
    }
    for name in names(&std::env::temp_dir())?.iter().filter(|name| is_orphan(name)) {
        remove(&std::env::temp_dir().join(name))?;
    }
    Ok(())
}

/// Removes the directory of a run, after its mounts.
fn remove(folder: &Path) -> Result<()> {
    for line in fs::read_to_string("/proc/self/mounts")?.lines() {
        let at = Path::new(line.split(' ').nth(1).unwrap_or_default());
        if at.starts_with(folder) {
            unmount(at, UnmountFlags::DETACH)?;
        }
    }
    Ok(fs::remove_dir_all(folder)?)
}

fn names(folder: &Path) -> Result<Vec<String>> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(Vec::new()) };
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect()
}

/// Whether the name belongs to a run whose lock is free.
fn is_orphan(name: &str) -> bool {
    let process = name.strip_prefix(network::PREFIX).and_then(|rest| rest.split('-').next()?.parse().ok());
    process.is_some_and(|process: u32| match File::open(folder(process).join("lock")) {
        Ok(lock) => !matches!(lock.try_lock(), Err(TryLockError::WouldBlock)),
        Err(_) => true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dead_runs_leave_orphans() {
        let name = format!("{}{}-1", network::PREFIX, std::process::id());
        let folder = RunDirectory::new().expect("no other run has this process id");
        assert!(!is_orphan(&name), "the run is active");
        let path = folder.path().to_owned();
        drop(folder);
        assert!(is_orphan(&name) && !path.exists());
        assert!(!is_orphan("other-program-4294967295"));
    }
}
