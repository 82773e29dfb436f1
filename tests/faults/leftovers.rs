//! What a run that was killed left behind. Everything is named after the process that made it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use rustix::mount::{UnmountFlags, unmount};

use super::network;

/// The folder for the disks of a process's run.
pub fn folder(process: u32) -> PathBuf {
    std::env::temp_dir().join(format!("{}{process}", network::PREFIX))
}

/// Removes namespaces, mounts and folders of runs whose process is gone. Their nodes ended with it.
pub fn sweep() -> Result<()> {
    for name in names(&network::file(""))?.iter().filter(|name| is_orphan(name)) {
        let _ = Command::new("ip").args(["netns", "del", name]).output()?;
    }
    for name in names(&std::env::temp_dir())?.iter().filter(|name| is_orphan(name)) {
        remove(&std::env::temp_dir().join(name))?;
    }
    Ok(())
}

/// Unmounts what is mounted below a run's folder, and removes the folder.
pub fn remove(folder: &Path) -> Result<()> {
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

/// Whether the name is that of a run, and its process is no run any more.
fn is_orphan(name: &str) -> bool {
    let process = name.strip_prefix(network::PREFIX).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
    let own = fs::read_link("/proc/self/exe").ok();
    process.is_some_and(|process| {
        let program = fs::read_link(format!("/proc/{process}/exe")).ok();
        // Another program has the number by now. A run of a program that was built anew in between still counts as one.
        program.is_none_or(|program| {
            program.file_name().is_none() || file_stem(&program) != own.as_deref().map_or("", file_stem)
        })
    })
}

/// A program's file name without what says that it was replaced.
fn file_stem(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).map_or("", |name| name.trim_end_matches(" (deleted)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_dead_runs_left_is_theirs() {
        let (own, nobody) = (std::process::id(), u32::MAX);
        assert!(!is_orphan(&format!("{}{own}-1", network::PREFIX)), "this process may still use it");
        assert!(is_orphan(&format!("{}{nobody}-hub", network::PREFIX)));
        assert!(is_orphan(&format!("{}1-3", network::PREFIX)), "process 1 is no run");
        assert!(!is_orphan("somebody-elses-4294967295"));
    }
}
