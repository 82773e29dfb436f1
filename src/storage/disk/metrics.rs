//! Metrics of the store for operators, through the `metrics` facade. The names are stable.
//!
//! | name | meaning |
//! |---|---|
//! | `tenure_storage_groups_total` | group commits |
//! | `tenure_storage_written_bytes_total` | bytes of payload in all groups |
//! | `tenure_storage_group_entries` | log entries of one group |
//! | `tenure_storage_group_bytes` | bytes of payload of one group |
//! | `tenure_storage_sync_seconds` | duration of the flush and sync of one group |

use std::time::Duration;

use metrics::{Counter, Histogram};

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
