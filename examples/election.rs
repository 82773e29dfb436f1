//! Leader election: start this program several times, and stop the leader.
//!
//!     TENURE_ENDPOINTS=http://127.0.0.1:7101 cargo run --example election -- my-name
//!
//! The program ends with ctrl-c, or after EXAMPLE_SECONDS.

use std::error::Error;
use std::io;
use std::time::Duration;

use tenure::client::{DEFAULT_ENDPOINTS, ENDPOINTS_VARIABLE, LeaseManager};
use tenure::election::{Election, ElectionOptions, Observer};
use tenure::token::FencingToken;
use tenure::types::Metadata;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let me = std::env::args().nth(1).unwrap_or_else(|| format!("process-{}", std::process::id()));
    let endpoints = std::env::var(ENDPOINTS_VARIABLE).unwrap_or_else(|_| DEFAULT_ENDPOINTS.to_owned());
    let manager = LeaseManager::connect_lazy(&endpoints)?;
    let options = ElectionOptions::new()
        .ttl(Duration::from_secs(5))
        .grace(Duration::from_secs(1))
        .metadata(Metadata::new([("name".to_owned(), me.clone())].into())?);
    let election = Election::new(&manager, "example-leader", options)?;
    println!("{me}: a candidate");
    tokio::select! {
        ended = stand(&election, &me) => ended?,
        () = observe(election.observe(), &me) => {}
        stopped = asked_to_stop() => stopped?,
    }
    // This releases the lease, so that the next leader need not wait for the ttl.
    manager.shutdown().await;
    println!("{me}: stopped");
    Ok(())
}

/// Campaigns, leads until the leadership is lost, and campaigns again.
async fn stand(election: &Election, me: &str) -> Result<(), Box<dyn Error>> {
    loop {
        let leadership = election.campaign().await?;
        println!("{me}: elected with token {}", leadership.token());
        if let Err(error) = leadership.establish(fence_everything).await {
            println!("{me}: not established: {error}");
            leadership.resign().await?;
            continue;
        }
        println!("{me}: established");
        if let Err(why) = leadership.while_leading(lead(me, leadership.token())).await {
            println!("{me}: not the leader any more: {why}");
        }
    }
}

/// A real program writes the token to each resource of the leader here, for example to a row of the database. From then
/// on, the resource rejects the writes of earlier leaders.
async fn fence_everything(_token: FencingToken) -> io::Result<()> {
    Ok(())
}

/// The work of the leader. It is dropped when the leadership is lost.
async fn lead(me: &str, token: FencingToken) {
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        println!("{me}: leading; every write goes out with {token}");
    }
}

async fn observe(mut observer: Observer, me: &str) {
    loop {
        match observer.next().await.leader {
            Some(leader) => println!(
                "{me}: sees {} with token {}{}",
                leader.metadata.get("name").unwrap_or(&leader.holder),
                leader.token,
                if leader.is_established { ", established" } else { "" },
            ),
            None => println!("{me}: sees no leader"),
        }
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
