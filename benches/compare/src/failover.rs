//! The time without a successful write after the leader's process is killed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout, timeout_at};

use crate::client::{Client, Result};
use crate::percentiles::round;

/// A probe starts in each interval, at the nodes in turn, if one of the probers is free.
const INTERVAL: Duration = Duration::from_millis(1);
const PROBERS_PER_NODE: usize = 16;
/// A node can lose a request that it forwarded to the leader. The prober then starts again with a new connection.
const PROBE_TIMEOUT: Duration = Duration::from_millis(100);
/// Time with probes before the kill, and after the first success that follows it.
const BEFORE: Duration = Duration::from_secs(1);
const AFTER: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(30);

pub async fn run<C: Client>(survivors: Vec<String>, leader: i32) -> Result<Value> {
    let starts = Arc::new(Semaphore::new(0));
    let (successes, mut times) = mpsc::unbounded_channel();
    // A drop ends these tasks.
    let mut tasks = JoinSet::new();
    for id in 0..PROBERS_PER_NODE * survivors.len() {
        let node = survivors[id % survivors.len()].clone();
        tasks.spawn(probe::<C>(node, format!("probe-{id}"), starts.clone(), successes.clone()));
    }
    tasks.spawn(start_probes(starts));
    let mut last = timeout(LONGEST, times.recv()).await?.ok_or("the probers have ended")?;
    let begun = Instant::now();
    while begun.elapsed() < BEFORE {
        last = timeout(LONGEST, times.recv()).await?.ok_or("the probers have ended")?;
    }
    let pid = Pid::from_raw(leader).ok_or("the process id of the leader is 0")?;
    let killed = Instant::now();
    kill_process(pid, Signal::KILL)?;
    let (mut longest, mut end) = (Duration::ZERO, killed + LONGEST);
    while let Ok(Some(time)) = timeout_at(end.into(), times.recv()).await {
        if time > killed {
            if longest.is_zero() {
                end = time + AFTER;
            }
            longest = longest.max(time.saturating_duration_since(last));
        }
        last = last.max(time);
    }
    if longest.is_zero() {
        return Err(format!("no write succeeds within {LONGEST:?} after the kill").into());
    }
    Ok(json!({ "operations": 1, "gap_ms": round(longest.as_secs_f64() * 1e3) }))
}

async fn start_probes(starts: Arc<Semaphore>) {
    loop {
        if starts.available_permits() == 0 {
            starts.add_permits(1);
        }
        sleep(INTERVAL).await;
    }
}

async fn probe<C: Client>(
    node: String,
    name: String,
    starts: Arc<Semaphore>,
    successes: mpsc::UnboundedSender<Instant>,
) {
    let mut client: Option<C> = None;
    loop {
        starts.acquire().await.expect("the semaphore stays open").forget();
        let attempt = async {
            let mut open = match client.take() {
                Some(open) => open,
                None => C::connect(&C::link(&node).await?).await?,
            };
            open.write(&name).await?;
            Result::Ok(open)
        };
        if let Ok(Ok(open)) = timeout(PROBE_TIMEOUT, attempt).await {
            client = Some(open);
            // Nothing receives it after the measurement.
            let _ = successes.send(Instant::now());
        }
    }
}
