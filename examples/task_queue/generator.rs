//! The generator: of all instances, the holder of one lease produces tasks. Each instance answers for the holder.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::any;
use serde_json::{Value, json};
use tenure::api::LeaseState;
use tenure::client::{Lease, LeaseManager, LeaseOptions, Remote, Wait};
use tenure::types::Metadata;
use tenure::{FencingToken, LeaseName};
use tokio::net::TcpListener;
use tokio::time::sleep;

use crate::plain_http::{Answer, send};
use crate::{Done, database, number, remote, ttl};

const LEASE: &str = "task-generator";
/// The metadata key with the address of the holder.
const ADDRESS_KEY: &str = "address";
const PAUSE: Duration = Duration::from_millis(100);

pub async fn run() -> Done {
    database::create().await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let manager = LeaseManager::new(remote()?);
    let metadata = BTreeMap::from([(ADDRESS_KEY.to_owned(), address.clone())]);
    let options = LeaseOptions::new().ttl(ttl()).metadata(Metadata::new(metadata)?);
    let lease = manager.lease_with(LEASE, options)?;
    let instance = Instance { lease: lease.clone(), remote: remote()?, address: address.clone() };
    let app = Router::new()
        .route("/api/generator/{action}", any(forward))
        .route("/local/generator/{action}", any(local))
        .with_state(instance);
    println!("generator at {address}");
    tokio::select! {
        served = async { axum::serve(listener, app).await } => Ok(served?),
        () = hold(&lease) => Ok(()),
    }
}

/// Produces tasks while this instance holds the lease.
async fn hold(lease: &Lease) {
    let pause = Duration::from_millis(number("EXAMPLE_PRODUCE_MS", 100));
    loop {
        if lease.acquire(Wait::UpTo(Duration::from_secs(10))).await.is_err() {
            sleep(PAUSE).await;
        }
        while let Some(token) = lease.token() {
            if let Err(error) = produce(token).await {
                eprintln!("no task produced: {error}");
            }
            sleep(pause).await;
        }
    }
}

/// One statement checks the token and the switch, and inserts. Returns whether it inserted a task.
async fn produce(token: FencingToken) -> Done<bool> {
    const PRODUCE: &str = "WITH allowed AS (UPDATE generator SET fence = $1, produced = produced + 1 \
         WHERE id = 1 AND running AND fence <= $1 RETURNING 1) \
         INSERT INTO tasks (task_data) SELECT $2::text::jsonb FROM allowed";
    let data = json!({"sleep_duration_ms": number("EXAMPLE_TASK_MS", 200)}).to_string();
    Ok(database::connect().await?.execute(PRODUCE, &[&token.as_i64(), &data]).await? == 1)
}

#[derive(Clone)]
struct Instance {
    lease: Lease,
    remote: Remote,
    address: String,
}

/// Sends the request to the instance that holds the lease.
async fn forward(State(instance): State<Instance>, Path(action): Path<String>) -> Result<Answer, Answer> {
    let lease = instance.remote.get(&LeaseName::new(LEASE)?).await?;
    let holder = lease.metadata.get(ADDRESS_KEY).filter(|_| lease.state == LeaseState::Active);
    let Some(holder) = holder else {
        return Err(Answer::message(StatusCode::SERVICE_UNAVAILABLE, "no instance holds the lease; try again"));
    };
    let (status, answer) = send(holder, "POST", &format!("/local/generator/{action}"), &Value::Null).await?;
    Ok(Answer(StatusCode::from_u16(status)?, answer))
}

/// Answers as the holder. The switch is in the database, so that the next holder continues.
async fn local(State(instance): State<Instance>, Path(action): Path<String>) -> Result<Answer, Answer> {
    const SWITCH: &str = "UPDATE generator SET running = coalesce($2, running), fence = $1 \
         WHERE id = 1 AND fence <= $1 RETURNING running, produced";
    let running = match action.as_str() {
        "start" => Some(true),
        "stop" => Some(false),
        "status" => None,
        _ => return Err(Answer::message(StatusCode::NOT_FOUND, "expected start, stop or status")),
    };
    let lost = || Answer::message(StatusCode::SERVICE_UNAVAILABLE, "this instance does not hold the lease; try again");
    let token = instance.lease.token().ok_or_else(lost)?;
    let row = database::connect().await?.query_opt(SWITCH, &[&token.as_i64(), &running]).await?;
    let row = row.ok_or_else(lost)?;
    let status = if row.try_get(0)? { "STARTED" } else { "STOPPED" };
    let produced: i64 = row.try_get(1)?;
    Ok(Answer(StatusCode::OK, json!({"status": status, "holder": instance.address, "produced": produced})))
}
