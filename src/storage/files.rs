//! Small files beside the store, which a node reads before it opens the store.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;

/// The files of one directory. A write is durable only after both syncs: of the file and of the names.
pub trait Files: Send + Sync + 'static {
    /// The contents of a file, or `None` if the file does not exist.
    fn read(&self, name: &str) -> io::Result<Option<String>>;

    /// Replaces the contents of a file.
    fn write(&self, name: &str, text: &str) -> io::Result<()>;

    /// Makes the contents of a file durable.
    fn sync(&self, name: &str) -> io::Result<()>;

    /// Renames a file and replaces the file `to`.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Makes the names of all files durable.
    fn sync_names(&self) -> io::Result<()>;
}

/// Files in a directory of the operating system.
#[derive(Clone, Debug)]
pub struct DirectoryFiles(pub PathBuf);

impl Files for DirectoryFiles {
    fn read(&self, name: &str) -> io::Result<Option<String>> {
        match fs::read_to_string(self.0.join(name)) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn write(&self, name: &str, text: &str) -> io::Result<()> {
        File::create(self.0.join(name))?.write_all(text.as_bytes())
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        File::options().write(true).open(self.0.join(name))?.sync_all()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.0.join(from), self.0.join(to))
    }

    fn sync_names(&self) -> io::Result<()> {
        File::open(&self.0)?.sync_all()
    }
}
