//! A lease holder in a separate process. It holds a lease through the client library, and writes to the register while
//! it believes to hold the lease. Faults pause and kill it like the nodes.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use rand::RngExt;
use tenure::client::{Endpoints, LeaseManager, LeaseOptions, ManagerOptions, Wait};
use tenure::types::HolderId;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use super::recorder::now;
use super::register::Write;
use super::security::Security;

/// Shorter than the pauses, so that a paused holder loses its lease.
const TTL: Duration = Duration::from_millis(1_500);
/// The time between the check of the lease and the write. A holder that is paused in this window writes late.
const WORK: Duration = Duration::from_millis(15);
const PAUSE: Duration = Duration::from_millis(5);
/// How long a holder keeps the lease before it releases it.
const HOLDS: (Duration, Duration) = (Duration::from_millis(300), Duration::from_millis(4_000));
const WAIT: Duration = Duration::from_secs(5);
/// How often the holder asks for the members. A run replaces them within seconds.
const REFRESH: Duration = Duration::from_secs(1);

#[derive(clap::Args)]
pub struct Arguments {
    #[arg(long)]
    endpoints: Endpoints,
    /// The socket of the register
    #[arg(long)]
    register: PathBuf,
    /// The name of the lease
    #[arg(long)]
    name: String,
    #[arg(long)]
    holder: String,
    /// The folder of the certificates, with TLS
    #[arg(long)]
    tls: Option<PathBuf>,
    /// The access token, with access control
    #[arg(long, env = "TENURE_ACCESS_TOKEN")]
    token: Option<String>,
}

pub async fn run(arguments: Arguments) -> Result<()> {
    let options = ManagerOptions::new().holder(HolderId::new(arguments.holder.clone())?);
    let security = Security::load(arguments.tls.as_deref())?;
    let security = arguments.token.iter().cloned().fold(security, |security, token| security.with_token(token));
    let remote = security.remote(arguments.endpoints.with_refresh_interval(REFRESH))?;
    let manager = LeaseManager::with_options(remote, options)?;
    let lease = manager.lease_with(&arguments.name, LeaseOptions::new().ttl(TTL))?;
    let (read, mut write) = UnixStream::connect(&arguments.register).await?.into_split();
    let mut answers = BufReader::new(read).lines();
    loop {
        if lease.acquire(Wait::UpTo(WAIT)).await.is_err() {
            tokio::time::sleep(PAUSE).await;
            continue;
        }
        let until = now() + rand::rng().random_range(HOLDS.0..HOLDS.1);
        while now() < until {
            let looked_at = now();
            let Some(token) = lease.token() else { break };
            tokio::time::sleep(WORK).await;
            let (name, holder) = (arguments.name.clone(), arguments.holder.clone());
            let mut line = serde_json::to_string(&Write { name, holder, token: token.as_u64(), looked_at })?;
            line.push('\n');
            write.write_all(line.as_bytes()).await?;
            if answers.next_line().await?.is_none_or(|answer| answer != "written") {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
        // The release may fail: the lease can be lost.
        let _ = lease.release().await;
        tokio::time::sleep(PAUSE).await;
    }
}
