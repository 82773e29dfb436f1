//! A file that appears complete or not at all.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rand::RngExt;

use super::BackupError;
use crate::rng::rng;

/// A file under a temporary name. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct NewFile {
    path: PathBuf,
    temporary: PathBuf,
    file: File,
    replaces: bool,
    is_named: bool,
}

impl NewFile {
    /// Creates the file beside its final name. `replaces` permits an existing file with this name.
    pub fn create(path: &Path, replaces: bool) -> Result<NewFile, BackupError> {
        let mut name = path.file_name().map_or_else(OsString::new, OsString::from);
        name.push(format!(".{:08x}.partial", rng().random::<u32>()));
        let temporary = path.with_file_name(name);
        refuse_existing(path, replaces)?;
        let file = File::options().write(true).create_new(true).mode(0o600).open(&temporary);
        let file = file.map_err(|error| BackupError::io("create", &temporary, error))?;
        Ok(NewFile { path: path.to_owned(), temporary, file, replaces, is_named: false })
    }

    /// Where the content is until the file has its name.
    pub fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// Makes the content durable, passes the temporary file to `check`, and gives the file its name.
    pub fn finish<T>(mut self, check: impl FnOnce(&Path) -> Result<T, BackupError>) -> Result<T, BackupError> {
        self.file.sync_all().map_err(|error| BackupError::io("sync", &self.temporary, error))?;
        let checked = check(&self.temporary)?;
        refuse_existing(&self.path, self.replaces)?;
        fs::rename(&self.temporary, &self.path).map_err(|error| BackupError::io("create", &self.path, error))?;
        self.is_named = true;
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let synced = File::open(parent).and_then(|parent| parent.sync_all());
        synced.map_err(|error| BackupError::io("sync", parent, error))?;
        Ok(checked)
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_named {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

fn refuse_existing(path: &Path, replaces: bool) -> Result<(), BackupError> {
    if !replaces && path.symlink_metadata().is_ok() {
        return Err(BackupError::Exists { file: path.to_owned() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A backup has the names and the metadata of all leases.
    #[test]
    fn only_its_owner_can_read_a_backup() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("a.backup");
        let mut file = NewFile::create(&path, false).expect("no such file");
        file.write_all(b"new").expect("writable");
        file.finish(|_| Ok(())).expect("finished");
        let mode = fs::metadata(&path).expect("it exists").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{mode:o}");
    }

    /// A power cut during the first save leaves its temporary file.
    #[test]
    fn interrupted_save_does_not_block_the_next_one() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("a.backup");
        std::mem::forget(NewFile::create(&path, false).expect("no such file"));
        assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 1, "control: the temporary file stays");
        for replaces in [false, true] {
            let file = NewFile::create(&path, replaces).unwrap_or_else(|error| panic!("{error}"));
            file.finish(|_| Ok(())).unwrap_or_else(|error| panic!("{error}"));
        }
    }

    #[test]
    fn file_that_cannot_get_its_name_is_removed() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("a.backup");
        let file = NewFile::create(&path, true).expect("no such file");
        // No file can replace a folder.
        fs::create_dir(&path).expect("writable");
        let failed = file.finish(|_| Ok(()));
        assert!(matches!(&failed, Err(BackupError::Io { .. })), "{failed:?}");
        assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 1, "the temporary file is gone");
    }

    #[test]
    fn file_that_appears_meanwhile_is_replaced_only_if_permitted() {
        for replaces in [false, true] {
            let dir = tempfile::tempdir().expect("a folder");
            let path = dir.path().join("a.backup");
            let mut file = NewFile::create(&path, replaces).expect("no such file");
            file.write_all(b"new").expect("writable");
            fs::write(&path, "other").expect("writable");
            let finished = file.finish(|_| Ok(()));
            let is_refused = matches!(&finished, Err(BackupError::Exists { file }) if *file == path);
            assert_eq!((finished.is_ok(), is_refused), (replaces, !replaces), "{finished:?}");
            let expected = if replaces { "new" } else { "other" };
            assert_eq!(fs::read_to_string(&path).expect("readable"), expected);
            assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 1, "the temporary file is gone");
        }
    }
}
