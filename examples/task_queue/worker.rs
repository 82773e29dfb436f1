//! A worker: it takes a task, sends heartbeats beside the work, and completes the task.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{interval, sleep};

use crate::plain_http::send;
use crate::{Done, number, ttl};

/// The pause if there is no task or no service.
const PAUSE: Duration = Duration::from_millis(100);
/// The exit code of a crash. Another process starts the worker again.
pub const CRASHED: i32 = 70;

pub async fn run(services: &[&str]) -> Done {
    let worker = Worker { services, processor: format!("worker-{}", std::process::id()) };
    let (crashes, spikes) = (number("EXAMPLE_CRASH_PERCENT", 5), number("EXAMPLE_SPIKE_PERCENT", 10));
    loop {
        let task = match worker.ask("POST", "/api/tasks/next", json!({"processor": worker.processor})).await {
            Ok((200, answer)) if answer["task"].is_object() => answer["task"].clone(),
            _ => {
                sleep(PAUSE).await;
                continue;
            }
        };
        let id = task["id"].as_i64().ok_or("the task has no id")?;
        if chance(crashes) {
            println!("{}: crashes during task {id}", worker.processor);
            std::process::exit(CRASHED);
        }
        let spike = chance(spikes);
        if spike {
            println!("{}: latency spike during task {id}", worker.processor);
        }
        match worker.process(&task, id, spike).await {
            Some((status, _)) => println!("{}: task {id}: {status}", worker.processor),
            None => println!("{}: abandons task {id}, its lease has expired", worker.processor),
        }
    }
}

/// Whether an event with this probability happens.
fn chance(percent: u64) -> bool {
    rand::random::<u64>() % 100 < percent
}

struct Worker<'a> {
    services: &'a [&'a str],
    processor: String,
}

impl Worker<'_> {
    /// Sends the request to a service, and to the next one if it does not answer.
    async fn ask(&self, method: &str, path: &str, body: Value) -> Done<(u16, Value)> {
        let first = rand::random::<u64>() as usize % self.services.len();
        let mut last = Err("there is no service".into());
        for n in 0..self.services.len() {
            let service = self.services[(first + n) % self.services.len()];
            last = send(service, method, path, &body).await;
            if matches!(last, Ok((status, _)) if status < 500) {
                break;
            }
        }
        last
    }

    /// Works on a task. Returns the answer to its completion, or `None` after a loss of the lease.
    async fn process(&self, task: &Value, id: i64, spike: bool) -> Option<(u16, Value)> {
        let work = Duration::from_millis(task["task_data"]["sleep_duration_ms"].as_u64().unwrap_or(100));
        if spike {
            // The process does nothing for longer than the ttl, like one that swaps. It then completes too late.
            sleep(work + ttl() * 3 / 2).await;
        } else {
            tokio::select! {
                () = sleep(work) => {}
                () = self.heartbeats(task, id) => return None,
            }
        }
        let output = json!({"slept_ms": work.as_millis() as u64});
        let body = json!({"processor": self.processor, "fence": task["fence"], "output": output});
        // A completion that had no answer may be done: then the repetition gets 409.
        for _ in 0..3 {
            match self.ask("PUT", &format!("/api/tasks/{id}/complete"), body.clone()).await {
                Ok(answer) if answer.0 < 500 => return Some(answer),
                _ => sleep(PAUSE).await,
            }
        }
        None
    }

    /// Returns when the lease is lost.
    async fn heartbeats(&self, task: &Value, id: i64) {
        let body = json!({"processor": self.processor, "fence": task["fence"]});
        let mut beat = interval(ttl() / 3);
        loop {
            beat.tick().await;
            // After another answer or an error, the next heartbeat follows in time.
            if let Ok((409 | 200, _)) = self.ask("PUT", &format!("/api/tasks/{id}/heartbeat"), body.clone()).await {
                return;
            }
        }
    }
}
