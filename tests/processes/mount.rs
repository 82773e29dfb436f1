//! Small file systems for tests, which can be filled and broken.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};
use tempfile::TempDir;

/// A mounted file system. Dropping it unmounts it, even while processes use it.
pub struct Mount {
    path: PathBuf,
    _folder: TempDir,
}

/// `EXT4_IOC_SHUTDOWN`: afterwards every write fails, as on a removed disk.
const SHUTDOWN: libc::c_ulong = 0x8004_587d;
/// Skips the write of the journal.
static NO_LOG_FLUSH: u32 = 2;

impl Mount {
    /// Mounts a file system in memory.
    pub fn tmpfs(mebibytes: u32) -> Result<Mount, rustix::io::Errno> {
        let folder = TempDir::new().expect("a folder");
        let size = std::ffi::CString::new(format!("size={mebibytes}m")).expect("the text contains no zero byte");
        mount("tmpfs", folder.path(), "tmpfs", MountFlags::empty(), Some(size.as_c_str()))?;
        Ok(Mount { path: folder.path().to_owned(), _folder: folder })
    }

    /// Mounts an ext4 file system in an image file.
    pub fn ext4(mebibytes: u64) -> Mount {
        Mount::image(mebibytes, &["mkfs.ext4", "-q"])
    }

    /// Mounts an ext4 file system that keeps half of its blocks for root.
    pub fn half_for_root(mebibytes: u64) -> Mount {
        Mount::image(mebibytes, &["mkfs.ext4", "-q", "-m", "50"])
    }

    /// Mounts a Btrfs file system with a subvolume at the second path. Returns `None` if this machine has no Btrfs.
    pub fn btrfs(mebibytes: u64) -> Option<(Mount, PathBuf)> {
        let systems = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
        let has_tools = ["btrfs", "mkfs.btrfs"].iter().all(|tool| Command::new(tool).arg("--version").output().is_ok());
        if !has_tools || !systems.contains("btrfs") {
            return None;
        }
        let mounted = Mount::image(mebibytes, &["mkfs.btrfs", "-q"]);
        let subvolume = mounted.path.join("subvolume");
        run(Command::new("btrfs").args(["subvolume", "create"]).arg(&subvolume));
        Some((mounted, subvolume))
    }

    /// Mounts an image file that this command has formatted.
    fn image(mebibytes: u64, format: &[&str]) -> Mount {
        let folder = TempDir::new().expect("a folder");
        let (image, path) = (folder.path().join("image"), folder.path().join("disk"));
        std::fs::create_dir(&path).expect("the folder is writable");
        File::create(&image).and_then(|file| file.set_len(mebibytes << 20)).expect("a sparse file");
        run(Command::new(format[0]).args(&format[1..]).arg(&image));
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&path));
        Mount { path, _folder: folder }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Fills the file system up to the last byte.
    pub fn fill(&self) -> Ballast {
        let path = self.path.join("ballast");
        let mut file = File::create(&path).expect("the file system has space");
        for size in [1 << 20, 4096, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
        Ballast(path)
    }

    /// Makes every later access fail.
    #[expect(unsafe_code, reason = "an ioctl that no safe crate has")]
    pub fn break_down(&self) {
        let root = File::open(&self.path).expect("the file system is mounted");
        // SAFETY: the request reads one u32, which outlives the call.
        let failed = unsafe { libc::ioctl(root.as_raw_fd(), SHUTDOWN, &raw const NO_LOG_FLUSH) };
        assert_eq!(failed, 0, "{}", std::io::Error::last_os_error());
    }

    /// Remounts the file system read-only. No process may have a file open for writing.
    pub fn make_read_only(&self) {
        mount_remount(&self.path, MountFlags::RDONLY, "").expect("no process has a file open for writing");
    }

    pub fn make_writable(&self) {
        mount_remount(&self.path, MountFlags::empty(), "").expect("the file system is mounted");
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // The file system may be unmounted already.
        let _ = unmount(&self.path, UnmountFlags::DETACH);
    }
}

/// The file that fills a file system.
pub struct Ballast(PathBuf);

impl Ballast {
    pub fn remove(self) {
        std::fs::remove_file(self.0).expect("the file exists");
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
