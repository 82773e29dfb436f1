//! Concurrent clients that repeat an operation for a time, and the measured times.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::client::{Client, Result, WrongAnswer};
use crate::percentiles::{percentiles, round};

/// Time before the measurement, for caches and connections.
const WARM_UP: Duration = Duration::from_secs(1);
/// Unit of processor times in `/proc/*/stat`: 10 ms on Linux.
const CLOCK_TICK: Duration = Duration::from_millis(10);
/// Number of names that each client uses in turn.
const NAMES: usize = 1000;

#[derive(Clone, Copy)]
pub enum Operation {
    /// An acquire and a release.
    Pair,
    Renewal,
    Read,
}

pub struct Plan {
    pub nodes: Vec<String>,
    /// The processes of all nodes.
    pub pids: Vec<u32>,
    pub clients: usize,
    pub time: Duration,
}

#[derive(Clone, Copy)]
struct Period {
    from: Instant,
    until: Instant,
}

#[derive(Default)]
struct Record {
    /// Latencies of the operations that end in the measured period. For a pair: of the acquire.
    latencies: Vec<Duration>,
    /// First and last number of a grant.
    tokens: Option<(u64, u64)>,
}

pub async fn run<C: Client>(operation: Operation, plan: &Plan) -> Result<Value> {
    let mut reader = C::connect(&C::link(&plan.nodes[0]).await?).await?;
    let current = reader.acquire(&read_name()).await?;
    let clients = connect::<C>(plan).await?;
    let from = Instant::now() + WARM_UP;
    let period = Period { from, until: from + plan.time };
    let mut workers = JoinSet::new();
    for (id, client) in clients.into_iter().enumerate() {
        workers.spawn(work(client, id, operation, current, period));
    }
    tokio::time::sleep_until(period.from.into()).await;
    let before = (cpu(&plan.pids)?, cpu(&[std::process::id()])?);
    tokio::time::sleep_until(period.until.into()).await;
    let used = (cpu(&plan.pids)? - before.0, cpu(&[std::process::id()])? - before.1);
    let mut latencies = Vec::new();
    let mut tokens: Option<(u64, u64)> = None;
    while let Some(record) = workers.join_next().await {
        let record = record.expect("the client task does not panic")?;
        latencies.extend(record.latencies);
        if let Some((first, last)) = record.tokens {
            tokens = Some(tokens.map_or((first, last), |known| (known.0.min(first), known.1.max(last))));
        }
    }
    reader.release(&read_name(), current).await?;
    reader.close().await?;
    let count = latencies.len();
    if count == 0 {
        return Err(format!("no operation ended within the measured {:?}", plan.time).into());
    }
    let each = |used: Duration| round(used.as_secs_f64() * 1e6 / count as f64);
    let mut result = json!({
        "clients": plan.clients,
        "nodes": plan.nodes.len(),
        "operations": count,
        "per_second": (count as f64 / plan.time.as_secs_f64()).round(),
        "server_cpu_us_each": each(used.0),
        "client_cpu_us_each": each(used.1),
        "tokens": tokens.map(|(first, last)| [first, last]),
    });
    result.as_object_mut().expect("a JSON object").extend(percentiles(latencies));
    Ok(result)
}

/// The name that all clients read. A run that failed can leave its names held, so each run has other names.
fn read_name() -> String {
    format!("read-{}", std::process::id())
}

/// Connects the clients to the nodes in turn.
async fn connect<C: Client>(plan: &Plan) -> Result<Vec<C>> {
    let mut links: Vec<Vec<C::Link>> = plan.nodes.iter().map(|_| Vec::new()).collect();
    let mut connecting = JoinSet::new();
    for id in 0..plan.clients {
        let node = id % plan.nodes.len();
        if (id / plan.nodes.len()).is_multiple_of(C::CLIENTS_PER_LINK) {
            links[node].push(C::link(&plan.nodes[node]).await?);
        }
        let link = links[node].last().expect("the first client of a node makes a link").clone();
        connecting.spawn(async move { C::connect(&link).await });
    }
    let mut clients = Vec::new();
    while let Some(client) = connecting.join_next().await {
        clients.push(client.expect("the task does not panic")?);
    }
    Ok(clients)
}

async fn work<C: Client>(
    mut client: C,
    id: usize,
    operation: Operation,
    current: u64,
    period: Period,
) -> Result<Record> {
    let mut record = Record::default();
    let (run, read_name) = (std::process::id(), read_name());
    if let Operation::Renewal = operation {
        client.hold(&format!("held-{run}-{id}")).await?;
    }
    for turn in 0.. {
        let start = Instant::now();
        if start >= period.until {
            break;
        }
        let latency = match operation {
            Operation::Pair => {
                let name = format!("pair-{run}-{id}-{}", turn % NAMES);
                let token = client.acquire(&name).await?;
                let latency = start.elapsed();
                record.note_token(token)?;
                client.release(&name, token).await?;
                latency
            }
            Operation::Renewal => {
                client.renew().await?;
                start.elapsed()
            }
            Operation::Read => {
                let token = client.read(&read_name).await?;
                if token != current {
                    let error = format!("a read returned the grant {token}: expected {current}");
                    return Err(WrongAnswer(error).into());
                }
                start.elapsed()
            }
        };
        if (period.from..period.until).contains(&Instant::now()) {
            record.latencies.push(latency);
        }
    }
    client.close().await?;
    Ok(record)
}

impl Record {
    /// Fails if the numbers of one client's grants do not rise.
    fn note_token(&mut self, token: u64) -> Result<()> {
        let (first, last) = self.tokens.unwrap_or((token, 0));
        if token <= last {
            return Err(WrongAnswer(format!("the grant {token} follows the grant {last}")).into());
        }
        self.tokens = Some((first, token));
        Ok(())
    }
}

/// Processor time that the processes have used, in user and kernel mode.
fn cpu(pids: &[u32]) -> Result<Duration> {
    let mut total = Duration::ZERO;
    for pid in pids {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let after_name = stat.rsplit_once(')').ok_or("no name in /proc/PID/stat")?.1;
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        total += CLOCK_TICK * (fields[11].parse::<u32>()? + fields[12].parse::<u32>()?);
    }
    Ok(total)
}
