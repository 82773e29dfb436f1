//! The example `task_queue`: the leases decide which worker gets a task, and which generator produces.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::client::{Call, token};
use crate::cluster::{Cluster, SOON};
use crate::postgres::PostgresServer;
use crate::steady::{needs, safety, steady, strict};
use crate::task_queue::{LONG_TTL, Queue, TTL_MS, ask, generator};

strict!(tasks_go_to_one_of_the_workers_that_ask_at_once);
steady!(
    heartbeats_keep_a_slow_task,
    worker_abandons_a_task_without_its_lease,
    task_service_skips_leased_and_locked_tasks,
    generators_produce_only_with_the_lease,
);

const POLL: Duration = Duration::from_millis(10);
/// No random crashes and spikes.
const RELIABLE: [(&str, &str); 2] = [("EXAMPLE_CRASH_PERCENT", "0"), ("EXAMPLE_SPIKE_PERCENT", "0")];
/// A ttl that outlasts a delay of the machine between two renewals.
const STEADY_TTL_MS: u64 = 5_000;
const STEADY_TTL: (&str, &str) = ("EXAMPLE_TTL_MS", "5000");

async fn next(service: &str, processor: &str) -> Value {
    let (status, answer) = ask(service, "POST", "/api/tasks/next", json!({"processor": processor})).await;
    assert_eq!(status, 200, "{answer}");
    answer["task"].clone()
}

fn revoke(name: &str) -> Call {
    Call { method: reqwest::Method::DELETE, ..Call::get(format!("/v1/leases/{name}")) }
}

/// A task that takes four times its ttl stays with its worker, although another worker asks for tasks.
async fn heartbeats_keep_a_slow_task() {
    let Some(server) = PostgresServer::start().await else { return };
    let cluster = Cluster::start("").await;
    let queue = Queue::new(&cluster, &server).await;
    let (_service, at) = queue.serve_with("service", &[STEADY_TTL]).await;
    let insert = format!("INSERT INTO tasks (task_data) VALUES ('{{\"sleep_duration_ms\": {}}}')", 4 * STEADY_TTL_MS);
    queue.database.batch_execute(&insert).await.expect("the statement is valid");
    let variables = [&RELIABLE[..], &[STEADY_TTL]].concat();
    let workers = ["one", "two"].map(|name| queue.start_with(name, &["worker", &at], &variables));
    let limit = Duration::from_millis(4 * STEADY_TTL_MS) + SOON;
    let began = Instant::now();
    let mut beats = Vec::new();
    let task = loop {
        let (_, task) = ask(&at, "GET", "/api/tasks/1", Value::Null).await;
        if !task["last_heartbeat_at"].is_null() && beats.last() != Some(&task["last_heartbeat_at"]) {
            beats.push(task["last_heartbeat_at"].clone());
        }
        if !task["processed_at"].is_null() {
            break task;
        }
        assert!(began.elapsed() < limit, "{task}: {workers:?}", workers = workers.each_ref().map(|one| one.printed()));
        tokio::time::sleep(POLL).await;
    };
    // At a third of the ttl, there are 12 heartbeats. The start and the completion write this time, too.
    assert!(beats.len() >= 8, "too few heartbeats in 4 ttls: {beats:?}");
    let worked = queue.count("SELECT count(*) FROM tasks WHERE processed_at - started_at >= interval '20 s'").await;
    assert_eq!(worked, 1, "the worker started once: {task}");
    let history = cluster.client.done(0, &Call::get("/v1/leases/task%2F1/history")).await;
    let grants: Vec<&Value> =
        history["transitions"].as_array().expect("a list").iter().filter(|event| event["event"] == "granted").collect();
    assert_eq!(grants.len(), 1, "one grant from start to end: {history}");
    assert_eq!(grants[0]["token"], task["fence"], "{history}");
}

/// A worker whose lease is revoked learns it from its next heartbeat, and does not finish the work.
async fn worker_abandons_a_task_without_its_lease() {
    let Some(server) = PostgresServer::start().await else { return };
    let cluster = Cluster::start("").await;
    let queue = Queue::new(&cluster, &server).await;
    let (_service, at) = queue.serve("service").await;
    let long = SOON * 2;
    let insert = format!("INSERT INTO tasks (task_data) VALUES ('{{\"sleep_duration_ms\": {}}}')", long.as_millis());
    queue.database.batch_execute(&insert).await.expect("the statement is valid");
    let worker = queue.start_with("worker", &["worker", &at], &RELIABLE);
    let began = Instant::now();
    while ask(&at, "GET", "/api/tasks/1", Value::Null).await.1["started_at"].is_null() {
        assert!(began.elapsed() < SOON, "the worker starts no task");
        tokio::time::sleep(POLL).await;
    }
    // Another holder waits for the lease, so that the worker cannot get the task again.
    let waits = cluster.client.clone();
    let other = tokio::spawn(async move { waits.done(0, &Call::wait("task%2F1", "other", 60_000, SOON)).await });
    let queue = Call::get("/v1/leases/task%2F1/queue");
    let began = Instant::now();
    while cluster.client.done(0, &queue).await["waiters"].as_array().is_none_or(|waiters| waiters.is_empty()) {
        assert!(began.elapsed() < SOON, "the other holder does not wait");
    }
    cluster.client.done(0, &revoke("task%2F1")).await;
    other.await.expect("no panic");
    let began = Instant::now();
    while !worker.printed().contains("abandons task 1, its lease has expired") {
        assert!(began.elapsed() < SOON, "the worker goes on without its lease: {}", worker.printed());
        tokio::time::sleep(POLL).await;
    }
    let task = ask(&at, "GET", "/api/tasks/1", Value::Null).await.1;
    assert_eq!(task["processed_at"], Value::Null, "{task}");
}

async fn task_service_skips_leased_and_locked_tasks() {
    let Some(server) = PostgresServer::start().await else { return };
    let cluster = Cluster::start("").await;
    let queue = Queue::new(&cluster, &server).await;
    let (_service, at) = queue.serve_with("service", &LONG_TTL).await;
    // The task with the highest id is the oldest.
    const INSERT: &str = "INSERT INTO tasks (task_data, scheduled_at) SELECT '{}', now() - n * interval '1 min' FROM generate_series(1, 5) n";
    queue.database.batch_execute(INSERT).await.expect("the statement is valid");
    // Programs that know only the lease service hold tasks 5 and 4. The database has no sign of it.
    let call = |holder: &str| json!({"holder": holder, "ttl_ms": 60_000, "lock_delay_ms": 60_000});
    let mut tokens = Vec::new();
    for id in [5, 4] {
        let lease = cluster.client.done(0, &Call::post(format!("/v1/leases/task%2F{id}/acquire"), call("other"))).await;
        tokens.push(token(&lease));
    }
    // A revoked lease has a lock delay: the former holder may still work.
    let revoked = cluster.client.done(0, &revoke("task%2F4")).await;
    assert_eq!(revoked["revoked"], 1, "{revoked}");
    // Another transaction has the row of task 3.
    let locker = server.connect().await;
    locker.batch_execute("BEGIN; SELECT 1 FROM tasks WHERE id = 3 FOR UPDATE").await.expect("the statement is valid");
    let began = Instant::now();
    assert_eq!(next(&at, "a").await["id"], 2, "tasks 5 and 4 are leased, 3 is locked");
    assert_eq!(next(&at, "b").await["id"], 1);
    assert_eq!(next(&at, "c").await, Value::Null);
    // The service waits 5 s for a lock.
    assert!(began.elapsed() < Duration::from_secs(4), "the service waited for a lock: {:?}", began.elapsed());
    assert_eq!(
        queue.count("SELECT count(*) FROM tasks WHERE started_at IS NULL").await,
        3,
        "a skipped task is unchanged"
    );
    locker.batch_execute("ROLLBACK").await.expect("the statement is valid");
    assert_eq!(next(&at, "c").await["id"], 3, "the row is free again");
    cluster.client.done(0, &Call::release("task%2F5", "other", tokens[0])).await;
    let task = next(&at, "d").await;
    assert_eq!(task["id"], 5, "the lease is free again");
    let fence: u64 = task["fence"].as_str().expect("a text").parse().expect("a number");
    safety!(fence > tokens[0], "the token of task 5 fell from {} to {fence}", tokens[0]);
}

/// Sixteen workers at two services ask at once: no task goes to two of them.
async fn tasks_go_to_one_of_the_workers_that_ask_at_once() {
    const WORKERS: usize = 16;
    const TASKS: i64 = 40;
    let Some(server) = PostgresServer::start().await else { return };
    let cluster = Cluster::start("").await;
    let queue = Queue::new(&cluster, &server).await;
    // No task becomes free again during the test.
    let long = [("EXAMPLE_TTL_MS", "60000")];
    let (_first, first_at) = queue.serve_with("service", &long).await;
    let (_second, second_at) = queue.serve_with("service", &long).await;
    queue.insert(TASKS).await;
    let asks = (0..WORKERS).map(|worker| {
        let service = if worker % 2 == 0 { first_at.clone() } else { second_at.clone() };
        tokio::spawn(async move {
            let (processor, mut tasks) = (format!("worker-{worker}"), Vec::new());
            // A worker can see no task while the others have the rows of the last ones.
            for _ in 0..TASKS {
                let task = next(&service, &processor).await;
                if task.is_object() {
                    assert_eq!(task["processor"], processor.as_str(), "{task}");
                    tasks.push((task["id"].as_i64().expect("a number"), processor.clone()));
                }
            }
            tasks
        })
    });
    let (mut given, mut lucky) = (Vec::new(), 0);
    for worker in asks.collect::<Vec<_>>() {
        let tasks = worker.await.expect("the worker does not panic");
        lucky += usize::from(!tasks.is_empty());
        given.extend(tasks);
    }
    given.sort();
    let ids: Vec<i64> = given.iter().map(|(id, _)| *id).collect();
    safety!(ids == (1..=TASKS).collect::<Vec<_>>(), "each task goes to one worker: {ids:?}");
    for (id, processor) in &given {
        let row = ask(&first_at, "GET", &format!("/api/tasks/{id}"), Value::Null).await.1;
        safety!(row["processor"] == processor.as_str(), "{processor} has task {id}, and the table {row}");
    }
    assert!(lucky > 1, "one worker got all tasks, so the test shows nothing");
}

async fn generators_produce_only_with_the_lease() {
    let Some(server) = PostgresServer::start().await else { return };
    let cluster = Cluster::start("").await;
    let queue = Queue::new(&cluster, &server).await;
    let fast = [("EXAMPLE_PRODUCE_MS", "10"), STEADY_TTL];
    let (one, one_at) = queue.serve_with("generator", &fast).await;
    let (two, two_at) = queue.serve_with("generator", &fast).await;
    let tasks = async || queue.count("SELECT count(*) FROM tasks").await;
    let rises = async |what: &str| {
        let (began, before) = (Instant::now(), tasks().await);
        while tasks().await <= before {
            assert!(began.elapsed() < SOON, "no instance produces a task {what}");
            tokio::time::sleep(POLL).await;
        }
    };
    generator(&one_at, "start").await;
    rises("after the start").await;
    let holder = generator(&two_at, "status").await["holder"].clone();
    let (stops, lives_at) = if holder == json!(one_at) { (&one, &two_at) } else { (&two, &one_at) };
    // The holder pauses. While it has the lease, the other instance produces nothing. One statement may be on its way.
    let path = Call::get("/v1/leases/task-generator");
    let held = token(&cluster.client.done(0, &path).await);
    stops.signal(Signal::STOP);
    let before = tasks().await;
    let mut reads = 0;
    loop {
        let now = tasks().await;
        // The read of the lease comes after that of the tasks, so the lease was held then.
        let lease = cluster.client.done(0, &path).await;
        if lease["state"] != "active" || token(&lease) != held {
            break;
        }
        safety!(now <= before + 1, "an instance without the lease produced {} tasks", now - before);
        reads += 1;
    }
    needs!(reads > 1, "the test reads the lease of the paused holder before it expires");
    rises("in place of the paused holder").await;
    stops.signal(Signal::CONT);
    let began = Instant::now();
    while generator(&one_at, "status").await["holder"] != generator(&two_at, "status").await["holder"] {
        assert!(began.elapsed() < SOON, "the instances name different holders");
    }
    assert_eq!(generator(lives_at, "status").await["holder"], *lives_at, "the paused instance lost the lease");
    // Only one instance is left. A newer holder has written: the statement refuses its token, although its lease is active.
    stops.signal(Signal::STOP);
    queue.database.batch_execute("UPDATE generator SET fence = fence + 1000000").await.expect("the statement is valid");
    let (before, began) = (tasks().await, Instant::now());
    let answers = async |path: &str, action: &str| {
        ask(lives_at, "POST", &format!("/{path}/generator/{action}"), Value::Null).await
    };
    while began.elapsed() < Duration::from_millis(TTL_MS / 2) {
        for action in ["start", "stop", "status"] {
            let (status, answer) = answers("local", action).await;
            safety!(status == 503, "{action} with an older token: {status} {answer}");
        }
        safety!(tasks().await == before, "a holder with an older token produced a task");
    }
    assert_eq!(queue.count("SELECT produced FROM generator WHERE running").await, before, "the switch is as before");
    stops.signal(Signal::CONT);
}
