//! Replicas of an embedded service, each a process of its own: a node, its API, and a candidate of one election.

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
/// What a replica is started with: its id, its data, and the addresses of all.
const VARIABLE: &str = "TENURE_TEST_REPLICA";

/// A replica that runs. Killed when dropped.
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
        command.args(["replica::is_a_replica_if_it_is_told_to", "--exact", "--nocapture"]);
        command.env(VARIABLE, format!("{id} {}", plan.in_words()));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it runs again");
        let orders = child.stdin.take().expect("it is piped");
        let lines = read_lines(child.stderr.take().expect("it is piped"));
        Replica { id, child, orders, lines }
    }

    /// Starts all three, and waits until they are ready.
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

    /// Asks it to end in order.
    pub fn stop(&mut self) {
        self.order("stop");
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// `kill -9`.
    pub fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it is a child");
    }

    /// When it said so.
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

    /// When it said so, if it has.
    pub fn has_said(&self, word: &str) -> Option<Instant> {
        self.lines.try_iter().find(|(_, line)| line.starts_with(word)).map(|(at, _)| at)
    }

    fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("it reads");
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
            // The test may have ended.
            let _ = sender.send((Instant::now(), line));
        }
    });
    lines
}

/// A way to the replicas in this order.
pub fn remote(plan: &Plan, ids: impl IntoIterator<Item = u64>) -> Remote {
    let urls: Vec<String> = ids.into_iter().map(|id| format!("http://{}", plan.http(id))).collect();
    Remote::new(urls.join(",").parse().expect("valid addresses"))
}

/// No test of its own: the process of a replica is this function.
#[test]
fn is_a_replica_if_it_is_told_to() {
    let Ok(words) = std::env::var(VARIABLE) else { return };
    let (id, plan) = words.split_once(' ').expect("an id and a plan");
    runtime().block_on(replica(Plan::from_words(plan), id.parse().expect("a number")));
}

async fn replica(plan: Plan, id: u64) {
    let node = plan.builder(id).start().await.expect("it starts");
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
            // The test has ended.
            _ => return,
        }
    }
    let failed = leases.shutdown().await;
    node.shutdown().await;
    let ended = match campaign {
        Some(campaign) => campaign.await.expect("it does not panic"),
        None => "never begun".to_owned(),
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
