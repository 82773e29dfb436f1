//! A worker: it writes while it holds the lease.

use std::time::Duration;

use tenure::client::{ENDPOINTS_VARIABLE, Endpoints, LeaseManager, LeaseOptions, ManagerOptions, Remote, Wait};
use tenure::types::HolderId;

use crate::tables::Tables;

/// The ttl from `EXAMPLE_TTL_MS`. Default: 1 s.
fn ttl() -> Duration {
    let said = std::env::var("EXAMPLE_TTL_MS").ok().and_then(|text| text.parse().ok());
    Duration::from_millis(said.unwrap_or(1000))
}

pub fn remote() -> Result<Remote, Box<dyn std::error::Error>> {
    let endpoints = match std::env::var(ENDPOINTS_VARIABLE) {
        Ok(urls) => urls.parse()?,
        Err(_) => Endpoints::default(),
    };
    Ok(Remote::new(endpoints))
}

pub fn holder(process: u32) -> HolderId {
    HolderId::new(format!("worker-{process}")).expect("the holder is short and has no control characters")
}

pub async fn run(name: &str) -> Result<(), Box<dyn std::error::Error>> {
    let tables = Tables::connect().await?;
    let options = ManagerOptions::new().holder(holder(std::process::id()));
    let manager = LeaseManager::with_options(remote()?, options)?;
    let lease = manager.lease_with(name, LeaseOptions::new().ttl(ttl()))?;
    loop {
        if let Err(error) = lease.acquire(Wait::UpTo(Duration::from_secs(10))).await {
            eprintln!("not acquired: {error}");
            continue;
        }
        // `token()` checks the clock: a worker that was paused before this line writes nothing.
        while let Some(token) = lease.token() {
            // A worker that is paused here writes late. No lease service can prevent that.
            std::thread::sleep(Duration::from_millis(20));
            if !tables.write(name, "made with care", token.as_i64()).await? {
                println!("worker {}: my write with token {token} was refused", std::process::id());
            }
        }
    }
}
