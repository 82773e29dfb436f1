//! A cluster, a link to it that can be cut, and commands that write marks.

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

/// The start of all scripts. A mark is a word and the wall-clock time in nanoseconds.
const LIBRARY: &str = r#"
mark() { echo "$1 $(date +%s%N)" >> "$D/$2"; }
ticks() { while :; do mark tick "$1"; sleep 0.02; done; }
"#;

pub struct World {
    pub cluster: Cluster,
    pub link: Link,
}

/// A mark of a command, and its time since 1970.
#[derive(Clone, Debug)]
pub struct Mark {
    pub word: String,
    pub at: Duration,
}

impl World {
    pub async fn start() -> World {
        let cluster = Cluster::start("").await;
        cluster.leader().await;
        fs::write(cluster.folder().join("library"), LIBRARY).expect("write the library");
        let link = Link::to(&cluster.client.endpoints()).await;
        World { cluster, link }
    }

    /// Starts `tenure run` with these options and a shell script, over the link. `$D` is the folder of the script.
    pub fn run(&self, options: &str, script: &str) -> Process {
        self.run_command(options, &["sh", "-c", &format!(". \"$D/library\"; {script}")])
    }

    pub fn run_command(&self, options: &str, run: &[&str]) -> Process {
        let mut command = tenure();
        command.arg("run").args(options.split(' ')).arg("--").args(run);
        command.env("TENURE_ENDPOINTS", self.link.endpoints()).env("D", self.cluster.folder());
        Process::start(&format!("run {options}").replace('/', "_"), command, self.cluster.folder())
    }

    /// Runs another command of the binary, without the link.
    pub async fn tenure(&self, line: &str) -> i32 {
        let mut command = tenure();
        command.args(line.split(' ')).env("TENURE_ENDPOINTS", self.cluster.client.endpoints());
        let mut process = Process::start(&line.replace(['/', ' '], "_"), command, self.cluster.folder());
        code(&mut process).await
    }

    /// Turns access control on. Requests without a credential are refused from then on.
    pub async fn turn_access_control_on(&self) {
        self.cluster.settled().await;
        for line in ["auth role set admin --admin", "auth principal set root --role admin"] {
            assert_eq!(self.tenure(line).await, 0, "{line}");
        }
        let mut create = tenure();
        create.args(["auth", "token", "create", "root"]).env("TENURE_ENDPOINTS", self.cluster.client.endpoints());
        let mut create = Process::start("create", create, self.cluster.folder());
        assert_eq!(code(&mut create).await, 0, "{}", create.said());
        let file = self.path("root.token");
        fs::write(&file, create.printed()).expect("write the token");
        let enable = format!("auth enable --access-token-file {}", file.display());
        assert_eq!(self.tenure(&enable).await, 0, "{enable}");
    }

    /// Claims the lease without the link, and returns when the claim waits in the queue. The task returns the time of the
    /// grant.
    pub async fn next_holder(&self, name: &str) -> JoinHandle<Duration> {
        let (client, call) = (self.cluster.client.clone(), Call::wait(name, "next", 60_000, SOON));
        let claim = tokio::spawn(async move { granted_at(&client.done(0, &call).await) });
        let began = Instant::now();
        while !self.has_waiter(name).await {
            assert!(began.elapsed() < SOON, "no claim waits for {name}");
            tokio::time::sleep(POLL).await;
        }
        claim
    }

    pub async fn has_waiter(&self, name: &str) -> bool {
        let queue = self.cluster.client.call_until_known(0, &Call::get(format!("/v1/leases/{name}/queue"))).await;
        queue.is_ok_and(|queue| queue["waiters"].as_array().is_some_and(|waiters| !waiters.is_empty()))
    }

    pub async fn is_held(&self, name: &str) -> bool {
        let lease = self.cluster.client.call_until_known(0, &Call::get(format!("/v1/leases/{name}"))).await;
        lease.is_ok_and(|lease| lease["state"] == "active")
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.cluster.folder().join(file)
    }

    pub fn text(&self, file: &str) -> String {
        fs::read_to_string(self.path(file)).unwrap_or_default()
    }

    /// The marks in a file, without incomplete lines of killed writers.
    pub fn marks(&self, file: &str) -> Vec<Mark> {
        let text = self.text(file);
        let marks = text.lines().filter_map(|line| {
            let (word, nanos) = line.split_once(' ')?;
            Some(Mark { word: word.to_owned(), at: Duration::from_nanos(nanos.parse().ok()?) })
        });
        marks.collect()
    }

    pub fn last_mark(&self, file: &str) -> Duration {
        self.marks(file).last().unwrap_or_else(|| panic!("{file} has no mark")).at
    }

    /// The time of the first mark with this word.
    pub fn first_mark(&self, file: &str, word: &str) -> Duration {
        let marks = self.marks(file);
        marks.iter().find(|mark| mark.word == word).unwrap_or_else(|| panic!("{file} has no {word}: {marks:?}")).at
    }

    /// Waits for a mark with this word.
    pub async fn wait_for_mark(&self, file: &str, word: &str) {
        let began = Instant::now();
        while !self.marks(file).iter().any(|mark| mark.word == word) {
            assert!(began.elapsed() < SOON, "{file} has no {word}: {:?}", self.marks(file));
            tokio::time::sleep(POLL).await;
        }
    }

    /// Signals the process whose pid a command wrote to the file.
    pub fn signal(&self, file: &str, signal: Signal) {
        let pid = self.text(file).trim().parse().ok().and_then(Pid::from_raw);
        kill_process(pid.unwrap_or_else(|| panic!("{file} has no pid")), signal).expect("the process runs");
    }
}

/// Waits for the exit of the process, and returns its exit code.
pub async fn code(process: &mut Process) -> i32 {
    let status = process.exit(SOON).await;
    status.code().unwrap_or_else(|| panic!("{status}: {}", process.said()))
}

pub fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("the time is after 1970")
}

fn granted_at(lease: &Value) -> Duration {
    let text = lease["granted_at"].as_str().expect("a lease has granted_at");
    let at = humantime::parse_rfc3339(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    at.duration_since(UNIX_EPOCH).expect("the time is after 1970")
}
