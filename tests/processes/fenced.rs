//! A holder that is paused for longer than its ttl and writes as soon as it wakes: what the fence is for.
//!
//! The workers are those of the example `fenced_postgres`: they look at their lease, take 20 ms for their work, and write
//! to a table that checks the token and to one that does not. An auditor in the database, which knows nothing of that,
//! counts what came after a newer holder's write and was accepted.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rustix::process::Signal;
use tokio_postgres::Client as Database;

use crate::client::{Call, Client};
use crate::cluster::{Cluster, SOON};
use crate::example::example;
use crate::postgres::PostgresServer;
use crate::process::Process;
use crate::steady::{safety, steady};

steady!(a_paused_holders_late_writes_are_refused_by_the_database);

const TABLES: &str = include_str!("../../examples/fenced_postgres/schema.sql");
/// Pauses in all, unless `TENURE_PAUSES` says otherwise.
const PAUSES: usize = 200;
/// Leases that are fought for side by side, each by two workers.
const LEASES: usize = 8;
const TTL_MS: u64 = 400;
const POLL: Duration = Duration::from_millis(10);
/// What a worker that goes on may take for its late write.
const LATE: Duration = Duration::from_millis(150);

async fn a_paused_holders_late_writes_are_refused_by_the_database() {
    let pauses = std::env::var("TENURE_PAUSES").map_or(PAUSES, |text| text.parse().expect("a number"));
    let Some(server) = PostgresServer::start().await else { return };
    let cluster = Cluster::start("").await;
    let database = server.connect().await;
    database.batch_execute(TABLES).await.expect("a schema of its own");
    let duels: Vec<Duel> = (0..LEASES).map(|n| Duel::start(&cluster, &server, format!("duel-{n}"))).collect();
    let fought = duels.iter().enumerate().map(|(n, duel)| {
        let rounds = pauses / LEASES + usize::from(n < pauses % LEASES);
        duel.fight(rounds, &cluster.client, &database)
    });
    let paused: usize = join_all(fought).await.into_iter().sum();
    let [with, without] = [stale(&database, "guarded").await, stale(&database, "unguarded").await];
    let refused: i64 = count(&database, "SELECT count(*) FROM refused").await;
    println!(
        "{paused} pauses of holders, each longer than its ttl of {TTL_MS} ms: {with} stale writes accepted with the \
         fence ({refused} refused), {without} without it"
    );
    assert_eq!(paused, pauses);
    safety!(with == 0, "{with} stale writes were accepted with the fence");
    assert!(without > 0, "no write came late: nothing was tested");
    assert!(refused > 0, "the fence refused nothing");
}

/// Two workers that want one lease.
struct Duel {
    name: String,
    workers: [Process; 2],
}

impl Duel {
    fn start(cluster: &Cluster, server: &PostgresServer, name: String) -> Duel {
        let worker = |n: usize| {
            let mut command = example("fenced_postgres");
            command.args(["worker", &name]);
            command.env("DATABASE_URL", server.text()).env("TENURE_ENDPOINTS", cluster.client.endpoints());
            command.env("EXAMPLE_TTL_MS", TTL_MS.to_string());
            Process::start(&format!("{name}-{n}"), command, cluster.folder())
        };
        Duel { workers: [worker(0), worker(1)], name }
    }

    /// Pauses the holder so often, each time until the other one has written. Returns how often.
    async fn fight(&self, rounds: usize, client: &Client, database: &Database) -> usize {
        database.execute("INSERT INTO guarded (name) VALUES ($1)", &[&self.name]).await.expect("its own name");
        database.execute("INSERT INTO unguarded (name) VALUES ($1)", &[&self.name]).await.expect("its own name");
        for _ in 0..rounds {
            let (holder, token) = self.holder_that_writes(client, database).await;
            let paused = Instant::now();
            holder.signal(Signal::STOP);
            self.until(database, token, |fence| fence > token).await;
            assert!(paused.elapsed() > Duration::from_millis(TTL_MS / 2), "its lease was renewed after it was paused");
            holder.signal(Signal::CONT);
            tokio::time::sleep(LATE).await;
        }
        rounds
    }

    async fn holder_that_writes(&self, client: &Client, database: &Database) -> (&Process, i64) {
        let asked = Instant::now();
        loop {
            assert!(asked.elapsed() < SOON, "nobody holds {}", self.name);
            let lease = client.settle(0, &Call::get(format!("/v1/leases/{}", self.name))).await;
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
            assert!(asked.elapsed() < SOON, "{}: nobody wrote with a token from {token} on", self.name);
            tokio::time::sleep(POLL).await;
        }
    }
}

async fn stale(database: &Database, table: &str) -> i64 {
    count(database, &format!("SELECT count(*) FROM stale WHERE what = '{table}'")).await
}

async fn count(database: &Database, query: &str) -> i64 {
    database.query_one(query, &[]).await.expect("a query of this test").get(0)
}
