//! Small files beside the store: what a node must know before it opens anything else.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;

/// The files of one directory. Nothing of a write is durable before both syncs.
pub trait Files: Send + Sync + 'static {
    /// The contents of a file, if there is one.
    fn read(&self, name: &str) -> io::Result<Option<String>>;

    /// Replaces the contents of a file.
    fn write(&self, name: &str, text: &str) -> io::Result<()>;

    /// Makes the contents of a file durable.
    fn sync(&self, name: &str) -> io::Result<()>;

    /// Gives a file another name, and removes the file that had it.
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
