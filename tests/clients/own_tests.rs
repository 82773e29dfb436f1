//! Bugs in the Python and the TypeScript client that a test of that client must find.
//!
//! The tests script the answers of the nodes, or the clock. The cases of the suite use real nodes and real time.

mod python;
mod python_leases;
mod typescript;
mod typescript_leases;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use futures_util::future::join_all;
use tempfile::TempDir;
use tokio::sync::Semaphore;

use crate::language::Language;
use crate::planted::plant;

/// A bug of a client.
struct OwnTest {
    language: &'static str,
    bug: &'static str,
    /// A file of the client's folder, and the texts before and after the change.
    file: &'static str,
    before: &'static str,
    after: &'static str,
    /// The file of the test that finds the bug, without its extension, and the name of the test.
    test: (&'static str, &'static str),
}

/// A test that takes longer hangs, in seconds.
const LONGEST_TEST: &str = "120";

fn all() -> impl Iterator<Item = &'static OwnTest> {
    [python::BUGS, python_leases::BUGS, typescript::BUGS, typescript_leases::BUGS].into_iter().flatten()
}

/// The bugs that their tests do not find, and the tests that fail without a bug.
pub async fn missed(languages: &[Language], turns: &Semaphore) -> Vec<String> {
    let mut bugs = Vec::new();
    let mut files: BTreeMap<_, (&Language, &OwnTest, BTreeSet<&str>)> = BTreeMap::new();
    for language in languages {
        for bug in all().filter(|bug| bug.language == language.name) {
            bugs.push((language, bug));
            let of_file = files.entry((language.name, bug.test.0));
            of_file.or_insert_with(|| (language, bug, BTreeSet::new())).2.insert(bug.test.1);
        }
    }
    let failed = join_all(files.into_values().map(|(language, bug, tests)| async move {
        let _turn = turns.acquire().await.expect("nothing closes it");
        let copy = TempDir::new().expect("a folder");
        let language = plant(language, [bug.file, bug.before, bug.before], copy.path());
        let tests: Vec<&str> = tests.into_iter().collect();
        let (passes, output) = run(&language, copy.path(), bug.test.0, &tests).await;
        (!passes).then(|| format!("{}: without a bug, a test of {} fails:\n{output}", bug.language, bug.test.0))
    }));
    let missed = join_all(bugs.into_iter().map(|(language, bug)| async move {
        let _turn = turns.acquire().await.expect("nothing closes it");
        let copy = TempDir::new().expect("a folder");
        let language = plant(language, [bug.file, bug.before, bug.after], copy.path());
        let (_, output) = run(&language, copy.path(), bug.test.0, &[bug.test.1]).await;
        let is_found = output.lines().any(|line| is_failure(line, bug.test.1));
        (!is_found).then(|| format!("{}: {}, but {}:\n{output}", bug.language, bug.bug, bug.test.1))
    }));
    let (failed, missed) = tokio::join!(failed, missed);
    failed.into_iter().chain(missed).flatten().collect()
}

/// Runs tests of one file of the client in this folder. Returns whether they pass, and their output.
async fn run(language: &Language, folder: &Path, file: &str, tests: &[&str]) -> (bool, String) {
    let mut command = Command::new("timeout");
    command.arg(LONGEST_TEST).arg(&language.command[0]).current_dir(folder).envs(language.environment.clone());
    if language.name == "Python" {
        command.args(["-m", "pytest", "--quiet", "--color=no", "-p", "no:cacheprovider"]);
        command.args(tests.iter().map(|test| format!("tests/{file}.py::{test}")));
    } else {
        command.arg("--test-reporter=tap").arg(format!("--test-name-pattern=^({})$", tests.join("|")));
        command.arg(format!("build/test/{file}.test.js"));
    }
    let ended = tokio::task::spawn_blocking(move || command.output()).await.expect("it does not panic");
    let ended = ended.expect("the program timeout exists");
    let output = format!("{}{}", String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    (ended.status.success(), output)
}

/// Whether a line of pytest, or of node in the format TAP, says that the assertions of this test fail.
fn is_failure(line: &str, test: &str) -> bool {
    let of_pytest = line.starts_with("FAILED ") && line.contains(&format!("::{test}"));
    of_pytest || (line.trim_start().starts_with("not ok ") && line.trim_end().ends_with(&format!(" - {test}")))
}
