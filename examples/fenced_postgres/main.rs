//! A paused old holder's late write is refused by the database.
//!
//! ```text
//! cargo run --release -- dev                                  # a cluster, in another terminal
//! DATABASE_URL="host=localhost user=postgres" cargo run --example fenced_postgres
//! ```
//!
//! Two workers take turns to hold one lease, and whoever holds it writes to two tables: `guarded`, whose statement checks
//! the fencing token, and `unguarded`, whose statement does not. The program pauses the holder for longer than the ttl,
//! waits until the other one has written, and wakes the first. What that one was about to write goes out then: look at what
//! became of it in each table.
//!
//! `fenced_postgres worker NAME` is one worker, for a program that pauses it itself.

mod demo;
mod tables;
mod worker;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => demo::run().await,
        ["worker", name] => worker::run(name).await,
        _ => Err("usage: fenced_postgres [worker NAME]".into()),
    }
}
