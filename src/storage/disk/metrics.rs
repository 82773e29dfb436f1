//! Metrics of the store for operators, through the `metrics` facade. The names are stable.

use std::time::Duration;

use metrics::{Counter, Histogram, Unit, describe_counter, describe_histogram};

/// Describes the metrics of stores to the installed recorder.
pub(crate) fn describe_metrics() {
    describe_counter!("tenure_storage_groups_total", Unit::Count, "Group commits, one sync each");
    describe_counter!("tenure_storage_written_bytes_total", Unit::Bytes, "Bytes of payload in all group commits");
    describe_histogram!("tenure_storage_group_entries", Unit::Count, "Log entries of one group commit");
    describe_histogram!("tenure_storage_group_bytes", Unit::Bytes, "Bytes of payload of one group commit");
    describe_histogram!(
        "tenure_storage_sync_seconds",
        Unit::Seconds,
        "Seconds for the flush and sync of one group commit"
    );
}

pub(super) struct CommitMetrics {
    groups: Counter,
    written: Counter,
    group_entries: Histogram,
    group_bytes: Histogram,
    sync_seconds: Histogram,
}

impl CommitMetrics {
    pub fn new() -> CommitMetrics {
        CommitMetrics {
            groups: metrics::counter!("tenure_storage_groups_total"),
            written: metrics::counter!("tenure_storage_written_bytes_total"),
            group_entries: metrics::histogram!("tenure_storage_group_entries"),
            group_bytes: metrics::histogram!("tenure_storage_group_bytes"),
            sync_seconds: metrics::histogram!("tenure_storage_sync_seconds"),
        }
    }

    pub fn committed(&self, entries: usize, bytes: usize, took: Duration) {
        self.groups.increment(1);
        self.written.increment(bytes as u64);
        self.group_entries.record(entries as f64);
        self.group_bytes.record(bytes as f64);
        self.sync_seconds.record(took.as_secs_f64());
    }
}
