//! When the machine itself stood still: a virtual one stops for a moment when its host is busy, and so does its disk.
//!
//! It is watched by threads that want next to nothing of it: one for each processor, which only looks at the clock, and
//! one that only syncs a file.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
    watchers: Vec<Watcher>,
}

struct Watcher {
    thread: JoinHandle<()>,
    /// How often it has looked.
    looks: Arc<AtomicU64>,
}

#[derive(Default)]
struct Watch {
    is_over: AtomicBool,
    standstills: Mutex<Vec<Standstill>>,
}

impl Machine {
    /// Watches the processors that this process may use, and the disk of that folder. Returns when each watcher has looked.
    pub fn watch(folder: &Path) -> Machine {
        let watch = Arc::<Watch>::default();
        let spawn = |look: Box<dyn FnMut(&Watch) + Send>| Watcher::spawn(watch.clone(), look);
        // Each keeps to a processor of its own: one may stand still while the others run.
        let mut watchers: Vec<Watcher> = (0..std::thread::available_parallelism().map_or(1, usize::from))
            .map(|place| spawn(Box::new(processor(place))))
            .collect();
        let file = tempfile::tempfile_in(folder).expect("the folder can be written");
        watchers.push(spawn(Box::new(disk(file))));
        let machine = Machine { watch, watchers };
        machine.look();
        machine
    }

    /// All times of at least [`STANDSTILL`] in which it stood still until now, as they ended.
    pub fn standstills(&self) -> Vec<Standstill> {
        self.look();
        self.watch.standstills.lock().expect("plain").clone()
    }

    /// Waits for the present look of each watcher. A watcher notices a standstill only when it runs again.
    fn look(&self) {
        let looks = |watcher: &Watcher| watcher.looks.load(Ordering::SeqCst);
        let before: Vec<u64> = self.watchers.iter().map(looks).collect();
        for (watcher, before) in self.watchers.iter().zip(before) {
            while looks(watcher) == before && !watcher.thread.is_finished() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

impl Watcher {
    fn spawn(watch: Arc<Watch>, mut look: impl FnMut(&Watch) + Send + 'static) -> Watcher {
        let looks = Arc::<AtomicU64>::default();
        let counted = looks.clone();
        let thread = std::thread::spawn(move || {
            while !watch.is_over.load(Ordering::SeqCst) {
                look(&watch);
                counted.fetch_add(1, Ordering::SeqCst);
            }
        });
        Watcher { thread, looks }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.watch.is_over.store(true, Ordering::SeqCst);
        for watcher in self.watchers.drain(..) {
            // One that panicked has said so.
            let _ = watcher.thread.join();
        }
    }
}

impl Watch {
    /// Notes the time since `from` if it is too long.
    fn note(&self, from: Duration) {
        let standstill = Standstill { from, until: SystemClock.elapsed() };
        if standstill.lasted() >= STANDSTILL {
            self.standstills.lock().expect("plain").push(standstill);
        }
    }
}

/// The look of the watcher that keeps to the processor of that place.
fn processor(place: usize) -> impl FnMut(&Watch) {
    let mut is_kept = false;
    move |watch| {
        if !is_kept {
            keep_to(place);
            is_kept = true;
        }
        let from = SystemClock.elapsed() + PAUSE;
        std::thread::sleep(PAUSE);
        watch.note(from);
    }
}

/// The look of the watcher that syncs this file.
fn disk(mut file: File) -> impl FnMut(&Watch) {
    move |watch| {
        std::thread::sleep(PAUSE_OF_DISK);
        let from = SystemClock.elapsed();
        file.write_all(b".").and_then(|()| file.sync_data()).expect("the disk of a test can be written");
        watch.note(from);
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
