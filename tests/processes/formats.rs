//! Data that earlier releases wrote: `scripts/save-format` saved it, and this release must read it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde_json::Value;
use tempfile::TempDir;

use crate::cluster::{SOON, node_entry, turn};
use crate::port;
use crate::process::{Process, tenure};
use crate::steady::strict;

strict!(saved_directories_are_read_and_upgraded, saved_backups_are_read_and_restored);

/// The saved formats. Formats 1 to 4 have the feature level of their number and their log in sled. Format 5 has the
/// feature level 4 and a log of segments. Format 6 has the feature level 5 and an access token that expires.
const FORMATS: [u32; 6] = [1, 2, 3, 4, 5, 6];
const NEWEST_LEVEL: u32 = 6;
/// The leases that all saved formats hold, with the number of their holders.
const HELD: [(&str, usize); 3] = [("held", 1), ("pool", 2), ("last", 1)];

fn saved(format: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../tests/formats/{format}"))
}

/// A cluster of one node.
struct Single {
    folder: TempDir,
    http: u16,
    access_token: Option<String>,
}

impl Single {
    fn new(format: u32, cluster: &str) -> Single {
        let (folder, http) = (TempDir::new().expect("a folder"), port::free());
        let entry = node_entry(1, http, port::free(), Path::new("data"));
        fs::write(folder.path().join("cluster.toml"), format!("cluster = \"{cluster}\"\n{entry}")).expect("written");
        let token = fs::read_to_string(saved(format).join("admin.token")).ok();
        Single { folder, http, access_token: token.map(|token| token.trim().to_owned()) }
    }

    async fn start(&self) -> Process {
        let mut command = tenure();
        command.args(["serve", "--config", "cluster.toml", "--node", "1"]).current_dir(self.folder.path());
        let node = Process::start("node 1", command, self.folder.path());
        let begun = Instant::now();
        while self.run(&["cluster", "status"]).await.is_err() {
            assert!(begun.elapsed() < SOON, "no leader: {}", node.said());
        }
        node
    }

    /// What a command prints, or its error.
    async fn run(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = tenure();
        command.args(arguments).env("TENURE_ENDPOINTS", format!("http://127.0.0.1:{}", self.http));
        command.envs(self.access_token.iter().map(|token| ("TENURE_ACCESS_TOKEN", token)));
        command.current_dir(self.folder.path());
        let mut process = Process::start("tenure", command, self.folder.path());
        let status = process.exit(SOON).await;
        if status.success() { Ok(process.printed()) } else { Err(process.said()) }
    }

    async fn json(&self, arguments: &[&str]) -> Value {
        let printed = self.run(&[arguments, &["-o", "json"]].concat()).await;
        serde_json::from_str(&printed.expect("the command succeeds")).expect("JSON")
    }

    /// The held leases: name and holder, in order.
    async fn held(&self) -> Vec<(String, String)> {
        let listed = self.json(&["lease", "list", "--state", "active"]).await;
        let text = |lease: &Value, key: &str| lease[key].as_str().expect("a text").to_owned();
        let leases = listed.as_array().expect("a list");
        let mut held: Vec<_> = leases.iter().map(|lease| (text(lease, "name"), text(lease, "holder"))).collect();
        held.sort();
        held
    }

    /// The token of a new grant.
    async fn grant(&self) -> u64 {
        let granted = self.run(&["lease", "acquire", "new", "--holder", "two", "--ttl", "10m"]).await;
        granted.expect("granted").trim().parse().expect("a token")
    }
}

fn last_token(format: u32) -> u64 {
    let token = fs::read_to_string(saved(format).join("last-token")).expect("saved");
    token.trim().parse().expect("a token")
}

async fn saved_directories_are_read_and_upgraded() {
    let _turn = turn().await;
    for format in FORMATS {
        let single = Single::new(format, "formats");
        let archive = saved(format).join("data.tar.gz");
        let unpacked = Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(single.folder.path()).status();
        assert!(unpacked.expect("tar runs").success());
        let node = single.start().await;
        let held = single.held().await;
        for (name, holders) in HELD {
            let found = held.iter().filter(|(held, _)| held == name).count();
            assert_eq!(found, holders, "format {format}: {name} in {held:?}");
        }
        let owned = held.iter().any(|(name, _)| name == "owned");
        assert_eq!((held.len(), owned), (if format >= 2 { 5 } else { 4 }, format >= 2), "format {format}: {held:?}");
        let lease = single.json(&["lease", "get", "held"]).await;
        assert_eq!(lease["metadata"]["team"], "green", "format {format}: {lease}");
        let revoked = single.json(&["lease", "history", "revoked"]).await.to_string();
        assert!(revoked.contains("saved format"), "format {format}: {revoked}");
        let delayed = single.run(&["lease", "acquire", "revoked", "--holder", "two", "--ttl", "1m"]).await;
        assert!(delayed.expect_err("a lock delay").contains("lock delay"), "format {format}");
        assert!(single.grant().await > last_token(format), "format {format}: tokens rise");
        if format >= 2 {
            // The admin may do everything, and owns no lease of the worker.
            let owned = single.json(&["lease", "get", "owned"]).await["token"].to_string();
            let foreign = single.run(&["lease", "release", "owned", "--holder", "one", "--token", &owned]).await;
            assert!(foreign.is_err(), "format {format}: a lease of another principal");
        }
        if format >= 2 {
            let tokens = single.json(&["auth", "token", "list"]).await;
            let expire = tokens.as_array().expect("an array").iter().filter(|token| !token["expires_at"].is_null());
            assert_eq!(expire.count(), usize::from(format >= 6), "format {format}: {tokens}");
        }
        let begun = Instant::now();
        while single.json(&["cluster", "status"]).await["feature_level"] != NEWEST_LEVEL {
            assert!(begun.elapsed() < SOON, "format {format}: the feature level does not rise");
        }
        drop(node);
        let node = single.start().await;
        assert_eq!(single.held().await.len(), held.len() + 1, "format {format}: after the upgrade and a restart");
        drop(node);
    }
}

async fn saved_backups_are_read_and_restored() {
    let _turn = turn().await;
    for format in FORMATS {
        let single = Single::new(format, "restored");
        let backup = saved(format).join("cluster.backup");
        let backup = backup.to_str().expect("a path in UTF-8");
        single.run(&["snapshot", "inspect", backup]).await.expect("readable");
        let restore = ["snapshot", "restore", backup, "--config", "cluster.toml", "--node", "1", "--holders-stopped"];
        single.run(&restore).await.expect("restored");
        let node = single.start().await;
        assert_eq!(single.held().await, [], "format {format}: all leases ended");
        assert!(single.grant().await > last_token(format), "format {format}: tokens rise");
        drop(node);
    }
}
