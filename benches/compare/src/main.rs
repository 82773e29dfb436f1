//! The load program of scripts/compare: the same client loops for Tenure, etcd and ZooKeeper.
//!
//! ```text
//! tenure-compare fdatasync FOLDER
//! tenure-compare SYSTEM pairs|renewals|reads --nodes A,B,C --pids P,Q,R --clients N --seconds S
//! tenure-compare SYSTEM expiry --nodes A --samples N
//! tenure-compare SYSTEM failover --nodes B,C --leader-pid P
//! ```
//!
//! SYSTEM is `tenure`, `etcd` or `zookeeper`. The result is one line of JSON. The script starts the nodes. Exit codes: 0 done,
//! 1 a request failed, 3 an answer was wrong.

mod client;
mod etcd;
mod etcd_messages;
mod expiry;
mod failover;
// The reference, the HTTP client and the percentiles are those of `cargo bench`.
#[path = "../../fsync.rs"]
mod fsync;
mod grpc;
#[allow(dead_code, reason = "the other benchmarks use the rest of it")]
#[path = "../../http.rs"]
mod http1;
mod load;
#[path = "../../percentiles.rs"]
mod percentiles;
mod tenure;
mod zookeeper;

use std::collections::HashMap;
use std::fmt::Display;
use std::path::Path;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use serde_json::Value;

use client::{Client, Result, WrongAnswer};
use load::{Operation, Plan};

/// Two threads, as in `cargo bench`. The nodes share the processors with this program.
#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words).await {
        Ok(result) => {
            println!("{result}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("tenure-compare {}: {error}", words.join(" "));
            ExitCode::from(if error.is::<WrongAnswer>() { 3 } else { 1 })
        }
    }
}

async fn run(words: &[String]) -> Result<Value> {
    match words {
        [word, folder] if word == "fdatasync" => Ok(fsync::run(Path::new(folder))),
        [system, workload, options @ ..] => {
            let options = Options::parse(options)?;
            match system.as_str() {
                "tenure" => measure::<tenure::Tenure>(workload, &options).await,
                "etcd" => measure::<etcd::Etcd>(workload, &options).await,
                "zookeeper" => measure::<zookeeper::ZooKeeper>(workload, &options).await,
                _ => Err(format!("unknown system {system:?}: expected tenure, etcd or zookeeper").into()),
            }
        }
        _ => Err("expected fdatasync and a folder, or a system and a workload".into()),
    }
}

async fn measure<C: Client>(workload: &str, options: &Options) -> Result<Value> {
    let operation = match workload {
        "pairs" => Operation::Pair,
        "renewals" => Operation::Renewal,
        "reads" => Operation::Read,
        "expiry" => return expiry::run::<C>(options.one("nodes")?, options.one("samples")?).await,
        "failover" => return failover::run::<C>(options.list("nodes")?, options.one("leader-pid")?).await,
        _ => return Err(format!("unknown workload {workload:?}").into()),
    };
    let plan = Plan {
        nodes: options.list("nodes")?,
        pids: options.list("pids")?,
        clients: options.one("clients")?,
        time: Duration::from_secs(options.one("seconds")?),
    };
    load::run::<C>(operation, &plan).await
}

/// Pairs of `--name value`.
struct Options(HashMap<String, String>);

impl Options {
    fn parse(words: &[String]) -> Result<Options> {
        let mut options = HashMap::new();
        for pair in words.chunks(2) {
            let [name, value] = pair else { return Err(format!("{} has no value", pair[0]).into()) };
            let name = name.strip_prefix("--").ok_or_else(|| format!("unknown argument {name:?}"))?;
            options.insert(name.to_string(), value.clone());
        }
        Ok(Options(options))
    }

    fn list<T: FromStr<Err: Display>>(&self, name: &str) -> Result<Vec<T>> {
        let value = self.0.get(name).ok_or_else(|| format!("--{name} is missing"))?;
        let parse = |item: &str| item.parse().map_err(|error| format!("--{name} {item}: {error}").into());
        value.split(',').map(parse).collect()
    }

    fn one<T: FromStr<Err: Display>>(&self, name: &str) -> Result<T> {
        let mut list = self.list(name)?;
        match (list.pop(), list.is_empty()) {
            (Some(value), true) => Ok(value),
            _ => Err(format!("--{name}: expected one value").into()),
        }
    }
}
