//! Isolation: a node installs no process-wide handlers and shares no state with another node of the process.

use std::fs;

use tenure::client::{LeaseManager, ManagerOptions};
use tenure::node::Local;

use crate::alone::{alone, runtime};
use crate::steady::strict;
use crate::trio::{Plan, holder};

strict!(nodes_and_managers_of_one_process_are_isolated,);

/// Returns the mask of the signals that the process catches.
fn caught_signals() -> String {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    status.lines().find(|line| line.starts_with("SigCgt")).expect("Linux reports SigCgt").to_owned()
}

#[test]
fn nodes_install_no_signal_handler_subscriber_or_recorder() {
    alone("guest::nodes_install_no_signal_handler_subscriber_or_recorder", || {
        let runtime = runtime();
        let before = caught_signals();
        runtime.block_on(async {
            let trio = Plan::new(&[]).start().await;
            drop(trio.nodes[0].router());
            assert_eq!(caught_signals(), before);
            assert!(!tracing::dispatcher::has_been_set());
            let own = metrics::set_global_recorder(metrics::NoopRecorder);
            assert!(own.is_ok(), "no metrics recorder is installed");
            trio.shutdown().await;
        });
        assert_eq!(caught_signals(), before);
    });
}

async fn nodes_and_managers_of_one_process_are_isolated() {
    let plan = Plan::new(&[]);
    let trio = plan.start().await;
    let manager = |node: usize, by: &str| {
        let options = ManagerOptions::new().holder(holder(by));
        LeaseManager::with_options(Local::new(trio.nodes[node].clone()), options).expect("valid options")
    };
    let (one, two, three) = (manager(0, "one"), manager(1, "two"), manager(2, "three"));
    let held = one.try_acquire("job").await.expect("an answer").expect("the lease is free");
    assert!(two.try_acquire("job").await.expect("an answer").is_none(), "another holder at another node");
    assert!(three.try_acquire("job").await.expect("an answer").is_none());
    // A second cluster in the same process.
    let others = Plan::new(&[]);
    let other = others.start().await;
    let elsewhere = other.nodes[0].leases();
    assert!(elsewhere.try_acquire("job").await.expect("an answer").is_some(), "the lease of another cluster is free");

    one.shutdown().await;
    drop(held);
    assert!(two.try_acquire("job").await.expect("an answer").is_some());
    for manager in [&two, &three, &elsewhere] {
        manager.shutdown().await;
    }
    trio.shutdown().await;
    other.shutdown().await;
}
