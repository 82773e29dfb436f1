//! The rules of the lease machine as transcripts: one file a rule, a script with what it answered.
//!
//! Each line is one log entry, unless `begin` and `end` put several commands into one. After a change of the rules,
//! `UPDATE_GOLDENFILES=1 cargo test --test golden` records the answers anew, and the diff is what to review.
#![cfg(feature = "server")]

mod print;
mod script;

use std::path::Path;

use script::Transcript;

#[test]
fn transcripts_match_their_recorded_output() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let entries = std::fs::read_dir(&folder).expect("the folder of this file");
    let mut scripts: Vec<_> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    scripts.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    scripts.sort();
    assert!(scripts.len() >= 16, "only {} transcripts in {}", scripts.len(), folder.display());
    for path in scripts {
        println!("{}", path.display());
        goldenscript::run(&mut Transcript::new(), &path).expect("a script that runs");
    }
}
