//! Nodes and clients with TLS.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rcgen::{CertificateParams, Issuer, KeyPair, SanType};
use tenure::api::Timestamp;
use tenure::client::{Endpoints, Remote};
use tenure::tls::{ClientTls, NodeTls, TlsSettings};
use tenure::types::MemberState;
use tenure::{HoldState, Lease, LeaseManager, LeaseOptions, Wait};
use tokio::io::AsyncWriteExt;

use crate::client::Client;
use crate::cluster::{Cluster, NODES, SOON, place};
use crate::commands::{CommandOutput, run_at};
use crate::plain_http;
use crate::port;
use crate::prober::Prober;
use crate::process::tenure;
use crate::steady::{steady, strict};

steady!(running_cluster_moves_to_tls_without_downtime);

strict!(
    tls_takes_two_commands_and_refuses_other_clients,
    node_of_another_ca_is_refused,
    new_certificates_are_used_without_a_restart,
    members_show_when_their_certificates_expire,
);

pub const SETTINGS: &str = "[tls]\nca = \"tls/ca.pem\"\ncert = \"tls/node-{node}.pem\"\nkey = \"tls/node-{node}.key\"\n\
                       client_cert = \"require\"\n";

/// Makes the certificates of the cluster with the command that users run.
pub fn make_certificates(cluster: &Cluster) -> String {
    let made = tenure()
        .args(["tls", "init", "tls", "--config"])
        .arg(cluster.config())
        .current_dir(cluster.folder())
        .output()
        .expect("the command runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    String::from_utf8(made.stdout).expect("UTF-8")
}

/// A pause in service of seconds is a fault. Planned transfers of the leadership take some milliseconds.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

fn certificate(cluster: &Cluster, name: &str) -> PathBuf {
    cluster.folder().join("tls").join(name)
}

/// Replaces the certificate of a node by one that ends at the start of a year, or after some days.
pub fn replace_certificate(cluster: &Cluster, id: u64, ends: time::OffsetDateTime) {
    let folder = cluster.folder().join("tls");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("readable");
    let ca_key = KeyPair::from_pem(&read("ca.key")).expect("a key");
    let ca = Issuer::from_ca_cert_pem(&read("ca.pem"), ca_key).expect("a certificate");
    let mut params = CertificateParams::default();
    let uri = format!("tenure://test/node/{id}").try_into().expect("ASCII");
    params.subject_alt_names = vec![SanType::IpAddress("127.0.0.1".parse().expect("an address")), SanType::URI(uri)];
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = ends;
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, &ca).expect("a certificate");
    std::fs::write(folder.join(format!("node-{id}.pem")), certificate.pem()).expect("writable");
    std::fs::write(folder.join(format!("node-{id}.key")), key.serialize_pem()).expect("writable");
}

fn client_tls(cluster: &Cluster) -> ClientTls {
    let of = |name: &str| certificate(cluster, name);
    ClientTls::with_certificate(of("ca.pem"), of("client.pem"), of("client.key")).expect("valid files")
}

pub fn https(cluster: &Cluster) -> String {
    cluster.client.endpoints().replace("http://", "https://")
}

/// The options of an HTTP client with a certificate.
pub fn https_options(cluster: &Cluster) -> reqwest::ClientBuilder {
    let of = |name: &str| certificate(cluster, name);
    plain_http::https_builder(&of("ca.pem"), Some((&of("client.pem"), &of("client.key"))))
}

/// A client with a certificate, over https.
fn remote(cluster: &Cluster) -> Remote {
    let endpoints: Endpoints = https(cluster).parse().expect("valid endpoints");
    Remote::new(endpoints.with_refresh_interval(Duration::from_secs(1))).with_tls(&client_tls(cluster))
}

/// Runs a command with the client's certificate.
async fn with_certificate(cluster: &Cluster, line: &str) -> CommandOutput {
    let path = |name: &str| certificate(cluster, name).display().to_string();
    let (ca, cert, key) = (path("ca.pem"), path("client.pem"), path("client.key"));
    run_at(cluster, &https(cluster), &format!("{line} --ca {ca} --cert {cert} --key {key}")).await
}

/// Waits until a leader serves.
async fn serving(cluster: &Cluster, remote: &Remote) {
    let served = async {
        while remote.cluster().await.ok().is_none_or(|status| status.leader.is_none()) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let waited = tokio::time::timeout(SOON, served).await;
    waited.unwrap_or_else(|_| {
        panic!("no leader: {:?}", cluster.nodes.values().map(|node| node.said()).collect::<Vec<_>>())
    });
}

async fn hold(remote: Remote, name: &str) -> (LeaseManager, Lease) {
    let manager = LeaseManager::new(remote);
    let lease = manager.lease_with(name, LeaseOptions::default().ttl(Duration::from_secs(4))).expect("valid options");
    lease.acquire(Wait::No).await.expect("the lease is free");
    (manager, lease)
}

async fn tls_takes_two_commands_and_refuses_other_clients() {
    let mut cluster = Cluster::new(SETTINGS).await;
    let printed = make_certificates(&cluster);
    assert!(printed.contains("[tls]\nca   = \"tls/ca.pem\"") && printed.contains("TENURE_CERT="), "{printed}");
    let key = std::fs::metadata(certificate(&cluster, "ca.key")).expect("a file").permissions();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&key) & 0o777, 0o600, "only the owner reads a key");
    for id in NODES {
        cluster.launch(id);
    }
    serving(&cluster, &remote(&cluster)).await;
    let granted = with_certificate(&cluster, "lease acquire job --holder a --ttl 60s -o json").await.json();
    assert_eq!(granted["holder"], "a");
    let seen = with_certificate(&cluster, "cluster status").await;
    assert_eq!(seen.code, Some(0), "{seen:?}");

    let ca = certificate(&cluster, "ca.pem").display().to_string();
    let without = run_at(&cluster, &https(&cluster), &format!("lease get job --ca {ca}")).await;
    assert_ne!(without.code, Some(0), "a client without a certificate: {without:?}");
    assert!(without.stderr.contains("CertificateRequired"), "{without:?}");
    let unknown = run_at(&cluster, &https(&cluster), "lease get job").await;
    assert_eq!(unknown.code, Some(4), "a client that does not trust the CA: {unknown:?}");
    assert!(unknown.stderr.contains("UnknownIssuer"), "{unknown:?}");

    let url = cluster.client.endpoints().split(',').next().expect("an endpoint").to_owned();
    let plain = plain_http::get(format!("{url}/v1/leases/job")).await.expect("an answer");
    assert_eq!(plain.status(), 400);
    let problem: serde_json::Value = plain.json().await.expect("a problem");
    assert_eq!(problem["detail"], "this node requires TLS: use an https URL");

    // The certificate of another node, or of no node, does not start a node.
    cluster.kill(3);
    std::fs::copy(certificate(&cluster, "node-2.pem"), certificate(&cluster, "node-3.pem")).expect("writable");
    std::fs::copy(certificate(&cluster, "node-2.key"), certificate(&cluster, "node-3.key")).expect("writable");
    let node = cluster.launch(3);
    assert_eq!(node.exit(SOON).await.code(), Some(1), "{}", node.said());
    assert!(node.said().contains("expected the URI tenure://test/node/3"), "{}", node.said());
    let issued = tenure()
        .args(["tls", "issue", "tls", "--node", "3", "--config"])
        .arg(cluster.config())
        .current_dir(cluster.folder())
        .output()
        .expect("the command runs");
    assert!(issued.status.success(), "{}", String::from_utf8_lossy(&issued.stderr));
    cluster.launch(3);
    let members = async {
        loop {
            let status = with_certificate(&cluster, "member list -o json").await.json();
            if status.as_array().expect("a list").iter().all(|member| member["state"] == "ok") {
                return;
            }
        }
    };
    tokio::time::timeout(SOON, members).await.expect("the node with its new certificate connects");
}

/// Restarts the nodes one after the other with these settings.
async fn roll(cluster: &mut Cluster, settings: &str, remote: &Remote) {
    let text = std::fs::read_to_string(cluster.config()).expect("the file of the cluster");
    let before = text.split("[tls]").next().expect("the nodes");
    std::fs::write(cluster.config(), format!("{before}{settings}")).expect("writable");
    for id in NODES {
        let mut node = cluster.nodes.remove(&id).expect("the node runs");
        node.signal(rustix::process::Signal::TERM);
        assert!(node.exit(SOON).await.success(), "{}", node.said());
        cluster.launch(id);
        let caught_up = async {
            loop {
                let status = remote.cluster().await.ok();
                let all_ok = |status: tenure::api::Cluster| {
                    status.leader.is_some() && status.members.iter().all(|member| member.state == MemberState::Ok)
                };
                if status.is_some_and(all_ok) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let waited = tokio::time::timeout(SOON, caught_up).await;
        waited.unwrap_or_else(|_| panic!("node {id} with {settings}: {}", cluster.nodes[&id].said()));
    }
}

async fn running_cluster_moves_to_tls_without_downtime() {
    let mut cluster = Cluster::start("").await;
    make_certificates(&cluster);
    let endpoints: Endpoints = cluster.client.endpoints().parse().expect("valid endpoints");
    let plain = Remote::new(endpoints.with_refresh_interval(Duration::from_secs(1)));
    let (old_manager, old) = hold(plain.clone(), "old").await;
    let (plain_prober, began) = (Prober::start(cluster.client.clone()).await, Instant::now());
    let mode = |mode: &str| format!("{SETTINGS}mode = \"{mode}\"\n");
    roll(&mut cluster, &mode("allow"), &plain).await;
    for id in NODES {
        shown_at(&cluster, id, (id % 3) + 1, None).await;
    }
    let encrypted = remote(&cluster);
    let (new_manager, new) = hold(encrypted.clone(), "new").await;
    let urls = https(&cluster).split(',').map(str::to_owned).collect();
    let client = Client::with_http(https_options(&cluster), urls);
    let (prober, tls_began) = (Prober::start(client.clone()).await, Instant::now());
    roll(&mut cluster, &mode("prefer"), &encrypted).await;
    let is_held = |lease: &Lease| matches!(lease.state(), HoldState::Held { .. });
    assert!(is_held(&old), "the client without TLS: {:?}", old.state());
    old.release().await.expect("released");
    old_manager.shutdown().await;
    plain_prober.serves(&cluster.client).await;
    let pause = plain_prober.longest_pause(began);
    assert!(pause < LONGEST_PAUSE, "of the clients without TLS: {pause:?}");
    drop(plain_prober);
    let token = new.token();
    roll(&mut cluster, &mode("require"), &encrypted).await;
    assert!(is_held(&new) && new.token() == token, "the client with TLS: {:?}", new.state());
    prober.serves(&client).await;
    let pause = prober.longest_pause(tls_began);
    assert!(pause < LONGEST_PAUSE, "of the clients with TLS: {pause:?}");
    let refused = plain.with_timeout(Duration::from_secs(1)).cluster().await;
    assert!(refused.is_err(), "{refused:?}");
    // The nodes have seen the certificates of each other, and refuse a node without TLS.
    for id in NODES {
        shown(&cluster, id, Some(&expiry(&cluster, id))).await;
        let mut stream = tokio::net::TcpStream::connect(cluster.peer_address(id)).await.expect("the node listens");
        stream.write_all(b"a message without TLS").await.expect("the connection is open");
        said(&cluster, id, "a connection without TLS: this node requires TLS").await;
    }
    new.release().await.expect("released");
    new_manager.shutdown().await;
}

/// A node whose certificate is of another CA, and that trusts the CA of the cluster.
async fn node_of_another_ca_is_refused() {
    let mut cluster = Cluster::new(SETTINGS).await;
    make_certificates(&cluster);
    std::fs::rename(cluster.folder().join("tls"), cluster.folder().join("other")).expect("renamed");
    make_certificates(&cluster);
    for id in NODES {
        cluster.launch(id);
    }
    let remote = remote(&cluster);
    serving(&cluster, &remote).await;
    cluster.kill(3);
    let text = std::fs::read_to_string(cluster.config()).expect("the file of the cluster");
    let config = cluster.folder().join("other.toml");
    std::fs::write(&config, text.replace("\"tls/node-", "\"other/node-")).expect("writable");
    let node = cluster.other_process(3, &config);
    for id in [1, 2] {
        said(&cluster, id, "refused a peer connection reason=from 127.0.0.1: ").await;
        let refusals = cluster.nodes[&id].said();
        assert!(
            refusals.contains("invalid peer certificate: UnknownIssuer") || refusals.contains("BadSignature"),
            "{refusals}"
        );
    }
    let becomes = async |wanted: MemberState| {
        let seen = async {
            while remote.cluster().await.ok().is_none_or(|status| status.members[2].state != wanted) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(SOON, seen).await.unwrap_or_else(|_| panic!("node 3 is not {wanted:?} in time"));
    };
    becomes(MemberState::Unreachable).await;
    drop(node);
    // With its own certificate, it is a member again.
    cluster.launch(3);
    becomes(MemberState::Ok).await;
}

async fn new_certificates_are_used_without_a_restart() {
    let mut cluster = Cluster::new(SETTINGS).await;
    make_certificates(&cluster);
    for id in NODES {
        cluster.launch(id);
    }
    let remote = remote(&cluster);
    serving(&cluster, &remote).await;
    std::fs::write(certificate(&cluster, "node-1.pem"), "half a file").expect("writable");
    said(&cluster, 1, "the new certificates are invalid: the node keeps the old ones").await;
    let again = with_certificate(&cluster, "lease acquire job --holder a --ttl 60s -o json").await;
    assert_eq!(again.code, Some(0), "{again:?}");

    // A new CA signs all nodes and the client. The nodes use it after some seconds, and the old client is refused.
    let running = client_tls(&cluster);
    let files = ["ca.pem", "client.pem", "client.key"].map(|name| {
        let copy = cluster.folder().join(format!("old-{name}"));
        std::fs::copy(certificate(&cluster, name), &copy).expect("writable");
        copy
    });
    let [ca, cert, key] = &files;
    let old = ClientTls::with_certificate(ca, cert, key).expect("valid files");
    std::fs::remove_dir_all(cluster.folder().join("tls")).expect("removed");
    make_certificates(&cluster);
    for id in NODES {
        said(&cluster, id, "the node uses new certificates").await;
    }
    let endpoints: Endpoints = https(&cluster).parse().expect("valid endpoints");
    let seen = with_certificate(&cluster, "lease get job -o json").await.json();
    assert_eq!(seen["holder"], "a");
    let seen = Remote::new(endpoints.clone()).with_tls(&running).cluster().await;
    assert!(seen.is_ok(), "a running client reads its changed files again: {seen:?}");
    let refused = Remote::new(endpoints).with_tls(&old).with_timeout(Duration::from_secs(1)).cluster().await;
    assert!(refused.is_err(), "a client with a certificate of the old CA: {refused:?}");
    // The nodes connect again with the new certificates.
    let leader = remote_leader(&cluster).await;
    cluster.kill(leader);
    cluster.launch(leader);
    serving(&cluster, &self::remote(&cluster)).await;
    let granted = with_certificate(&cluster, "lease acquire next --holder a --ttl 60s --timeout 10s -o json").await;
    assert_eq!(granted.code, Some(0), "{granted:?}");
}

async fn members_show_when_their_certificates_expire() {
    let mut cluster = Cluster::new(SETTINGS).await;
    make_certificates(&cluster);
    replace_certificate(&cluster, 3, rcgen::date_time_ymd(2031, 5, 6));
    for id in NODES {
        cluster.launch(id);
    }
    serving(&cluster, &remote(&cluster)).await;
    shown(&cluster, 3, Some("2031-05-06T00:00:00.000Z")).await;
    let table = with_certificate(&cluster, "member list").await.stdout;
    let of_node =
        |id: &str| table.lines().map(str::trim_start).find(|line| line.starts_with(id)).expect("a row").to_owned();
    assert!(table.contains("CERTIFICATE EXPIRES") && of_node("3").ends_with("2031-05-06T00:00:00.000Z"), "{table}");
    let expires = expiry(&cluster, 1);
    assert!(of_node("1").ends_with(&expires), "{table}, expected {expires}");

    // The other nodes see a new certificate when its node connects again.
    replace_certificate(&cluster, 3, rcgen::date_time_ymd(2032, 7, 8));
    cluster.kill(3);
    cluster.launch(3);
    shown(&cluster, 3, Some("2032-07-08T00:00:00.000Z")).await;
    let (http, peer) = (port::free(), port::free());
    let add = format!("member add 4 --http 127.0.0.1:{http} --peer 127.0.0.1:{peer}");
    let added = with_certificate(&cluster, &add).await;
    assert_eq!(added.code, Some(0), "{added:?}");
    shown(&cluster, 4, None).await;
}

/// The end of the validity of a node's certificate.
fn expiry(cluster: &Cluster, id: u64) -> String {
    let of = |name: String| certificate(cluster, &name);
    let settings =
        TlsSettings::new(of("ca.pem".to_owned()), of(format!("node-{id}.pem")), of(format!("node-{id}.key")));
    let loaded = NodeTls::load(&settings, "test", id).expect("valid files");
    Timestamp::from_millis(loaded.expires() as u64 * 1_000).to_string()
}

/// Waits until each node shows this expiry of a member's certificate. `None` means unknown.
async fn shown(cluster: &Cluster, member: u64, expected: Option<&str>) {
    for at in NODES {
        shown_at(cluster, at, member, expected).await;
    }
}

/// Waits until node `at` shows this expiry of a member's certificate.
async fn shown_at(cluster: &Cluster, at: u64, member: u64, expected: Option<&str>) {
    let endpoints = https(cluster);
    let url = endpoints.split(',').nth(place(at)).expect("three nodes");
    let endpoints: Endpoints = url.parse().expect("a URL");
    let remote = Remote::new(endpoints).with_tls(&client_tls(cluster));
    let seen = async {
        loop {
            let members = remote.cluster().await.map(|status| status.members).unwrap_or_default();
            let found = members.iter().find(|row| row.id == member);
            if found.is_some_and(|row| row.certificate_expires_at.map(|at| at.to_string()).as_deref() == expected) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let waited = tokio::time::timeout(SOON, seen).await;
    waited.unwrap_or_else(|_| panic!("{url} does not show {expected:?} for node {member}"));
}

async fn remote_leader(cluster: &Cluster) -> u64 {
    let (remote, began) = (remote(cluster), Instant::now());
    loop {
        if let Some(leader) = remote.cluster().await.ok().and_then(|status| status.leader) {
            return leader;
        }
        assert!(began.elapsed() < SOON, "no leader");
    }
}

/// Waits until a node has written this to its log.
pub async fn said(cluster: &Cluster, id: u64, text: &str) {
    let wait = async {
        while !cluster.nodes[&id].said().contains(text) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let waited = tokio::time::timeout(SOON, wait).await;
    waited.unwrap_or_else(|_| panic!("node {id} did not say {text:?}: {}", cluster.nodes[&id].said()));
}
