//! Pauses the holder of the lease several times and counts the accepted and refused late writes.

use std::process::{Child, Command};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tenure::types::LeaseName;

use crate::tables::Tables;
use crate::worker::{holder, remote};

const NAME: &str = "report";
const PAUSES: usize = 5;
const POLL: Duration = Duration::from_millis(10);

pub async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let tables = Tables::connect().await?;
    tables.create().await?;
    tables.add(NAME).await?;
    let workers = Workers(vec![start()?, start()?]);
    for _ in 0..PAUSES {
        pause_the_holder(&tables, &workers).await?;
    }
    println!("{PAUSES} pauses longer than the ttl.");
    println!("unguarded: {} late writes were accepted", tables.stale("unguarded", NAME).await?);
    println!(
        "guarded:   {} late writes were accepted, and {} refused",
        tables.stale("guarded", NAME).await?,
        tables.refused(NAME).await?
    );
    Ok(())
}

async fn pause_the_holder(tables: &Tables, workers: &Workers) -> Result<(), Box<dyn std::error::Error>> {
    let name = LeaseName::new(NAME)?;
    let (process, token) = loop {
        if let Ok(lease) = remote()?.get(&name).await
            && tables.fence(NAME).await? == lease.token.as_i64()
            && let Some(worker) = workers.0.iter().find(|worker| holder(worker.id()).as_str() == lease.holder)
        {
            break (Pid::from_child(worker), lease.token.as_i64());
        }
        tokio::time::sleep(POLL).await;
    };
    println!("worker {} holds the lease with token {token}, and is paused", process.as_raw_nonzero());
    kill_process(process, Signal::STOP)?;
    while tables.fence(NAME).await? <= token {
        tokio::time::sleep(POLL).await;
    }
    println!("the other one has written with token {}; the first wakes up", tables.fence(NAME).await?);
    kill_process(process, Signal::CONT)?;
    tokio::time::sleep(Duration::from_millis(200)).await;
    Ok(())
}

fn start() -> std::io::Result<Child> {
    Command::new(std::env::current_exe()?).args(["worker", NAME]).spawn()
}

/// The worker processes. Dropping the value kills them.
struct Workers(Vec<Child>);

impl Drop for Workers {
    fn drop(&mut self) {
        for worker in &mut self.0 {
            let _ = worker.kill();
            let _ = worker.wait();
        }
    }
}
