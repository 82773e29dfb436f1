//! Writes to the cluster at short intervals to measure gaps in service.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::client::{Call, Client, Outcome};
use crate::cluster::SOON;

const INTERVAL: Duration = Duration::from_millis(5);
/// The limit of concurrent writes. At the limit, no write is added.
const MAX_PENDING: usize = 256;

/// Sends a write to each node in turn, every 5 ms, until it is dropped. Each write acquires the same lease again.
pub struct Prober {
    done: Arc<Mutex<Vec<Instant>>>,
    task: JoinHandle<()>,
}

impl Prober {
    /// Starts the writes and waits for the first success, because each gap begins with a success.
    pub async fn start(client: Client) -> Prober {
        let done = Arc::new(Mutex::new(Vec::new()));
        let task = tokio::spawn(probe(client, done.clone()));
        let began = Instant::now();
        while done.lock().is_empty() {
            assert!(began.elapsed() < SOON, "no write succeeds within {SOON:?}");
            tokio::time::sleep(INTERVAL).await;
        }
        Prober { done, task }
    }

    /// The longest time between two successful writes since `from`. The last success before `from` counts.
    pub fn longest_pause(&self, from: Instant) -> Duration {
        let mut done = self.done.lock().clone();
        done.push(Instant::now());
        done.sort();
        assert!(done[0] < from, "no write succeeded before `from`");
        let pauses = done.windows(2).filter(|pair| pair[1] >= from);
        pauses.map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
    }

    /// Waits for the success of a write that begins after this call.
    pub async fn serves(&self, client: &Client) {
        client.done(0, &claim()).await;
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn claim() -> Call {
    Call::acquire("probe", "prober", 60_000)
}

async fn probe(client: Client, done: Arc<Mutex<Vec<Instant>>>) {
    let room = Arc::new(Semaphore::new(MAX_PENDING));
    let mut interval = tokio::time::interval(INTERVAL);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    for place in 0.. {
        interval.tick().await;
        let Ok(permit) = room.clone().try_acquire_owned() else { continue };
        let (client, done) = (client.clone(), done.clone());
        tokio::spawn(async move {
            if let Outcome::Done(_) = client.attempt(place, &claim()).await {
                done.lock().push(Instant::now());
            }
            drop(permit);
        });
    }
}
