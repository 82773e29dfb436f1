//! When the machine itself stood still: a virtual one stops for a moment when its host is busy, and so does its disk.
//!
//! It is watched by threads that want next to nothing of it: one for each processor, which only looks at the clock, and
//! one that only syncs a file.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tenure::clock::{Clock, SystemClock};

/// What takes so much longer than it should was kept from running. Tests allow for more than this.
pub const STANDSTILL: Duration = Duration::from_millis(100);
/// How long the watchers pause between two looks.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_OF_DISK: Duration = Duration::from_millis(50);

/// A time in which a processor, or the disk, did nothing. By the system's clock, since the machine started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standstill {
    pub from: Duration,
    pub until: Duration,
}

impl Standstill {
    pub fn lasted(&self) -> Duration {
        self.until.saturating_sub(self.from)
    }
}

/// The machine, watched for as long as this is there.
pub struct Machine {
    watch: Arc<Watch>,
    watchers: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Watch {
    is_over: AtomicBool,
    standstills: Mutex<Vec<Standstill>>,
}

impl Machine {
    /// Watches the processors that this process may use, and the disk of that folder.
    pub fn watch(folder: &Path) -> Machine {
        let watch = Arc::<Watch>::default();
        let mut watchers = Vec::new();
        // Each keeps to a processor of its own: one may stand still while the others run.
        for place in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            let watch = watch.clone();
            watchers.push(std::thread::spawn(move || watch.processor(place)));
        }
        let (disk, mut file) = (watch.clone(), tempfile::tempfile_in(folder).expect("the folder can be written"));
        watchers.push(std::thread::spawn(move || disk.disk(&mut file)));
        Machine { watch, watchers }
    }

    /// All times of at least [`STANDSTILL`] in which it stood still, as they ended.
    pub fn standstills(&self) -> Vec<Standstill> {
        self.watch.standstills.lock().expect("plain").clone()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.watch.is_over.store(true, Ordering::SeqCst);
        for watcher in self.watchers.drain(..) {
            // One that panicked has said so.
            let _ = watcher.join();
        }
    }
}

impl Watch {
    fn processor(&self, place: usize) {
        keep_to(place);
        while !self.is_over.load(Ordering::SeqCst) {
            let from = SystemClock.elapsed() + PAUSE;
            std::thread::sleep(PAUSE);
            self.note(from);
        }
    }

    fn disk(&self, file: &mut File) {
        while !self.is_over.load(Ordering::SeqCst) {
            let from = SystemClock.elapsed();
            file.write_all(b".").and_then(|()| file.sync_data()).expect("the disk of a test can be written");
            self.note(from);
            std::thread::sleep(PAUSE_OF_DISK);
        }
    }

    /// Notes the time since `from` if it is too long.
    fn note(&self, from: Duration) {
        let standstill = Standstill { from, until: SystemClock.elapsed() };
        if standstill.lasted() >= STANDSTILL {
            self.standstills.lock().expect("plain").push(standstill);
        }
    }
}

/// Keeps this thread to one of the processors that it may use, by its place among them.
#[cfg(target_os = "linux")]
fn keep_to(place: usize) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    let allowed = sched_getaffinity(None).expect("a thread may ask for itself");
    let Some(cpu) = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).nth(place) else { return };
    let mut one = CpuSet::new();
    one.set(cpu);
    // One that was taken away meanwhile leaves its watcher to the others.
    let _ = sched_setaffinity(None, &one);
}

/// A thread cannot say where it runs.
#[cfg(not(target_os = "linux"))]
fn keep_to(_: usize) {}
