//! The example: three processes that are their own cluster.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::steady::steady;
use crate::trio::SOON;

steady!(three_replicas_of_the_example_are_their_own_cluster);

/// A replica; killed if the test does not end it.
struct Replica(Child);

impl Replica {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("it is there");
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Built for this test, because `cargo test --test embed` builds no example. There is nothing to do if it is fresh.
fn build() -> PathBuf {
    let build = ["build", "--quiet", "--locked", "--all-features", "--example", "embedded"];
    let built = Command::new(env!("CARGO")).args(build).current_dir(env!("CARGO_MANIFEST_DIR")).status();
    assert!(built.expect("cargo runs").success());
    let this = std::env::current_exe().expect("a test has a binary");
    this.parent().and_then(Path::parent).expect("target/debug/deps").join("examples/embedded")
}

/// A base from which the ports of all replicas are free, below those of outgoing connections.
fn base() -> u16 {
    let is_free = |port: u16| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok();
    let bases = std::iter::repeat_with(|| rand::random_range(10_240..32_000_u16)).take(1000);
    let mut free = bases.filter(|base| (1..=3).all(|id| is_free(base + id) && is_free(base + 100 + id)));
    free.next().expect("one of a thousand")
}

async fn ask(base: u16, id: u16, path: &str) -> Option<(u16, String)> {
    let answer = reqwest::get(format!("http://127.0.0.1:{}{path}", base + id)).await.ok()?;
    Some((answer.status().as_u16(), answer.text().await.ok()?))
}

/// Asks until the answer is what is hoped for.
async fn wait_for(base: u16, id: u16, path: &str, hoped: impl Fn(u16, &str) -> bool) -> String {
    let asked = async {
        loop {
            match ask(base, id, path).await {
                Some((status, text)) if hoped(status, &text) => return text,
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    let answered = tokio::time::timeout(SOON, asked).await;
    answered.unwrap_or_else(|_| panic!("replica {id} does not say so at {path}"))
}

async fn three_replicas_of_the_example_are_their_own_cluster() {
    let (program, base, data) = (build(), base(), TempDir::new().expect("a folder"));
    let start = |id: u16| {
        let mut command = Command::new(&program);
        command.args(["--id", &id.to_string(), "--base", &base.to_string(), "--data"]);
        command.arg(data.path().join(id.to_string())).stdout(Stdio::null());
        Replica(command.spawn().expect("it starts"))
    };
    let mut replicas = [start(1), start(2), start(3)];
    for id in 1..=3 {
        wait_for(base, id, "/tenure/readyz", |status, _| status == 200).await;
    }
    wait_for(base, 1, "/lease-acquire/report", |status, _| status == 200).await;
    assert_eq!(ask(base, 1, "/lease-check/report").await, Some((200, "true".to_owned())));
    assert_eq!(ask(base, 2, "/lease-check/report").await, Some((200, "false".to_owned())));
    let (status, why) = ask(base, 2, "/lease-acquire/report").await.expect("an answer");
    assert!(status == 409 && why.starts_with("held by"), "{status} {why}");
    assert!(ask(base, 3, "/tenure/v1/leases/report").await.expect("an answer").1.contains("\"state\":\"active\""));

    // Paused for longer than its ttl, the holder knows it before it answers anything, also what it was asked meanwhile.
    replicas[0].signal(Signal::STOP);
    let asked = tokio::spawn(async move { ask(base, 1, "/lease-check/report").await });
    wait_for(base, 2, "/lease-acquire/report", |status, _| status == 200).await;
    replicas[0].signal(Signal::CONT);
    assert_eq!(asked.await.expect("nothing panics"), Some((200, "false".to_owned())));
    assert_eq!(ask(base, 2, "/lease-check/report").await, Some((200, "true".to_owned())));

    // Asked to stop, the holder gives the lease back before it goes: nobody waits for its ttl.
    let begun = Instant::now();
    replicas[1].signal(Signal::TERM);
    let ended = replicas[1].0.wait().expect("it ends");
    assert!(ended.success(), "{ended}");
    wait_for(base, 3, "/lease-acquire/report", |status, _| status == 200).await;
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
}
