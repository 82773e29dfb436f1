//! The folder of scheduled backups.
//!
//! A file is named `CLUSTER-TOKEN-TIME.backup`, with the position as a token of 20 digits. So the order of the names is
//! the order of the positions. Other files are left alone.

use std::fs;
use std::io;
use std::io::ErrorKind::NotFound;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use crate::config::BackupSchedule;
use crate::storage::Position;
use crate::token::FencingToken;

const SUFFIX: &str = ".backup";
const TOKEN_DIGITS: usize = 20;
const TIME: &str = "YYYYMMDDThhmmssZ";
/// A scheduled backup leaves this many bytes free on the disk of the node. A node with a full disk stops.
const RESERVE: u64 = 256 << 20;
/// How far the clock of another node may be ahead of this one.
const CLOCK_TOLERANCE_MS: u64 = 60_000;
/// A temporary file of this age belongs to no running backup.
const ABANDONED_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// The backups of one cluster in a folder.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    dir: PathBuf,
    cluster: String,
    keep: usize,
    /// The free bytes of the file system of a directory.
    free: fn(&Path) -> io::Result<u64>,
}

impl Folder {
    pub fn new(schedule: &BackupSchedule, cluster: &str) -> Folder {
        Folder { dir: schedule.dir.clone(), cluster: cluster.to_owned(), keep: schedule.keep, free: free_bytes }
    }

    #[cfg(all(test, feature = "testing"))]
    pub fn with_free(self, free: fn(&Path) -> io::Result<u64>) -> Folder {
        Folder { free, ..self }
    }

    pub fn create(&self) -> io::Result<()> {
        fs::create_dir_all(&self.dir)
    }

    /// The file of a backup at this position and wall-clock time.
    pub fn file(&self, position: Position, wall_ms: u64) -> PathBuf {
        let token = FencingToken { term: position.term, index: position.index };
        let time = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(wall_ms)).to_string();
        let time = time.replace(['-', ':'], "");
        self.dir.join(format!("{}-{}-{time}{SUFFIX}", self.cluster, token.padded()))
    }

    /// The wall-clock time of the newest backup, in milliseconds. A file with a later time than now says nothing about
    /// its age: a clock was wrong.
    pub fn newest_ms(&self, now_ms: u64) -> io::Result<Option<u64>> {
        let times = self.backups()?.into_iter().filter_map(|name| self.time_ms(&name));
        Ok(times.filter(|time| *time <= now_ms + CLOCK_TOLERANCE_MS).max())
    }

    /// Whether the folder and `data` are on the same file system.
    pub fn is_on_the_disk_of(&self, data: &Path) -> io::Result<bool> {
        Ok(fs::metadata(&self.dir)?.dev() == fs::metadata(data)?.dev() || are_in_one_btrfs(&self.dir, data)?)
    }

    /// Fails if the file system of the folder has less free space than the reserve.
    pub fn has_space(&self) -> io::Result<()> {
        enough((self.free)(&self.dir)?)
    }

    /// Removes the oldest backups above the number to keep, and abandoned temporary files. A file that cannot be removed
    /// does not keep the others. Returns the first error at the end.
    ///
    /// It counts and removes only backups that are not newer than `written`. Newer ones are of another cluster with the
    /// same name, for example the lost one, whose backups are still needed.
    pub fn prune(&self, written: &Path) -> io::Result<()> {
        let written = written.file_name().unwrap_or_default().to_string_lossy();
        let mut backups = self.backups()?;
        backups.retain(|name| **name <= *written);
        backups.sort();
        let excess = backups.len().saturating_sub(self.keep);
        let mut removed: Vec<io::Result<()>> =
            backups[..excess].iter().map(|name| fs::remove_file(self.dir.join(name))).collect();
        for item in fs::read_dir(&self.dir)? {
            let item = item?;
            let name = item.file_name().to_string_lossy().into_owned();
            if self.is_temporary(&name) {
                removed.push(remove_if_abandoned(&item.path()));
            }
        }
        // Another process may prune the same folder.
        removed.into_iter().find(|removed| removed.as_ref().is_err_and(|why| why.kind() != NotFound)).unwrap_or(Ok(()))
    }

    /// The names of all backups of this cluster.
    fn backups(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for item in fs::read_dir(&self.dir)? {
            let name = item?.file_name().to_string_lossy().into_owned();
            if self.time_ms(&name).is_some() {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// The time in the name of a backup of this cluster; `None` for any other name.
    fn time_ms(&self, name: &str) -> Option<u64> {
        let rest = name.strip_prefix(&self.cluster)?.strip_prefix('-')?.strip_suffix(SUFFIX)?;
        let (token, time) = rest.split_once('-')?;
        let is_token = token.len() == TOKEN_DIGITS && token.bytes().all(|byte| byte.is_ascii_digit());
        if !is_token || time.len() != TIME.len() || !time.is_ascii() {
            return None;
        }
        let (date, clock) = (&time[..8], &time[9..15]);
        let text =
            format!("{}-{}-{}T{}:{}:{}Z", &date[..4], &date[4..6], &date[6..], &clock[..2], &clock[2..4], &clock[4..]);
        let since = humantime::parse_rfc3339(&text).ok()?.duration_since(UNIX_EPOCH).ok()?;
        (text.replace(['-', ':'], "") == time).then_some(since.as_millis() as u64)
    }

    /// Whether this is the temporary name of a backup of this cluster: see [`NewFile`](super::NewFile).
    fn is_temporary(&self, name: &str) -> bool {
        let backup = name.strip_suffix(".partial").and_then(|rest| rest.rsplit_once('.'));
        backup.is_some_and(|(backup, _)| self.time_ms(backup).is_some())
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

/// Whether both directories are in subvolumes of one Btrfs file system. Each subvolume has a device number of its own. Two
/// such file systems of the same size count as one.
#[cfg(target_os = "linux")]
fn are_in_one_btrfs(one: &Path, other: &Path) -> io::Result<bool> {
    const BTRFS: i128 = 0x9123_683e;
    let [one, other] = [rustix::fs::statfs(one)?, rustix::fs::statfs(other)?];
    // The type of the field depends on the machine, and can be signed.
    let is_btrfs = [one.f_type, other.f_type].into_iter().all(|kind| i128::from(kind) & 0xffff_ffff == BTRFS);
    Ok(is_btrfs && one.f_blocks == other.f_blocks)
}

#[cfg(not(target_os = "linux"))]
fn are_in_one_btrfs(_one: &Path, _other: &Path) -> io::Result<bool> {
    Ok(false)
}

fn free_bytes(dir: &Path) -> io::Result<u64> {
    let found = rustix::fs::statvfs(dir)?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

fn enough(free: u64) -> io::Result<()> {
    if free >= RESERVE {
        return Ok(());
    }
    let why = format!(
        "only {} MiB are free on the disk of the node, and a backup leaves {} MiB: keep fewer backups, or keep them on \
         another disk",
        free >> 20,
        RESERVE >> 20
    );
    Err(io::Error::new(io::ErrorKind::StorageFull, why))
}

fn remove_if_abandoned(file: &Path) -> io::Result<()> {
    let age = fs::metadata(file)?.modified()?.elapsed().unwrap_or_default();
    if age > ABANDONED_AFTER { fs::remove_file(file) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT_MS: u64 = 1_767_225_600_000;

    #[test]
    fn prune_keeps_the_newest_and_foreign_files() {
        let dir = tempfile::tempdir().expect("a folder");
        let schedule = BackupSchedule { dir: dir.path().join("backups"), every_ms: 1_000, keep: 2 };
        let folder = Folder::new(&schedule, "a.b-c");
        folder.create().expect("created");
        assert_eq!(folder.newest_ms(AT_MS).expect("listed"), None);
        for index in [9, 10, 11] {
            let file = folder.file(Position { term: 2, index }, AT_MS + index * 1_000);
            fs::write(&file, "").expect("written");
        }
        let names = [
            "notes.txt",
            "other-00000562949953421323-20260101T000011Z.backup",
            "a.b-c-1-20260101T000011Z.backup",
            "a.b-c-00000562949953421320-20260101X000009Z.backup",
            "a.b-c-00000562949953421320-20260101T000009Q.backup",
        ];
        names.iter().for_each(|name| fs::write(folder.dir().join(name), "").expect("written"));
        for (now_ms, newest) in [(AT_MS + 12_000, 11_000), (AT_MS + 11_000 - CLOCK_TOLERANCE_MS, 11_000)] {
            assert_eq!(folder.newest_ms(now_ms).expect("listed"), Some(AT_MS + newest), "at {now_ms}");
        }
        assert_eq!(folder.newest_ms(AT_MS + 10_999 - CLOCK_TOLERANCE_MS).expect("listed"), Some(AT_MS + 10_000));
        folder.prune(&folder.file(Position { term: 2, index: 11 }, AT_MS + 11_000)).expect("pruned");
        let mut kept = folder.backups().expect("listed");
        kept.sort();
        assert_eq!(
            kept,
            [
                "a.b-c-00000562949953421322-20260101T000010Z.backup",
                "a.b-c-00000562949953421323-20260101T000011Z.backup"
            ]
        );
        assert!(names.iter().all(|name| folder.dir().join(name).exists()), "other files stay");
    }

    #[test]
    fn backup_leaves_space_on_the_disk_of_the_node() {
        assert!(enough(RESERVE).is_ok());
        let full = enough(RESERVE - 1).expect_err("the reserve is smaller");
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        assert!(full.to_string().contains("only 255 MiB are free"), "{full}");
    }

    /// A cluster that was started again without a restore, with the name and the folder of the earlier one.
    #[test]
    fn written_backup_stays_beside_those_of_an_earlier_cluster() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = Folder::new(&BackupSchedule { dir: dir.path().into(), every_ms: 1_000, keep: 2 }, "a");
        let file = |term, second: u64| folder.file(Position { term, index: 9 }, AT_MS + second * 1_000);
        let all = [file(9, 1), file(9, 2), file(1, 3), file(1, 4), file(1, 5)];
        for (count, written) in all.iter().enumerate() {
            fs::write(written, "").expect("written");
            folder.prune(written).expect("pruned");
            let kept = all.each_ref().map(|file| file.exists());
            let expected = [0, 1, 2, 3, 4].map(|number| number <= count && (count < 4 || number != 2));
            assert_eq!(kept, expected, "after backup {count}");
        }
    }

    #[test]
    fn backup_that_cannot_be_removed_does_not_keep_the_others() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = Folder::new(&BackupSchedule { dir: dir.path().into(), every_ms: 1_000, keep: 1 }, "a");
        let file = |index| folder.file(Position { term: 2, index }, AT_MS);
        fs::create_dir(file(9)).expect("created");
        for index in [10, 11, 12] {
            fs::write(file(index), "").expect("written");
        }
        std::os::unix::fs::symlink("nowhere", dir.path().join("foreign")).expect("created");
        let error = folder.prune(&file(12)).expect_err("a folder is no file");
        assert_ne!(error.kind(), NotFound, "{error}");
        assert_eq!([9, 10, 11, 12].map(|index| file(index).exists()), [true, false, false, true]);
    }

    /// One is of the user, and one of a cluster whose name begins with the name of this one.
    #[test]
    fn old_temporary_files_of_others_stay() {
        let dir = tempfile::tempdir().expect("a folder");
        let schedule =
            |cluster| Folder::new(&BackupSchedule { dir: dir.path().into(), every_ms: 1_000, keep: 1 }, cluster);
        let (folder, other) = (schedule("a"), schedule("a-b"));
        let position = Position { term: 2, index: 9 };
        let of_other = format!("{}.01234567.partial", other.file(position, AT_MS).display());
        let files = [dir.path().join("a-export.partial"), of_other.into()];
        for path in &files {
            let modified = std::time::SystemTime::now() - 25 * Duration::from_secs(3_600);
            fs::File::create(path).and_then(|file| file.set_modified(modified)).expect("writable");
        }
        folder.prune(&folder.file(position, AT_MS)).expect("pruned");
        assert_eq!(files.each_ref().map(|file| file.exists()), [true, true]);
        other.prune(&other.file(position, AT_MS)).expect("pruned");
        assert_eq!(files.map(|file| file.exists()), [true, false], "control: it is old");
    }

    #[test]
    fn temporary_file_is_abandoned_after_a_day() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = Folder::new(&BackupSchedule { dir: dir.path().into(), every_ms: 1_000, keep: 1 }, "a");
        let (now, hour) = (std::time::SystemTime::now(), Duration::from_secs(3_600));
        let files = [now - 25 * hour, now - 23 * hour, now + 25 * hour].map(|modified| {
            let age = modified.elapsed().unwrap_or_default().as_secs();
            let path = dir.path().join(format!("a-{:020}-20260101T000009Z.backup.{age:08x}.partial", 9));
            fs::File::create(&path).and_then(|file| file.set_modified(modified)).expect("writable");
            path
        });
        folder.prune(&folder.file(Position { term: 2, index: 9 }, AT_MS)).expect("pruned");
        assert_eq!(files.map(|file| file.exists()), [false, true, true]);
    }
}
