//! Writes the history of a run to a file, one episode at a time.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use anyhow::{Context, Result};

use super::judge::Transition;
use super::judge::file::HistoryWriter;
use super::judge::history::Operation;

pub struct Export(HistoryWriter<BufWriter<File>>);

impl Export {
    pub fn create(path: &Path, seed: u64) -> Result<Export> {
        let file = File::create(path).with_context(|| path.display().to_string())?;
        Ok(Export(HistoryWriter::new(BufWriter::new(file), format!("faults, seed {seed}"))))
    }

    /// Writes the leases of an episode.
    pub fn add<'a>(
        &mut self,
        operations: impl Iterator<Item = &'a Operation>,
        log: impl Iterator<Item = &'a Transition>,
    ) -> std::io::Result<()> {
        self.0.write(operations, log)
    }
}
