//! Nodes with IPv6 addresses, and with names that have several addresses.

use std::process::Command;
use std::time::Instant;

use serde_json::Value;

use crate::cluster::{Cluster, NODES, SOON};
use crate::commands::{CommandOutput, run_at};
use crate::probe;
use crate::process::{Process, tenure};
use crate::steady::strict;
use crate::tls;

strict!(cluster_listens_on_ipv6, cluster_listens_on_ipv6_with_tls, name_with_a_dead_address_works);

/// Replaces the host in each address of the configuration file.
fn set_host(cluster: &Cluster, host: &str) -> String {
    let text = std::fs::read_to_string(cluster.config()).expect("a file");
    std::fs::write(cluster.config(), text.replace("\"127.0.0.1:", &format!("\"{host}:"))).expect("writable");
    cluster.client.endpoints().replace("127.0.0.1", host)
}

fn output_of(mut command: Command) -> CommandOutput {
    let output = command.output().expect("the command runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    CommandOutput { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Runs a command until it succeeds.
async fn until_done(cluster: &Cluster, endpoints: &str, line: &str) -> String {
    let began = Instant::now();
    loop {
        let output = run_at(cluster, endpoints, line).await;
        if output.code == Some(0) {
            return output.stdout;
        }
        let logs: Vec<String> = cluster.nodes.values().map(Process::said).collect();
        assert!(began.elapsed() < SOON, "{line}: {output:?}\n{}", logs.join("\n"));
    }
}

/// Each node reaches a majority, and a client, a probe and the doctor reach each node.
async fn works(cluster: &Cluster, endpoints: &str, credentials: &str) {
    for endpoint in endpoints.split(',') {
        let line = format!("cluster status {credentials}");
        until_done(cluster, endpoint, line.trim_end()).await;
    }
    let line = format!("lease acquire jobs --holder a --ttl 60s {credentials}");
    until_done(cluster, endpoints, line.trim_end()).await;
    for node in NODES {
        probe::succeeds(cluster, "ready", &node.to_string()).await;
    }
    let mut doctor = tenure();
    doctor.args(["doctor", "-o", "json", "--node", "1", "--config"]).arg(cluster.config());
    let examined = output_of(doctor);
    let findings: Vec<Value> = serde_json::from_str(&examined.stdout).unwrap_or_else(|_| panic!("{examined:?}"));
    for node in NODES {
        for listener in ["http", "peer"] {
            let name = format!("address.{node}.{listener}");
            let is_ok = |finding: &Value| finding["name"] == name && finding["status"] == "ok";
            assert!(findings.iter().any(is_ok), "{name}: {examined:?}");
        }
    }
}

async fn cluster_listens_on_ipv6() {
    let mut cluster = Cluster::new("").await;
    let endpoints = set_host(&cluster, "[::1]");
    for id in NODES {
        cluster.launch(id);
    }
    works(&cluster, &endpoints, "").await;
}

async fn cluster_listens_on_ipv6_with_tls() {
    let mut cluster = Cluster::new(tls::SETTINGS).await;
    let endpoints = set_host(&cluster, "[::1]").replace("http://", "https://");
    tls::make_certificates(&cluster);
    for id in NODES {
        cluster.launch(id);
    }
    let file = |name: &str| cluster.folder().join("tls").join(name).display().to_string();
    let [ca, cert, key] = ["ca.pem", "client.pem", "client.key"].map(file);
    works(&cluster, &endpoints, &format!("--ca {ca} --cert {cert} --key {key}")).await;
}

/// Runs in a network and a mount namespace: a name of the nodes has two addresses, and the first one drops all packets.
const IN_NAMESPACE: &str = r#"
mount --bind hosts /etc/hosts
ip link set lo up
# Without another address than 127.0.0.0/8, getent shows no IPv4 address.
ip addr add 10.9.0.1/32 dev lo
iptables -A INPUT -d 127.0.0.1 -p tcp --syn -j DROP
first=$(getent ahostsv4 node.test | head -n 1 | cut -d ' ' -f 1)
[ "$first" = 127.0.0.1 ] || { echo "the first address of node.test is $first" >&2; exit 1; }
for node in 1 2 3; do "$TENURE" serve --config cluster.toml --node $node & done
for attempt in $(seq 100); do
    "$TENURE" lease acquire jobs --holder a --ttl 60s && granted=yes && break
    sleep 0.2
done
[ "${granted:-}" = yes ]
sed 's/^listen_http = "127.0.0.66/listen_http = "node.test/' cluster.toml >probe.toml
for node in 1 2 3; do
    for attempt in $(seq 50); do
        "$TENURE" probe ready --config probe.toml --node $node && ready=$node && break
        sleep 0.2
    done
    [ "${ready:-}" = $node ]
done
"$TENURE" doctor --config cluster.toml --node 1 -o json || true
"#;

/// With the timings `lan`, a node gives up a vote or a heartbeat before the first address times out.
async fn name_with_a_dead_address_works() {
    let namespace = ["--net", "--mount", "--pid", "--fork", "--kill-child"];
    let can_run = Command::new("unshare").args(namespace).arg("true").status();
    if !can_run.is_ok_and(|status| status.success()) {
        eprintln!("NOT CHECKED: this test needs root and namespaces");
        return;
    }
    let cluster = Cluster::new("").await;
    let text = std::fs::read_to_string(cluster.config()).expect("a file");
    let named = |line: &str| match line.split_once(" = \"127.0.0.1:") {
        Some((name, port)) => format!("{name} = \"node.test:{port}\nlisten_{name} = \"127.0.0.66:{port}\n"),
        None => format!("{line}\n"),
    };
    let text: String = text.lines().map(named).collect();
    std::fs::write(cluster.config(), format!("allow_insecure_network = true\n{text}")).expect("writable");
    std::fs::write(cluster.folder().join("hosts"), "127.0.0.1 node.test\n127.0.0.66 node.test\n").expect("writable");
    let mut script = Command::new("unshare");
    script.args(namespace).args(["bash", "-euc", IN_NAMESPACE]).current_dir(cluster.folder());
    script.env("TENURE", env!("CARGO_BIN_EXE_tenure"));
    script.env("TENURE_ENDPOINTS", cluster.client.endpoints().replace("127.0.0.1", "127.0.0.66"));
    let mut script = Process::start("namespace", script, cluster.folder());
    let status = script.exit(6 * SOON).await;
    let (printed, said) = (script.printed(), script.said());
    assert_eq!(status.code(), Some(0), "{printed}\n{said}");
    let findings = printed.lines().find(|line| line.starts_with('[')).expect("the output of the doctor");
    let findings: Vec<Value> = serde_json::from_str(findings).expect("JSON");
    for node in NODES {
        let name = format!("address.{node}.peer");
        let found = findings.iter().find(|finding| finding["name"] == name.as_str()).expect("a finding");
        assert_eq!(found["status"], "ok", "{found}");
    }
}
