//! A preloaded library for Linux processes: the monotonic clock of a machine that is suspended at times.
//!
//! It replaces `clock_gettime(CLOCK_MONOTONIC)` of the C library. This changes `std::time::Instant`, and with it the
//! timers of tokio and openraft. The library returns the clock of the kernel minus the time in a file, which the fault
//! run writes while the process is stopped. All other clocks stay real. `CLOCK_BOOTTIME` counts the stop, as it counts
//! a suspend.
#![expect(unsafe_code, reason = "it replaces a function of the C library")]

use std::ffi::c_int;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The path of the file. It contains nanoseconds as eight bytes in native byte order.
const FILE_VARIABLE: &str = "TENURE_FAULTS_SUSPENDED";
const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// The total time of all suspends in nanoseconds. `None` without a file.
static SUSPENDED: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();

fn shared() -> Option<&'static AtomicU64> {
    let file = File::open(std::env::var_os(FILE_VARIABLE)?).ok()?;
    let (length, at) = (size_of::<u64>(), std::ptr::null_mut());
    // SAFETY: this is a new mapping of a file that is at least `length` bytes long and never truncated.
    let mapped = unsafe { libc::mmap(at, length, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    // SAFETY: a mapping is page-aligned and never unmapped, and other processes write it atomically.
    (mapped != libc::MAP_FAILED).then(|| unsafe { AtomicU64::from_ptr(mapped.cast()) })
}

/// Replaces the function of the C library.
///
/// # Safety
///
/// `time` must be valid for a write, or null, as the C library requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> c_int {
    // SAFETY: the kernel checks both arguments, as it does for the C library.
    let result = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) } as c_int;
    if result == 0 && clock == libc::CLOCK_MONOTONIC {
        let suspended = SUSPENDED.get_or_init(shared).map_or(0, |suspended| suspended.load(Ordering::SeqCst) as i64);
        // SAFETY: the kernel has just written to `time`.
        let time = unsafe { &mut *time };
        let awake = time.tv_sec * NANOS_PER_SECOND + time.tv_nsec - suspended;
        (time.tv_sec, time.tv_nsec) = (awake.div_euclid(NANOS_PER_SECOND), awake.rem_euclid(NANOS_PER_SECOND));
    }
    result
}
