//! The scheduled backups of a run: each file is valid, and a cluster that is restored from the newest one grants only
//! higher tokens.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use tenure::token::FencingToken;

use super::cluster::{Cluster, tenure};
use super::judge::Broken;
use super::process::Process;
use super::security::HTTP_PORT;
use super::world::World;

/// The section of the configuration file. The folder is beside the file, so faults of the nodes' disks do not reach it.
/// A long run keeps the newest files.
pub const SECTION: &str = "[backup]\ndir = \"backups\"\nevery_ms = 2000\nkeep = 100\n";
const FOLDER: &str = "backups";
const SUFFIX: &str = ".backup";
const PEER_PORT: u16 = 7201;
/// The limit for the restored cluster to grant its first lease.
const GRANTS_WITHIN: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(100);

/// Checks all files, and restores the newest one. Returns the number of valid files.
pub async fn check(cluster: &Cluster, world: &World, logs: &Path) -> Result<u64> {
    let files = files(&cluster.folder().join(FOLDER))?;
    let mut valid = 0;
    for file in &files {
        match command(cluster, &["snapshot", "check", text(file)?]) {
            Ok(_) => valid += 1,
            // A leader keeps only the newest files, and still writes.
            Err(_) if !file.exists() => {}
            Err(error) => world.break_promise(Broken::of_cluster("backups_are_valid", format!("{error:#}"))),
        }
    }
    let Some(newest) = files.last().filter(|_| valid > 0) else { return Ok(valid) };
    let first = match first_token(cluster, newest, logs).await {
        Ok(first) => first,
        Err(error) => {
            let how = format!("{}: {error:#}", newest.display());
            world.break_promise(Broken::of_cluster("backup_is_restored", how));
            return Ok(valid);
        }
    };
    if let Some(how) = is_lower(first, world.highest_token()) {
        world.break_promise(Broken::of_cluster("tokens_rise", how));
    }
    Ok(valid)
}

/// Why the first token of the restored cluster breaks the promise, after this highest token of the lost one.
fn is_lower(first: FencingToken, highest: Option<FencingToken>) -> Option<String> {
    let highest = highest.filter(|highest| first <= *highest)?;
    Some(format!("a restored cluster grants token {first}, which is not above {highest} of the lost cluster"))
}

/// The files in the order of their positions.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let items = match fs::read_dir(folder) {
        Ok(items) => items,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| folder.display().to_string()),
    };
    let mut files = items.map(|item| Ok(item?.path())).collect::<Result<Vec<_>>>()?;
    files.retain(|file| file.to_string_lossy().ends_with(SUFFIX));
    files.sort();
    Ok(files)
}

/// Restores a cluster of one node, and returns the first token that it grants.
async fn first_token(cluster: &Cluster, backup: &Path, logs: &Path) -> Result<FencingToken> {
    let config = cluster.folder().join("restored.toml");
    let (data, address) = (cluster.folder().join("restored"), "127.0.0.1");
    let node = format!("[[node]]\nid = 1\nhttp = \"{address}:{HTTP_PORT}\"\npeer = \"{address}:{PEER_PORT}\"\n");
    fs::write(&config, format!("cluster = \"restored\"\n{node}data = {data:?}\n"))?;
    let restore = ["snapshot", "restore", text(backup)?, "--config", text(&config)?, "--node", "1"];
    command(cluster, &[&restore[..], &["--holders-stopped"]].concat())?;
    let mut serve = Command::new(cluster.binary());
    serve.arg("serve").arg("--config").arg(&config).args(["--node", "1"]);
    let mut process = Process::start("the restored node", serve, None, &logs.join("restored.log"))?;
    let endpoint = format!("http://{address}:{HTTP_PORT}");
    let acquire = ["lease", "acquire", "restored", "--holder", "harness", "--ttl", "10s", "--endpoints", &endpoint];
    let began = Instant::now();
    loop {
        match command(cluster, &acquire) {
            Ok(token) => return token.parse().map_err(|error| anyhow!("token {token:?}: {error}")),
            Err(error) if began.elapsed() > GRANTS_WITHIN => {
                return Err(error.context(format!("no grant within {GRANTS_WITHIN:?}")));
            }
            Err(_) => {}
        }
        if let Some(status) = process.ended()? {
            bail!("the restored node ended with {status}: {}", process.said());
        }
        tokio::time::sleep(POLL).await;
    }
}

fn command(cluster: &Cluster, words: &[&str]) -> Result<String> {
    tenure(cluster.binary(), words, cluster.folder(), &cluster.security)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("the path of the run is UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::samples::token;

    #[test]
    fn newest_backup_is_the_last_file() {
        let folder = tempfile::TempDir::new().expect("a folder");
        assert!(files(&folder.path().join("none")).expect("no folder has no files").is_empty());
        for name in ["faults-00000000000000000012-20260101T000000Z", "faults-00000000000000000009-20270101T000000Z"] {
            fs::write(folder.path().join(format!("{name}.backup")), "").expect("writable");
        }
        fs::write(folder.path().join("faults-00000000000000000013-20260101T000000Z.partial"), "").expect("writable");
        let files = files(folder.path()).expect("listed");
        assert_eq!(files.len(), 2);
        assert!(files[1].to_string_lossy().contains("12-2026"), "{files:?}");
    }

    #[test]
    fn equal_or_lower_token_after_a_restore_is_detected() {
        assert_eq!(is_lower(token(6), Some(token(5))), None);
        assert_eq!(is_lower(token(6), None), None);
        assert!(is_lower(token(5), Some(token(5))).is_some() && is_lower(token(4), Some(token(5))).is_some());
    }
}
