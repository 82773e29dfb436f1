//! Each command has an outcome.

use tenure::lease::{Batch, Outcome};

/// Applied entries.
pub fn check(batch: &Batch, outcomes: &[Outcome]) -> Result<(), String> {
    if batch.commands.len() == outcomes.len() {
        return Ok(());
    }
    Err(format!("{} outcomes of {:?}", outcomes.len(), batch.commands))
}
