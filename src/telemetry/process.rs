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

    /// The resident bytes by another file of the kernel.
    fn resident() -> f64 {
        let status = fs::read_to_string("/proc/self/status").expect("Linux");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
        1024.0 * resident.expect("it has resident memory").parse::<f64>().expect("a number")
    }

    /// The other tests of this process use files and memory, too.
    #[test]
    fn metrics_show_the_memory_and_the_files_of_the_process() {
        const FILES: usize = 100;
        let recorder = PrometheusBuilder::new().build_recorder();
        let open: Vec<fs::File> = (0..FILES).map(|_| fs::File::open("/dev/null").expect("a file")).collect();
        let before = resident();
        metrics::with_local_recorder(&recorder, update);
        let after = resident();
        drop(open);
        let text = recorder.handle().render();
        let value = |name: &str| -> f64 {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            value.unwrap_or_else(|| panic!("no {name} in {text}")).parse().expect("a number")
        };
        let shown = value("process_resident_memory_bytes");
        // Other tests of this process allocate at the same time.
        let range = before.min(after) / 2.0..before.max(after) * 2.0;
        assert!(range.contains(&shown), "{shown} bytes, and the kernel says {before} before and {after} after");
        assert!(value("process_open_fds") >= FILES as f64, "{text}");
        assert!(value("process_open_fds") <= value("process_max_fds"), "{text}");
    }
}
