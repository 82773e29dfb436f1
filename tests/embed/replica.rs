//! Replicas of an embedded service in separate processes: a node, its API and a candidate of one election.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tenure::client::Remote;
use tenure::election::{Election, ElectionOptions};
use tokio::net::TcpListener;

use crate::alone::runtime;
use crate::trio::{Plan, SOON};

pub const TTL: Duration = Duration::from_secs(3);
pub const ELECTION: &str = "leader";
/// Environment variable with the settings of a replica: its id, and the plan as text.
const VARIABLE: &str = "TENURE_TEST_REPLICA";

/// A running replica process. It is killed on drop.
pub struct Replica {
    pub id: u64,
    child: Child,
    orders: ChildStdin,
    lines: Receiver<(Instant, String)>,
}

impl Replica {
    pub fn start(plan: &Plan, id: u64) -> Replica {
        let this = std::env::current_exe().expect("a test has a binary");
        let mut command = Command::new(this);
        command.args(["replica::environment_starts_a_replica", "--exact", "--nocapture"]);
        command.env(VARIABLE, format!("{id} {}", plan.to_text()));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the test binary starts");
        let orders = child.stdin.take().expect("the stream is piped");
        let lines = read_lines(child.stderr.take().expect("the stream is piped"));
        Replica { id, child, orders, lines }
    }

    /// Starts all three replicas, and waits until they are ready.
    pub fn start_all(plan: &Plan) -> Vec<Replica> {
        let replicas: Vec<Replica> = (1..=3).map(|id| Replica::start(plan, id)).collect();
        for replica in &replicas {
            replica.wait_for("ready", SOON);
        }
        replicas
    }

    pub fn campaign(&mut self) {
        self.order("campaign");
    }

    /// Starts a clean shutdown of the replica.
    pub fn stop(&mut self) {
        self.order("stop");
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the replica runs");
    }

    /// `kill -9`.
    pub fn kill(mut self) {
        self.child.kill().expect("the replica runs");
        self.child.wait().expect("the replica is a child process");
    }

    /// Waits for a line that starts with `word`. Returns the line and its arrival time.
    pub fn wait_for(&self, word: &str, within: Duration) -> (Instant, String) {
        let deadline = Instant::now() + within;
        let mut said = Vec::new();
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok((at, line)) if line.starts_with(word) => return (at, line),
                Ok((_, line)) => said.push(line),
                Err(error) => panic!("replica {}: no {word:?} within {within:?} ({error}): {said:?}", self.id),
            }
        }
    }

    /// Returns the arrival time of a line that starts with `word`, if it has arrived.
    pub fn has_said(&self, word: &str) -> Option<Instant> {
        self.lines.try_iter().find(|(_, line)| line.starts_with(word)).map(|(at, _)| at)
    }

    fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("the replica reads its input");
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_lines(stderr: ChildStderr) -> Receiver<(Instant, String)> {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            // The receiver is gone if the test has ended.
            let _ = sender.send((Instant::now(), line));
        }
    });
    lines
}

/// Returns a client of the replicas in the order of `ids`.
pub fn remote(plan: &Plan, ids: impl IntoIterator<Item = u64>) -> Remote {
    let urls: Vec<String> = ids.into_iter().map(|id| format!("http://{}", plan.http(id))).collect();
    Remote::new(urls.join(",").parse().expect("valid addresses"))
}

/// The entry point of a replica process. Without [`VARIABLE`] it does nothing.
#[test]
fn environment_starts_a_replica() {
    let Ok(words) = std::env::var(VARIABLE) else { return };
    let (id, plan) = words.split_once(' ').expect("an id and a plan");
    runtime().block_on(replica(Plan::from_text(plan), id.parse().expect("a number")));
}

async fn replica(plan: Plan, id: u64) {
    let node = plan.builder(id).start().await.expect("the node starts");
    let listener = TcpListener::bind(plan.http(id)).await.expect("the address is free");
    let app = node.router();
    tokio::spawn(async move { axum::serve(listener, app).await });
    let leases = node.leases();
    let election = Election::new(&leases, ELECTION, ElectionOptions::new().ttl(TTL)).expect("valid");
    while node.health().not_ready.is_some() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    eprintln!("ready");
    let (orders, mut ordered) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || std::io::stdin().lines().map_while(Result::ok).try_for_each(|line| orders.send(line)));
    let mut campaign = None;
    loop {
        match ordered.recv().await.as_deref() {
            Some("campaign") => campaign = Some(tokio::spawn(lead(election.clone()))),
            Some("stop") => break,
            // The input is closed, so the test has ended.
            _ => return,
        }
    }
    let failed = leases.shutdown().await;
    node.shutdown().await;
    let ended = match campaign {
        Some(campaign) => campaign.await.expect("the campaign does not panic"),
        None => "not started".to_owned(),
    };
    eprintln!("stopped; not released: {failed:?}; campaign: {ended}");
}

async fn lead(election: Election) -> String {
    loop {
        match election.campaign().await {
            Ok(leadership) => {
                eprintln!("elected {}", leadership.token());
                leadership.lost().cancelled().await;
            }
            Err(error) => return format!("{error:?}"),
        }
    }
}
