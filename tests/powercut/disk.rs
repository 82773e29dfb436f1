//! A model of the disk after a power cut.
//!
//! Synced data is on the disk. Of unsynced data the disk may hold all, none, the first part, or any sectors, because a
//! device writes its cache in any order. The new size of a file may be on the disk without the data, or the data
//! without the size.
//!
//! A change of a name (create, rename, remove) is durable only after a sync of its directory. A sync of a new file also
//! makes its first name durable, as on ext4, XFS and btrfs.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use crate::recorder::{Event, FileId};

/// The unit in bytes that a device writes atomically.
const SECTOR: usize = 512;
/// The unit in bytes that the kernel writes back.
const PAGE: usize = 4096;

/// The syncs that the disk model honors. A control ignores some to check that the tests find the loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HonoredSyncs {
    All,
    /// Every `fdatasync` is ignored.
    NoDataSync,
    /// Every fourth `fdatasync` is ignored.
    MostDataSyncs,
    /// Every `fsync` of a file is ignored.
    NoFileSync,
    /// Syncs of directories are ignored.
    NoDirSync,
}

/// The files and directories after a cut.
#[derive(Clone, Debug, Default)]
pub struct Image {
    pub dirs: Vec<PathBuf>,
    pub files: BTreeMap<PathBuf, (FileId, Vec<u8>)>,
}

/// A disk in use, with durable and cached changes.
pub struct Disk {
    honored: HonoredSyncs,
    names: BTreeMap<PathBuf, Inode>,
    unsynced_names: Vec<NameChange>,
    files: HashMap<FileId, File>,
    data_syncs: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inode {
    Dir,
    File(FileId),
}

/// One change of names in one directory.
#[derive(Clone, Debug)]
struct NameChange {
    dir: PathBuf,
    remove: Option<PathBuf>,
    add: Option<(PathBuf, Option<Inode>)>,
}

#[derive(Clone, Debug, Default)]
struct File {
    synced: Vec<u8>,
    unsynced: Vec<Change>,
}

#[derive(Clone, Debug)]
enum Change {
    Write { offset: usize, bytes: std::sync::Arc<[u8]> },
    Truncate(usize),
}

/// The part of the unsynced changes that a cut leaves.
#[derive(Clone, Copy, Debug)]
enum Survival {
    Nothing,
    Everything,
    First,
    Some,
    /// Random pieces of this size in bytes.
    Pieces(usize),
}

impl Image {
    /// The files that `is_kept` accepts, and all directories.
    pub fn only(&self, is_kept: impl Fn(&Path) -> bool) -> Image {
        let kept = self.files.iter().filter(|(path, _)| is_kept(path));
        Image { dirs: self.dirs.clone(), files: kept.map(|(path, file)| (path.clone(), file.clone())).collect() }
    }

    /// Writes the files below `root`.
    pub fn write_to(&self, root: &Path) {
        self.dirs.iter().for_each(|dir| fs::create_dir_all(root.join(dir)).unwrap());
        self.files.iter().for_each(|(path, (_, bytes))| fs::write(root.join(path), bytes).unwrap());
    }

    pub fn file_ids(&self) -> impl Iterator<Item = (PathBuf, FileId)> {
        self.files.iter().map(|(path, (file, _))| (path.clone(), *file))
    }
}

impl Disk {
    pub fn new(image: &Image, honored: HonoredSyncs) -> Disk {
        let dirs = image.dirs.iter().map(|dir| (dir.clone(), Inode::Dir));
        let names = dirs.chain(image.file_ids().map(|(path, file)| (path, Inode::File(file)))).collect();
        let files = image.files.values();
        let files = files.map(|(file, bytes)| (*file, File { synced: bytes.clone(), unsynced: Vec::new() })).collect();
        Disk { honored, names, unsynced_names: Vec::new(), files, data_syncs: 0 }
    }

    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::MakeDir(path) => self.rename(None, Some((path, Some(Inode::Dir)))),
            Event::Create { path, file } => {
                self.files.insert(*file, File::default());
                self.rename(None, Some((path, Some(Inode::File(*file)))));
            }
            Event::Rename { from, to } => self.rename(Some(from), Some((to, None))),
            Event::Unlink(path) => self.rename(Some(path), None),
            Event::Write { file, offset, bytes } => {
                self.file(*file).unsynced.push(Change::Write { offset: *offset as usize, bytes: bytes.clone() });
            }
            Event::Truncate { file, len } => self.file(*file).unsynced.push(Change::Truncate(*len as usize)),
            Event::SyncFile { file, data_only } => {
                self.data_syncs += usize::from(*data_only);
                let ignored = match self.honored {
                    HonoredSyncs::NoDataSync => *data_only,
                    HonoredSyncs::NoFileSync => !*data_only,
                    HonoredSyncs::MostDataSyncs => *data_only && self.data_syncs.is_multiple_of(4),
                    HonoredSyncs::All | HonoredSyncs::NoDirSync => false,
                };
                if !ignored {
                    self.file(*file).sync();
                    self.sync_names(|change| change.creates(*file));
                }
            }
            Event::SyncDir(dir) => self.sync_dir(dir),
            Event::Submitted | Event::Marker | Event::Acknowledged(_) => {}
        }
    }

    /// The files as the next process finds them after a kill: the kernel has all changes.
    pub fn cached(&self) -> Image {
        let mut names = self.names.clone();
        self.unsynced_names.iter().for_each(|change| change.apply(&mut names));
        let mut image = Image::default();
        for (path, inode) in names {
            match inode {
                Inode::Dir => image.dirs.push(path),
                Inode::File(file) => {
                    let mut bytes = self.files[&file].synced.clone();
                    self.files[&file].unsynced.iter().for_each(|change| change.apply(&mut bytes));
                    image.files.insert(path, (file, bytes));
                }
            }
        }
        image
    }

    /// Cuts the power.
    pub fn cut(&self, rng: &mut StdRng) -> Image {
        let mut names = self.names.clone();
        let kept = Survival::any(rng);
        let first = rng.random_range(0..=self.unsynced_names.len());
        for (n, change) in self.unsynced_names.iter().enumerate() {
            let is_kept = match kept {
                Survival::Nothing => false,
                Survival::Everything => true,
                Survival::First => n < first,
                Survival::Some | Survival::Pieces(_) => rng.random(),
            };
            if is_kept {
                change.apply(&mut names);
            }
        }
        let mut image = Image::default();
        for (path, inode) in &names {
            // A file is lost with its directory.
            let is_reachable = path.ancestors().skip(1).all(|dir| dir == Path::new("") || names.contains_key(dir));
            match inode {
                Inode::Dir if is_reachable => image.dirs.push(path.clone()),
                Inode::File(file) if is_reachable => {
                    drop(image.files.insert(path.clone(), (*file, self.files[file].cut(rng))));
                }
                _ => {}
            }
        }
        image
    }

    fn file(&mut self, file: FileId) -> &mut File {
        self.files.get_mut(&file).expect("a create event precedes the use of a file")
    }

    fn rename(&mut self, remove: Option<&PathBuf>, add: Option<(&PathBuf, Option<Inode>)>) {
        let path = remove.or(add.map(|(path, _)| path)).expect("the change removes or adds a name");
        let dir = path.parent().expect("no event renames the root").to_path_buf();
        let add = add.map(|(path, inode)| (path.clone(), inode));
        self.unsynced_names.push(NameChange { dir, remove: remove.cloned(), add });
    }

    fn sync_dir(&mut self, dir: &Path) {
        if self.honored == HonoredSyncs::NoDirSync {
            return;
        }
        self.sync_names(|change| change.dir == dir);
    }

    fn sync_names(&mut self, is_synced: impl Fn(&NameChange) -> bool) {
        let (now, later) = std::mem::take(&mut self.unsynced_names).into_iter().partition(is_synced);
        self.unsynced_names = later;
        let now: Vec<NameChange> = now;
        now.iter().for_each(|change| change.apply(&mut self.names));
    }
}

impl NameChange {
    fn creates(&self, file: FileId) -> bool {
        matches!(&self.add, Some((_, Some(inode))) if *inode == Inode::File(file))
    }

    fn apply(&self, names: &mut BTreeMap<PathBuf, Inode>) {
        let removed = self.remove.as_ref().and_then(|path| names.remove(path));
        if let Some((path, inode)) = &self.add
            && let Some(inode) = inode.or(removed)
        {
            names.insert(path.clone(), inode);
            if let Some(from) = &self.remove {
                let below: Vec<PathBuf> = names.keys().filter(|name| name.starts_with(from)).cloned().collect();
                for name in below {
                    let inode = names.remove(&name).expect("the names were just listed");
                    names.insert(path.join(name.strip_prefix(from).expect("it starts with it")), inode);
                }
            }
        }
    }
}

impl File {
    fn sync(&mut self) {
        for change in std::mem::take(&mut self.unsynced) {
            change.apply(&mut self.synced);
        }
    }

    fn cut(&self, rng: &mut StdRng) -> Vec<u8> {
        let mut bytes = self.synced.clone();
        let survival = Survival::any(rng);
        let first = rng.random_range(0..=self.unsynced.len());
        for (n, change) in self.unsynced.iter().enumerate() {
            match survival {
                Survival::Nothing => {}
                Survival::Everything => change.apply(&mut bytes),
                Survival::First if n < first => change.apply(&mut bytes),
                Survival::First if n == first => change.apply_pieces(&mut bytes, SECTOR, rng),
                Survival::First => {}
                Survival::Some if rng.random() => change.apply(&mut bytes),
                Survival::Some => {}
                Survival::Pieces(size) => change.apply_pieces(&mut bytes, size, rng),
            }
        }
        // The device has the data, but not the new size.
        if bytes.len() > self.synced.len() && rng.random_ratio(1, 3) {
            bytes.truncate(self.synced.len());
        }
        bytes
    }
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Change::Write { offset, bytes: written } => put(bytes, *offset, written),
            Change::Truncate(len) => bytes.resize(*len, 0),
        }
    }

    /// Applies a random half of the pieces. In a file that grew, the others read as zeros.
    fn apply_pieces(&self, bytes: &mut Vec<u8>, size: usize, rng: &mut StdRng) {
        let Change::Write { offset, bytes: written } = self else {
            if rng.random() {
                self.apply(bytes);
            }
            return;
        };
        let mut start = 0;
        while start < written.len() {
            // Align the pieces with the device, not with the start of the write.
            let end = written.len().min(start + size - (offset + start) % size);
            if rng.random() {
                put(bytes, offset + start, &written[start..end]);
            }
            start = end;
        }
    }
}

impl Survival {
    fn any(rng: &mut StdRng) -> Survival {
        use Survival::*;
        *[Nothing, Everything, First, First, Some, Pieces(SECTOR), Pieces(PAGE)]
            .choose(rng)
            .expect("the array is not empty")
    }
}

fn put(bytes: &mut Vec<u8>, offset: usize, written: &[u8]) {
    let end = offset + written.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[offset..end].copy_from_slice(written);
}
