//! Writes the history of a run to a file, one episode at a time.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use anyhow::{Context, Result};
use tenure::api::GrantCause;

use super::history::Operation;
use super::history_file::{HistoryWriter, Transition};
use super::log::Seen;

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
        log: impl Iterator<Item = &'a Seen>,
    ) -> std::io::Result<()> {
        self.0.write(operations, log.map(transition))
    }
}

pub fn transition(seen: &Seen) -> Transition<'_> {
    let event = &seen.event;
    let cause = event.cause.map(GrantCause::as_str);
    Transition {
        event: event.event.as_str(),
        cause,
        index: event.index,
        part: event.part,
        name: &event.name,
        holder: &event.holder,
        token: event.token,
        at: seen.at,
    }
}
