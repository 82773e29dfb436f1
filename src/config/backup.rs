//! `[backup]`: scheduled backups.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::reader::within;
use crate::types::ceil_ms;

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

/// The schedule of the backups that the leader writes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupSchedule {
    /// The folder of the files. Each node can have its own, or all nodes share one.
    pub dir: PathBuf,
    /// The time between two backups, in milliseconds.
    pub every_ms: u64,
    /// The number of files to keep.
    pub keep: usize,
}

impl BackupSchedule {
    /// A backup in the folder `dir` after each time `every`, of which the newest `keep` files stay. The start of the
    /// node checks the values.
    pub fn new(dir: impl Into<PathBuf>, every: Duration, keep: usize) -> BackupSchedule {
        BackupSchedule { dir: dir.into(), every_ms: ceil_ms(every), keep }
    }
}

/// `[backup]`. Without `dir`, no backups are written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct BackupSection {
    dir: String,
    #[serde(deserialize_with = "within::<_, _, 1_000, { 30 * DAY_MS }>")]
    every_ms: u64,
    #[serde(deserialize_with = "within::<_, _, 1, 10_000>")]
    keep: usize,
}

impl Default for BackupSection {
    fn default() -> BackupSection {
        BackupSection { dir: String::new(), every_ms: 60 * 60 * 1_000, keep: 24 }
    }
}

impl BackupSection {
    pub fn new(schedule: &BackupSchedule) -> BackupSection {
        let BackupSchedule { dir, every_ms, keep } = schedule;
        BackupSection { dir: dir.display().to_string(), every_ms: *every_ms, keep: *keep }
    }

    pub fn schedule(self, folder: &Path) -> Option<BackupSchedule> {
        let BackupSection { dir, every_ms, keep } = self;
        (!dir.is_empty()).then(|| BackupSchedule { dir: folder.join(dir), every_ms, keep })
    }
}
