//! A node refuses a wrong data directory with instructions, and the cluster keeps serving.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::client::Call;
use crate::cluster::{Cluster, NODES, SOON, node_entry};
use crate::port;
use crate::process::{Process, TENURE, tenure};
use crate::steady::strict;

strict!(
    directory_in_use_is_refused,
    directory_of_another_node_or_cluster_is_refused,
    emptied_directory_is_refused,
    wiped_voter_is_refused,
    wiped_first_node_forms_no_second_cluster,
    node_below_a_closed_directory_starts,
);

/// A cluster with one held lease, in which node 3 is down.
async fn two_of_three() -> (Cluster, u64) {
    let mut cluster = Cluster::start("").await;
    let token = cluster.client.acquire("jobs", "a", 600_000).await;
    cluster.kill(3);
    (cluster, token)
}

/// Checks that the cluster serves and has lost nothing.
async fn check_service(cluster: &Cluster, token: u64) {
    cluster.client.done(0, &Call::renew("jobs", "a", token)).await;
    let other = cluster.client.acquire("other", "b", 600_000).await;
    assert!(other > token, "{other} after {token}");
}

/// Starts node 3 with its correct directory and waits until it has caught up.
async fn restart_node_3(cluster: &mut Cluster) {
    cluster.launch(3);
    cluster.ready(3).await;
    cluster.caught_up(3).await;
}

/// Starts node 3 with another configuration file: other ports, and the given cluster name and directory.
fn start_with_other_config(cluster: &Cluster, name: &str, data: PathBuf) -> Process {
    let node = node_entry(3, port::free(), port::free(), &data);
    let file = cluster.folder().join("other.toml");
    fs::write(&file, format!("cluster = \"{name}\"\n{node}")).expect("the folder is writable");
    cluster.other_process(3, &file)
}

async fn directory_in_use_is_refused() {
    let mut cluster = Cluster::start("").await;
    let token = cluster.client.acquire("jobs", "a", 600_000).await;
    let said = start_with_other_config(&cluster, "test", cluster.data(3)).failure(SOON).await;
    assert!(said.contains("is in use by another process: stop that process, or give this node another"), "{said}");
    assert!(cluster.node(3).is_running());
    check_service(&cluster, token).await;
}

async fn directory_of_another_node_or_cluster_is_refused() {
    let (mut cluster, token) = two_of_three().await;
    cluster.kill(2);
    let said = start_with_other_config(&cluster, "test", cluster.data(2)).failure(SOON).await;
    let expected =
        "belongs to node 2 of cluster \"test\", not to node 3 of cluster \"test\": correct the configuration";
    assert!(said.contains(expected), "{said}");
    let said = start_with_other_config(&cluster, "elsewhere", cluster.data(3)).failure(SOON).await;
    let expected = "belongs to node 3 of cluster \"test\", not to node 3 of cluster \"elsewhere\"";
    assert!(said.contains(expected), "{said}");
    cluster.launch(2);
    cluster.ready(2).await;
    check_service(&cluster, token).await;
    restart_node_3(&mut cluster).await;
}

async fn emptied_directory_is_refused() {
    let (mut cluster, token) = two_of_three().await;
    let (store, aside) = (cluster.data(3).join("store"), cluster.folder().join("aside"));
    fs::rename(&store, &aside).expect("no process uses it");
    let said = cluster.launch(3).failure(SOON).await;
    assert!(said.contains("its data is gone") && said.contains("restore the data, or remove this node"), "{said}");
    assert!(!store.exists(), "the node creates no new store");
    check_service(&cluster, token).await;
    fs::rename(&aside, &store).expect("the store was moved there");
    restart_node_3(&mut cluster).await;
}

/// The message for a voter that joined with another disk.
const WIPED: &str = "a voter that lost its disk may have forgotten votes and entries that the cluster counts on. \
                     Remove it from the cluster and let it join again under a new id with an empty directory";

async fn wiped_voter_is_refused() {
    let (mut cluster, token) = two_of_three().await;
    let aside = cluster.folder().join("aside");
    fs::rename(cluster.data(3), &aside).expect("no process uses it");
    for _ in 0..2 {
        let said = cluster.launch(3).failure(SOON).await;
        assert!(said.contains(WIPED), "{said}");
    }
    check_service(&cluster, token).await;
    fs::remove_dir_all(cluster.data(3)).expect("the refused node left a directory");
    fs::rename(&aside, cluster.data(3)).expect("the directory was moved there");
    restart_node_3(&mut cluster).await;
}

async fn wiped_first_node_forms_no_second_cluster() {
    let mut cluster = Cluster::start("").await;
    let token = cluster.client.acquire("jobs", "a", 600_000).await;
    for id in NODES {
        cluster.kill(id);
    }
    // Node 1 forms the cluster on its first start.
    fs::remove_dir_all(cluster.data(1)).expect("no process uses it");
    cluster.launch(1);
    cluster.status(1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(cluster.term(1).await, 0, "node 1 started an election in a second cluster");
    cluster.launch(2);
    cluster.launch(3);
    cluster.ready(2).await;
    cluster.ready(3).await;
    let said = cluster.node(1).failure(SOON).await;
    assert!(said.contains(WIPED), "{said}");
    check_service(&cluster, token).await;
}

/// The user of the node may pass through the directory above its data, and may not open it. Root opens each directory, so
/// a node of root starts without these capabilities.
async fn node_below_a_closed_directory_starts() {
    let closed = tempfile::tempdir().expect("a folder");
    let mode = |mode: u32| fs::set_permissions(closed.path(), Permissions::from_mode(mode)).expect("the owner may");
    mode(0o311);
    let data = |id: u64| if id == 3 { closed.path().join("3") } else { PathBuf::from(format!("data/{id}")) };
    let mut cluster = Cluster::with_data("", data).await;
    cluster.launch(1);
    cluster.launch(2);
    let mut command = tenure();
    if rustix::process::geteuid().is_root() {
        command = Command::new("setpriv");
        let lost = "-dac_override,-dac_read_search";
        command.arg(format!("--bounding-set={lost}")).arg(format!("--inh-caps={lost}")).arg(TENURE);
    }
    command.args(["serve", "--node", "3", "--config"]).arg(cluster.config());
    let process = Process::start("node 3", command, cluster.folder());
    cluster.nodes.insert(3, process);
    cluster.ready(3).await;
    mode(0o700);
}
