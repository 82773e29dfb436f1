//! Runs transcripts: commands with their recorded output.

use std::any::Any;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use goldenscript::Runner;

/// With the value 1, the transcripts record their output again. Review the diff.
const UPDATE: &str = "UPDATE_GOLDENFILES";

/// Runs the transcripts in a directory below `tests/golden`, each with a new runner.
///
/// # Panics
///
/// A transcript fails, or its output is not as recorded. The message has all failing transcripts.
pub fn run_all<R: Runner>(directory: &str, at_least: usize, new: impl Fn() -> R) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(directory);
    let scripts = scripts(&directory);
    assert!(scripts.len() >= at_least, "{}: {} transcripts, expected {at_least}", directory.display(), scripts.len());
    let failed: Vec<String> = scripts.iter().filter_map(|path| run(&mut new(), path).err()).collect();
    let (count, all) = (failed.len(), scripts.len());
    assert!(
        failed.is_empty(),
        "{count} of {all} transcripts fail; {UPDATE}=1 records the output again\n{}",
        failed.join("\n")
    );
}

/// The transcripts in a directory, by name.
pub fn scripts(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("the directory exists");
    let mut scripts: Vec<_> = entries.map(|entry| entry.expect("a readable directory entry").path()).collect();
    scripts.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    scripts.sort();
    scripts
}

fn run<R: Runner>(runner: &mut R, path: &Path) -> Result<(), String> {
    let recorded = fs::read_to_string(path).expect("a readable transcript");
    let named = |how: String| format!("{}: {how}", path.display());
    let output = match catch_unwind(AssertUnwindSafe(|| goldenscript::generate(runner, &recorded))) {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(named(error.to_string())),
        Err(panic) => return Err(named(format!("a command panicked: {}", message(&*panic)))),
    };
    if output == recorded {
        return Ok(());
    }
    if std::env::var(UPDATE).is_ok_and(|update| update == "1") {
        fs::write(path, output).expect("a writable transcript");
        return Ok(());
    }
    Err(named(difference(&recorded, &output)))
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// The lines between the first and the last difference.
fn difference(recorded: &str, output: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (recorded.lines().collect(), output.lines().collect());
    let same = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let shorter = old.len().min(new.len()) - same;
    let same_end = old.iter().rev().zip(new.iter().rev()).take(shorter).take_while(|(old, new)| old == new).count();
    let removed = old[same..old.len() - same_end].iter().map(|line| format!("\n- {line}"));
    let added = new[same..new.len() - same_end].iter().map(|line| format!("\n+ {line}"));
    format!("line {}{}", same + 1, removed.chain(added).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_has_the_changed_lines_only() {
        assert_eq!(difference("a\nb\nc\n", "a\nx\ny\nc\n"), "line 2\n- b\n+ x\n+ y");
        assert_eq!(difference("a\n", "a\na\n"), "line 2\n+ a");
        assert_eq!(difference("a\nb\n", "a\n"), "line 2\n- b");
    }
}
