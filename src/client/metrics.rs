//! Metrics of the client, through the `metrics` facade. They have no effect until the program installs a recorder.

use std::time::Duration;

use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

use super::{CallError, Loss};

/// Describes the client's metrics to the installed recorder.
///
/// | metric | kind | meaning |
/// |---|---|---|
/// | `tenure_client_held` | gauge | leases held |
/// | `tenure_client_acquires_total{outcome}` | counter | acquires by result: `held`, `refused`, `unknown`, `unavailable` |
/// | `tenure_client_renew_slack_seconds` | histogram | time left at a successful renewal |
/// | `tenure_client_renew_failures_total` | counter | renewals of one lease without a conclusive answer |
/// | `tenure_client_losses_total{reason}` | counter | leases lost, by [`Loss::as_str`] |
pub fn describe_metrics() {
    describe_gauge!("tenure_client_held", "Leases held");
    describe_counter!("tenure_client_acquires_total", "Finished acquires, by outcome");
    describe_histogram!(
        "tenure_client_renew_slack_seconds",
        metrics::Unit::Seconds,
        "Time left at a successful renewal"
    );
    describe_counter!("tenure_client_renew_failures_total", "Renewals without a conclusive answer");
    describe_counter!("tenure_client_losses_total", "Leases lost, by reason");
}

pub(super) fn acquired() {
    counter!("tenure_client_acquires_total", "outcome" => "held").increment(1);
    gauge!("tenure_client_held").increment(1);
}

pub(super) fn not_acquired(error: &CallError) {
    let outcome = match error {
        CallError::Refused(_) => "refused",
        CallError::Unknown { .. } => "unknown",
        CallError::Unavailable(_) | CallError::ShutDown => "unavailable",
    };
    counter!("tenure_client_acquires_total", "outcome" => outcome).increment(1);
}

pub(super) fn renewed(slack: Option<Duration>) {
    if let Some(slack) = slack {
        histogram!("tenure_client_renew_slack_seconds").record(slack);
    }
}

pub(super) fn renewal_failed() {
    counter!("tenure_client_renew_failures_total").increment(1);
}

pub(super) fn released() {
    gauge!("tenure_client_held").decrement(1);
}

pub(super) fn lost(why: Loss) {
    gauge!("tenure_client_held").decrement(1);
    counter!("tenure_client_losses_total", "reason" => why.as_str()).increment(1);
}
