//! Nodes whose machine is suspended, as far as a process can show it.
//!
//! The process is stopped by a signal. `CLOCK_BOOTTIME` goes on meanwhile, and this is true. On a machine that is suspended
//! `CLOCK_MONOTONIC` stands still, so a library that the node preloads takes the time of the stop off it before the process
//! goes on. The program is the one that ships: it knows nothing of this.
//!
//! One thing differs from a suspended machine: the kernel takes packets for the node and acknowledges them, and the node
//! reads them when it goes on.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::book::now;

/// As [`suspended_clock.rs`](../suspended_clock.rs) reads it.
const FILE_VARIABLE: &str = "TENURE_FAULTS_SUSPENDED";

/// The library, which is built beside this program.
pub fn library() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    // The tests of this program lie beside it, too.
    Some(program.parent()?.join("libsuspended_clock.so")).filter(|library| library.exists())
}

/// The clock of one node's machine.
pub struct Suspends {
    path: PathBuf,
    total: Duration,
    since: Option<Duration>,
}

impl Suspends {
    pub fn new(folder: &Path, node: u64) -> Suspends {
        Suspends { path: folder.join(format!("suspended{node}")), total: Duration::ZERO, since: None }
    }

    /// A new process, whose machine was never suspended. Returns its environment.
    pub fn start(&mut self) -> Result<Vec<(&'static str, String)>> {
        (self.total, self.since) = (Duration::ZERO, None);
        // A process that still runs keeps the file of before.
        let _ = fs::remove_file(&self.path);
        fs::write(&self.path, 0_u64.to_ne_bytes())?;
        let library = library().context("faults of suspends are planned only with the library")?;
        let before = std::env::var("LD_PRELOAD").map_or(String::new(), |before| format!(" {before}"));
        let preloaded = format!("{}{before}", library.display());
        Ok(vec![("LD_PRELOAD", preloaded), (FILE_VARIABLE, self.path.display().to_string())])
    }

    /// The process has stopped.
    pub fn begin(&mut self) {
        self.since = Some(now());
    }

    /// The process goes on after this.
    pub fn end(&mut self) -> Result<()> {
        let Some(since) = self.since.take() else { return Ok(()) };
        self.total += now() - since;
        let file = File::options().write(true).open(&self.path)?;
        Ok(file.write_all_at(&(self.total.as_nanos() as u64).to_ne_bytes(), 0)?)
    }
}
