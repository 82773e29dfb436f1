//! A task queue on PostgreSQL: services, workers and a generator. See README.md.
//!
//! ```sh
//! cargo run --example task_queue                # all of it, with a temporary PostgreSQL
//! cargo run --example task_queue -- service     # one process of it, as generator and worker
//! ```

mod database;
mod demo;
mod generator;
mod plain_http;
#[allow(dead_code, reason = "the tests use all of it")]
#[path = "../../tests/support/postgres.rs"]
mod postgres;
mod service;
mod worker;

use std::time::Duration;

use tenure::client::{ENDPOINTS_VARIABLE, Endpoints, Remote};

/// The result of all parts.
type Done<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Done {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => demo::run().await,
        ["service"] => service::run().await,
        ["generator"] => generator::run().await,
        ["worker", ref services @ ..] if !services.is_empty() => worker::run(services).await,
        _ => Err("usage: task_queue [service | generator | worker SERVICE_ADDRESS...]".into()),
    }
}

/// A number from the environment.
fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The ttl of the leases.
fn ttl() -> Duration {
    Duration::from_millis(number("EXAMPLE_TTL_MS", 2_000))
}

fn remote() -> Done<Remote> {
    let endpoints = match std::env::var(ENDPOINTS_VARIABLE) {
        Ok(urls) => urls.parse()?,
        Err(_) => Endpoints::default(),
    };
    Ok(Remote::new(endpoints))
}
