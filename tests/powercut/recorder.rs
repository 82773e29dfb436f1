//! Records every file operation under a directory. It interposes on functions of the C library.
//!
//! The linker prefers a symbol of the executable to one of a library. So the calls of the standard library and of sled
//! reach these functions. Each function records the call and passes it to the kernel under one lock, so that the record
//! has the real order. Syncs are recorded but skipped: the cuts are simulated, and skipping makes thousands of cuts
//! fast.
//!
//! A test can also let calls fail, as on a full or broken disk.

// Defining C functions needs unsafe code.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::Duration;

use libc::{c_char, c_int, c_void, mode_t, off64_t, size_t, ssize_t};

/// Identifies a file independent of its name.
pub type FileId = u32;

/// One recorded operation. Paths are relative to the recorded directory.
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
    /// A marker of the test: it passes the next operation to the store.
    Submitted,
    /// A marker of the test, for example that it passes a committed position to the store.
    Marker,
    /// A marker of the test: the store reported that this operation is durable.
    Acknowledged(usize),
}

impl Event {
    pub fn written_bytes(&self) -> usize {
        if let Event::Write { bytes, .. } = self { bytes.len() } else { 0 }
    }
}

/// The failures of the disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// How long the removal of a file takes.
    pub slow_unlink: Option<Duration>,
    /// Bytes that can still be written before the disk is full.
    pub space: Option<u64>,
    /// `fdatasync` reports an I/O error.
    pub broken_sync: bool,
    /// The disk rejects every open for writing and every create.
    pub read_only: bool,
}

/// Records the operations in a directory until it is dropped.
pub struct Recorder {
    id: usize,
}

#[derive(Default)]
struct Registry {
    next_id: usize,
    next_file: FileId,
    dirs: HashMap<usize, RecordedDir>,
    open: HashMap<c_int, OpenFile>,
}

struct RecordedDir {
    root: PathBuf,
    names: HashMap<PathBuf, FileId>,
    events: Vec<Event>,
    faults: Faults,
    data_syncs: usize,
}

/// A file descriptor of a recorded file or directory.
struct OpenFile {
    recorder: usize,
    path: PathBuf,
    /// `None` for a directory.
    file: Option<FileId>,
}

static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Recorder {
    /// Starts to record a directory. `files` are the files that it already holds.
    pub fn new(root: &Path, files: impl IntoIterator<Item = (PathBuf, FileId)>) -> Recorder {
        let names: HashMap<PathBuf, FileId> = files.into_iter().collect();
        let mut registry = registry();
        registry.next_file = names.values().map(|file| file + 1).max().unwrap_or(0).max(registry.next_file);
        let id = registry.next_id;
        registry.next_id += 1;
        let root = root.to_path_buf();
        let dir = RecordedDir { root, names, events: Vec::new(), faults: Faults::default(), data_syncs: 0 };
        registry.dirs.insert(id, dir);
        Recorder { id }
    }

    pub fn push(&self, event: Event) {
        self.with(|dir| dir.events.push(event));
    }

    pub fn set_faults(&self, faults: Faults) {
        self.with(|dir| dir.faults = faults);
    }

    /// The number of `fdatasync` calls.
    pub fn data_syncs(&self) -> usize {
        self.with(|dir| dir.data_syncs)
    }

    /// The events so far.
    pub fn events(&self) -> Vec<Event> {
        self.with(|dir| dir.events.clone())
    }

    fn with<T>(&self, look: impl FnOnce(&mut RecordedDir) -> T) -> T {
        look(registry().dirs.get_mut(&self.id).expect("the registry keeps a recorder until its drop"))
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let mut registry = registry();
        registry.dirs.remove(&self.id);
        registry.open.retain(|_, open| open.recorder != self.id);
    }
}

impl Registry {
    /// The recorder of this path and the path relative to its root.
    fn find(&mut self, path: *const c_char) -> Option<(usize, PathBuf)> {
        // SAFETY: the caller of the C function passes a terminated string.
        let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()));
        let (id, dir) = self.dirs.iter().find(|(_, dir)| path.starts_with(&dir.root))?;
        Some((*id, path.strip_prefix(&dir.root).expect("the path starts with the root").to_path_buf()))
    }

    fn of(&mut self, fd: c_int) -> Option<(&mut RecordedDir, &OpenFile)> {
        let open = self.open.get(&fd)?;
        Some((self.dirs.get_mut(&open.recorder)?, open))
    }

    fn opened(&mut self, fd: c_int, recorder: usize, path: PathBuf, flags: c_int) {
        let next_file = &mut self.next_file;
        let dir = self.dirs.get_mut(&recorder).expect("find returned this id");
        let is_dir = dir.root.join(&path).is_dir();
        let file = (!is_dir).then(|| match dir.names.get(&path) {
            Some(file) => {
                if flags & libc::O_TRUNC != 0 {
                    dir.events.push(Event::Truncate { file: *file, len: 0 });
                }
                *file
            }
            None => {
                let file = *next_file;
                *next_file += 1;
                dir.names.insert(path.clone(), file);
                dir.events.push(Event::Create { path: path.clone(), file });
                file
            }
        });
        self.open.insert(fd, OpenFile { recorder, path, file });
    }

    /// Records a write, or returns the errno of an injected failure.
    fn write(&mut self, fd: c_int, offset: u64, bytes: &[u8]) -> Result<(), c_int> {
        let Some((dir, open)) = self.of(fd) else { return Ok(()) };
        if let Some(space) = &mut dir.faults.space {
            *space = space.checked_sub(bytes.len() as u64).ok_or(libc::ENOSPC)?;
        }
        let file = open.file.expect("write is never called on a directory");
        dir.events.push(Event::Write { file, offset, bytes: bytes.into() });
        Ok(())
    }

    /// Records a sync and returns its result. `None` if no recorder has this descriptor.
    fn sync(&mut self, fd: c_int, data_only: bool) -> Option<c_int> {
        let (dir, open) = self.of(fd)?;
        dir.data_syncs += usize::from(data_only);
        if dir.faults.broken_sync && data_only {
            return Some(fail(libc::EIO));
        }
        dir.events.push(match open.file {
            Some(file) => Event::SyncFile { file, data_only },
            None => Event::SyncDir(open.path.clone()),
        });
        Some(0)
    }
}

fn fail(errno: c_int) -> c_int {
    // SAFETY: errno is thread-local.
    unsafe { *libc::__errno_location() = errno };
    -1
}

// SAFETY, for all functions below: they have the signatures of the C library and pass their arguments to the kernel
// unchanged. `open` is variadic in C; on every platform of this test its third argument is passed like a fixed one.

#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    let mut registry = registry();
    let found = registry.find(path);
    if let Some((recorder, _)) = &found
        && registry.dirs[recorder].faults.read_only
        && flags & (libc::O_ACCMODE | libc::O_CREAT) != libc::O_RDONLY
    {
        return fail(libc::EROFS);
    }
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags, mode) } as c_int;
    match found {
        Some((recorder, path)) if fd >= 0 => registry.opened(fd, recorder, path, flags),
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
    // Remove the entry before the close: after it, the kernel may reuse the descriptor in another thread.
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
    assert!(written == count as ssize_t || registry.of(fd).is_none(), "a short write of {written} of {count} bytes");
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
        // The write may block (a pipe), so release the lock first.
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

/// `sync_file_range` passes pages to the device without its cache flush and without metadata. It makes nothing durable,
/// so it is not recorded.
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
    if let Some((dir, open)) = registry.of(fd) {
        let file = open.file.expect("ftruncate is never called on a directory");
        dir.events.push(Event::Truncate { file, len: len as u64 });
    }
    unsafe { libc::syscall(libc::SYS_ftruncate, fd, len) as c_int }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mkdir(path: *const c_char, mode: mode_t) -> c_int {
    let mut registry = registry();
    let made = unsafe { libc::syscall(libc::SYS_mkdirat, libc::AT_FDCWD, path, mode) } as c_int;
    if let Some((recorder, path)) = registry.find(path)
        && made == 0
    {
        registry.dirs.get_mut(&recorder).expect("find returned this id").events.push(Event::MakeDir(path));
    }
    made
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    let mut registry = registry();
    let at = libc::AT_FDCWD;
    let renamed = unsafe { libc::syscall(libc::SYS_renameat2, at, from, at, to, 0) } as c_int;
    if let (Some((recorder, from)), Some((_, to)), 0) = (registry.find(from), registry.find(to), renamed) {
        let dir = registry.dirs.get_mut(&recorder).expect("find returned this id");
        let moved = |name: PathBuf| match name.strip_prefix(&from) {
            Ok(rest) if rest == Path::new("") => to.clone(),
            Ok(rest) => to.join(rest),
            Err(_) => name,
        };
        dir.names.remove(&to);
        dir.names = std::mem::take(&mut dir.names).into_iter().map(|(name, file)| (moved(name), file)).collect();
        dir.events.push(Event::Rename { from, to });
    }
    renamed
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn unlink(path: *const c_char) -> c_int {
    let slow = {
        let mut registry = registry();
        registry.find(path).and_then(|(recorder, _)| registry.dirs[&recorder].faults.slow_unlink)
    };
    // Without the lock: the test goes on.
    slow.into_iter().for_each(std::thread::sleep);
    let mut registry = registry();
    let unlinked = unsafe { libc::syscall(libc::SYS_unlinkat, libc::AT_FDCWD, path, 0) } as c_int;
    if let Some((recorder, path)) = registry.find(path)
        && unlinked == 0
    {
        let dir = registry.dirs.get_mut(&recorder).expect("find returned this id");
        dir.names.remove(&path);
        dir.events.push(Event::Unlink(path));
    }
    unlinked
}
