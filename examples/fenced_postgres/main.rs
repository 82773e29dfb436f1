//! Fencing in PostgreSQL: the database refuses the late write of a paused old holder.
//!
//! ```text
//! cargo run --release -- dev                                  # a cluster, in another terminal
//! DATABASE_URL="host=localhost user=postgres" cargo run --example fenced_postgres
//! ```
//!
//! Two workers compete for one lease. The holder writes to two tables: the statement for `guarded` checks the fencing
//! token, the statement for `unguarded` does not.
//!
//! The program pauses the holder for longer than the ttl, waits until the other worker has written, and resumes the
//! first one. The first worker then sends its late write. The program counts the late writes that each table accepted.
//!
//! `fenced_postgres worker NAME` runs one worker, for a program that pauses it itself.

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
