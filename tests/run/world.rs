//! A cluster, the way to it, and commands that leave traces.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::client::Call;
use crate::cluster::{Cluster, SOON};
use crate::link::Link;
use crate::process::{Process, tenure};

const POLL: Duration = Duration::from_millis(10);

/// What every script of a command begins with. A mark is a word and the wall clock's nanoseconds.
const LIBRARY: &str = r#"
mark() { echo "$1 $(date +%s%N)" >> "$D/$2"; }
ticks() { while :; do mark tick "$1"; sleep 0.02; done; }
"#;

pub struct World {
    pub cluster: Cluster,
    pub link: Link,
}

/// What a command wrote down, and when, since 1970.
#[derive(Clone, Debug)]
pub struct Mark {
    pub word: String,
    pub at: Duration,
}

impl World {
    pub async fn start() -> World {
        let cluster = Cluster::start("").await;
        cluster.leader().await;
        fs::write(cluster.folder().join("library"), LIBRARY).expect("the folder is the test's own");
        let link = Link::to(&cluster.client.endpoints()).await;
        World { cluster, link }
    }

    /// `tenure run` with these words before the `--`, of a script, over the link. The script finds its folder in `$D`.
    pub fn run(&self, words: &str, script: &str) -> Process {
        self.run_words(words, &["sh", "-c", &format!(". \"$D/library\"; {script}")])
    }

    pub fn run_words(&self, words: &str, run: &[&str]) -> Process {
        let mut command = tenure();
        command.arg("run").args(words.split(' ')).arg("--").args(run);
        command.env("TENURE_ENDPOINTS", self.link.endpoints()).env("D", self.cluster.folder());
        Process::start(&format!("run {words}").replace('/', "_"), command, self.cluster.folder())
    }

    /// Another command of the binary, past the link.
    pub async fn tenure(&self, line: &str) -> i32 {
        let mut command = tenure();
        command.args(line.split(' ')).env("TENURE_ENDPOINTS", self.cluster.client.endpoints());
        let mut process = Process::start(&line.replace(['/', ' '], "_"), command, self.cluster.folder());
        code(&mut process).await
    }

    /// Claims the lease past the link, and waits for it. The result is the moment of the grant.
    pub async fn next_holder(&self, name: &str) -> JoinHandle<Duration> {
        let (client, call) = (self.cluster.client.clone(), Call::wait(name, "next", 60_000, SOON));
        let claim = tokio::spawn(async move { granted_at(&client.done(0, &call).await) });
        let began = Instant::now();
        while !self.is_waited_for(name).await {
            assert!(began.elapsed() < SOON, "nobody waits for {name}");
            tokio::time::sleep(POLL).await;
        }
        claim
    }

    pub async fn is_waited_for(&self, name: &str) -> bool {
        let queue = self.cluster.client.settle(0, &Call::get(format!("/v1/leases/{name}/queue"))).await;
        queue.is_ok_and(|queue| queue["waiters"].as_array().is_some_and(|waiters| !waiters.is_empty()))
    }

    pub async fn is_held(&self, name: &str) -> bool {
        let lease = self.cluster.client.settle(0, &Call::get(format!("/v1/leases/{name}"))).await;
        lease.is_ok_and(|lease| lease["state"] == "active")
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.cluster.folder().join(file)
    }

    pub fn text(&self, file: &str) -> String {
        fs::read_to_string(self.path(file)).unwrap_or_default()
    }

    /// The marks in a file. A line whose writer was killed on the way does not count.
    pub fn marks(&self, file: &str) -> Vec<Mark> {
        let text = self.text(file);
        let marks = text.lines().filter_map(|line| {
            let (word, nanos) = line.split_once(' ')?;
            Some(Mark { word: word.to_owned(), at: Duration::from_nanos(nanos.parse().ok()?) })
        });
        marks.collect()
    }

    pub fn last(&self, file: &str) -> Duration {
        self.marks(file).last().unwrap_or_else(|| panic!("{file} has no mark")).at
    }

    /// When the word was first written.
    pub fn when(&self, file: &str, word: &str) -> Duration {
        let marks = self.marks(file);
        marks.iter().find(|mark| mark.word == word).unwrap_or_else(|| panic!("{file} has no {word}: {marks:?}")).at
    }

    /// Waits until the word is written.
    pub async fn marked(&self, file: &str, word: &str) {
        let began = Instant::now();
        while !self.marks(file).iter().any(|mark| mark.word == word) {
            assert!(began.elapsed() < SOON, "{file} has no {word}: {:?}", self.marks(file));
            tokio::time::sleep(POLL).await;
        }
    }

    /// Signals the process whose number a command wrote into the file.
    pub fn signal(&self, file: &str, signal: Signal) {
        let pid = self.text(file).trim().parse().ok().and_then(Pid::from_raw);
        kill_process(pid.unwrap_or_else(|| panic!("{file} has no number")), signal).expect("it runs");
    }
}

/// The exit code, once it has ended.
pub async fn code(process: &mut Process) -> i32 {
    let status = process.exit(SOON).await;
    status.code().unwrap_or_else(|| panic!("{status}: {}", process.said()))
}

pub fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970")
}

fn granted_at(lease: &Value) -> Duration {
    let text = lease["granted_at"].as_str().expect("a lease says when it was granted");
    let at = humantime::parse_rfc3339(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    at.duration_since(UNIX_EPOCH).expect("it is later than 1970")
}
