//! The rules of the lease machine as transcripts: one file per rule, with commands and their recorded output.
//!
//! Each command is one log entry; `begin` and `end` put several commands into one entry. After a change of the rules,
//! `UPDATE_GOLDENFILES=1 cargo test --test golden` records the output again. Review the diff.
#![cfg(feature = "server")]

mod print;
mod script;

use std::path::Path;

use script::Transcript;

#[test]
fn transcripts_match_their_recorded_output() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let entries = std::fs::read_dir(&directory).expect("tests/golden exists");
    let mut scripts: Vec<_> = entries.map(|entry| entry.expect("a readable directory entry").path()).collect();
    scripts.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    scripts.sort();
    assert!(scripts.len() >= 16, "{} transcripts in {}: expected at least 16", scripts.len(), directory.display());
    for path in scripts {
        println!("{}", path.display());
        goldenscript::run(&mut Transcript::new(), &path).expect("the output is as recorded");
    }
}
