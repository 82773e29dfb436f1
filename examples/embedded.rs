//! A web service with an embedded cluster: its three replicas are the nodes, so their leases need no other process.
//!
//! ```sh
//! for id in 1 2 3; do cargo run --example embedded -- --id $id --data /tmp/embedded/$id & done
//! curl localhost:7401/lease-acquire/report
//! curl localhost:7402/lease-check/report
//! curl localhost:7403/tenure/v1/leases/report
//! ```
//!
//! `--base PORT` moves the ports: replica N serves HTTP at PORT + N and peers at PORT + 100 + N.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use tenure::client::{CallError, LeaseManager, LeaseOptions, Wait};
use tenure::node::{Node, NodeFailure, PeerRefusal};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

const REPLICAS: u64 = 3;
/// A replica that dies or stalls for this time loses its leases.
const TTL: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let Arguments { id, base, data } = Arguments::read()?;
    let http = |id: u64| format!("127.0.0.1:{}", u64::from(base) + id);
    let peer = |id: u64| format!("127.0.0.1:{}", u64::from(base) + 100 + id);
    let listener = TcpListener::bind(http(id)).await?;

    let replica = Node::builder("embedded-example").id(id).data(data);
    let node = (1..=REPLICAS).fold(replica, |node, id| node.member(id, http(id), peer(id))).start().await?;
    let leases = node.leases();

    let app = Router::new()
        .route("/lease-acquire/{name}", get(acquire))
        .route("/lease-check/{name}", get(check))
        .with_state(leases.clone())
        .nest("/tenure", node.router());
    println!("replica {id} serves at http://{}", http(id));

    let (failed, mut failure) = oneshot::channel();
    let stop = async move {
        tokio::select! {
            signal = asked_to_stop() => println!("{signal}: stopping"),
            why = node.wait_failed() => failed.send(why).expect("`main` waits for it"),
        }
        // The manager needs the node, so it ends first. The server ends last and finishes its open requests.
        leases.shutdown().await;
        node.shutdown().await;
    };
    axum::serve(listener, app).with_graceful_shutdown(stop).await?;
    // A supervisor restarts a service only after an error. A node that was removed must not start again.
    match failure.try_recv() {
        Ok(NodeFailure::Refused(PeerRefusal::Removed { .. })) | Err(_) => Ok(()),
        Ok(why) => Err(why.into()),
    }
}

/// Acquires a lease for this replica. The manager renews it until the replica ends.
async fn acquire(State(leases): State<LeaseManager>, Path(name): Path<String>) -> (StatusCode, String) {
    let lease = match leases.lease_with(&name, LeaseOptions::new().ttl(TTL)) {
        Ok(lease) => lease,
        Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()),
    };
    match lease.acquire(Wait::No).await {
        Ok(token) => (StatusCode::OK, format!("acquired with token {token}")),
        Err(CallError::Refused(problem)) => (StatusCode::CONFLICT, problem.detail),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
    }
}

/// Whether this replica holds a lease, by local knowledge. Sends no request.
async fn check(State(leases): State<LeaseManager>, Path(name): Path<String>) -> (StatusCode, String) {
    match leases.lease(&name) {
        Ok(lease) => (StatusCode::OK, lease.is_held().to_string()),
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()),
    }
}

async fn asked_to_stop() -> &'static str {
    let mut terminate = signal(SignalKind::terminate()).expect("SIGTERM can be caught");
    let mut interrupt = signal(SignalKind::interrupt()).expect("SIGINT can be caught");
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}

struct Arguments {
    id: u64,
    base: u16,
    data: PathBuf,
}

impl Arguments {
    fn read() -> Result<Arguments, Box<dyn Error>> {
        let (mut id, mut base, mut data) = (None, 7400, None);
        let mut words = std::env::args().skip(1);
        while let Some(flag) = words.next() {
            let value = words.next().ok_or_else(|| format!("{flag} needs a value"))?;
            match flag.as_str() {
                "--id" => id = Some(value.parse()?),
                "--base" => base = value.parse()?,
                "--data" => data = Some(PathBuf::from(value)),
                _ => return Err(format!("unknown flag {flag}: expected --id, --base or --data").into()),
            }
        }
        let id = id.ok_or("--id is missing: expected 1, 2 or 3")?;
        let data = data.unwrap_or_else(|| std::env::temp_dir().join(format!("tenure-embedded-{id}")));
        Ok(Arguments { id, base, data })
    }
}
