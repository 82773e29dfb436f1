//! The length of the vote leases that this node gave before its restart, stored in the file `PROMISE`.
//!
//! A follower that hears from a leader promises to vote for no other node for one leadership lease. The vote lease is only
//! in memory, so a restarted node waits until it is over. The length of the wait is stored, because a changed
//! configuration may have shortened the leadership lease.

use std::io;
use std::time::Duration;

use crate::storage::Files;

pub const FILE: &str = "PROMISE";
const TEMPORARY: &str = "PROMISE.new";

/// Durably records the vote lease length `now`. Returns the longest vote lease that may still be in force.
pub fn exchange(files: &dyn Files, now: Duration) -> io::Result<Duration> {
    let longest = read(files)?.map_or(now, |last| last.max(now));
    // After a crash at this point the next start must still wait for the longer vote lease.
    write(files, longest)?;
    Ok(longest)
}

/// Records that only vote leases of this length can be in force, because all earlier ones are over.
pub(in crate::node) fn renew(files: &dyn Files, now: Duration) -> io::Result<()> {
    if read(files)? == Some(now) { Ok(()) } else { write(files, now) }
}

fn read(files: &dyn Files) -> io::Result<Option<Duration>> {
    let Some(text) = files.read(FILE)? else { return Ok(None) };
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, format!("{FILE} holds {text:?}: {error}"));
    text.trim().parse().map(|ms| Some(Duration::from_millis(ms))).map_err(invalid)
}

fn write(files: &dyn Files, vote_lease: Duration) -> io::Result<()> {
    files.write(TEMPORARY, &format!("{}\n", vote_lease.as_millis()))?;
    files.sync(TEMPORARY)?;
    files.rename(TEMPORARY, FILE)?;
    files.sync_names()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::DirectoryFiles;

    #[test]
    fn exchange_returns_the_longest_vote_lease_in_force() {
        let dir = tempfile::tempdir().expect("a folder");
        let files = DirectoryFiles(dir.path().to_path_buf());
        let (short, long) = (Duration::from_millis(300), Duration::from_secs(4));
        assert_eq!(exchange(&files, long).expect("written"), long, "first start");
        assert_eq!(exchange(&files, short).expect("written"), long, "restart with a shorter lease");
        assert_eq!(exchange(&files, short).expect("written"), long, "crash before the long vote lease was over");
        renew(&files, short).expect("written");
        assert_eq!(exchange(&files, short).expect("written"), short);
        files.write(FILE, "soon").expect("written");
        assert!(exchange(&files, short).unwrap_err().to_string().contains("soon"));
    }
}
