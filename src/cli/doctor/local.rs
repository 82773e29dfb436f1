//! Checks of this machine: the configuration file, the certificates, the disks and the limit of open files.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::StatVfs;

use super::super::failure::Failure;
use super::super::{CredentialArguments, open_files};
use super::certificate;
use super::finding::{Finding, Status};
use crate::config::{Config, RaftTimings};
use crate::storage::{StorageError, measure_fsync};
use crate::types::NodeId;

/// Number of syncs of the probe.
const SYNCS: usize = 20;
/// A node warns about less free space in docs/operations.md. A store allocates 8 MiB at once.
const LOW_SPACE: u64 = 1 << 30;
const NO_SPACE: u64 = 64 << 20;
const AS_USER: &str = "repeat this as the user of the node";
const FREE_SPACE: &str = "free space or enlarge the disk: a node with a full disk stops";
const CHECK_DISK: &str = "check the disk and its mount options: a node whose disk is read-only or fails stops";

/// Reads and validates the file. Returns `None` for an invalid one.
pub fn configuration(path: Option<&Path>, node: Option<NodeId>) -> (Option<Config>, Vec<Finding>) {
    let name = "configuration";
    let Some(path) = path else {
        let advice = "add --config FILE, and --node ID on the machine of a node, for the checks of this machine";
        return (None, vec![Finding::unknown(name, "no file is given", advice)]);
    };
    let config = match Config::load(path) {
        Ok(config) => config,
        Err(error) => {
            let facts = without_source(&Failure::from(error).message());
            return (None, vec![Finding::problem(name, facts, "correct the file: no node starts with it")]);
        }
    };
    let tls = if config.tls.is_some() { "with" } else { "without" };
    let facts = format!("{}: cluster {}, {} nodes, {tls} TLS", path.display(), config.cluster, config.nodes.len());
    let mut findings = vec![match node {
        Some(node) if config.node(node).is_none() => {
            let advice = format!("correct --node, or add node {node} to the file");
            Finding::problem(name, format!("{facts}, but no node {node}"), advice)
        }
        _ => Finding::ok(name, facts),
    }];
    let warnings = config.warnings();
    findings.extend(
        warnings.iter().map(|warning| {
            Finding::warning("configuration.settings", warning, "see docs/operations.md, Configuration")
        }),
    );
    (Some(config), findings)
}

/// A message without the lines of the file that it shows. A file that is no configuration can have a secret.
fn without_source(message: &str) -> String {
    let is_source = |line: &str| line.trim_start_matches(|c: char| c == ' ' || c.is_ascii_digit()).starts_with('|');
    message.lines().filter(|line| !is_source(line)).collect::<Vec<_>>().join("\n")
}

/// The checks of the files and disks of this machine. The probe of a disk begins no sync after `limit`.
pub fn checks(
    config: Option<&Config>,
    node: Option<NodeId>,
    arguments: &CredentialArguments,
    limit: Duration,
) -> Vec<Finding> {
    let now = certificate::now();
    let files_of_client = arguments.cert.as_deref().zip(arguments.key.as_deref());
    let own = files_of_client.map(|(cert, key)| certificate::client_file(cert, key, now));
    let mut findings: Vec<Finding> = own.into_iter().collect();
    let Some((config, entry)) = config.and_then(|config| Some((config, config.node(node?)?))) else {
        return findings;
    };
    findings.extend(certificate::node_files(config, entry.id, now));
    findings.extend(disk(&entry.data, &config.raft, limit));
    findings.extend(config.backup.as_ref().map(|backup| space("disk.backup", &backup.dir)));
    findings.push(files(open_files::maximum(), config.http.max_connections));
    findings
}

/// The checks of the data directory. They take no lock.
fn disk(data: &Path, timings: &RaftTimings, limit: Duration) -> [Finding; 2] {
    [sync(data, timings, limit), space("disk.space", data)]
}

/// How long the probe of a disk begins syncs.
fn probe_time(timings: &RaftTimings, limit: Duration) -> Duration {
    Duration::from_millis(timings.election_timeout_max_ms.max(1_000)).min(limit)
}

fn sync(data: &Path, timings: &RaftTimings, limit: Duration) -> Finding {
    let name = "disk.sync";
    // The first start refuses a directory with other files.
    if !data.join("TENURE").exists() {
        let facts = format!("{} has no data of a node", data.display());
        return Finding::unknown(name, facts, "start the node, and repeat this as the user of the node");
    }
    match measure_fsync(data, SYNCS, probe_time(timings, limit)) {
        Ok(times) => synced(&times, timings),
        Err(error) => unsynced(&error),
    }
}

/// Judges a probe of a disk that has failed.
fn unsynced(error: &StorageError) -> Finding {
    let name = "disk.sync";
    let StorageError::Io { action, path, kind, cause } = error else {
        return Finding::problem(name, error.to_string(), CHECK_DISK);
    };
    let facts = format!("could not {action} {}: {cause}", path.display());
    match kind {
        ErrorKind::PermissionDenied => Finding::unknown(name, facts, AS_USER),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Finding::problem(name, facts, FREE_SPACE),
        _ => Finding::problem(name, facts, CHECK_DISK),
    }
}

/// Judges sorted sync times. A follower syncs its disk before it acknowledges a heartbeat.
fn synced(times: &[Duration], timings: &RaftTimings) -> Finding {
    let ms = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1e3;
    let (median, slow, longest) = (ms(50), ms(90), ms(100));
    let bound = timings.heartbeat_interval_ms as f64 / 2.0;
    let facts = format!(
        "{} syncs: median {median:.2} ms, 90th percentile {slow:.2} ms, longest {longest:.2} ms; expected below {bound} ms",
        times.len()
    );
    let advice = "use a faster disk, or raise the heartbeat interval and the election timeouts on all nodes: \
                  docs/operations.md, Timings";
    let status = match slow {
        _ if slow > timings.election_timeout_min_ms as f64 => Status::Problem,
        _ if slow > bound => Status::Warning,
        _ => Status::Ok,
    };
    Finding::new(status, "disk.sync", facts, advice)
}

/// Judges the free space of the file system of a folder, which may not exist yet.
fn space(name: &str, folder: &Path) -> Finding {
    let absolute = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let existing: PathBuf = absolute.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/")).to_owned();
    match rustix::fs::statvfs(&existing) {
        Ok(found) => {
            let (bytes, inodes) = available(&found);
            free(name, &existing, bytes, inodes)
        }
        Err(error) => {
            let facts = format!("cannot read the free space of {}: {error}", existing.display());
            Finding::unknown(name, facts, AS_USER)
        }
    }
}

/// The bytes and inodes that users other than root can use. The inodes are `None` if the file system has no limit.
fn available(found: &StatVfs) -> (u64, Option<u64>) {
    (found.f_bavail * found.f_frsize, (found.f_files > 0).then_some(found.f_favail))
}

/// `inodes`: the free ones; `None` if the file system has no limit.
fn free(name: &str, path: &Path, bytes: u64, inodes: Option<u64>) -> Finding {
    let inodes = inodes.filter(|inodes| *inodes < 1_000).map_or(String::new(), |inodes| format!(", {inodes} inodes"));
    let facts = format!("{:.2} GiB{inodes} free at {}", bytes as f64 / (1_u64 << 30) as f64, path.display());
    let status = match bytes {
        _ if !inodes.is_empty() => Status::Problem,
        ..NO_SPACE => Status::Problem,
        NO_SPACE..LOW_SPACE => Status::Warning,
        _ => Status::Ok,
    };
    Finding::new(status, name, facts, FREE_SPACE)
}

/// Judges the limit for a node that is started like this command. A service can have another one.
fn files(maximum: Option<u64>, wanted: usize) -> Finding {
    let name = "open_files.here";
    let Some(maximum) = maximum else { return Finding::ok(name, "no limit for processes started from here") };
    let possible = open_files::max_clients(Some(maximum), 1);
    let facts = format!("at most {maximum} for processes started from here: room for {possible} of {wanted} clients");
    let status = if possible < wanted { Status::Warning } else { Status::Ok };
    Finding::new(status, name, facts, open_files::ADVICE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sync_times_are_compared_with_the_timings() {
        let status = |ms: [u64; 10]| synced(&ms.map(Duration::from_millis), &RaftTimings::lan()).status;
        assert_eq!(status([1; 10]), Status::Ok);
        assert_eq!(status([1, 1, 1, 1, 1, 1, 1, 1, 1, 900]), Status::Ok, "one slow sync in ten");
        assert_eq!(status([1, 1, 1, 1, 1, 1, 1, 1, 38, 38]), Status::Warning, "above half a heartbeat interval");
        assert_eq!(status([1, 1, 1, 1, 1, 1, 1, 1, 226, 226]), Status::Problem, "above the election timeout");
    }

    #[test]
    fn disk_that_refuses_a_write_is_a_problem() {
        let judged = |kind: ErrorKind| {
            let cause = "why".to_owned();
            let finding = unsynced(&StorageError::Io { action: "create", path: "/data/probe".into(), kind, cause });
            assert_eq!(finding.facts, "could not create /data/probe: why");
            (finding.status, finding.advice.expect("it is no success"))
        };
        for (kind, advice) in [
            (ErrorKind::StorageFull, FREE_SPACE),
            (ErrorKind::QuotaExceeded, FREE_SPACE),
            (ErrorKind::ReadOnlyFilesystem, CHECK_DISK),
            (ErrorKind::Other, CHECK_DISK),
        ] {
            assert_eq!(judged(kind), (Status::Problem, advice.to_owned()), "{kind:?}");
        }
        assert_eq!(judged(ErrorKind::PermissionDenied), (Status::Unknown, AS_USER.to_owned()));
    }

    #[test]
    fn probe_of_a_disk_ends_within_the_timeout_of_a_step() {
        let limit = Duration::from_secs(2);
        assert_eq!(probe_time(&RaftTimings::lan(), limit), Duration::from_secs(1));
        assert_eq!(probe_time(&RaftTimings::wan(), limit), limit);
        assert_eq!(probe_time(&RaftTimings::lan(), limit / 4), limit / 4);
    }

    #[test]
    fn free_space_is_a_warning_below_1_gib() {
        let status = |bytes, inodes| free("disk.space", Path::new("/"), bytes, inodes).status;
        assert_eq!([status(1 << 30, None), status(1 << 30, Some(1_000))], [Status::Ok; 2]);
        assert_eq!([status((1 << 30) - 1, None), status(64 << 20, None)], [Status::Warning; 2]);
        assert_eq!(status((64 << 20) - 1, None), Status::Problem);
        assert_eq!(status(1 << 30, Some(999)), Status::Problem, "few inodes");
    }

    /// Ext4 keeps 5 % of its blocks for root, and the node has another user.
    #[test]
    fn blocks_that_only_root_can_use_are_not_free() {
        let mut found = rustix::fs::statvfs("/").expect("a file system");
        (found.f_frsize, found.f_bfree, found.f_bavail) = (4_096, 30, 20);
        (found.f_files, found.f_ffree, found.f_favail) = (100, 9, 7);
        assert_eq!(available(&found), (20 * 4_096, Some(7)));
        found.f_files = 0;
        assert_eq!(available(&found), (20 * 4_096, None), "the file system has no limit of inodes");
    }

    #[test]
    fn limit_of_files_must_fit_the_clients() {
        assert_eq!(files(Some(25_512), 25_000).status, Status::Ok);
        assert_eq!(files(Some(25_511), 25_000).status, Status::Warning);
        assert_eq!(files(None, 25_000).status, Status::Ok);
    }

    /// Without a limit of the machine, there is nothing to compare.
    #[test]
    fn limit_of_files_is_compared_with_the_clients_of_the_file() {
        let node = "[[node]]\nid = 1\nhttp = \"127.0.0.1:1\"\npeer = \"127.0.0.1:2\"\ndata = \"1\"\n";
        let text = format!("cluster = \"a\"\n[http]\nmax_connections = 17\n{node}");
        let dir = tempfile::tempdir().expect("a folder");
        let config = Config::parse(&text, dir.path()).expect("the file is valid");
        let arguments = CredentialArguments { access_token_file: None, ca: None, cert: None, key: None };
        let findings = checks(Some(&config), Some(1), &arguments, Duration::from_secs(1));
        let found = findings.iter().find(|finding| finding.name == "open_files.here").expect("it is checked");
        assert_eq!(found.facts.ends_with(" of 17 clients"), open_files::maximum().is_some(), "{found:?}");
    }

    #[test]
    fn probe_leaves_directories_without_a_node_alone() {
        let dir = tempfile::tempdir().expect("a folder");
        let status = || sync(dir.path(), &RaftTimings::lan(), Duration::MAX).status;
        assert_eq!(status(), Status::Unknown);
        assert_eq!(std::fs::read_dir(dir.path()).expect("readable").count(), 0);
        std::fs::write(dir.path().join("TENURE"), "").expect("writable");
        assert_ne!(status(), Status::Unknown);
        assert_eq!(std::fs::read_dir(dir.path()).expect("readable").count(), 1, "the probe removes its file");
    }

    #[test]
    fn missing_and_invalid_files_are_no_success() {
        let (config, findings) = configuration(None, None);
        assert!(config.is_none() && findings[0].status == Status::Unknown, "{findings:?}");
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("cluster.toml");
        let check = |node| configuration(Some(&path), node).1[0].status;
        assert_eq!(check(None), Status::Problem, "no such file");
        std::fs::write(&path, "cluster = 3").expect("writable");
        assert_eq!(check(None), Status::Problem, "invalid");
        std::fs::write(&path, "tenure_0123").expect("writable");
        let token = configuration(Some(&path), None).1.remove(0);
        assert!(token.facts.contains("is invalid: TOML parse error at line 1"), "{token:?}");
        assert!(!token.facts.contains("0123"), "the output has no secret: {token:?}");
        let node = "[[node]]\nid = 1\nhttp = \"127.0.0.1:1\"\npeer = \"127.0.0.1:2\"\ndata = \"1\"\n";
        std::fs::write(&path, format!("cluster = \"a\"\n{node}")).expect("writable");
        assert_eq!([check(None), check(Some(1)), check(Some(2))], [Status::Ok, Status::Ok, Status::Problem]);
        let warned = configuration(Some(&path), None).1;
        assert_eq!(warned[1].status, Status::Warning, "one node tolerates no failure: {warned:?}");
    }
}
