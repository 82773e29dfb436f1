//! The driver of the Rust client: a program that speaks the protocol of clients/conformance/README.md.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use tenure::api::TtlMs;
use tenure::client::{AcquireOptions, CallError, Endpoints, LeaseGuard, Remote};
use tenure::clock::{Clock, SystemClock};
use tenure::election::{Election, ElectionOptions};
use tenure::tls::ClientTls;
use tenure::types::{HolderId, Metadata};
use tenure::{HoldState, Lease, LeaseManager, LeaseOptions, ManagerOptions, Wait};
use tokio_util::sync::CancellationToken;

/// The time between two events of running work.
const WORK_INTERVAL: Duration = Duration::from_millis(10);
/// The metadata key with the name of a candidate.
const CANDIDATE: &str = "candidate";

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut driver: Option<Arc<Driver>> = None;
    for line in std::io::stdin().lock().lines() {
        let command: Value = serde_json::from_str(&line?)?;
        let Some(driver) = &driver else {
            let _runtime = runtime.enter();
            let opened = Driver::open(&command).map(|opened| driver = Some(Arc::new(opened)));
            respond(&command, opened.map(|()| json!({})));
            continue;
        };
        let driver = driver.clone();
        runtime.spawn(async move {
            let response = driver.run(&command).await;
            respond(&command, response);
            if command["op"] == "shutdown" {
                std::process::exit(0);
            }
        });
    }
    // Like a crash: nothing is released.
    std::process::exit(0)
}

fn respond(command: &Value, response: Result<Value, Failure>) {
    let mut response = response.unwrap_or_else(|error| json!({"error": error.to_string()}));
    response["id"] = command["id"].clone();
    print_line(&response);
}

fn print_line(line: &Value) {
    let mut out = std::io::stdout().lock();
    // The suite has ended if the pipe is closed.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn at_ns() -> u64 {
    SystemClock.elapsed().as_nanos() as u64
}

struct Driver {
    manager: LeaseManager,
    leases: Mutex<BTreeMap<String, Lease>>,
    /// The acquires in progress, by the ids of their commands.
    acquires: Mutex<BTreeMap<u64, CancellationToken>>,
    work: Mutex<BTreeMap<String, Stoppable>>,
    campaigns: Mutex<BTreeMap<String, Stoppable>>,
}

/// A task that ends some time after `stop`.
struct Stoppable {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Stoppable {
    async fn end(self) -> Result<Value, Failure> {
        self.stop.cancel();
        self.task.await?;
        Ok(json!({}))
    }
}

impl Driver {
    fn open(command: &Value) -> Result<Driver, Failure> {
        let urls: Vec<&str> = command["endpoints"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let endpoints: Endpoints = urls.join(",").parse()?;
        let mut remote = Remote::new(endpoints);
        if let Some(ca) = command["ca"].as_str() {
            remote = remote.with_tls(&match (command["cert"].as_str(), command["key"].as_str()) {
                (Some(cert), Some(key)) => ClientTls::with_certificate(ca, cert, key)?,
                _ => ClientTls::trusting(ca)?,
            });
        }
        if let Some(token) = command["token"].as_str() {
            remote = remote.with_token(&token.parse()?);
        }
        let mut options = ManagerOptions::new();
        if let Some(holder) = command["holder"].as_str() {
            options = options.holder(HolderId::new(holder)?);
        }
        if let Some(timeout) = millis(command, "operation_timeout_ms") {
            options = options.operation_timeout(timeout);
        }
        if let Some(drift) = command["drift_permille"].as_u64() {
            options = options.drift_permille(drift.try_into()?);
        }
        Ok(Driver {
            manager: LeaseManager::with_options(remote, options)?,
            leases: Mutex::default(),
            acquires: Mutex::default(),
            work: Mutex::default(),
            campaigns: Mutex::default(),
        })
    }

    async fn run(self: &Arc<Driver>, command: &Value) -> Result<Value, Failure> {
        match text(command, "op")? {
            "acquire" => {
                let (lease, id) = (self.lease(command)?, id(command, "id")?);
                let cancel = CancellationToken::new();
                unpoisoned(&self.acquires).insert(id, cancel.clone());
                let ended = cancel.run_until_cancelled(lease.acquire(wait(command))).await;
                unpoisoned(&self.acquires).remove(&id);
                Ok(match ended {
                    Some(Ok(token)) => json!({"outcome": "held", "token": token}),
                    Some(Err(error)) => failed(&error),
                    None => json!({"outcome": "cancelled"}),
                })
            }
            "cancel" => {
                if let Some(cancel) = unpoisoned(&self.acquires).get(&id(command, "acquire")?) {
                    cancel.cancel();
                }
                Ok(json!({}))
            }
            "release" => Ok(match self.lease(command)?.release().await {
                Ok(was_held) => json!({"outcome": "released", "was_held": was_held}),
                Err(error) => failed(&error),
            }),
            "hand_over" => {
                let to = command["to"].as_str().map(HolderId::new).transpose()?;
                let lease = self.lease(command)?;
                Ok(match lease.hand_over(to).await {
                    Ok(true) => json!({"outcome": "handed_over"}),
                    Ok(false) => lost(&lease),
                    Err(error) => failed(&error),
                })
            }
            "state" => Ok(described(&self.lease(command)?)),
            "check" => {
                let lease = self.lease(command)?;
                Ok(match lease.check().await {
                    Ok(true) => json!({"outcome": "held"}),
                    Ok(false) => lost(&lease),
                    Err(error) => failed(&error),
                })
            }
            "work" => self.work(command).await,
            "stop_work" => ended(&self.work, text(command, "lease")?).await,
            "campaign" => self.campaign(command),
            "resign" => ended(&self.campaigns, text(command, "election")?).await,
            "leader" => {
                let election = Election::new(&self.manager, text(command, "election")?, ElectionOptions::new())?;
                let leader = election.current().await?.leader;
                Ok(json!({"leader": leader.and_then(|leader| leader.metadata.get(CANDIDATE).cloned())}))
            }
            "clock" => Ok(json!({"at_ns": at_ns()})),
            "shutdown" => {
                let left: Vec<_> = self.manager.shutdown().await.into_iter().map(|(name, _)| name).collect();
                Ok(json!({"left": left}))
            }
            other => Err(format!("unknown command {other:?}").into()),
        }
    }

    /// The lease of a command. The first command for a lease sets its options.
    fn lease(&self, command: &Value) -> Result<Lease, Failure> {
        let name = text(command, "lease")?;
        let mut leases = unpoisoned(&self.leases);
        if let Some(lease) = leases.get(name) {
            return Ok(lease.clone());
        }
        let lease = self.manager.lease_with(name, options(command)?)?;
        print_states(&lease);
        leases.insert(name.to_owned(), lease.clone());
        Ok(lease)
    }

    async fn work(self: &Arc<Driver>, command: &Value) -> Result<Value, Failure> {
        let lease = self.lease(command)?;
        let guard = match lease.guard(wait(command)).await {
            Ok(guard) => guard,
            Err(error) => return Ok(failed(&error)),
        };
        let (token, stop) = (guard.token(), CancellationToken::new());
        let task = tokio::spawn(work(guard, stop.clone()));
        unpoisoned(&self.work).insert(lease.name().to_string(), Stoppable { stop, task });
        Ok(json!({"outcome": "held", "token": token}))
    }

    fn campaign(self: &Arc<Driver>, command: &Value) -> Result<Value, Failure> {
        let name = text(command, "election")?.to_owned();
        let metadata = Metadata::new(BTreeMap::from([(CANDIDATE.to_owned(), text(command, "candidate")?.to_owned())]))?;
        let mut options = ElectionOptions::new().metadata(metadata);
        if let Some(ttl) = millis(command, "ttl_ms") {
            options = options.ttl(ttl);
        }
        let election = Election::new(&self.manager, &name, options)?;
        let stop = CancellationToken::new();
        let task = tokio::spawn(campaign(election, stop.clone()));
        unpoisoned(&self.campaigns).insert(name, Stoppable { stop, task });
        Ok(json!({}))
    }
}

async fn ended(running: &Mutex<BTreeMap<String, Stoppable>>, name: &str) -> Result<Value, Failure> {
    let task = unpoisoned(running).remove(name);
    task.ok_or_else(|| format!("nothing runs under the name {name:?}"))?.end().await
}

/// Works until the lease is lost or `stop`. The guard polls the steps only while the lease is held.
async fn work(guard: LeaseGuard, stop: CancellationToken) {
    let name = guard.name().to_string();
    let steps = async {
        loop {
            // The clock is read before the lease is asked: at this time the lease was held.
            let at = at_ns();
            if let Some(token) = Lease::token(&guard) {
                print_line(&json!({"event": "work", "lease": name, "token": token, "at_ns": at}));
            }
            tokio::select! {
                () = tokio::time::sleep(WORK_INTERVAL) => {}
                () = stop.cancelled() => return,
            }
        }
    };
    let why = match guard.while_held(steps).await {
        Ok(()) => "stopped",
        Err(_) => "lost",
    };
    print_line(&json!({"event": "work_ended", "lease": name, "at_ns": at_ns(), "why": why}));
    if why == "stopped" {
        // After an error the lease expires by its ttl.
        let _ = guard.release().await;
    }
}

async fn campaign(election: Election, stop: CancellationToken) {
    let name = election.name().to_string();
    let print = |event: &str, token: Value, at: u64| {
        print_line(&json!({"event": event, "election": name, "token": token, "at_ns": at}));
    };
    loop {
        let leadership = tokio::select! {
            leadership = election.campaign() => leadership,
            () = stop.cancelled() => return,
        };
        let Ok(leadership) = leadership else { return };
        let token = json!(leadership.token());
        let mut last = at_ns();
        print("elected", token.clone(), last);
        let steps = async {
            loop {
                // The clock is read before the client is asked: at this time it led.
                let at = at_ns();
                if leadership.is_leader() {
                    last = at;
                }
                tokio::select! {
                    () = tokio::time::sleep(WORK_INTERVAL) => {}
                    () = stop.cancelled() => return,
                }
            }
        };
        let led = leadership.while_leading(steps).await;
        print("deposed", token, last);
        if led.is_ok() {
            // After an error the lease expires by its ttl.
            let _ = leadership.resign_now().await;
            return;
        }
    }
}

/// Prints each state of a lease, except the first one.
fn print_states(lease: &Lease) {
    let (mut states, name) = (lease.states(), lease.name().to_string());
    tokio::spawn(async move {
        while states.changed().await.is_ok() {
            let state = *states.borrow_and_update();
            let mut line = json!({"event": "state", "lease": name, "state": word(&state), "at_ns": at_ns()});
            if let HoldState::Ending { why, .. } | HoldState::Lost { why, .. } = state {
                line["why"] = json!(why.as_str());
            }
            print_line(&line);
        }
    });
}

fn word(state: &HoldState) -> &'static str {
    match state {
        HoldState::Held { .. } => "held",
        HoldState::AtRisk { .. } => "at_risk",
        HoldState::Ending { .. } => "ending",
        HoldState::Lost { .. } => "lost",
        HoldState::Released { .. } => "released",
        _ => "idle",
    }
}

fn described(lease: &Lease) -> Value {
    let state = lease.state();
    let mut described = json!({"state": word(&state), "held": lease.is_held(), "at_ns": at_ns()});
    if let HoldState::Ending { why, .. } | HoldState::Lost { why, .. } = state {
        described["why"] = json!(why.as_str());
    }
    if let HoldState::AtRisk { failures, .. } = state {
        described["failures"] = json!(failures);
    }
    if let Some(left) = lease.remaining().filter(|left| *left < Duration::MAX) {
        described["left_ms"] = json!(left.as_millis() as u64);
    }
    if let Some(token) = lease.token() {
        described["token"] = json!(token);
    }
    described
}

fn lost(lease: &Lease) -> Value {
    let mut lost = json!({"outcome": "lost"});
    if let HoldState::Lost { why, .. } = lease.state() {
        lost["why"] = json!(why.as_str());
    }
    lost
}

fn failed(error: &CallError) -> Value {
    match error {
        CallError::Refused(problem) => json!({"outcome": "refused", "code": problem.code.as_str()}),
        CallError::Unknown { .. } => json!({"outcome": "unknown"}),
        CallError::Unavailable(_) => json!({"outcome": "unavailable"}),
        CallError::ShutDown => json!({"outcome": "shut_down"}),
        other => json!({"error": other.to_string()}),
    }
}

fn wait(command: &Value) -> AcquireOptions {
    let wait = millis(command, "wait_ms").filter(|wait| !wait.is_zero());
    AcquireOptions::new().wait(wait.map_or(Wait::No, Wait::UpTo))
}

fn options(command: &Value) -> Result<LeaseOptions, Failure> {
    let mut options = LeaseOptions::new();
    if command["ttl_ms"] == json!(TtlMs::Infinite) {
        options = options.infinite();
    } else if let Some(ttl) = millis(command, "ttl_ms") {
        options = options.ttl(ttl);
    }
    if let Some(grace) = millis(command, "grace_ms") {
        options = options.grace(grace);
    }
    if let Some(delay) = millis(command, "lock_delay_ms") {
        options = options.lock_delay(delay);
    }
    if let Some(limit) = command["limit"].as_u64() {
        options = options.limit(limit.try_into()?);
    }
    if let Some(metadata) = command["metadata"].as_object() {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        options =
            options.metadata(Metadata::new(metadata.iter().map(|(key, value)| (key.clone(), text(value))).collect())?);
    }
    Ok(options)
}

fn millis(command: &Value, field: &str) -> Option<Duration> {
    command[field].as_u64().map(Duration::from_millis)
}

fn id(command: &Value, field: &str) -> Result<u64, Failure> {
    command[field].as_u64().ok_or_else(|| format!("{command} has no number {field:?}").into())
}

fn text<'a>(command: &'a Value, field: &str) -> Result<&'a str, Failure> {
    command[field].as_str().ok_or_else(|| format!("{command} has no text {field:?}").into())
}

fn unpoisoned<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().expect("no code panics while it holds this lock")
}
