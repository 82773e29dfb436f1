//! The disk of a node: an ext4 file system in an image file. It can be filled, broken, and cut off from power.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::mount::{UnmountFlags, unmount};

/// Several times the size of a log between two snapshots. The file is sparse.
const SIZE: u64 = 256 << 20;
/// `EXT4_IOC_SHUTDOWN`: afterwards every access fails, and no write reaches the device.
const SHUTDOWN: libc::c_ulong = 0x8004_587d;
/// Skips the write of the journal, as a power cut does.
static NO_LOG_FLUSH: u32 = 2;
/// The kernel releases an image shortly after its last mount.
const DETACHED: Duration = Duration::from_secs(5);

/// A mounted disk. Dropping it unmounts it, even while processes use it.
pub struct Disk {
    image: PathBuf,
    path: PathBuf,
    is_mounted: bool,
}

impl Disk {
    pub fn new(folder: &Path, name: &str) -> Result<Disk> {
        let (image, path) = (folder.join(format!("{name}.ext4")), folder.join(name));
        fs::create_dir(&path)?;
        File::create(&image)?.set_len(SIZE)?;
        run(Command::new("mkfs.ext4").arg("-q").arg(&image))?;
        let mut disk = Disk { image, path, is_mounted: false };
        disk.mount()?;
        Ok(disk)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Mounts the disk unless it is mounted. After a power cut, the kernel first replays the journal.
    pub fn mount(&mut self) -> Result<()> {
        if !self.is_mounted {
            run(Command::new("mount").args(["-o", "loop"]).arg(&self.image).arg(&self.path))?;
            self.is_mounted = true;
        }
        Ok(())
    }

    /// Unmounts the disk. No process may use it. Data that was only in memory is lost.
    pub fn unmount(&mut self) -> Result<()> {
        if self.is_mounted {
            unmount(&self.path, UnmountFlags::empty()).with_context(|| format!("umount {}", self.path.display()))?;
            self.is_mounted = false;
            self.detached()?;
        }
        Ok(())
    }

    /// Waits until the kernel releases the image. A mount namespace that another program created meanwhile holds a copy
    /// of the mount. The file system then stays active, and the next mount would not replay a lost state.
    fn detached(&self) -> Result<()> {
        let began = Instant::now();
        while is_attached(&self.image)? {
            ensure!(
                began.elapsed() < DETACHED,
                "{} is still mounted in another mount namespace: end the program that created it, or run \
                 scripts/faults in a separate one (unshare -m)",
                self.image.display()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Unmounts the disk and removes its files. No process may use it.
    pub fn remove(mut self) -> Result<()> {
        self.unmount()?;
        fs::remove_dir(&self.path)?;
        Ok(fs::remove_file(&self.image)?)
    }

    /// Makes every later access fail. Unsynced data never reaches the device.
    #[expect(unsafe_code, reason = "an ioctl that no safe crate has")]
    pub fn cut_power(&self) -> Result<()> {
        ensure!(self.is_mounted, "{} is not mounted, so its power cannot be cut", self.path.display());
        let root = File::open(&self.path)?;
        // SAFETY: the request reads one u32, which outlives the call.
        let failed = unsafe { libc::ioctl(root.as_raw_fd(), SHUTDOWN, &raw const NO_LOG_FLUSH) };
        ensure!(failed == 0, "cut {}: {}", self.path.display(), std::io::Error::last_os_error());
        Ok(())
    }

    /// Fills the disk up to the last byte.
    pub fn fill(&self) -> Result<()> {
        let mut file = File::create(self.ballast())?;
        for size in [1 << 20, 4096, 1] {
            let block = vec![0; size];
            while file.write_all(&block).is_ok() {}
        }
        Ok(())
    }

    pub fn is_full(&self) -> bool {
        self.ballast().exists()
    }

    /// Removes the file that [`fill`](Disk::fill) wrote.
    pub fn free(&self) -> Result<()> {
        fs::remove_file(self.ballast()).context("cannot remove the ballast file")
    }

    fn ballast(&self) -> PathBuf {
        self.path.join("ballast")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_mounted {
            // A failed unmount leaves nothing else to do.
            let _ = unmount(&self.path, UnmountFlags::DETACH);
        }
    }
}

/// Whether a loop device uses this image.
fn is_attached(image: &Path) -> Result<bool> {
    for device in fs::read_dir("/sys/block")? {
        let file = device?.path().join("loop/backing_file");
        if fs::read_to_string(file).is_ok_and(|name| Path::new(name.trim_end()) == image) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
