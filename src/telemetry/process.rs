//! Metrics of the process, with the names that all Prometheus clients use.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

/// Describes the metrics of the process, and sets those that do not change.
pub(super) fn begin() {
    describe_counter!("process_cpu_seconds_total", Unit::Seconds, "Whole seconds of user and system CPU time");
    describe_gauge!("process_resident_memory_bytes", Unit::Bytes, "Bytes of resident memory");
    describe_gauge!("process_open_fds", Unit::Count, "Open file descriptors");
    describe_gauge!("process_max_fds", Unit::Count, "Maximum number of open file descriptors");
    describe_gauge!("process_threads", Unit::Count, "Threads");
    describe_gauge!(
        "process_start_time_seconds",
        Unit::Seconds,
        "Start of the process, in seconds since the Unix epoch"
    );
    // /proc/stat has the boot time, which an exact start time needs. The systemd unit hides that file. The process has
    // run for a few milliseconds now.
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    gauge!("process_start_time_seconds").set(started.as_secs_f64());
    update();
}

/// Reads the state of the process. Without /proc, only the CPU time and the maximum of file descriptors exist.
pub(super) fn update() {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    counter!("process_cpu_seconds_total").absolute(u64::try_from(cpu.tv_sec).unwrap_or_default());
    gauge!("process_max_fds").set(getrlimit(Resource::Nofile).current.map_or(f64::INFINITY, |files| files as f64));
    if let Some(pages) = resident_pages() {
        gauge!("process_resident_memory_bytes").set(pages as f64 * rustix::param::page_size() as f64);
    }
    if let Some(files) = entries("/proc/self/fd") {
        // The descriptor that reads the directory is one of the entries.
        gauge!("process_open_fds").set(files.saturating_sub(1) as f64);
    }
    if let Some(threads) = entries("/proc/self/task") {
        gauge!("process_threads").set(threads as f64);
    }
}

/// The second field of `statm` is the number of resident pages.
fn resident_pages() -> Option<u64> {
    fs::read_to_string("/proc/self/statm").ok()?.split(' ').nth(1)?.parse().ok()
}

fn entries(directory: &str) -> Option<usize> {
    Some(fs::read_dir(directory).ok()?.count())
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    /// A number of another file of the kernel.
    fn status(field: &str) -> f64 {
        let status = fs::read_to_string("/proc/self/status").expect("Linux");
        let value = status.lines().find_map(|line| line.strip_prefix(field)?.split_whitespace().next());
        value.unwrap_or_else(|| panic!("no {field} in {status}")).parse().expect("a number")
    }

    /// The resident bytes and the threads.
    fn resident_and_threads() -> [f64; 2] {
        [1024.0 * status("VmRSS:"), status("Threads:")]
    }

    /// Whole seconds of CPU time.
    fn cpu() -> f64 {
        clock_gettime(ClockId::ProcessCPUTime).tv_sec as f64
    }

    fn now() -> f64 {
        SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_secs_f64()
    }

    /// The other tests of this process use files and memory, too.
    #[test]
    fn metrics_show_the_state_of_the_process() {
        const FILES: usize = 200;
        let recorder = PrometheusBuilder::new().build_recorder();
        let open: Vec<fs::File> = (0..FILES).map(|_| fs::File::open("/dev/null").expect("a file")).collect();
        let busy = std::thread::spawn(|| while cpu() < 1.0 {});
        busy.join().expect("no panic");
        let (before, began, used) = (resident_and_threads(), now(), cpu());
        metrics::with_local_recorder(&recorder, begin);
        let (after, ended, used_at_the_end) = (resident_and_threads(), now(), cpu());
        drop(open);
        let text = recorder.handle().render();
        let value = |name: &str| -> f64 {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            value.unwrap_or_else(|| panic!("no {name} in {text}")).parse().expect("a number")
        };
        let names = ["process_resident_memory_bytes", "process_threads"];
        for ((name, before), after) in names.into_iter().zip(before).zip(after) {
            let shown = value(name);
            // Other tests of this process allocate and start threads at the same time.
            let range = before.min(after) / 2.0..before.max(after) * 2.0;
            assert!(range.contains(&shown), "{name} {shown}: the kernel says {before} before and {after} after");
        }
        let started = value("process_start_time_seconds");
        assert!((began - 1.0..ended + 1.0).contains(&started), "{started} is not from {began} to {ended}");
        let seconds = value("process_cpu_seconds_total");
        assert!((used..=used_at_the_end).contains(&seconds), "{seconds} s are not from {used} to {used_at_the_end}");
        assert!(value("process_open_fds") >= FILES as f64, "{text}");
        assert!(value("process_open_fds") <= value("process_max_fds"), "{text}");
    }
}
