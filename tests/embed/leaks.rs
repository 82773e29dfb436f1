//! Resource leaks: a stopped node leaves no thread, open file or task, however it stops.
//!
//! The tests count the threads, open files and tasks of the whole process before and after. They ignore the threads
//! `sled-io-*`: sled keeps one pool of fixed size for the whole process.

use std::fs;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tenure::client::Wait;
use tenure::node::{Node, StartError};
use tokio::runtime::{Handle, Runtime};

use crate::alone::{alone, runtime};
use crate::trio::{Plan, SOON, Trio, listener};

/// A dropped node must release all its resources within this time.
const BOUND: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    threads: usize,
    files: usize,
    tasks: usize,
}

impl Counts {
    fn now(runtime: &Handle) -> Counts {
        let threads = fs::read_dir("/proc/self/task").expect("Linux").filter(|thread| {
            let path = thread.as_ref().expect("the entry is readable").path().join("comm");
            // A thread without a readable name has ended and does not count.
            fs::read_to_string(path).is_ok_and(|name| !name.starts_with("sled-io"))
        });
        Counts {
            threads: threads.count(),
            files: fs::read_dir("/proc/self/fd").expect("Linux").count(),
            tasks: runtime.metrics().num_alive_tasks(),
        }
    }

    /// Waits until the counts are equal to `self`. Returns the last counts if they differ after `within`.
    fn return_within(self, runtime: &Handle, within: Duration) -> Result<(), Counts> {
        let began = Instant::now();
        loop {
            let now = Counts::now(runtime);
            if now == self {
                return Ok(());
            }
            if began.elapsed() > within {
                return Err(now);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Uses every part of a node: leases over a leader and a follower, a wait, a watch and a router.
async fn work(trio: &Trio) {
    let managers: Vec<_> = trio.nodes.iter().map(Node::leases).collect();
    // A guard releases its lease later, so another run needs other names.
    let run = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("a date after 1970").as_nanos();
    for (number, manager) in managers.iter().enumerate() {
        let guard =
            manager.try_acquire(format!("own-{run}-{number}")).await.expect("an answer").expect("the lease is free");
        assert!(guard.is_held());
    }
    let held = managers[0].try_acquire("shared").await.expect("an answer").expect("the lease is free");
    let waits = managers[1].lease("shared").expect("valid");
    let (released, token) = tokio::join!(held.release(), waits.acquire(Wait::UpTo(SOON)));
    assert!(released.expect("an answer") && token.is_ok());
    let mut watch = trio.nodes[2].watch("", None);
    waits.release().await.expect("an answer");
    watch.next().await.expect("the watch delivers the release");

    let listener = listener().await;
    let url = format!("http://{}/tenure/v1/cluster", listener.local_addr().expect("the listener is bound"));
    let app = axum::Router::new().nest("/tenure", trio.nodes[0].router());
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let answer =
        crate::plain_http::builder().pool_max_idle_per_host(0).build().expect("a client").get(url).send().await;
    assert_eq!(answer.expect("an answer").status(), 200);
    server.abort();
}

/// Runs the nodes of one plan twice, and stops them with `end`.
///
/// The second run fails if the first one did not free its directories and ports. The return value of `end` is dropped
/// after the count.
fn run_twice<T>(runtime: &Runtime, end: impl AsyncFn(Trio) -> T) {
    let handle = runtime.handle();
    let plan = Plan::new(&[]);
    let before = Counts::now(handle);
    for round in 1..=2 {
        let kept = handle.block_on(async {
            let trio = plan.start().await;
            assert!(Counts::now(handle).threads >= before.threads + 3, "each node has a storage thread");
            work(&trio).await;
            end(trio).await
        });
        before.return_within(handle, BOUND).unwrap_or_else(|now| panic!("round {round}: {before:?} became {now:?}"));
        drop(kept);
    }
}

#[test]
fn shut_down_nodes_leave_nothing() {
    alone("leaks::shut_down_nodes_leave_nothing", || {
        let runtime = runtime();
        run_twice(&runtime, async |trio| {
            let watches: Vec<_> = trio.nodes.iter().map(|node| node.watch("", None)).collect();
            let handles = trio.nodes.clone();
            trio.shutdown().await;
            // Watches and handles of a stopped node keep only memory.
            (watches, handles)
        });
    });
}

#[test]
fn dropped_nodes_leave_nothing() {
    alone("leaks::dropped_nodes_leave_nothing", || {
        let runtime = runtime();
        run_twice(&runtime, async |trio| drop(trio));
    });
}

#[test]
fn kept_handle_keeps_its_node() {
    // The control: it shows that the counts of the tests above detect a leaked node.
    alone("leaks::kept_handle_keeps_its_node", || {
        let runtime = runtime();
        let handle = runtime.handle();
        let plan = Plan::new(&[]);
        let before = Counts::now(handle);
        let trio = runtime.block_on(plan.start());
        let kept = trio.nodes[0].clone();
        drop(trio);
        let now = before.return_within(handle, Duration::from_secs(2)).expect_err("one node still runs");
        assert!(now.threads > before.threads && now.files > before.files && now.tasks > before.tasks, "{now:?}");
        drop(kept);
        before.return_within(handle, BOUND).unwrap_or_else(|now| panic!("{before:?} became {now:?}"));
    });
}

#[test]
fn dropped_runtime_stops_its_nodes() {
    alone("leaks::dropped_runtime_stops_its_nodes", || {
        // The counts are without the nodes' tasks, which belong to another runtime.
        let observer = runtime();
        let plan = Plan::new(&[]);
        let before = Counts::now(observer.handle());
        for handles_outlive in [false, true] {
            let runtime = runtime();
            let trio = runtime.block_on(plan.start());
            runtime.block_on(work(&trio));
            let kept = if handles_outlive { trio.nodes.clone() } else { Vec::new() };
            runtime.block_on(async { drop(trio) });
            drop(runtime);
            drop(kept);
            let returned = before.return_within(observer.handle(), BOUND);
            returned.unwrap_or_else(|now| panic!("handles outlive it: {handles_outlive}: {before:?} became {now:?}"));
        }
    });
}

/// Another runtime of the program keeps handles of the nodes.
#[test]
fn shutdown_returns_after_the_end_of_its_runtime() {
    let (first, second) = (runtime(), runtime());
    let plan = Plan::new(&[]);
    let trio = first.block_on(plan.start());
    drop(first);
    for node in trio.nodes.iter().chain(&trio.nodes) {
        let ended = second.block_on(async { tokio::time::timeout(SOON, node.shutdown()).await });
        assert!(ended.is_ok(), "the shutdown of node {} hangs", node.id());
    }
}

#[test]
fn failed_or_dropped_start_leaves_nothing() {
    alone("leaks::failed_or_dropped_start_leaves_nothing", || {
        let runtime = runtime();
        let handle = runtime.handle();
        let plan = Plan::new(&[]);
        let before = Counts::now(handle);
        runtime.block_on(async { plan.start().await.shutdown().await });
        let returned = before.return_within(handle, BOUND);
        returned.unwrap_or_else(|now| panic!("{before:?} became {now:?}"));
        // A restarted node waits for its vote lease before it takes part in elections. The start is dropped during that time.
        runtime.block_on(async {
            let starts = (1..=3).map(|id| tokio::time::timeout(Duration::from_millis(150), plan.builder(id).start()));
            assert!(join_all(starts).await.iter().all(Result::is_err), "no start finishes in 150 ms");
        });
        let returned = before.return_within(handle, BOUND);
        returned.unwrap_or_else(|now| panic!("dropped start: {before:?} became {now:?}"));
        // The first start fails on the directory of another cluster. The second one opens its store, and then fails on
        // an invalid promise.
        runtime.block_on(async {
            let foreign = Node::builder("other").id(1).member(1, "127.0.0.1:1", "127.0.0.1:2");
            let refused = foreign.data(plan.data().join("1")).peer_listener(listener().await).start().await;
            assert!(matches!(refused, Err(StartError::Storage(_))), "{:?}", refused.err());
            fs::write(plan.data().join("1/PROMISE"), "soon").expect("written");
            let refused = plan.builder(1).start().await;
            assert!(matches!(refused, Err(StartError::VoteLease(_))), "{:?}", refused.err());
            // A failed start returns after its cleanup, so the next start needs no wait.
            let again = plan.builder(1).start().await;
            assert!(matches!(again, Err(StartError::VoteLease(_))), "{:?}", again.err());
        });
        let returned = before.return_within(handle, BOUND);
        returned.unwrap_or_else(|now| panic!("failed start: {before:?} became {now:?}"));
    });
}
