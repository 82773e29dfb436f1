//! Simulates a suspend of the machine of a node.
//!
//! A signal stops the process. Real time and `CLOCK_BOOTTIME` run on, as in a real suspend. `CLOCK_MONOTONIC` stands
//! still on a suspended machine, so a preloaded library subtracts the time of the stop from it before the process
//! resumes. The node runs the release binary without changes.
//!
//! There is one difference from a real suspend: the kernel accepts and acknowledges packets for the node, and the node
//! reads them after it resumes.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::recorder::now;

/// The same variable as in [`suspended_clock.rs`](../suspended_clock.rs).
const FILE_VARIABLE: &str = "TENURE_FAULTS_SUSPENDED";

/// The library, which cargo builds next to this program.
pub fn library() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    // The test binary of this program is in the same directory.
    Some(program.parent()?.join("libsuspended_clock.so")).filter(|library| library.exists())
}

/// The suspend clock of one node's machine.
pub struct SuspendClock {
    path: PathBuf,
    total: Duration,
    since: Option<Duration>,
}

impl SuspendClock {
    pub fn new(folder: &Path, node: u64) -> SuspendClock {
        SuspendClock { path: folder.join(format!("suspended{node}")), total: Duration::ZERO, since: None }
    }

    /// Resets the clock for a new process. Returns the environment of the process.
    pub fn start(&mut self) -> Result<Vec<(&'static str, String)>> {
        (self.total, self.since) = (Duration::ZERO, None);
        // A process that still runs keeps its mapping of the removed file.
        let _ = fs::remove_file(&self.path);
        fs::write(&self.path, 0_u64.to_ne_bytes())?;
        let library =
            library().context("cannot find libsuspended_clock.so: run cargo build --example suspended_clock")?;
        let before = std::env::var("LD_PRELOAD").map_or(String::new(), |before| format!(" {before}"));
        let preloaded = format!("{}{before}", library.display());
        Ok(vec![("LD_PRELOAD", preloaded), (FILE_VARIABLE, self.path.display().to_string())])
    }

    /// Begins a suspend. The process has stopped.
    pub fn begin(&mut self) {
        self.since = Some(now());
    }

    /// Ends a suspend. The process resumes after this call.
    pub fn end(&mut self) -> Result<()> {
        let Some(since) = self.since.take() else { return Ok(()) };
        self.total += now() - since;
        let file = File::options().write(true).open(&self.path)?;
        Ok(file.write_all_at(&(self.total.as_nanos() as u64).to_ne_bytes(), 0)?)
    }
}
