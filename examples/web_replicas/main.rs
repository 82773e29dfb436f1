//! Three replicas of a web service that embed a node each, in two regions. See README.md.
//!
//! ```sh
//! cargo run --example web_replicas -- 1 eu &
//! cargo run --example web_replicas -- 2 eu &
//! cargo run --example web_replicas -- 3 us &
//! curl localhost:7501/lease-acquire/report
//! ```

mod region;

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use serde_json::{Value, json};
use tenure::client::{CallError, Lease, LeaseManager, LeaseOptions, Wait};
use tenure::node::{Node, NodeFailure, PeerRefusal};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use region::Region;

type Failure = Box<dyn Error + Send + Sync>;

/// A replica that dies or stalls for this time loses its leases.
const TTL: Duration = Duration::from_secs(3);
/// The schedule of the recurring task. It is shorter than the ttl.
const EVERY: Duration = Duration::from_secs(1);

#[derive(Clone)]
struct App {
    leases: LeaseManager,
    region: Arc<Region>,
}

impl App {
    /// A lease that only replicas in the active region acquire.
    fn lease(&self, name: &str) -> Result<Lease, Answer> {
        let active = self.region.is_active();
        let options = LeaseOptions::new().ttl(TTL).should_hold(move || active.get());
        self.leases.lease_with(name, options).map_err(|error| Answer::failed(StatusCode::BAD_REQUEST, &error))
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [id, region, data @ ..] = &arguments[..] else { return Err("usage: web_replicas ID REGION [DATA]".into()) };
    let id: u64 = id.parse()?;
    let data = data.first().map_or_else(|| std::env::temp_dir().join(format!("web-replicas-{id}")), PathBuf::from);
    let addresses = |variable: &str, first: u16| {
        let default = (first..first + 3).map(|port| format!("127.0.0.1:{port}")).collect::<Vec<_>>().join(",");
        std::env::var(variable).unwrap_or(default).split(',').map(str::to_owned).collect::<Vec<String>>()
    };
    let (http, peers) = (addresses("EXAMPLE_HTTP", 7501), addresses("EXAMPLE_PEERS", 7601));
    let own = usize::try_from(id)?.checked_sub(1).and_then(|place| http.get(place)).ok_or("ID: expected 1, 2 or 3")?;
    let listener = TcpListener::bind(own).await?;

    let builder = Node::builder("web-replicas").id(id).data(data);
    let members = (1..).zip(http.iter().zip(&peers));
    let node = members.fold(builder, |node, (id, (http, peer))| node.member(id, http, peer)).start().await?;
    let leases = node.leases();
    let active = std::env::var("EXAMPLE_ACTIVE").unwrap_or_else(|_| "eu".to_owned());
    let region = Arc::new(Region::join(&leases, format!("replica-{id}"), region.clone(), &active).await?);
    let app = App { leases: leases.clone(), region: region.clone() };
    let recurring = tokio::spawn(recur(app.clone(), id));
    let router = Router::new()
        .route("/lease-acquire/{name}", get(acquire))
        .route("/lease-check/{name}", get(check))
        .route("/region-lease-check/{name}", get(check_region))
        .route("/active-region/{region}", put(activate))
        .route("/resource/{name}", get(resource))
        .route("/members", get(members_of_cluster))
        .with_state(app)
        .nest("/tenure", node.router());
    println!("replica {id} serves at {own}");
    let (failed, mut failure) = oneshot::channel();
    let stop = async move {
        let mut terminate = signal(SignalKind::terminate()).expect("SIGTERM can be caught");
        let mut interrupt = signal(SignalKind::interrupt()).expect("SIGINT can be caught");
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            why = node.wait_failed() => failed.send(why).expect("`main` waits for it"),
        }
        // The recurring task ends before its lease.
        recurring.abort();
        let _ = recurring.await;
        region.leave().await;
        leases.shutdown().await;
        node.shutdown().await;
    };
    axum::serve(listener, router).with_graceful_shutdown(stop).await?;
    // A supervisor restarts a service only after an error. A node that was removed must not start again.
    match failure.try_recv() {
        Ok(NodeFailure::Refused(PeerRefusal::Removed { .. })) | Err(_) => Ok(()),
        Ok(why) => Err(why.into()),
    }
}

/// Works on one replica at a time: only if the acquire succeeds.
async fn recur(app: App, id: u64) {
    let mut schedule = tokio::time::interval(EVERY);
    loop {
        schedule.tick().await;
        if let Ok(lease) = app.lease("recurring")
            && let Ok(token) = lease.acquire(Wait::No).await
        {
            println!("replica {id} works with token {token}");
        }
    }
}

/// A status and a JSON body.
struct Answer(StatusCode, Value);

impl Answer {
    fn failed(status: StatusCode, error: &dyn std::fmt::Display) -> Answer {
        Answer(status, json!({"error": error.to_string()}))
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        (self.0, [(CONTENT_TYPE, "application/json")], self.1.to_string()).into_response()
    }
}

/// Tries once to acquire the lease. The manager then renews it.
async fn acquire(State(app): State<App>, Path(name): Path<String>) -> Result<Answer, Answer> {
    let acquired = match app.lease(&name)?.acquire(Wait::No).await {
        Ok(_) => true,
        Err(CallError::Refused(_)) => false,
        // The cluster gave no answer, so the result is unknown.
        Err(error) => return Err(Answer::failed(StatusCode::SERVICE_UNAVAILABLE, &error)),
    };
    Ok(Answer(StatusCode::OK, json!({"name": name, "acquired": acquired})))
}

/// Whether this replica holds the lease, by local knowledge.
async fn check(State(app): State<App>, Path(name): Path<String>) -> Result<Answer, Answer> {
    let held = app.lease(&name)?.is_held();
    Ok(Answer(StatusCode::OK, json!({"name": name, "held": held})))
}

/// Gating: each replica of the active region holds this lease, and no other replica.
async fn check_region(State(app): State<App>, Path(name): Path<String>) -> Answer {
    Answer(StatusCode::OK, json!({"name": name, "held": app.region.is_active().get()}))
}

async fn activate(State(app): State<App>, Path(region): Path<String>) -> Result<Answer, Answer> {
    let changed = app.region.activate(&app.leases, &region).await;
    // Also after a failure: then this replica is not active either.
    if !app.region.is_active().get() {
        app.leases.release_all().await;
    }
    changed.map_err(|error| Answer::failed(StatusCode::SERVICE_UNAVAILABLE, &error))?;
    Ok(Answer(StatusCode::OK, json!({"active": region})))
}

/// The member that owns a resource. It depends only on the members and their weights.
async fn resource(State(app): State<App>, Path(name): Path<String>) -> Answer {
    let snapshot = app.region.snapshot().await;
    let placement = snapshot.placement();
    let owner = placement.owner(&name).map(|owner| owner.id.clone());
    let is_own = owner.as_deref() == Some(app.region.id());
    Answer(StatusCode::OK, json!({"name": name, "owner": owner, "self": is_own}))
}

async fn members_of_cluster(State(app): State<App>) -> Answer {
    let snapshot = app.region.snapshot().await;
    let ready: Vec<Value> =
        snapshot.ready.iter().map(|member| json!({"id": member.id, "weight": member.weight})).collect();
    Answer(StatusCode::OK, json!({"self": snapshot.me.map(|me| me.id), "readyMembers": ready}))
}
