//! How long the promises were that this node gave in its last life.
//!
//! A follower that hears from a leader elects nobody else for one leadership lease, and forgets that when it
//! restarts. It keeps still for that long: for the length that it had promised, which a changed configuration may
//! have made shorter since.

use std::io;
use std::time::Duration;

use crate::storage::Files;

const FILE: &str = "PROMISE";
const TEMPORARY: &str = "PROMISE.new";

/// Durably notes the length of the promises of the life that begins, and tells that of the longest one that may still
/// be in force: the last life's or the new one's.
pub fn exchange(files: &dyn Files, now: Duration) -> io::Result<Duration> {
    let longest = read(files)?.map_or(now, |last| last.max(now));
    // Until the last life's promises are over, a crash must not lose sight of them.
    write(files, longest)?;
    Ok(longest)
}

/// Notes that only promises of this length can be in force: those of the last life are over.
pub(in crate::node) fn renew(files: &dyn Files, now: Duration) -> io::Result<()> {
    if read(files)? == Some(now) { Ok(()) } else { write(files, now) }
}

fn read(files: &dyn Files) -> io::Result<Option<Duration>> {
    let Some(text) = files.read(FILE)? else { return Ok(None) };
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, format!("{FILE} holds {text:?}: {error}"));
    text.trim().parse().map(|ms| Some(Duration::from_millis(ms))).map_err(invalid)
}

fn write(files: &dyn Files, promise: Duration) -> io::Result<()> {
    files.write(TEMPORARY, &format!("{}\n", promise.as_millis()))?;
    files.sync(TEMPORARY)?;
    files.rename(TEMPORARY, FILE)?;
    files.sync_names()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::DirectoryFiles;

    #[test]
    fn the_longest_promise_that_may_be_in_force_counts() {
        let dir = tempfile::tempdir().expect("a folder");
        let files = DirectoryFiles(dir.path().to_path_buf());
        let (short, long) = (Duration::from_millis(300), Duration::from_secs(4));
        assert_eq!(exchange(&files, long).expect("written"), long, "the first life");
        assert_eq!(exchange(&files, short).expect("written"), long, "a shorter one after it");
        assert_eq!(exchange(&files, short).expect("written"), long, "and a crash before it was over");
        renew(&files, short).expect("written");
        assert_eq!(exchange(&files, short).expect("written"), short);
        files.write(FILE, "soon").expect("written");
        assert!(exchange(&files, short).unwrap_err().to_string().contains("soon"));
    }
}
