//! Sixteen shards for a group of workers: at any time, at most one worker holds the lease of a shard.
//! Start this program several times with different names.
//!
//!     TENURE_ENDPOINTS=http://127.0.0.1:7101 cargo run --example sharded_workers -- my-name [weight]
//!
//! A worker with weight 0 only watches. The program ends with ctrl-c, or after EXAMPLE_SECONDS.

use std::error::Error;
use std::time::Duration;

use tenure::client::{DEFAULT_ENDPOINTS, ENDPOINTS_VARIABLE, LeaseManager, LeaseOptions};
use tenure::group::{Changes, Group, MemberOptions, Shard};
use tenure::types::{InvalidValue, LeaseName};

const SHARDS: u32 = 16;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let me = arguments.next().unwrap_or_else(|| format!("process-{}", std::process::id()));
    let weight = arguments.next().map_or(Ok(1), |weight| weight.parse())?;
    let endpoints = std::env::var(ENDPOINTS_VARIABLE).unwrap_or_else(|_| DEFAULT_ENDPOINTS.to_owned());
    let manager = LeaseManager::connect_lazy(&endpoints)?;

    let options = MemberOptions::new(&me).weight(weight).ttl(Duration::from_secs(5));
    let member = Group::join(&manager, "example-workers", options).await?;
    println!("{me}: a member with weight {weight}");
    let names: Result<Vec<_>, InvalidValue> =
        (0..SHARDS).map(|n| LeaseName::new(format!("example-shard-{n}"))).collect();
    let drain = LeaseOptions::new().ttl(Duration::from_secs(5)).drain(Duration::from_secs(2));
    let name = me.clone();
    let shards = member.keep_assigned(names?, drain, move |shard| work(name.clone(), shard))?;

    tokio::select! {
        () = tell(member.changes(), &me) => {}
        // A real program joins again, or ends and is restarted.
        () = member.lost().cancelled_owned() => println!("{me}: not a member any more"),
        stopped = asked_to_stop() => stopped?,
    }
    // The work ends before the membership, so that no other member waits for a shard that is still in use.
    shards.stop().await;
    member.leave().await?;
    manager.shutdown().await;
    println!("{me}: stopped");
    Ok(())
}

/// Works on one shard until it should leave.
async fn work(me: String, shard: Shard) {
    let name = shard.lease.name().clone();
    println!("{me}: works on {name} with token {}", shard.token);
    shard.leaving.cancelled().await;
    // A real program finishes its batch here and writes it with the token.
    println!("{me}: leaves {name}");
}

async fn tell(mut changes: Changes, me: &str) {
    while let Some(change) = changes.next().await {
        println!("{me}: sees {change:?}");
    }
}

async fn asked_to_stop() -> Result<(), Box<dyn Error>> {
    let end = match std::env::var("EXAMPLE_SECONDS") {
        Ok(seconds) => Duration::from_secs(seconds.parse()?),
        Err(_) => Duration::MAX,
    };
    tokio::select! {
        pressed = tokio::signal::ctrl_c() => pressed?,
        () = tokio::time::sleep(end) => {}
    }
    Ok(())
}
