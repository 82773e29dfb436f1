//! One nightly job for several replicas.
//!
//! Each replica runs this program at the same hour. One replica does the job. The others wait for the lease and then
//! see that the job is done. If the first replica dies, the next one gets the lease after the ttl and starts the job
//! again.
//!
//! ```text
//! cargo run --release -- dev                                   # a cluster, in another terminal
//! cargo run --example nightly -- 2026-11-21 /tmp/reports       # several times, at once
//! ```

use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure::client::{ENDPOINTS_VARIABLE, Endpoints, Lease, LeaseManager, LeaseOptions, Remote, Wait, WithError};

/// A replica that dies during the job delays it by this time. A replica that stalls for longer loses the lease.
const TTL: Duration = Duration::from_secs(3);
/// Longest wait for the lease. It must exceed the duration of the job.
const MAX_WAIT: Duration = Duration::from_secs(60);
const LINES: usize = 20;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [night, folder] = &arguments[..] else { return Err("usage: nightly NIGHT FOLDER".into()) };
    let report = Path::new(folder).join(format!("{night}.txt"));

    let endpoints: Endpoints = match std::env::var(ENDPOINTS_VARIABLE) {
        Ok(urls) => urls.parse()?,
        Err(_) => Endpoints::default(),
    };
    let manager = LeaseManager::new(Remote::new(endpoints));
    let lease = manager.lease_with("nightly-report", LeaseOptions::new().ttl(TTL))?;
    match lease.with(Wait::UpTo(MAX_WAIT), |lease| do_once(lease, report)).await {
        Ok(Ok(true)) => println!("{night}: the report is written"),
        Ok(Ok(false)) => println!("{night}: another replica has written the report"),
        Ok(Err(error)) => return Err(format!("{night}: the report could not be written: {error}").into()),
        // The job was dropped before its next step. The new holder of the lease does it again.
        Err(WithError::Lost(why)) => return Err(format!("{night}: the lease was lost: {why}").into()),
        Err(error) => return Err(error.into()),
    }
    for (name, error) in manager.shutdown().await {
        eprintln!("{name} was not released: {error}");
    }
    Ok(())
}

/// Does the job unless the report exists. The check runs under the lease: otherwise two replicas could both miss the
/// report. Returns `false` if the report existed.
async fn do_once(lease: Lease, report: PathBuf) -> std::io::Result<bool> {
    if tokio::fs::try_exists(&report).await? {
        return Ok(false);
    }
    let token = lease.token().map(|token| token.to_string()).unwrap_or_default();
    println!("working, with token {token}");
    let mut text = String::new();
    for line in 1..=LINES {
        // The work. If the lease is lost, the work stops at an await.
        tokio::time::sleep(Duration::from_millis(100)).await;
        text.push_str(&format!("line {line} of {LINES}\n"));
    }
    // The rename makes the write atomic. The token in the name separates the drafts of two holders, so a late write of
    // an old holder cannot damage the new draft. Each holder writes the same report, so the order of two renames is
    // irrelevant.
    let draft = report.with_extension(token);
    tokio::fs::write(&draft, text).await?;
    tokio::fs::rename(&draft, &report).await?;
    Ok(true)
}
