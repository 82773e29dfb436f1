//! Selects the active planted bug. `scripts/mutants` adds this file to its scratch copy of the sources.
#![allow(dead_code)]

use std::sync::LazyLock;

static ACTIVE: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("TENURE_MUTANT").ok());

/// Whether `TENURE_MUTANT` names this bug.
pub(crate) fn is_active(name: &str) -> bool {
    ACTIVE.as_deref() == Some(name)
}
