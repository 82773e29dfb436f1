//! As many watchers and waiters as a node accepts. Each one needs little memory and receives its event in time. The
//! node refuses one more, and still serves holders.
//!
//! `TENURE_IDLE_CLIENTS` sets the number of watchers and of waiters; the default is 1,000.
//! `cargo bench -- watchers waiters` runs 10,000.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::cluster::{Cluster, SOON, place};
use crate::figures::{self, percentile};
use crate::flood::{Connection, token};
use crate::steady::steady;

steady!(thousand_watchers_and_waiters_are_served_in_time);

/// The number of connections that are opened concurrently.
const AT_ONCE: usize = 32;
/// The largest memory use of the node per connection.
const MEMORY_EACH: u64 = 64 << 10;
/// The limit for an event to reach all watchers, for a release to reach its waiter, and for an acquire.
const DELIVERED_WITHIN: Duration = Duration::from_secs(2);
const RELEASES: usize = 50;

async fn thousand_watchers_and_waiters_are_served_in_time() {
    let count = client_count();
    let cluster = Cluster::start(&format!("[http]\nmax_watches = {count}\nmax_waits = {count}\n")).await;
    let leader = cluster.leader().await;
    let node =
        cluster.client.endpoints().split(',').nth(place(leader)).expect("the leader is a node").replace("http://", "");
    let mut connection = Connection::open(&node).await.expect("the node accepts connections");
    let tokens: Vec<String> =
        futures_util::stream::iter(0..count).map(|number| hold(&node, number)).buffered(AT_ONCE).collect().await;
    let memory = || figures::memory(cluster.nodes[&leader].id());
    let (before, began) = (memory(), Instant::now());

    let (saw, mut events) = mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    let mut watching = futures_util::stream::iter(0..count).map(|_| watch(&node)).buffer_unordered(AT_ONCE);
    while let Some(mut watch) = watching.next().await {
        let saw = saw.clone();
        tasks.spawn(async move {
            while watch.read_until("event: granted").await.is_ok() {
                // The receiver is dropped at the end of the test.
                let _ = saw.send(Instant::now());
            }
        });
    }
    let (got, mut grants) = mpsc::unbounded_channel();
    let mut waiting = futures_util::stream::iter(0..count).map(|number| wait(&node, number)).buffer_unordered(AT_ONCE);
    while let Some((number, mut waiter)) = waiting.next().await {
        let got = got.clone();
        tasks.spawn(async move {
            let answer = waiter.read_response().await.expect("the node answers the waiter");
            assert_eq!(answer.status, 200, "{}", answer.body);
            let _ = got.send((number, Instant::now()));
        });
    }
    until_waiting(&cluster, leader, true).await;
    let grown = memory().saturating_sub(before) / (2 * count as u64);
    println!("{count} watches and {count} waits after {:?}: {grown} bytes each", began.elapsed());
    assert!(grown <= MEMORY_EACH, "{grown}");

    refuses_one_more(&node).await;
    let renewal = format!(r#"{{"holder":"first","token":"{}"}}"#, tokens[0]);
    assert_eq!(connection.post("leases/idle-0/renew", &renewal).await.expect("the node answers").status, 200);

    let sent = Instant::now();
    claim(&mut connection, "seen-by-all", "first").await;
    let claimed = sent.elapsed();
    for _ in 0..count {
        tokio::time::timeout(DELIVERED_WITHIN, events.recv())
            .await
            .expect("all watchers receive the event")
            .expect("the watchers run");
    }
    println!("a claim took {claimed:?}, and {count} had seen it after {:?}", sent.elapsed());
    assert!(sent.elapsed() <= DELIVERED_WITHIN && claimed <= DELIVERED_WITHIN);

    let mut lags = Vec::new();
    for (number, token) in tokens.iter().enumerate().take(RELEASES) {
        let sent = Instant::now();
        let body = format!(r#"{{"holder":"first","token":"{token}"}}"#);
        let released =
            connection.post(&format!("leases/idle-{number}/release"), &body).await.expect("the node answers");
        assert_eq!(released.status, 200, "{}", released.body);
        let (granted, at) = tokio::time::timeout(DELIVERED_WITHIN, grants.recv())
            .await
            .expect("the waiter gets the lease")
            .expect("the waiters run");
        assert_eq!(granted, number, "the released lease goes to its waiter");
        lags.push(at - sent);
    }
    figures::print("a release until its waiter has the lease", &mut lags);
    assert!(percentile(&lags, 95) <= DELIVERED_WITHIN);

    let ended = Instant::now();
    tasks.shutdown().await;
    until_waiting(&cluster, leader, false).await;
    println!("all connections ended after {:?}", ended.elapsed());
    let mut again = watch(&node).await;
    let event = tokio::time::timeout(Duration::from_millis(100), again.read_until("event: "));
    assert!(event.await.is_err(), "the node accepts a watch, and there is no event");
}

async fn claim(connection: &mut Connection, name: &str, holder: &str) -> String {
    let body = format!(r#"{{"holder":"{holder}","ttl_ms":600000}}"#);
    let answer = connection.post(&format!("leases/{name}/acquire"), &body).await.expect("the node answers");
    assert_eq!(answer.status, 200, "{}", answer.body);
    token(&answer).to_owned()
}

async fn hold(node: &str, number: usize) -> String {
    let mut connection = Connection::open(node).await.expect("the node accepts connections");
    claim(&mut connection, &format!("idle-{number}"), "first").await
}

async fn watch(node: &str) -> Connection {
    let mut connection = Connection::open(node).await.expect("the node accepts connections");
    connection.send("GET /v1/watch?prefix=seen- HTTP/1.1\r\nhost: n\r\n\r\n").await.expect("the connection is open");
    connection.read_until("id: ").await.expect("the watch has begun");
    connection
}

async fn wait(node: &str, number: usize) -> (usize, Connection) {
    let mut connection = Connection::open(node).await.expect("the node accepts connections");
    connection.send_post(&format!("leases/idle-{number}/acquire"), WAIT).await.expect("the connection is open");
    (number, connection)
}

const WAIT: &str = r#"{"holder":"waiter","ttl_ms":600000,"wait_ms":600000}"#;

const TOO_BUSY: &str = r#""code":"too_busy""#;

async fn refuses_one_more(node: &str) {
    let mut connection = Connection::open(node).await.expect("the node accepts connections");
    let answer = connection.post("leases/idle-0/acquire", WAIT).await.expect("the node answers");
    assert!(answer.status == 429 && answer.retry_after && answer.body.contains(TOO_BUSY), "{}", answer.body);
    connection.send("GET /v1/watch HTTP/1.1\r\nhost: n\r\n\r\n").await.expect("the connection is still open");
    let answer = connection.read_response().await.expect("the node answers");
    assert!(answer.status == 429 && answer.retry_after && answer.body.contains(TOO_BUSY), "{}", answer.body);
}

/// The number of watchers and of waiters, equal to the limits of the node.
fn client_count() -> usize {
    let asked = std::env::var("TENURE_IDLE_CLIENTS").ok().and_then(|count| count.parse().ok());
    asked.unwrap_or(1_000)
}

/// Waits until each lease of the test has one waiter, or none.
async fn until_waiting(cluster: &Cluster, node: u64, they_wait: bool) {
    let began = Instant::now();
    let expected = usize::from(they_wait);
    for number in 0..client_count() {
        loop {
            let queue = cluster.ask(node, &format!("/v1/leases/idle-{number}/queue")).await;
            let waiters = queue.as_ref().and_then(|queue| queue["waiters"].as_array()).map(Vec::len);
            if waiters == Some(expected) {
                break;
            }
            assert!(began.elapsed() < SOON, "{queue:?} after {SOON:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
