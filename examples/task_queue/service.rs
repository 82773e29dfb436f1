//! The task service. A task belongs to the processor that holds its lease.

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post, put};
use serde::Deserialize;
use serde_json::{Value, json};
use tenure::api::{Acquire, Code, LeaseInfo, Release, Renew};
use tenure::client::{CallError, Remote};
use tenure::{FencingToken, HolderId, LeaseName};
use tokio::net::TcpListener;
use tokio_postgres::Transaction;

use crate::database::{self, TASK};
use crate::plain_http::Answer;
use crate::{Done, remote, ttl};

/// Tasks that one request tries, if their leases are held.
const MAX_SKIPPED: i64 = 100;

pub async fn run() -> Done {
    database::create().await?;
    let app = Router::new()
        .route("/api/tasks/next", post(next))
        .route("/api/tasks/{id}/heartbeat", put(heartbeat))
        .route("/api/tasks/{id}/complete", put(complete))
        .route("/api/tasks", get(|| list("true")))
        .route("/api/tasks/processed", get(|| list("processed_at IS NOT NULL")))
        .route("/api/tasks/started", get(|| list("started_at IS NOT NULL AND processed_at IS NULL")))
        .route("/api/tasks/{id}", get(one))
        .with_state(remote()?);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("service at {}", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}

/// The body of all changes. `fence` and `output` are for a heartbeat and a completion.
#[derive(Deserialize)]
struct Body {
    processor: HolderId,
    fence: Option<FencingToken>,
    #[serde(default)]
    output: Value,
}

impl Body {
    fn read(bytes: &Bytes) -> Result<Body, Answer> {
        serde_json::from_slice(bytes).map_err(|error| Answer::message(StatusCode::BAD_REQUEST, &error.to_string()))
    }
}

fn lease_of(id: i64) -> LeaseName {
    LeaseName::new(format!("task/{id}")).expect("a short name")
}

/// Gives the oldest task without a holder to the processor.
async fn next(State(leases): State<Remote>, body: Bytes) -> Result<Answer, Answer> {
    // `must_heartbeat_before` only avoids requests in vain. The lease decides.
    const OLDEST: &str = "SELECT id FROM tasks WHERE processed_at IS NULL \
         AND (must_heartbeat_before IS NULL OR must_heartbeat_before < now()) \
         ORDER BY scheduled_at, id OFFSET $1 LIMIT 1 FOR UPDATE SKIP LOCKED";
    let Body { processor, .. } = Body::read(&body)?;
    let start = format!(
        "UPDATE tasks SET processor = $2, fence = $3, started_at = now(), last_heartbeat_at = now(), \
         must_heartbeat_before = now() + $4 * interval '1 ms' \
         WHERE id = $1 AND fence <= $3 AND processed_at IS NULL RETURNING {TASK}"
    );
    let mut database = database::connect().await?;
    for skipped in 0..MAX_SKIPPED {
        let transaction = database.transaction().await?;
        let Some(row) = transaction.query_opt(OLDEST, &[&skipped]).await? else { break };
        let id: i64 = row.try_get(0)?;
        let claim = Acquire::new(processor.clone()).ttl(ttl());
        let lease = match leases.acquire(&lease_of(id), &claim).await {
            Ok(lease) => lease,
            Err(CallError::Refused(problem)) if matches!(problem.code, Code::Held | Code::LockDelay) => continue,
            Err(error) => return Err(error.into()),
        };
        let token = lease.token.as_i64();
        let started = transaction.query_opt(&start, &[&id, &processor.as_str(), &token, &left_ms(&lease)]).await?;
        transaction.commit().await?;
        if let Some(row) = started {
            return Ok(Answer(StatusCode::OK, json!({"task": database::json(&row)?})));
        }
    }
    Ok(Answer(StatusCode::OK, json!({"task": null})))
}

fn left_ms(lease: &LeaseInfo) -> f64 {
    lease.expires_in_ms.unwrap_or(0) as f64
}

/// A change of a task by its processor, after the checks that heartbeat and completion share.
struct Checked<'a> {
    transaction: Transaction<'a>,
    lease: LeaseInfo,
}

/// Locks the row, checks the processor, and renews the lease.
async fn check<'a>(
    leases: &Remote,
    database: &'a mut tokio_postgres::Client,
    id: i64,
    body: &Body,
) -> Result<Checked<'a>, Answer> {
    const LOCKED: &str = "SELECT processor, processed_at IS NOT NULL, fence FROM tasks WHERE id = $1 FOR UPDATE";
    let transaction = database.transaction().await?;
    let Some(row) = transaction.query_opt(LOCKED, &[&id]).await? else {
        return Err(Answer::message(StatusCode::OK, "the task does not exist"));
    };
    let (processor, is_processed): (Option<&str>, bool) = (row.try_get(0)?, row.try_get(1)?);
    if processor != Some(body.processor.as_str()) {
        return Err(Answer::message(StatusCode::OK, "the task is not assigned to this processor"));
    }
    if is_processed {
        return Err(Answer::message(StatusCode::CONFLICT, "the task is already processed"));
    }
    // Without a token in the request, the last grant of this processor counts.
    let token = match body.fence {
        Some(token) => token,
        None => FencingToken::try_from(u64::try_from(row.try_get::<_, i64>(2)?)?)?,
    };
    let renew = Renew::new(body.processor.clone(), token).ttl(ttl());
    match leases.renew(&lease_of(id), &renew).await {
        Ok(lease) => Ok(Checked { transaction, lease }),
        Err(CallError::Refused(problem)) if problem.code == Code::Lost => {
            Err(Answer::message(StatusCode::CONFLICT, "the lease has expired"))
        }
        Err(error) => Err(error.into()),
    }
}

/// One statement checks the token and writes. A newer holder has written if it changes no row.
const CHANGED: &str = "last_heartbeat_at = now(), must_heartbeat_before = now() + $4 * interval '1 ms' \
     WHERE id = $1 AND processor = $2 AND fence <= $3 AND processed_at IS NULL";

async fn heartbeat(State(leases): State<Remote>, Path(id): Path<i64>, body: Bytes) -> Result<Answer, Answer> {
    let (body, mut database) = (Body::read(&body)?, database::connect().await?);
    let Checked { transaction, lease } = check(&leases, &mut database, id, &body).await?;
    let update = format!("UPDATE tasks SET fence = $3, {CHANGED} RETURNING {TASK}");
    let parameters = (body.processor.as_str(), lease.token.as_i64(), left_ms(&lease));
    let row = transaction.query_opt(&update, &[&id, &parameters.0, &parameters.1, &parameters.2]).await?;
    transaction.commit().await?;
    changed(row)
}

async fn complete(State(leases): State<Remote>, Path(id): Path<i64>, body: Bytes) -> Result<Answer, Answer> {
    let (body, mut database) = (Body::read(&body)?, database::connect().await?);
    let Checked { transaction, lease } = check(&leases, &mut database, id, &body).await?;
    let update = format!(
        "UPDATE tasks SET fence = $3, processed_at = now(), task_output = $5::text::jsonb, {CHANGED} RETURNING {TASK}"
    );
    let parameters = (body.processor.as_str(), lease.token.as_i64(), left_ms(&lease), body.output.to_string());
    let row =
        transaction.query_opt(&update, &[&id, &parameters.0, &parameters.1, &parameters.2, &parameters.3]).await?;
    transaction.commit().await?;
    // Without the release, the lease would end by its ttl.
    let _ = leases.release(&lease_of(id), &Release::new(body.processor, lease.token)).await;
    changed(row)
}

fn changed(row: Option<tokio_postgres::Row>) -> Result<Answer, Answer> {
    match row {
        Some(row) => Ok(Answer(StatusCode::ACCEPTED, json!({"task": database::json(&row)?}))),
        None => Err(Answer::message(StatusCode::CONFLICT, "a newer holder has the task")),
    }
}

async fn one(Path(id): Path<i64>) -> Result<Answer, Answer> {
    let query = format!("SELECT {TASK} FROM tasks WHERE id = $1");
    match database::connect().await?.query_opt(&query, &[&id]).await? {
        Some(row) => Ok(Answer(StatusCode::OK, database::json(&row)?)),
        None => Err(Answer::message(StatusCode::NOT_FOUND, "the task does not exist")),
    }
}

/// At most 1,000 tasks.
async fn list(condition: &str) -> Result<Answer, Answer> {
    let query = format!("SELECT {TASK} FROM tasks WHERE {condition} ORDER BY id LIMIT 1000");
    let rows = database::connect().await?.query(&query, &[]).await?;
    let tasks: Result<Vec<Value>, _> = rows.iter().map(database::json).collect();
    Ok(Answer(StatusCode::OK, Value::Array(tasks?)))
}
