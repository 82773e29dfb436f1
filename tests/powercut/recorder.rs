//! Records every file operation under a directory, by standing in for the C library's calls.
//!
//! The linker takes a symbol from the executable before it looks into a library, so what the standard library and sled
//! call ends here. Each call is recorded and done for real, under one lock, so that the record is in the order in which
//! things happened. Only syncs are not done: nobody is going to cut the power of this machine, and without them thousands
//! of cuts fit into minutes.
//!
//! Calls can also be made to fail, the way a full or broken disk fails them.

// Standing in for C functions cannot be done without.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use libc::{c_char, c_int, c_void, mode_t, off64_t, size_t, ssize_t};

/// A file, whatever its name is at the moment.
pub type FileId = u32;

/// One thing that happened. Paths are relative to the watched directory.
#[derive(Clone, Debug)]
pub enum Event {
    MakeDir(PathBuf),
    Create {
        path: PathBuf,
        file: FileId,
    },
    Rename {
        from: PathBuf,
        to: PathBuf,
    },
    Unlink(PathBuf),
    Write {
        file: FileId,
        offset: u64,
        bytes: Arc<[u8]>,
    },
    Truncate {
        file: FileId,
        len: u64,
    },
    /// `fsync`, or `fdatasync` when `data_only`.
    SyncFile {
        file: FileId,
        data_only: bool,
    },
    SyncDir(PathBuf),
    /// A test's own note: the next step is handed to the store.
    Submitted,
    /// A test's own note: a committed position is told to the store.
    Noted,
    /// A test's own note: the store said that this step is durable.
    Acknowledged(usize),
}

/// How the disk is to fail from now on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Bytes that can still be written before the disk is full.
    pub space: Option<u64>,
    /// `fdatasync` reports an I/O error.
    pub broken_sync: bool,
    /// Nothing can be opened for writing, or created.
    pub read_only: bool,
}

/// A watched directory. The watch ends when it is dropped.
pub struct Watch {
    id: usize,
}

#[derive(Default)]
struct Registry {
    next_id: usize,
    next_file: FileId,
    watched: HashMap<usize, Watched>,
    open: HashMap<c_int, Open>,
}

struct Watched {
    root: PathBuf,
    names: HashMap<PathBuf, FileId>,
    events: Vec<Event>,
    faults: Faults,
    data_syncs: usize,
}

/// A file descriptor of a watched file or directory.
struct Open {
    watch: usize,
    path: PathBuf,
    /// `None` for a directory.
    file: Option<FileId>,
}

static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Watch {
    /// Watches a directory. `files` are those that are in it already.
    pub fn new(root: &Path, files: impl IntoIterator<Item = (PathBuf, FileId)>) -> Watch {
        let names: HashMap<PathBuf, FileId> = files.into_iter().collect();
        let mut registry = registry();
        registry.next_file = names.values().map(|file| file + 1).max().unwrap_or(0).max(registry.next_file);
        let id = registry.next_id;
        registry.next_id += 1;
        let root = root.to_path_buf();
        let watched = Watched { root, names, events: Vec::new(), faults: Faults::default(), data_syncs: 0 };
        registry.watched.insert(id, watched);
        Watch { id }
    }

    pub fn note(&self, event: Event) {
        self.with(|watched| watched.events.push(event));
    }

    pub fn set_faults(&self, faults: Faults) {
        self.with(|watched| watched.faults = faults);
    }

    /// How often `fdatasync` was called.
    pub fn data_syncs(&self) -> usize {
        self.with(|watched| watched.data_syncs)
    }

    /// What has happened so far.
    pub fn events(&self) -> Vec<Event> {
        self.with(|watched| watched.events.clone())
    }

    fn with<T>(&self, look: impl FnOnce(&mut Watched) -> T) -> T {
        look(registry().watched.get_mut(&self.id).expect("watched until dropped"))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut registry = registry();
        registry.watched.remove(&self.id);
        registry.open.retain(|_, open| open.watch != self.id);
    }
}

impl Registry {
    /// The watch and the path in it, if this is a path that is watched.
    fn find(&mut self, path: *const c_char) -> Option<(usize, PathBuf)> {
        // SAFETY: the caller of the C function passes a terminated string.
        let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()));
        let (id, watched) = self.watched.iter().find(|(_, watched)| path.starts_with(&watched.root))?;
        Some((*id, path.strip_prefix(&watched.root).expect("it starts with it").to_path_buf()))
    }

    fn of(&mut self, fd: c_int) -> Option<(&mut Watched, &Open)> {
        let open = self.open.get(&fd)?;
        Some((self.watched.get_mut(&open.watch)?, open))
    }

    fn opened(&mut self, fd: c_int, watch: usize, path: PathBuf, flags: c_int) {
        let next_file = &mut self.next_file;
        let watched = self.watched.get_mut(&watch).expect("found a moment ago");
        let is_dir = watched.root.join(&path).is_dir();
        let file = (!is_dir).then(|| match watched.names.get(&path) {
            Some(file) => {
                if flags & libc::O_TRUNC != 0 {
                    watched.events.push(Event::Truncate { file: *file, len: 0 });
                }
                *file
            }
            None => {
                let file = *next_file;
                *next_file += 1;
                watched.names.insert(path.clone(), file);
                watched.events.push(Event::Create { path: path.clone(), file });
                file
            }
        });
        self.open.insert(fd, Open { watch, path, file });
    }

    /// Records a write, or says with which error it has to fail.
    fn write(&mut self, fd: c_int, offset: u64, bytes: &[u8]) -> Result<(), c_int> {
        let Some((watched, open)) = self.of(fd) else { return Ok(()) };
        if let Some(space) = &mut watched.faults.space {
            *space = space.checked_sub(bytes.len() as u64).ok_or(libc::ENOSPC)?;
        }
        let file = open.file.expect("directories are not written");
        watched.events.push(Event::Write { file, offset, bytes: bytes.into() });
        Ok(())
    }

    /// Records a sync, and says what to return. `None`: not ours.
    fn sync(&mut self, fd: c_int, data_only: bool) -> Option<c_int> {
        let (watched, open) = self.of(fd)?;
        watched.data_syncs += usize::from(data_only);
        if watched.faults.broken_sync && data_only {
            return Some(fail(libc::EIO));
        }
        watched.events.push(match open.file {
            Some(file) => Event::SyncFile { file, data_only },
            None => Event::SyncDir(open.path.clone()),
        });
        Some(0)
    }
}

fn fail(errno: c_int) -> c_int {
    // SAFETY: errno is this thread's own.
    unsafe { *libc::__errno_location() = errno };
    -1
}

// SAFETY, for all of them: they have the C library's signatures and pass their arguments to the kernel as they came.
// `open` is variadic in C; on every platform that this test runs on its third argument arrives like any other.

#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    let mut registry = registry();
    let found = registry.find(path);
    if let Some((watch, _)) = &found
        && registry.watched[watch].faults.read_only
        && flags & (libc::O_ACCMODE | libc::O_CREAT) != libc::O_RDONLY
    {
        return fail(libc::EROFS);
    }
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags, mode) } as c_int;
    match found {
        Some((watch, path)) if fd >= 0 => registry.opened(fd, watch, path, flags),
        _ => drop(registry.open.remove(&fd)),
    }
    fd
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    unsafe { open64(path, flags, mode) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    // Before the kernel may give the number to somebody else.
    registry().open.remove(&fd);
    unsafe { libc::syscall(libc::SYS_close, fd) as c_int }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite64(fd: c_int, bytes: *const c_void, count: size_t, offset: off64_t) -> ssize_t {
    let mut registry = registry();
    let slice = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), count) };
    if let Err(errno) = registry.write(fd, offset as u64, slice) {
        return fail(errno) as ssize_t;
    }
    let written = unsafe { libc::syscall(libc::SYS_pwrite64, fd, bytes, count, offset) } as ssize_t;
    assert!(written == count as ssize_t || registry.of(fd).is_none(), "a short write of {written}/{count}");
    written
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite(fd: c_int, bytes: *const c_void, count: size_t, offset: off64_t) -> ssize_t {
    unsafe { pwrite64(fd, bytes, count, offset) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, bytes: *const c_void, count: size_t) -> ssize_t {
    if fd <= libc::STDERR_FILENO {
        return unsafe { libc::syscall(libc::SYS_write, fd, bytes, count) as ssize_t };
    }
    let mut registry = registry();
    if registry.of(fd).is_some() {
        let offset = unsafe { libc::lseek64(fd, 0, libc::SEEK_CUR) };
        let slice = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), count) };
        if let Err(errno) = registry.write(fd, offset as u64, slice) {
            return fail(errno) as ssize_t;
        }
    } else {
        // Not ours, and it may block (a pipe).
        drop(registry);
    }
    unsafe { libc::syscall(libc::SYS_write, fd, bytes, count) as ssize_t }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fsync(fd: c_int) -> c_int {
    let recorded = registry().sync(fd, false);
    recorded.unwrap_or_else(|| unsafe { libc::syscall(libc::SYS_fsync, fd) as c_int })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdatasync(fd: c_int) -> c_int {
    let recorded = registry().sync(fd, true);
    recorded.unwrap_or_else(|| unsafe { libc::syscall(libc::SYS_fdatasync, fd) as c_int })
}

/// Hands pages to the device, which may keep them in its cache, and no metadata: it guarantees nothing, so nothing is
/// recorded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sync_file_range(fd: c_int, offset: off64_t, count: off64_t, flags: libc::c_uint) -> c_int {
    if registry().of(fd).is_some() {
        return 0;
    }
    unsafe { libc::syscall(libc::SYS_sync_file_range, fd, offset, count, flags) as c_int }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ftruncate64(fd: c_int, len: off64_t) -> c_int {
    let mut registry = registry();
    if let Some((watched, open)) = registry.of(fd) {
        let file = open.file.expect("directories are not truncated");
        watched.events.push(Event::Truncate { file, len: len as u64 });
    }
    unsafe { libc::syscall(libc::SYS_ftruncate, fd, len) as c_int }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mkdir(path: *const c_char, mode: mode_t) -> c_int {
    let mut registry = registry();
    let made = unsafe { libc::syscall(libc::SYS_mkdirat, libc::AT_FDCWD, path, mode) } as c_int;
    if let Some((watch, path)) = registry.find(path)
        && made == 0
    {
        registry.watched.get_mut(&watch).expect("found").events.push(Event::MakeDir(path));
    }
    made
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    let mut registry = registry();
    let at = libc::AT_FDCWD;
    let renamed = unsafe { libc::syscall(libc::SYS_renameat2, at, from, at, to, 0) } as c_int;
    if let (Some((watch, from)), Some((_, to)), 0) = (registry.find(from), registry.find(to), renamed) {
        let watched = registry.watched.get_mut(&watch).expect("found");
        if let Some(file) = watched.names.remove(&from) {
            watched.names.insert(to.clone(), file);
        }
        watched.events.push(Event::Rename { from, to });
    }
    renamed
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn unlink(path: *const c_char) -> c_int {
    let mut registry = registry();
    let unlinked = unsafe { libc::syscall(libc::SYS_unlinkat, libc::AT_FDCWD, path, 0) } as c_int;
    if let Some((watch, path)) = registry.find(path)
        && unlinked == 0
    {
        let watched = registry.watched.get_mut(&watch).expect("found");
        watched.names.remove(&path);
        watched.events.push(Event::Unlink(path));
    }
    unlinked
}
