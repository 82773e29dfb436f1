//! Fencing of a holder that is paused for longer than its ttl and writes when it resumes.
//!
//! The workers are those of the example `fenced_postgres`. They check their lease, work for 20 ms, and write to two
//! tables. One table checks the token and the other does not. A trigger in the database, which is independent of that
//! check, counts accepted writes that follow a write of a newer holder.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rustix::process::Signal;
use serde_json::json;
use tokio_postgres::Client as Database;

use crate::client::{Call, Client};
use crate::cluster::{Cluster, SOON};
use crate::example::example;
use crate::postgres::PostgresServer;
use crate::process::Process;
use crate::steady::{needs, safety, steady};

steady!(database_refuses_late_writes_of_a_paused_holder);

const TABLES: &str = include_str!("../../examples/fenced_postgres/schema.sql");
/// The total number of pauses, unless `TENURE_PAUSES` sets it.
const PAUSES: usize = 64;
/// The number of leases. Two workers compete for each.
const LEASES: usize = 8;
const TTL_MS: u64 = 400;
const POLL: Duration = Duration::from_millis(10);
/// The time left of a lease is a hint, so it can be too long by this.
const HINT: Duration = Duration::from_millis(50);
/// The time for the late write of a resumed worker.
const LATE: Duration = Duration::from_millis(150);

async fn database_refuses_late_writes_of_a_paused_holder() {
    let pauses = std::env::var("TENURE_PAUSES").map_or(PAUSES, |text| text.parse().expect("a number"));
    let Some(server) = PostgresServer::start().await else { return };
    let cluster = Cluster::start("").await;
    let database = server.connect().await;
    database.batch_execute(TABLES).await.expect("the schema is empty");
    let contests: Vec<Contest> =
        (0..LEASES).map(|n| Contest::start(&cluster, &server, format!("contest-{n}"))).collect();
    let runs = contests.iter().enumerate().map(|(n, contest)| {
        let rounds = pauses / LEASES + usize::from(n < pauses % LEASES);
        contest.run(rounds, &cluster.client, &database)
    });
    let runs = join_all(runs).await;
    let paused: usize = runs.iter().map(|(rounds, _)| rounds).sum();
    let long: usize = runs.iter().map(|(_, long)| long).sum();
    let [with, without] = [stale(&database, "guarded").await, stale(&database, "unguarded").await];
    let refused: i64 = count(&database, "SELECT count(*) FROM refused").await;
    println!(
        "{paused} pauses of holders, each longer than its ttl of {TTL_MS} ms: {with} stale writes accepted with the \
         fence ({refused} refused), {without} without it"
    );
    assert_eq!(paused, pauses);
    safety!(with == 0, "{with} stale writes were accepted with the fence");
    needs!(2 * long > paused, "a worker renews in time: {long} of {paused} holders had half of their ttl left");
    assert!(without > 0, "no write came late, so the test shows nothing");
    assert!(refused > 0, "the fence refused nothing");
}

/// Two workers that compete for one lease.
struct Contest {
    name: String,
    workers: [Process; 2],
}

impl Contest {
    fn start(cluster: &Cluster, server: &PostgresServer, name: String) -> Contest {
        let worker = |n: usize| {
            let mut command = example("fenced_postgres");
            command.args(["worker", &name]);
            command.env("DATABASE_URL", server.text()).env("TENURE_ENDPOINTS", cluster.client.endpoints());
            command.env("EXAMPLE_TTL_MS", TTL_MS.to_string());
            Process::start(&format!("{name}-{n}"), command, cluster.folder())
        };
        Contest { workers: [worker(0), worker(1)], name }
    }

    /// Pauses the holder `rounds` times, each time until the other worker has written. Returns the number of pauses,
    /// and of those at which the holder had more than half of its ttl left and expired.
    async fn run(&self, rounds: usize, client: &Client, database: &Database) -> (usize, usize) {
        let mut long = 0;
        database.execute("INSERT INTO guarded (name) VALUES ($1)", &[&self.name]).await.expect("the name is unique");
        database.execute("INSERT INTO unguarded (name) VALUES ($1)", &[&self.name]).await.expect("the name is unique");
        for _ in 0..rounds {
            let (holder, token) = self.holder_that_writes(client, database).await;
            let paused = Instant::now();
            holder.signal(Signal::STOP);
            let left = self.time_left(client, token).await;
            self.until(database, token, |fence| fence > token).await;
            let took = paused.elapsed();
            // A worker that renews too late, by its own clock, releases the lease.
            if self.has_expired(client, token).await {
                safety!(took + HINT >= left, "another worker wrote after {took:?}, and the holder had {left:?} left");
                long += usize::from(left > Duration::from_millis(TTL_MS / 2));
            }
            holder.signal(Signal::CONT);
            tokio::time::sleep(LATE).await;
        }
        (rounds, long)
    }

    /// The time left of the lease with this token. Zero if the lease has ended.
    async fn time_left(&self, client: &Client, token: i64) -> Duration {
        let lease = client.call_until_known(0, &Call::get(format!("/v1/leases/{}", self.name))).await.ok();
        let active = lease.filter(|lease| lease["state"] == "active" && lease["token"] == json!(token.to_string()));
        Duration::from_millis(active.and_then(|lease| lease["expires_in_ms"].as_u64()).unwrap_or(0))
    }

    /// Whether the lease with this token has ended by its ttl.
    async fn has_expired(&self, client: &Client, token: i64) -> bool {
        let history = client.done(0, &Call::get(format!("/v1/leases/{}/history", self.name))).await;
        let token = json!(token.to_string());
        let transitions = history["transitions"].as_array().expect("a list");
        transitions.iter().any(|seen| seen["event"] == "expired" && seen["token"] == token)
    }

    async fn holder_that_writes(&self, client: &Client, database: &Database) -> (&Process, i64) {
        let asked = Instant::now();
        loop {
            assert!(asked.elapsed() < SOON, "no worker holds {}", self.name);
            let lease = client.call_until_known(0, &Call::get(format!("/v1/leases/{}", self.name))).await;
            let holder = lease.ok().and_then(|lease| {
                let token: i64 = lease["token"].as_str()?.parse().ok()?;
                let holder = lease["holder"].as_str().filter(|_| lease["state"] == "active")?;
                let worker = self.workers.iter().find(|worker| holder == format!("worker-{}", worker.id()))?;
                Some((worker, token))
            });
            match holder {
                Some((worker, token)) => {
                    self.until(database, token, |fence| fence >= token).await;
                    return (worker, token);
                }
                None => tokio::time::sleep(POLL).await,
            }
        }
    }

    async fn until(&self, database: &Database, token: i64, is_so: impl Fn(i64) -> bool) {
        let asked = Instant::now();
        let query = format!("SELECT fence FROM guarded WHERE name = '{}'", self.name);
        while !is_so(count(database, &query).await) {
            assert!(asked.elapsed() < SOON, "{}: no worker wrote with a token of at least {token}", self.name);
            tokio::time::sleep(POLL).await;
        }
    }
}

async fn stale(database: &Database, table: &str) -> i64 {
    count(database, &format!("SELECT count(*) FROM stale WHERE what = '{table}'")).await
}

async fn count(database: &Database, query: &str) -> i64 {
    database.query_one(query, &[]).await.expect("the query is valid").get(0)
}
