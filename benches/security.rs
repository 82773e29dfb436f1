//! The cost of TLS and access control: the same load with and without them, in turn. The clients are those of the library.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure::access::AccessToken;
use tenure::api::{Acquire, Release, Renew};
use tenure::client::Remote;
use tenure::tls::ClientTls;
use tenure::{FencingToken, HolderId, LeaseName};

use crate::cluster::Cluster;
use crate::load;

const CLIENTS: usize = 32;
const ROUNDS: usize = 3;

/// Protections of a cluster: TLS between all, and access control.
const VARIANTS: [(&str, bool, bool); 4] =
    [("plain", false, false), ("tls", true, false), ("access", false, true), ("tls-access", true, true)];

/// With `prefer`, nodes use TLS among themselves, and the benchmark can ask for the leader without it.
const TLS: &str =
    "[tls]\nca = \"tls/ca.pem\"\ncert = \"tls/node-{node}.pem\"\nkey = \"tls/node-{node}.key\"\nmode = \"prefer\"\n";

/// Prints one line per variant, load and round.
pub async fn run(time: Duration, print: impl Fn(Value)) {
    for round in 1..=ROUNDS {
        for (variant, tls, access) in VARIANTS {
            let cluster = Cluster::start_with(3, if tls { TLS } else { "" }).await;
            let remote = connect(&cluster, tls, access).await;
            let loads = [
                ("pairs", pairs(&cluster, &remote, time).await),
                ("renewals", renewals(&cluster, &remote, time).await),
            ];
            for (load, mut result) in loads {
                result["workload"] = json!(format!("security-{load}-{variant}"));
                result["round"] = json!(round);
                print(result);
            }
        }
    }
}

/// A client of the leader. Turns access control on.
async fn connect(cluster: &Cluster, tls: bool, access: bool) -> Remote {
    let leader = cluster.leader_address().await;
    let scheme = if tls { "https" } else { "http" };
    let mut remote = Remote::new(format!("{scheme}://{leader}").parse().expect("a URL"));
    if tls {
        let file = |name: &str| cluster.dir().join("tls").join(name);
        let certificates = ClientTls::with_certificate(file("ca.pem"), file("client.pem"), file("client.key"));
        remote = remote.with_tls(&certificates.expect("`tenure tls init` made the files"));
    }
    if access {
        let auth = |line: &str| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
            command.arg("auth").args(line.split(' ')).args(["--endpoints", &format!("http://{leader}")]);
            let output = command.env("TENURE_ACCESS_TOKEN_FILE", cluster.dir().join("token")).output();
            let output = output.expect("the command starts");
            assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).expect("UTF-8")
        };
        fs::write(cluster.dir().join("token"), unused_token().expose()).expect("writable");
        auth("role set admin --admin");
        auth("principal set root --role admin");
        let token = auth("token create root");
        fs::write(cluster.dir().join("token"), &token).expect("writable");
        auth("enable");
        remote = remote.with_token(&token.trim_end().parse().expect("a token"));
    }
    remote
}

/// While access control is off, nodes ignore the token.
fn unused_token() -> AccessToken {
    AccessToken::from_secret([0; 32])
}

fn name(text: String) -> LeaseName {
    LeaseName::new(text).expect("a valid name")
}

fn holder(text: String) -> HolderId {
    HolderId::new(text).expect("a valid holder")
}

async fn acquire(remote: &Remote, name: &LeaseName, holder: &HolderId) -> FencingToken {
    remote.acquire(name, &Acquire::new(holder.clone())).await.expect("it is free").token
}

async fn pairs(cluster: &Cluster, remote: &Remote, time: Duration) -> Value {
    load::run(cluster, "", CLIENTS, time, 1, |client, mut recorder| {
        let remote = remote.clone();
        async move {
            let holder = holder(format!("c{client}"));
            let mut pair = 0;
            while recorder.is_running() {
                let name = name(format!("pair-{client}-{}", pair % 1000));
                pair += 1;
                let start = Instant::now();
                let token = acquire(&remote, &name, &holder).await;
                let release = Release::new(holder.clone(), token);
                remote.release(&name, &release).await.expect("it is held");
                recorder.record(start);
            }
            recorder
        }
    })
    .await
}

async fn renewals(cluster: &Cluster, remote: &Remote, time: Duration) -> Value {
    load::run(cluster, "", CLIENTS, time, 1, |client, mut recorder| {
        let remote = remote.clone();
        async move {
            let (holder, name) = (holder(format!("r{client}")), name(format!("renew-{client}")));
            let token = acquire(&remote, &name, &holder).await;
            let renew = Renew::new(holder, token);
            while recorder.is_running() {
                let start = Instant::now();
                remote.renew(&name, &renew).await.expect("it is held");
                recorder.record(start);
            }
            recorder
        }
    })
    .await
}
