//! Which of the planted bugs is active. scripts/mutants puts this file into its scratch copy of the product.
#![allow(dead_code)]

use std::sync::LazyLock;

static ACTIVE: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("TENURE_MUTANT").ok());

/// Whether the bug of this name is the one that the environment asks for.
pub(crate) fn is_active(name: &str) -> bool {
    ACTIVE.as_deref() == Some(name)
}
