//! The small files of a node beside its store, in memory.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::storage::Files;

/// Files in memory, with a synced and an unsynced part. Clones share the files.
#[derive(Clone, Debug, Default)]
pub struct MemoryFiles(Arc<Mutex<FileTable>>);

#[derive(Debug, Default)]
struct FileTable {
    live: BTreeMap<String, FileContents>,
    /// The files that survive a power cut.
    synced: BTreeMap<String, FileContents>,
}

#[derive(Clone, Debug, Default)]
struct FileContents {
    text: String,
    is_synced: bool,
}

impl MemoryFiles {
    /// The files after a power cut, either with all writes or only with the synced ones. A file with a synced name and
    /// unsynced contents is empty.
    pub fn crash(&self, keeps_unsynced: bool) -> MemoryFiles {
        let mut state = self.0.lock();
        let mut left = std::mem::take(if keeps_unsynced { &mut state.live } else { &mut state.synced });
        for contents in left.values_mut() {
            if !contents.is_synced && !keeps_unsynced {
                contents.text.clear();
            }
            contents.is_synced = true;
        }
        MemoryFiles(Arc::new(Mutex::new(FileTable { live: left.clone(), synced: left })))
    }
}

impl Files for MemoryFiles {
    fn read(&self, name: &str) -> io::Result<Option<String>> {
        Ok(self.0.lock().live.get(name).map(|contents| contents.text.clone()))
    }

    fn write(&self, name: &str, text: &str) -> io::Result<()> {
        let contents = FileContents { text: text.to_owned(), is_synced: false };
        self.0.lock().live.insert(name.to_owned(), contents);
        Ok(())
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        let mut state = self.0.lock();
        let contents = state.live.get_mut(name).ok_or(io::ErrorKind::NotFound)?;
        contents.is_synced = true;
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.0.lock();
        let contents = state.live.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.live.insert(to.to_owned(), contents);
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut state = self.0.lock();
        state.synced = state.live.clone();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> MemoryFiles {
        let files = MemoryFiles::default();
        files.write("new", "text").expect("written");
        files
    }

    fn after_power_cut(files: &MemoryFiles) -> Option<String> {
        files.crash(false).read("old").expect("read")
    }

    #[test]
    fn power_cut_removes_unsynced_names() {
        let files = files();
        files.sync("new").expect("synced");
        files.rename("new", "old").expect("renamed");
        assert_eq!(after_power_cut(&files), None);
    }

    #[test]
    fn power_cut_empties_unsynced_contents() {
        let files = files();
        files.rename("new", "old").expect("renamed");
        files.sync_names().expect("synced");
        assert_eq!(after_power_cut(&files).as_deref(), Some(""));
    }

    #[test]
    fn power_cut_keeps_synced_files() {
        let files = files();
        files.sync("new").expect("synced");
        files.rename("new", "old").expect("renamed");
        files.sync_names().expect("synced");
        assert_eq!(after_power_cut(&files).as_deref(), Some("text"));
    }
}
