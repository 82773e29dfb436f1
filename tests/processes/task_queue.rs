//! The example `task_queue`: services and workers that crash, stall, are killed and are paused complete each task exactly
//! once.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_postgres::Client as Database;

use crate::client::Call;
use crate::cluster::{Cluster, NODES, SOON, turn};
use crate::example::example;
use crate::plain_http;
use crate::postgres::PostgresServer;
use crate::process::Process;
use crate::steady::{safety, steady};

steady!(
    task_queue_completes_each_task_exactly_once,
    task_queue_survives_crashes_and_latency_spikes,
    task_queue_starts_with_one_command,
    task_queue_demo_uses_a_given_cluster_and_database,
    task_queue_answers_as_documented,
    task_queue_refuses_changes_after_an_expiry,
    task_service_reports_invalid_bodies_and_failures,
    generator_answers_without_a_holder,
);

pub const TTL_MS: u64 = 1_000;
/// Variables of a service for tests that keep a task over several requests and then wait for its expiry.
const PATIENT: [(&str, &str); 1] = [("EXAMPLE_TTL_MS", "5000")];
/// Variables of a service for tests in which no lease expires.
pub const LONG_TTL: [(&str, &str); 1] = [("EXAMPLE_TTL_MS", "60000")];
const POLL: Duration = Duration::from_millis(10);
/// Faults of each kind.
const FAULTS: usize = 4;
/// The limit for the rest of the tasks after the faults.
const REST: Duration = Duration::from_secs(90);
const DONE: &str = "SELECT count(*) FROM tasks WHERE processed_at IS NOT NULL";
/// The columns of a task as JSON.
const COLUMNS: [&str; 10] = [
    "fence",
    "id",
    "last_heartbeat_at",
    "must_heartbeat_before",
    "processed_at",
    "processor",
    "scheduled_at",
    "started_at",
    "task_data",
    "task_output",
];

pub struct Queue<'a> {
    cluster: &'a Cluster,
    pub database: Database,
    text: String,
}

impl<'a> Queue<'a> {
    pub async fn new(cluster: &'a Cluster, server: &PostgresServer) -> Queue<'a> {
        Queue { cluster, database: server.connect().await, text: server.text() }
    }

    /// Starts a part with these environment variables.
    pub fn start_with(&self, name: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Process {
        let mut command = example("task_queue");
        command.args(arguments).env("DATABASE_URL", &self.text);
        command.env("TENURE_ENDPOINTS", self.cluster.client.endpoints()).env("EXAMPLE_TTL_MS", TTL_MS.to_string());
        command.envs(variables.iter().copied());
        Process::start(name, command, self.cluster.folder())
    }

    /// Starts a service or a generator, and returns its address.
    pub async fn serve(&self, kind: &str) -> (Process, String) {
        self.serve_with(kind, &[]).await
    }

    pub async fn serve_with(&self, kind: &str, variables: &[(&str, &str)]) -> (Process, String) {
        let mut process = self.start_with(kind, &[kind], variables);
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

    pub async fn count(&self, query: &str) -> i64 {
        self.database.query_one(query, &[]).await.expect("the query is valid").get(0)
    }

    pub async fn insert(&self, tasks: i64) {
        const INSERT: &str =
            "INSERT INTO tasks (task_data) SELECT '{\"sleep_duration_ms\": 20}' FROM generate_series(1, $1::bigint)";
        self.database.execute(INSERT, &[&tasks]).await.expect("the statement is valid");
    }

    /// Waits until the query returns a number above `above`. Workers that crash start again.
    async fn until(&self, workers: &mut Workers<'_>, query: &str, above: i64, within: Duration) {
        let began = Instant::now();
        while self.count(query).await <= above {
            workers.restart_crashed();
            assert!(began.elapsed() < within, "{query}: not above {above} after {within:?}");
            tokio::time::sleep(POLL).await;
        }
    }
}

struct Workers<'a> {
    queue: &'a Queue<'a>,
    services: [&'a str; 2],
    running: Vec<Process>,
    /// The output of workers that have ended.
    said: String,
}

impl<'a> Workers<'a> {
    fn start(queue: &'a Queue<'a>, services: [&'a str; 2], count: usize) -> Workers<'a> {
        let mut workers = Workers { queue, services, running: Vec::new(), said: String::new() };
        workers.running = (0..count).map(|_| workers.worker()).collect();
        workers
    }

    fn worker(&self) -> Process {
        self.queue.start_with("worker", &["worker", self.services[0], self.services[1]], &[])
    }

    fn kill(&mut self, place: usize) {
        self.running[place].kill();
        self.restart_crashed();
    }

    fn restart_crashed(&mut self) {
        for place in 0..self.running.len() {
            if !self.running[place].is_running() {
                self.said += &self.running[place].printed();
                self.running[place] = self.worker();
            }
        }
    }

    /// The lines of all workers.
    fn lines(&self) -> Vec<String> {
        let now: String = self.running.iter().map(Process::printed).collect();
        self.said.lines().chain(now.lines()).map(str::to_owned).collect()
    }

    fn count(&self, is_counted: impl Fn(&str) -> bool) -> usize {
        self.lines().iter().filter(|line| is_counted(line)).count()
    }
}

/// A worker came too late.
fn is_late(line: &str) -> bool {
    line.ends_with(": 200") || line.ends_with(": 409") || line.contains("abandons")
}

pub async fn ask(address: &str, method: &str, path: &str, body: Value) -> (u16, Value) {
    let method = method.parse().expect("a method");
    let request = plain_http::client().request(method, format!("http://{address}{path}")).json(&body);
    let response = request.send().await.expect("an answer");
    (response.status().as_u16(), response.json().await.expect("JSON"))
}

/// Repeats the request to a generator until an instance holds the lease.
pub async fn generator(address: &str, action: &str) -> Value {
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
    let Some(server) = PostgresServer::start().await else { return };
    let cluster = Cluster::start("").await;
    let queue = Queue::new(&cluster, &server).await;
    let (first, first_at) = queue.serve("service").await;
    let (mut second, second_at) = queue.serve("service").await;
    let (one, one_at) = queue.serve("generator").await;
    let (two, two_at) = queue.serve("generator").await;
    let mut workers = Workers::start(&queue, [&first_at, &second_at], 4);
    generator(&one_at, "start").await;
    let began = Instant::now();
    while generator(&one_at, "status").await["holder"] != generator(&two_at, "status").await["holder"] {
        assert!(began.elapsed() < SOON, "the instances name different holders");
    }
    queue.until(&mut workers, DONE, 0, SOON).await;
    for round in 0..FAULTS {
        let place = round % workers.running.len();
        workers.kill(place);
        // A worker that pauses for longer than its ttl completes too late, or abandons the task.
        let paused = &workers.running[(place + 1) % workers.running.len()];
        paused.signal(Signal::STOP);
        first.signal(Signal::STOP);
        tokio::time::sleep(Duration::from_millis(TTL_MS * 3 / 2)).await;
        paused.signal(Signal::CONT);
        first.signal(Signal::CONT);
        queue.until(&mut workers, DONE, queue.count(DONE).await, SOON).await;
    }
    second.kill();
    // The holder of the generator's lease dies. The other one continues.
    let holder = generator(&one_at, "status").await["holder"].clone();
    let (mut dies, lives_at) = if holder == json!(one_at) { (one, &two_at) } else { (two, &one_at) };
    dies.kill();
    let produced = generator(lives_at, "status").await["produced"].as_i64().expect("a number");
    queue.until(&mut workers, "SELECT produced FROM generator", produced, SOON).await;
    assert_eq!(generator(lives_at, "stop").await["status"], "STOPPED");
    let produced = queue.count("SELECT produced FROM generator").await;
    let tasks = queue.count("SELECT count(*) FROM tasks").await;
    queue.until(&mut workers, DONE, tasks - 1, REST).await;
    let completions = queue.count("SELECT count(*) FROM completions").await;
    let distinct = queue.count("SELECT count(DISTINCT task) FROM completions").await;
    let stale = queue.count("SELECT count(*) FROM stale").await;
    let late = workers.count(is_late);
    println!(
        "{tasks} tasks, {completions} completions of {distinct} tasks, {stale} writes with an older token; {FAULTS} \
         workers killed, {FAULTS} workers and services paused, {late} late completions refused or abandoned"
    );
    safety!(completions == tasks && distinct == tasks, "{completions} completions of {distinct} of {tasks} tasks");
    safety!(stale == 0, "{stale} writes with an older token");
    assert_eq!(produced, tasks, "the generator counts its tasks");
    assert!(late > 0, "no worker was late, so the test shows nothing");
}

async fn task_queue_survives_crashes_and_latency_spikes() {
    const TASKS: i64 = 300;
    let Some(server) = PostgresServer::start().await else { return };
    let cluster = Cluster::start("").await;
    let queue = Queue::new(&cluster, &server).await;
    let (_first, first_at) = queue.serve("service").await;
    let (_second, second_at) = queue.serve("service").await;
    queue.insert(TASKS).await;
    let mut workers = Workers::start(&queue, [&first_at, &second_at], 6);
    queue.until(&mut workers, DONE, TASKS - 1, REST).await;
    let crashes = workers.count(|line| line.contains("crashes during"));
    let spikes = workers.count(|line| line.contains("latency spike during"));
    let attempts = crashes + workers.count(|line| line.ends_with(": 202") || is_late(line));
    let late = workers.count(is_late);
    println!("{TASKS} tasks, {attempts} attempts: {crashes} crashes, {spikes} latency spikes, {late} late");
    // The means are 5 % and 10 %. The bounds are more than three standard deviations away.
    assert!((attempts / 100..attempts * 15 / 100).contains(&crashes) && crashes > 0, "{crashes} of {attempts} crashed");
    assert!((attempts * 3 / 100..attempts * 20 / 100).contains(&spikes), "{spikes} of {attempts} were slow");
    assert!(late > 0, "no worker was late, so the test shows nothing");
    let completions = queue.count("SELECT count(*) FROM completions").await;
    let distinct = queue.count("SELECT count(DISTINCT task) FROM completions").await;
    safety!(completions == TASKS && distinct == TASKS, "{completions} completions of {distinct} of {TASKS} tasks");
    let stale = queue.count("SELECT count(*) FROM stale").await;
    safety!(stale == 0, "{stale} writes with an older token");
    const FENCED: &str = "SELECT count(*) FROM tasks JOIN completions ON task = id AND completions.fence = tasks.fence \
         AND completions.processor = tasks.processor WHERE tasks.fence > 0";
    assert_eq!(queue.count(FENCED).await, TASKS, "each completion has the token of its task");
}

async fn task_queue_starts_with_one_command() {
    let _turn = turn().await;
    // Only a check that there is a server.
    if PostgresServer::start().await.is_none() {
        return;
    }
    let folder = TempDir::new().expect("a folder");
    let mut command = example("task_queue");
    command.env("EXAMPLE_SECONDS", "3").env("EXAMPLE_CRASH_PERCENT", "50").env("EXAMPLE_TTL_MS", TTL_MS.to_string());
    command.env_remove("DATABASE_URL").env_remove("TENURE_ENDPOINTS");
    let mut demo = Process::start("demo", command, folder.path());
    let status = demo.exit(REST * 2).await;
    let printed = demo.printed();
    assert!(status.success(), "{status}: {printed}{}", demo.said());
    let lines = |start: &str| printed.lines().filter(|line| line.starts_with(start)).collect::<Vec<_>>();
    assert_eq!(lines("services: ")[0].matches("127.0.0.1").count(), 4, "two services and two generators: {printed}");
    assert!(lines("start: ")[0].contains("STARTED"), "{printed}");
    let answers: Vec<Value> = lines("stop at ")
        .iter()
        .map(|line| serde_json::from_str(&line[line.find('{').expect("JSON")..]).expect("JSON"))
        .collect();
    assert_eq!((answers.len(), &answers[0]), (2, &answers[1]), "both instances answer for the holder");
    assert_eq!(answers[0]["status"], "STOPPED");
    let tasks = &answers[0]["produced"];
    assert!(tasks.as_u64() > Some(0), "{printed}");
    let crashes = printed.lines().filter(|line| line.contains("crashes during")).count();
    assert!(crashes > 0, "no worker crashed: {printed}");
    let last = format!("{tasks} tasks, {tasks} completions of {tasks} tasks; {crashes} crashes");
    assert_eq!(printed.lines().last(), Some(&*last), "{printed}");
}

async fn task_queue_demo_uses_a_given_cluster_and_database() {
    let Some(server) = PostgresServer::start().await else { return };
    let cluster = Cluster::start("").await;
    let queue = Queue::new(&cluster, &server).await;
    let mut demo = queue.start_with("demo", &[], &[("EXAMPLE_SECONDS", "2")]);
    let status = demo.exit(REST * 2).await;
    assert!(status.success(), "{status}: {}{}", demo.printed(), demo.said());
    let tasks = queue.count("SELECT count(*) FROM tasks").await;
    assert!(tasks > 0, "the demo uses another database: {}", demo.printed());
    assert_eq!(queue.count(DONE).await, tasks);
    let generator = cluster.ask(1, "/v1/leases/task-generator").await;
    assert!(generator.is_some_and(|lease| lease["name"] == "task-generator"), "the demo uses another cluster");
}

async fn task_queue_answers_as_documented() {
    let Some(server) = PostgresServer::start().await else { return };
    let cluster = Cluster::start("").await;
    let queue = Queue::new(&cluster, &server).await;
    let (_service, at) = queue.serve_with("service", &PATIENT).await;
    let next = async |processor: &str| ask(&at, "POST", "/api/tasks/next", json!({"processor": processor})).await;
    assert_eq!(next("a").await, (200, json!({"task": null})));
    queue.database.batch_execute("INSERT INTO tasks (task_data) VALUES ('{}'), ('{}')").await.expect("valid");
    let (_, first) = next("a").await;
    let (_, second) = next("b").await;
    assert_eq!((&first["task"]["id"], &second["task"]["id"]), (&json!(1), &json!(2)));
    let columns: Vec<&String> = first["task"].as_object().expect("an object").keys().collect();
    assert_eq!(columns, COLUMNS);
    for empty in ["processed_at", "task_output"] {
        assert_eq!(first["task"][empty], Value::Null, "{empty}");
    }
    for time in ["scheduled_at", "started_at", "last_heartbeat_at", "must_heartbeat_before"] {
        assert!(first["task"][time].is_string(), "{time}: {first}");
    }
    assert_eq!((&first["task"]["processor"], &first["task"]["task_data"]), (&json!("a"), &json!({})));
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
    assert!(done["task"]["processed_at"].is_string() && &done["task"]["fence"] == fence, "{done}");
    for what in ["heartbeat", "complete"] {
        let (status, answer) = change(1, what, "a", fence).await;
        assert_eq!((status, &answer["message"]), (409, &json!("the task is already processed")));
    }
    let ids = async |path: &str| {
        let (_, tasks) = ask(&at, "GET", path, Value::Null).await;
        tasks.as_array().expect("a list").iter().map(|task| task["id"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(ids("/api/tasks").await, [json!(1), json!(2)]);
    assert_eq!(ids("/api/tasks/started").await, [json!(2)]);
    assert_eq!(ids("/api/tasks/processed").await, [json!(1)]);
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

async fn task_queue_refuses_changes_after_an_expiry() {
    let Some(server) = PostgresServer::start().await else { return };
    let cluster = Cluster::start("").await;
    let queue = Queue::new(&cluster, &server).await;
    let (_service, at) = queue.serve_with("service", &PATIENT).await;
    queue.insert(1).await;
    let next = async |processor: &str| ask(&at, "POST", "/api/tasks/next", json!({"processor": processor})).await.1;
    let late = next("a").await["task"].clone();
    let began = Instant::now();
    while cluster.ask(1, "/v1/leases/task%2F1").await.is_none_or(|lease| lease["state"] != "expired") {
        assert!(began.elapsed() < SOON, "the lease does not expire");
        tokio::time::sleep(POLL).await;
    }
    // No other processor has the task yet.
    for fence in [late["fence"].clone(), Value::Null] {
        for what in ["heartbeat", "complete"] {
            let body = json!({"processor": "a", "fence": fence, "output": 1});
            let (status, answer) = ask(&at, "PUT", &format!("/api/tasks/1/{what}"), body).await;
            assert_eq!((status, &answer["message"]), (409, &json!("the lease has expired")), "{what} with {fence}");
        }
    }
    assert_eq!(ask(&at, "GET", "/api/tasks/1", Value::Null).await, (200, late.clone()), "nothing is changed");
    let taken = next("b").await["task"].clone();
    let fence = |task: &Value| task["fence"].as_str().expect("a text").parse::<i64>().expect("a number");
    safety!(fence(&taken) > fence(&late), "{taken} after {late}");
    let body = json!({"processor": "b", "fence": taken["fence"]});
    assert_eq!(ask(&at, "PUT", "/api/tasks/1/complete", body).await.0, 202);
    assert_eq!(queue.count("SELECT fence FROM completions").await, fence(&taken));
}

async fn task_service_reports_invalid_bodies_and_failures() {
    let Some(server) = PostgresServer::start().await else { return };
    let mut cluster = Cluster::start("").await;
    let (text, database) = (server.text(), server.connect().await);
    let queue = Queue { cluster: &cluster, database: server.connect().await, text };
    let (_service, at) = queue.serve_with("service", &LONG_TTL).await;
    queue.insert(2).await;
    let body = json!({"processor": "a"});
    let changes = [("POST", "/api/tasks/next"), ("PUT", "/api/tasks/1/heartbeat"), ("PUT", "/api/tasks/1/complete")];
    let reads = ["/api/tasks", "/api/tasks/1", "/api/tasks/started", "/api/tasks/processed"].map(|path| ("GET", path));
    for (method, path) in changes {
        for invalid in [json!({}), json!([]), json!({"processor": ""}), json!({"processor": "a", "fence": "x"})] {
            let (status, answer) = ask(&at, method, path, invalid.clone()).await;
            assert_eq!((status, answer["message"].is_string()), (400, true), "{path} {invalid}: {answer}");
        }
    }
    assert_eq!(ask(&at, "POST", "/api/tasks/next", body.clone()).await.1["task"]["id"], 1);
    // The database fails.
    database.batch_execute("ALTER TABLE tasks RENAME TO hidden").await.expect("the statement is valid");
    for (method, path) in changes.into_iter().chain(reads) {
        let (status, answer) = ask(&at, method, path, body.clone()).await;
        assert_eq!((status, answer["message"].is_string()), (500, true), "{path}: {answer}");
    }
    database.batch_execute("ALTER TABLE hidden RENAME TO tasks").await.expect("the statement is valid");
    let before = ask(&at, "GET", "/api/tasks", Value::Null).await;
    assert_eq!(before.1.as_array().map(Vec::len), Some(2));
    // The lease service fails. The transaction changes nothing.
    drop(queue);
    for id in NODES {
        cluster.kill(id);
    }
    for (method, path) in changes {
        let (status, answer) = ask(&at, method, path, body.clone()).await;
        assert_eq!((status, answer["message"].is_string()), (500, true), "{path}: {answer}");
    }
    assert_eq!(ask(&at, "GET", "/api/tasks", Value::Null).await, before);
}

async fn generator_answers_without_a_holder() {
    const LEASE: &str = "task-generator";
    let Some(server) = PostgresServer::start().await else { return };
    let cluster = Cluster::start("").await;
    let queue = Queue::new(&cluster, &server).await;
    // A holder without an address, as if each instance were in the queue.
    let token = cluster.client.acquire(LEASE, "other", 60_000).await;
    let (_generator, at) = queue.serve("generator").await;
    for action in ["start", "stop", "status"] {
        for (path, expected) in [
            ("api", "no instance holds the lease; try again"),
            ("local", "this instance does not hold the lease; try again"),
        ] {
            let (status, answer) = ask(&at, "POST", &format!("/{path}/generator/{action}"), Value::Null).await;
            assert_eq!((status, &answer["message"]), (503, &json!(expected)), "{path} {action}");
        }
    }
    cluster.client.done(0, &Call::release(LEASE, "other", token)).await;
    let stopped = json!({"status": "STOPPED", "holder": at, "produced": 0});
    assert_eq!(generator(&at, "status").await, stopped, "the requests without a holder changed nothing");
    let (status, answer) = ask(&at, "POST", "/api/generator/pause", Value::Null).await;
    assert_eq!((status, &answer["message"]), (404, &json!("expected start, stop or status")));
    assert_eq!(generator(&at, "start").await["status"], "STARTED");
    let began = Instant::now();
    while generator(&at, "status").await["produced"].as_u64() < Some(2) {
        assert!(began.elapsed() < SOON, "the generator produces nothing");
        tokio::time::sleep(POLL).await;
    }
    let stopped = generator(&at, "stop").await;
    assert_eq!(stopped["status"], "STOPPED");
    assert_eq!(json!(queue.count("SELECT count(*) FROM tasks").await), stopped["produced"]);
}
