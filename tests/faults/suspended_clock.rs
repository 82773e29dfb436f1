//! The monotonic clock of a machine that is suspended now and then, as a library that a process of Linux preloads.
//!
//! `clock_gettime(CLOCK_MONOTONIC)` stands between a program and the C library, so this reaches `std::time::Instant`, and with
//! it tokio's timers and openraft. It shows the kernel's clock less the time in a file, which the run of faults writes
//! while the process is stopped. All other clocks are the kernel's. `CLOCK_BOOTTIME` counts the stop, as it counts a suspend.
#![expect(unsafe_code, reason = "it stands in for a function of the C library")]

use std::ffi::c_int;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The file, which the run of faults makes: nanoseconds, as eight bytes of this machine's order.
const FILE_VARIABLE: &str = "TENURE_FAULTS_SUSPENDED";
const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// How long the machine has been suspended, in nanoseconds. Without a file it never was.
static SUSPENDED: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();

fn shared() -> Option<&'static AtomicU64> {
    let file = File::open(std::env::var_os(FILE_VARIABLE)?).ok()?;
    let (length, at) = (size_of::<u64>(), std::ptr::null_mut());
    // SAFETY: a new mapping of a file that is at least this long and is never cut.
    let mapped = unsafe { libc::mmap(at, length, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    // SAFETY: a mapping begins at a page, is never undone, and other processes change it.
    (mapped != libc::MAP_FAILED).then(|| unsafe { AtomicU64::from_ptr(mapped.cast()) })
}

/// # Safety
///
/// As that of the C library: `time` is a place for the answer, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> c_int {
    // SAFETY: the kernel checks both, as it does for the C library.
    let result = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) } as c_int;
    if result == 0 && clock == libc::CLOCK_MONOTONIC {
        let suspended = SUSPENDED.get_or_init(shared).map_or(0, |suspended| suspended.load(Ordering::SeqCst) as i64);
        // SAFETY: the kernel has just written there.
        let time = unsafe { &mut *time };
        let awake = time.tv_sec * NANOS_PER_SECOND + time.tv_nsec - suspended;
        (time.tv_sec, time.tv_nsec) = (awake.div_euclid(NANOS_PER_SECOND), awake.rem_euclid(NANOS_PER_SECOND));
    }
    result
}
