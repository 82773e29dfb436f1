//! The programs of `examples/`.

use std::path::PathBuf;
use std::process::Command;

/// The command line of an example, which `cargo test` and `cargo nextest run` build beside the tests.
pub fn example(name: &str) -> Command {
    let mut path: PathBuf = std::env::current_exe().expect("this program runs");
    path.pop();
    path.pop();
    path.push("examples");
    path.push(name);
    assert!(path.is_file(), "{} is not built; run `cargo build --all-features --examples`", path.display());
    Command::new(path)
}
