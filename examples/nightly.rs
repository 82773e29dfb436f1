//! Three replicas, one nightly job.
//!
//! Every replica runs this at the same hour. One of them does the job; the others wait for the lease, and then see that the
//! job is done. If the one that does it dies, the next gets the lease after the ttl and does it again from the start.
//!
//! ```text
//! cargo run --release -- dev                                   # a cluster, in another terminal
//! cargo run --example nightly -- 2026-11-21 /tmp/reports       # several times, at once
//! ```

use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure::client::{ENDPOINTS_VARIABLE, Endpoints, Lease, LeaseManager, LeaseOptions, Remote, Wait, WithError};

/// A replica that dies in the middle delays the job by this; a replica that stalls for longer loses it.
const TTL: Duration = Duration::from_secs(3);
/// Longer than the job takes.
const PATIENCE: Duration = Duration::from_secs(60);
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
    match lease.with(Wait::UpTo(PATIENCE), |lease| do_once(lease, report)).await {
        Ok(Ok(true)) => println!("{night}: the report is written"),
        Ok(Ok(false)) => println!("{night}: another replica has written the report"),
        Ok(Err(error)) => return Err(format!("{night}: the report could not be written: {error}").into()),
        // Stopped on the way, before its next step: whoever has the lease now does it again.
        Err(WithError::Lost(why)) => return Err(format!("{night}: the lease was lost: {why}").into()),
        Err(WithError::NotAcquired(error)) => return Err(error.into()),
    }
    for (name, error) in manager.shutdown().await {
        eprintln!("{name} was not released: {error}");
    }
    Ok(())
}

/// `false`: it was done before. Looked at under the lease, or two replicas could both find it missing.
async fn do_once(lease: Lease, report: PathBuf) -> std::io::Result<bool> {
    if tokio::fs::try_exists(&report).await? {
        return Ok(false);
    }
    let token = lease.token().map(|token| token.to_string()).unwrap_or_default();
    println!("working, with token {token}");
    let mut text = String::new();
    for line in 1..=LINES {
        // The work: each await is a place where it stops if the lease is lost.
        tokio::time::sleep(Duration::from_millis(100)).await;
        text.push_str(&format!("line {line} of {LINES}\n"));
    }
    // Whole or not at all. Two files of two holders have two names, so an old holder's late write spoils nothing; and the
    // one that is moved last is as good as the other, because the job gives the same report whoever does it.
    let draft = report.with_extension(token);
    tokio::fs::write(&draft, text).await?;
    tokio::fs::rename(&draft, &report).await?;
    Ok(true)
}
