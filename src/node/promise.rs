//! How long the promises were that this node gave in its last life.
//!
//! A follower that hears from a leader elects nobody else for one leadership lease, and forgets that when it
//! restarts. It keeps still for that long: for the length that it had promised, which a changed configuration may
//! have made shorter since.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

const FILE: &str = "PROMISE";
const TEMPORARY: &str = "PROMISE.new";

/// Durably notes the length of the promises of the life that begins, and tells that of the longest one that may still
/// be in force: the last life's or the new one's.
pub(super) fn exchange(dir: &Path, now: Duration) -> io::Result<Duration> {
    let longest = read(dir)?.map_or(now, |last| last.max(now));
    // Until the last life's promises are over, a crash must not lose sight of them.
    write(dir, longest)?;
    Ok(longest)
}

/// Notes that only promises of this length can be in force: those of the last life are over.
pub(super) fn renew(dir: &Path, now: Duration) -> io::Result<()> {
    if read(dir)? == Some(now) { Ok(()) } else { write(dir, now) }
}

fn read(dir: &Path) -> io::Result<Option<Duration>> {
    let text = match fs::read_to_string(dir.join(FILE)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, format!("{FILE} holds {text:?}: {error}"));
    text.trim().parse().map(|ms| Some(Duration::from_millis(ms))).map_err(invalid)
}

fn write(dir: &Path, promise: Duration) -> io::Result<()> {
    let mut file = File::create(dir.join(TEMPORARY))?;
    writeln!(file, "{}", promise.as_millis())?;
    file.sync_all()?;
    fs::rename(dir.join(TEMPORARY), dir.join(FILE))?;
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_promise_that_may_be_in_force_counts() {
        let dir = tempfile::tempdir().expect("a folder");
        let (short, long) = (Duration::from_millis(300), Duration::from_secs(4));
        assert_eq!(exchange(dir.path(), long).expect("written"), long, "the first life");
        assert_eq!(exchange(dir.path(), short).expect("written"), long, "a shorter one after it");
        assert_eq!(exchange(dir.path(), short).expect("written"), long, "and a crash before it was over");
        renew(dir.path(), short).expect("written");
        assert_eq!(exchange(dir.path(), short).expect("written"), short);
        fs::write(dir.path().join(FILE), "soon").expect("written");
        assert!(exchange(dir.path(), short).unwrap_err().to_string().contains("soon"));
    }
}
