//! A node's disk: an ext4 file system in a file, which can be filled, broken and cut off from its power.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::mount::{UnmountFlags, unmount};

/// Room for a log between two snapshots, several times. The file is sparse.
const SIZE: u64 = 256 << 20;
/// `EXT4_IOC_SHUTDOWN`: from then on every access fails, and nothing more reaches the device.
const SHUTDOWN: libc::c_ulong = 0x8004_587d;
/// ... without writing the journal before, as when the power is gone.
static NO_LOG_FLUSH: u32 = 2;
/// The kernel lets go of an image a moment after its last mount is gone.
const DETACHED: Duration = Duration::from_secs(5);

/// Unmounted when dropped, whoever still uses it.
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

    /// Mounts it if it is not mounted; what the journal of a cut-off one has is done first.
    pub fn mount(&mut self) -> Result<()> {
        if !self.is_mounted {
            run(Command::new("mount").args(["-o", "loop"]).arg(&self.image).arg(&self.path))?;
            self.is_mounted = true;
        }
        Ok(())
    }

    /// No process may use it any more. The data that was only in memory is gone.
    pub fn unmount(&mut self) -> Result<()> {
        if self.is_mounted {
            unmount(&self.path, UnmountFlags::empty()).with_context(|| format!("umount {}", self.path.display()))?;
            self.is_mounted = false;
            self.detached()?;
        }
        Ok(())
    }

    /// Waits until the kernel has let go of the image. A mount namespace that another program made meanwhile has a mount
    /// of its own: the file system lives on in it, and the next mount here would find it as it was.
    fn detached(&self) -> Result<()> {
        let began = Instant::now();
        while is_attached(&self.image)? {
            ensure!(
                began.elapsed() < DETACHED,
                "{} is still mounted in another mount namespace: end the program that made it, or run scripts/faults in one \
                 of its own (unshare -m)",
                self.image.display()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Makes every further access fail, and keeps what was not synced from the device for ever.
    #[expect(unsafe_code, reason = "an ioctl that no safe crate has")]
    pub fn cut(&self) -> Result<()> {
        ensure!(self.is_mounted, "{} is cut off already", self.path.display());
        let root = File::open(&self.path)?;
        // SAFETY: the request reads one u32, which outlives the call.
        let failed = unsafe { libc::ioctl(root.as_raw_fd(), SHUTDOWN, &raw const NO_LOG_FLUSH) };
        ensure!(failed == 0, "cut {}: {}", self.path.display(), std::io::Error::last_os_error());
        Ok(())
    }

    /// Leaves no byte free.
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

    /// Frees what [`fill`](Disk::fill) took.
    pub fn free(&self) -> Result<()> {
        fs::remove_file(self.ballast()).context("the ballast")
    }

    fn ballast(&self) -> PathBuf {
        self.path.join("ballast")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_mounted {
            // Nothing is left to be done about one that cannot be unmounted.
            let _ = unmount(&self.path, UnmountFlags::DETACH);
        }
    }
}

/// Whether a loop device has this file.
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
