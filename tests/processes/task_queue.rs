//! The example `task_queue`: services and workers that are killed and paused complete each task exactly once.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio_postgres::Client as Database;

use crate::cluster::{Cluster, SOON};
use crate::example::example;
use crate::plain_http;
use crate::postgres::PostgresServer;
use crate::process::Process;
use crate::steady::{safety, steady};

steady!(task_queue_completes_each_task_exactly_once, task_queue_answers_as_documented);

const TTL_MS: u64 = 1_000;
const POLL: Duration = Duration::from_millis(10);
/// Faults of each kind.
const FAULTS: usize = 6;
/// The limit for the rest of the tasks after the faults.
const REST: Duration = Duration::from_secs(90);

struct Queue<'a> {
    cluster: &'a Cluster,
    database: Database,
    text: String,
}

impl Queue<'_> {
    fn start(&self, name: &str, arguments: &[&str]) -> Process {
        let mut command = example("task_queue");
        command.args(arguments).env("DATABASE_URL", &self.text);
        command.env("TENURE_ENDPOINTS", self.cluster.client.endpoints()).env("EXAMPLE_TTL_MS", TTL_MS.to_string());
        Process::start(name, command, self.cluster.folder())
    }

    /// Starts a service or a generator, and returns its address.
    async fn serve(&self, kind: &str) -> (Process, String) {
        let mut process = self.start(kind, &[kind]);
        let began = Instant::now();
        loop {
            let printed = process.printed();
            if let Some(address) =
                printed.strip_prefix(kind).and_then(|rest| rest.strip_prefix(" at ")?.strip_suffix('\n'))
            {
                return (process, address.to_owned());
            }
            assert!(process.is_running() && began.elapsed() < SOON, "{}", process.said());
            tokio::time::sleep(POLL).await;
        }
    }

    async fn count(&self, query: &str) -> i64 {
        self.database.query_one(query, &[]).await.expect("the query is valid").get(0)
    }

    /// Waits until the query returns a number above `above`.
    async fn until(&self, query: &str, above: i64, within: Duration) {
        let began = Instant::now();
        while self.count(query).await <= above {
            assert!(began.elapsed() < within, "{query}: not above {above} after {within:?}");
            tokio::time::sleep(POLL).await;
        }
    }
}

async fn ask(address: &str, method: &str, path: &str, body: Value) -> (u16, Value) {
    let method = method.parse().expect("a method");
    let request = plain_http::client().request(method, format!("http://{address}{path}")).json(&body);
    let response = request.send().await.expect("an answer");
    (response.status().as_u16(), response.json().await.expect("JSON"))
}

/// Repeats the request to a generator until an instance holds the lease.
async fn generator(address: &str, action: &str) -> Value {
    let began = Instant::now();
    loop {
        let (status, answer) = ask(address, "POST", &format!("/api/generator/{action}"), Value::Null).await;
        if status == 200 {
            return answer;
        }
        assert!(began.elapsed() < SOON, "{status} {answer}");
        tokio::time::sleep(POLL).await;
    }
}

async fn task_queue_completes_each_task_exactly_once() {
    const DONE: &str = "SELECT count(*) FROM tasks WHERE processed_at IS NOT NULL";
    let Some(server) = PostgresServer::start().await else { return };
    let cluster = Cluster::start("").await;
    let queue = Queue { cluster: &cluster, database: server.connect().await, text: server.text() };
    let (first, first_at) = queue.serve("service").await;
    let (mut second, second_at) = queue.serve("service").await;
    let (one, one_at) = queue.serve("generator").await;
    let (two, two_at) = queue.serve("generator").await;
    let worker = || queue.start("worker", &["worker", &first_at, &second_at]);
    let mut workers: Vec<Process> = (0..4).map(|_| worker()).collect();
    generator(&one_at, "start").await;
    let began = Instant::now();
    while generator(&one_at, "status").await["holder"] != generator(&two_at, "status").await["holder"] {
        assert!(began.elapsed() < SOON, "the instances name different holders");
    }
    queue.until(DONE, 0, SOON).await;
    for round in 0..FAULTS {
        let place = round % workers.len();
        workers[place].kill();
        workers[place] = worker();
        // A worker that pauses for longer than its ttl completes too late, or abandons the task.
        let paused = &workers[(place + 1) % workers.len()];
        paused.signal(Signal::STOP);
        first.signal(Signal::STOP);
        tokio::time::sleep(Duration::from_millis(TTL_MS * 3 / 2)).await;
        paused.signal(Signal::CONT);
        first.signal(Signal::CONT);
        queue.until(DONE, queue.count(DONE).await, SOON).await;
    }
    second.kill();
    // The holder of the generator's lease dies. The other one continues.
    let holder = generator(&one_at, "status").await["holder"].clone();
    let (mut dies, lives_at) = if holder == json!(one_at) { (one, &two_at) } else { (two, &one_at) };
    dies.kill();
    let produced = generator(lives_at, "status").await["produced"].as_i64().expect("a number");
    queue.until("SELECT produced FROM generator", produced, SOON).await;
    assert_eq!(generator(lives_at, "stop").await["status"], "STOPPED");
    let produced = queue.count("SELECT produced FROM generator").await;
    let tasks = queue.count("SELECT count(*) FROM tasks").await;
    queue.until(DONE, tasks - 1, REST).await;
    let completions = queue.count("SELECT count(*) FROM completions").await;
    let distinct = queue.count("SELECT count(DISTINCT task) FROM completions").await;
    let stale = queue.count("SELECT count(*) FROM stale").await;
    let said: String = workers.iter().map(Process::printed).collect();
    let late = said
        .lines()
        .filter(|line| [": 200", ": 409"].iter().any(|late| line.ends_with(late)) || line.contains("abandons"))
        .count();
    println!(
        "{tasks} tasks, {completions} completions of {distinct} tasks, {stale} writes with an older token; {FAULTS} \
         workers killed, {FAULTS} workers and services paused, {late} late completions refused or abandoned"
    );
    safety!(completions == tasks && distinct == tasks, "{completions} completions of {distinct} of {tasks} tasks");
    safety!(stale == 0, "{stale} writes with an older token");
    assert_eq!(produced, tasks, "the generator counts its tasks");
    assert!(late > 0, "no worker was late, so the test shows nothing");
}

async fn task_queue_answers_as_documented() {
    let Some(server) = PostgresServer::start().await else { return };
    let cluster = Cluster::start("").await;
    let queue = Queue { cluster: &cluster, database: server.connect().await, text: server.text() };
    let (_service, at) = queue.serve("service").await;
    let next = async |processor: &str| ask(&at, "POST", "/api/tasks/next", json!({"processor": processor})).await;
    assert_eq!(next("a").await, (200, json!({"task": null})));
    queue.database.batch_execute("INSERT INTO tasks (task_data) VALUES ('{}'), ('{}')").await.expect("valid");
    let (_, first) = next("a").await;
    let (_, second) = next("b").await;
    assert_eq!((&first["task"]["id"], &second["task"]["id"]), (&json!(1), &json!(2)));
    assert_eq!(next("c").await.1["task"], Value::Null, "both tasks have a holder");
    let change = async |id: u64, what: &str, processor: &str, fence: &Value| {
        let body = json!({"processor": processor, "fence": fence, "output": {"done": true}});
        ask(&at, "PUT", &format!("/api/tasks/{id}/{what}"), body).await
    };
    let fence = &first["task"]["fence"];
    for what in ["heartbeat", "complete"] {
        let (status, answer) = change(1, what, "b", fence).await;
        assert_eq!((status, &answer["message"]), (200, &json!("the task is not assigned to this processor")));
        let (status, answer) = change(9, what, "a", fence).await;
        assert_eq!((status, &answer["message"]), (200, &json!("the task does not exist")));
    }
    let (status, beat) = change(1, "heartbeat", "a", fence).await;
    assert_eq!((status, &beat["task"]["fence"]), (202, fence));
    assert!(beat["task"]["must_heartbeat_before"].as_str() > first["task"]["must_heartbeat_before"].as_str(), "{beat}");
    assert_eq!(ask(&at, "GET", "/api/tasks/started", Value::Null).await.1.as_array().map(Vec::len), Some(2));
    let (status, done) = change(1, "complete", "a", fence).await;
    assert_eq!((status, &done["task"]["task_output"]), (202, &json!({"done": true})));
    for what in ["heartbeat", "complete"] {
        let (status, answer) = change(1, what, "a", fence).await;
        assert_eq!((status, &answer["message"]), (409, &json!("the task is already processed")));
    }
    assert_eq!(ask(&at, "GET", "/api/tasks/processed", Value::Null).await.1[0]["id"], 1);
    assert_eq!(ask(&at, "GET", "/api/tasks/1", Value::Null).await.1, done["task"]);
    assert_eq!(ask(&at, "GET", "/api/tasks/9", Value::Null).await.0, 404);
    // Without heartbeats, the task goes to another processor after the ttl. The first one is late.
    let began = Instant::now();
    let taken = loop {
        let (_, answer) = next("c").await;
        if answer["task"].is_object() {
            break answer;
        }
        assert!(began.elapsed() < SOON, "the task of a silent processor stays with it");
        tokio::time::sleep(POLL).await;
    };
    assert_eq!(taken["task"]["id"], 2);
    assert_eq!(change(2, "complete", "b", &second["task"]["fence"]).await.0, 200, "another processor has it");
    assert_eq!(queue.count("SELECT count(*) FROM completions").await, 1);
    let (status, answer) = change(2, "complete", "c", &second["task"]["fence"]).await;
    assert_eq!((status, &answer["message"]), (409, &json!("the lease has expired")), "an older token");
    // The lease is current, but the row has a newer token: the statement itself refuses the write.
    queue.database.batch_execute("UPDATE tasks SET fence = fence + 1 WHERE id = 2").await.expect("valid");
    let before = ask(&at, "GET", "/api/tasks/2", Value::Null).await;
    for what in ["heartbeat", "complete"] {
        let (status, answer) = change(2, what, "c", &taken["task"]["fence"]).await;
        assert_eq!((status, &answer["message"]), (409, &json!("a newer holder has the task")));
    }
    assert_eq!(ask(&at, "GET", "/api/tasks/2", Value::Null).await, before, "a refused write changes nothing");
}
