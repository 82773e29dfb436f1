//! A store that a restore fills.

use std::path::PathBuf;

use super::directory::Directory;
use super::{DiskStorage, Opened};
use crate::storage::{Identity, StorageError};

/// A new store whose directory every start refuses until [`finish`](Restoring::finish). A crash before leaves a
/// directory that is neither empty nor usable.
pub struct Restoring {
    pub storage: DiskStorage,
    pub incarnation: u64,
    dir: PathBuf,
    identity: Identity,
}

impl Restoring {
    /// Creates a store in an empty or missing directory.
    ///
    /// # Errors
    ///
    /// [`StorageError::NotEmpty`], and the errors of [`DiskStorage::open`].
    pub fn begin(dir: PathBuf, identity: Identity) -> Result<Restoring, StorageError> {
        let directory = Directory::begin_restore(&dir)?;
        let Opened { storage, incarnation, .. } = DiskStorage::open_claimed(directory, identity.clone())?;
        Ok(Restoring { storage, incarnation, dir, identity })
    }

    /// Closes the store, opens it again for `check`, and then permits starts.
    ///
    /// # Errors
    ///
    /// The failure of the store, or the error of `check`. The directory then stays refused.
    pub fn finish<E: From<StorageError>>(self, check: impl FnOnce(&DiskStorage) -> Result<(), E>) -> Result<(), E> {
        let Restoring { storage, dir, identity, .. } = self;
        storage.close();
        if let Some(failure) = storage.handle.shared.failure.borrow().clone() {
            return Err(failure.into());
        }
        let reopened = DiskStorage::open_claimed(Directory::claim(&dir)?, identity)?.storage;
        let checked = check(&reopened);
        reopened.close();
        checked?;
        Ok(Directory::claim(&dir)?.end_restore()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Storage;

    fn identity() -> Identity {
        Identity { cluster: "test".to_owned(), node: 1 }
    }

    #[test]
    fn half_restored_directory_is_refused_until_it_is_emptied() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path().join("1");
        for is_filled in [false, true] {
            let restoring = Restoring::begin(dir.clone(), identity()).expect("empty");
            if is_filled {
                let position = crate::storage::Position { term: 5, index: 7 };
                restoring.storage.purge(position, Box::new(|result| result.expect("durable")));
            }
            restoring.storage.close();
            let refused = DiskStorage::open(&dir, identity()).err().expect("half restored");
            assert_eq!(refused, StorageError::HalfRestored { dir: dir.clone() });
            let again = Restoring::begin(dir.clone(), identity()).err().expect("not empty");
            assert_eq!(again, StorageError::NotEmpty { dir: dir.clone() });
            std::fs::remove_dir_all(&dir).expect("removed");
        }
        let failed = Restoring::begin(dir.clone(), identity()).expect("empty").finish(|_| Err(StorageError::Closed));
        assert_eq!(failed, Err(StorageError::Closed));
        assert!(DiskStorage::open(&dir, identity()).is_err(), "the check failed");
    }

    #[test]
    fn new_file_system_is_an_empty_directory() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("lost+found")).expect("created");
        let dir = folder.path().to_owned();
        let restoring = Restoring::begin(dir.clone(), identity()).expect("a new file system is accepted");
        restoring.finish(|_| Ok::<_, StorageError>(())).expect("finished");
        DiskStorage::open(&dir, identity()).expect("it opens").close();

        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("lost")).expect("created");
        let refused = Restoring::begin(folder.path().to_owned(), identity()).err();
        assert_eq!(refused, Some(StorageError::NotEmpty { dir: folder.path().to_owned() }));
    }

    #[test]
    fn finished_restore_opens_and_keeps_its_incarnation() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path().join("1");
        std::fs::create_dir(&dir).expect("created");
        let restoring = Restoring::begin(dir.clone(), identity()).expect("an empty directory is accepted");
        let incarnation = restoring.incarnation;
        restoring.finish(|_| Ok::<_, StorageError>(())).expect("finished");
        let opened = DiskStorage::open_or_create(&dir, identity()).expect("it opens");
        assert_eq!((opened.is_new, opened.incarnation), (false, incarnation));
        opened.storage.close();
        assert!(matches!(Restoring::begin(dir, identity()), Err(StorageError::NotEmpty { .. })));
    }
}
