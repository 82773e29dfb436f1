//! Detects periods in which the machine stood still. A virtual machine stops for a moment when its host is busy, and so
//! does its disk.
//!
//! Each watcher thread needs almost no resources. One thread per processor reads the clock, and one more thread syncs a
//! file.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tenure::clock::{Clock, SystemClock};

/// A delay of at least this length counts as a standstill. Tests tolerate longer delays than this.
pub const STANDSTILL: Duration = Duration::from_millis(100);
/// The pause of a watcher between two observations.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_OF_DISK: Duration = Duration::from_millis(50);

/// A period in which a processor or the disk made no progress. Times count from the start of the machine, by the system
/// clock.
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

/// Watches the machine until it is dropped.
pub struct Machine {
    watch: Arc<Observations>,
    watchers: Vec<Watcher>,
}

struct Watcher {
    thread: JoinHandle<()>,
    /// The number of observations so far.
    observations: Arc<AtomicU64>,
}

#[derive(Default)]
struct Observations {
    is_over: AtomicBool,
    standstills: Mutex<Vec<Standstill>>,
}

impl Machine {
    /// Watches the processors that this process may use, and the disk of `folder`. Returns after the first observation
    /// of each watcher.
    pub fn watch(folder: &Path) -> Machine {
        let watch = Arc::<Observations>::default();
        let spawn = |observe: Box<dyn FnMut(&Observations) + Send>| Watcher::spawn(watch.clone(), observe);
        // Each thread is pinned to one processor: one processor may stand still while the others run.
        let mut watchers: Vec<Watcher> = (0..std::thread::available_parallelism().map_or(1, usize::from))
            .map(|place| spawn(Box::new(processor(place))))
            .collect();
        let file = tempfile::tempfile_in(folder).expect("the folder is writable");
        watchers.push(spawn(Box::new(disk(file))));
        let machine = Machine { watch, watchers };
        machine.wait_for_observations();
        machine
    }

    /// All standstills of at least [`STANDSTILL`] until now, in the order of their ends.
    pub fn standstills(&self) -> Vec<Standstill> {
        self.wait_for_observations();
        self.watch.standstills.lock().expect("no watcher panics with the lock").clone()
    }

    /// Waits until each watcher finishes its current observation. A watcher notices a standstill only after it runs
    /// again.
    fn wait_for_observations(&self) {
        let observations = |watcher: &Watcher| watcher.observations.load(Ordering::SeqCst);
        let before: Vec<u64> = self.watchers.iter().map(observations).collect();
        for (watcher, before) in self.watchers.iter().zip(before) {
            while observations(watcher) == before && !watcher.thread.is_finished() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

impl Watcher {
    fn spawn(watch: Arc<Observations>, mut observe: impl FnMut(&Observations) + Send + 'static) -> Watcher {
        let observations = Arc::<AtomicU64>::default();
        let counted = observations.clone();
        let thread = std::thread::spawn(move || {
            while !watch.is_over.load(Ordering::SeqCst) {
                observe(&watch);
                counted.fetch_add(1, Ordering::SeqCst);
            }
        });
        Watcher { thread, observations }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.watch.is_over.store(true, Ordering::SeqCst);
        for watcher in self.watchers.drain(..) {
            // A watcher that panicked has already printed its message.
            let _ = watcher.thread.join();
        }
    }
}

impl Observations {
    /// Records the time since `from` if it is a standstill.
    fn note(&self, from: Duration) {
        let standstill = Standstill { from, until: SystemClock.elapsed() };
        if standstill.lasted() >= STANDSTILL {
            self.standstills.lock().expect("plain").push(standstill);
        }
    }
}

/// Observes the processor at this position.
fn processor(place: usize) -> impl FnMut(&Observations) {
    let mut is_pinned = false;
    move |watch| {
        if !is_pinned {
            pin_to(place);
            is_pinned = true;
        }
        let from = SystemClock.elapsed() + PAUSE;
        std::thread::sleep(PAUSE);
        watch.note(from);
    }
}

/// Observes the disk by syncing this file.
fn disk(mut file: File) -> impl FnMut(&Observations) {
    move |watch| {
        std::thread::sleep(PAUSE_OF_DISK);
        let from = SystemClock.elapsed();
        file.write_all(b".").and_then(|()| file.sync_data()).expect("the test can write to its disk");
        watch.note(from);
    }
}

/// Pins this thread to the processor at this position in its affinity mask.
#[cfg(target_os = "linux")]
fn pin_to(place: usize) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    let allowed = sched_getaffinity(None).expect("a thread may ask for itself");
    let Some(cpu) = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).nth(place) else { return };
    let mut one = CpuSet::new();
    one.set(cpu);
    // If the processor was removed meanwhile, the thread stays on the remaining ones.
    let _ = sched_setaffinity(None, &one);
}

/// Other systems do not let a thread choose its processor.
#[cfg(not(target_os = "linux"))]
fn pin_to(_: usize) {}
