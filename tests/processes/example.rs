//! Starts the programs of `examples/`.

use std::path::PathBuf;
use std::process::Command;

/// A command for an example. `cargo test` and `cargo nextest run` build the examples next to the tests.
pub fn example(name: &str) -> Command {
    let mut path: PathBuf = std::env::current_exe().expect("the system knows the path of this program");
    path.pop();
    path.pop();
    path.push("examples");
    path.push(name);
    assert!(path.is_file(), "{} is not built; run `cargo build --all-features --examples`", path.display());
    Command::new(path)
}
