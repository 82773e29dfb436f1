//! The example `embedded`: three processes that form a cluster.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::steady::steady;
use crate::trio::SOON;

steady!(example_replicas_form_a_cluster);

/// A replica process. It is killed on drop.
struct Replica(Child);

impl Replica {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("the replica runs");
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the path of the example. It builds the example, because `cargo test --test embed` builds no examples.
///
/// Cargo waits while another cargo builds. So scripts/check, which lints beside the tests, names the directory of the
/// examples that it has built.
fn build() -> PathBuf {
    if let Some(examples) = std::env::var_os("TENURE_EXAMPLES") {
        return PathBuf::from(examples).join("embedded");
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--locked", "--all-features", "--example", "embedded"]);
    // Cargo sets these for a test. The build script of ring depends on them, so this build and the next one would each
    // compile ring, and the library with it.
    let of_test =
        |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") || name == "OUT_DIR";
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(of_test)) {
        cargo.env_remove(name);
    }
    let built = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status();
    assert!(built.expect("cargo runs").success());
    let this = std::env::current_exe().expect("a test has a binary");
    this.parent().and_then(Path::parent).expect("target/debug/deps").join("examples/embedded")
}

/// Returns a base port from which the ports of all replicas are free. They are below the ports of outgoing connections.
fn base() -> u16 {
    let is_free = |port: u16| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok();
    let bases = std::iter::repeat_with(|| rand::random_range(10_240..32_000_u16)).take(1000);
    let mut free = bases.filter(|base| (1..=3).all(|id| is_free(base + id) && is_free(base + 100 + id)));
    free.next().expect("one of 1,000 bases is free")
}

async fn ask(base: u16, id: u16, path: &str) -> Option<(u16, String)> {
    let answer = crate::plain_http::get(format!("http://127.0.0.1:{}{path}", base + id)).await.ok()?;
    Some((answer.status().as_u16(), answer.text().await.ok()?))
}

/// Repeats a request until its answer is the `expected` one.
async fn wait_for(base: u16, id: u16, path: &str, expected: impl Fn(u16, &str) -> bool) -> String {
    let asked = async {
        loop {
            match ask(base, id, path).await {
                Some((status, text)) if expected(status, &text) => return text,
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    let answered = tokio::time::timeout(SOON, asked).await;
    answered.unwrap_or_else(|_| panic!("replica {id} does not give the expected answer at {path}"))
}

async fn example_replicas_form_a_cluster() {
    let (program, base, data) = (build(), base(), TempDir::new().expect("a folder"));
    let start = |id: u16| {
        let mut command = Command::new(&program);
        command.args(["--id", &id.to_string(), "--base", &base.to_string(), "--data"]);
        command.arg(data.path().join(id.to_string())).stdout(Stdio::null());
        Replica(command.spawn().expect("the example starts"))
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

    // A holder that was paused for longer than its ttl notices the expiry before it answers any request. This includes
    // a request that arrived during the pause.
    replicas[0].signal(Signal::STOP);
    let asked = tokio::spawn(async move { ask(base, 1, "/lease-check/report").await });
    wait_for(base, 2, "/lease-acquire/report", |status, _| status == 200).await;
    replicas[0].signal(Signal::CONT);
    assert_eq!(asked.await.expect("the task does not panic"), Some((200, "false".to_owned())));
    assert_eq!(ask(base, 2, "/lease-check/report").await, Some((200, "true".to_owned())));

    // On SIGTERM the holder releases the lease before it exits, so the next holder does not wait for the ttl.
    let begun = Instant::now();
    replicas[1].signal(Signal::TERM);
    let ended = replicas[1].0.wait().expect("the replica is a child process");
    assert!(ended.success(), "{ended}");
    wait_for(base, 3, "/lease-acquire/report", |status, _| status == 200).await;
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
}
