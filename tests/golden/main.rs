//! Transcripts: commands and their recorded output, one file per rule.
//!
//! | directory | subject | runner |
//! |---|---|---|
//! | `lease` | the lease machine: each command is one log entry; `begin` and `end` put several into one | [`script`] |
//! | `hold` | the state of a lease at its holder | `src/client/hold/transcripts.rs` |
//! | `queue` | the admission of commands at the leader | `src/node/request/propose/transcripts.rs` |
//! | `forward` | requests through a node that does not lead | [`forward`] |
//!
//! After a change of the rules, `UPDATE_GOLDENFILES=1 cargo test --all-features --lib --test golden` records the output
//! again. Review the diff.
#![cfg(feature = "server")]

#[cfg(feature = "testing")]
mod forward;
mod print;
mod script;
mod transcripts;

use std::path::Path;

use script::Transcript;

#[test]
fn transcripts_match_their_recorded_output() {
    transcripts::run_all("lease", 16, Transcript::new);
}

#[cfg(feature = "testing")]
#[test]
fn forward_transcripts_match_their_recorded_output() {
    transcripts::run_all("forward", 4, forward::Forwarding::new);
}

#[test]
fn each_transcript_is_in_a_directory() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    assert!(transcripts::scripts(&root).is_empty(), "no runner reads the transcripts in {}", root.display());
}
