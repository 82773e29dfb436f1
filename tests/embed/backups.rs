//! Backups of embedded nodes, and new clusters from them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use tenure::backup::{self, BackupError, LostHolders, PositionError, RestoreError, RestoreOptions};
use tenure::config::BackupSchedule;
use tenure::node::{Consistency, Node, NodeBuilder, StartError, StorageError};
use tenure::{CallError, FencingToken, LeaseOptions, Wait};

use crate::trio::{Plan, SOON};

const STOPPED: LostHolders = LostHolders::Stopped;

/// Clusters of one node each.
struct Clusters {
    folder: TempDir,
    plan: Plan,
}

impl Clusters {
    fn new() -> Clusters {
        Clusters { folder: TempDir::new().expect("a folder"), plan: Plan::new(&[]) }
    }

    /// The node of this cluster. Only one cluster runs at a time.
    fn builder(&self, cluster: &str) -> NodeBuilder {
        let (http, peer) = (self.plan.http(1), self.plan.http(2));
        Node::builder(cluster).id(1).member(1, http, peer).data(self.folder.path().join(cluster))
    }

    async fn start(&self, cluster: &str) -> Node {
        let start = async {
            loop {
                match self.builder(cluster).start().await {
                    Ok(node) => {
                        while node.health().not_ready.is_some() {
                            tokio::time::sleep(Duration::from_millis(5)).await;
                        }
                        return node;
                    }
                    Err(StartError::Listen { .. }) => tokio::time::sleep(Duration::from_millis(20)).await,
                    Err(error) => panic!("{cluster}: {error}"),
                }
            }
        };
        tokio::time::timeout(SOON, start).await.expect("the node starts")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Grants `count` leases and returns the highest token.
    async fn grant(&self, node: &Node, prefix: &str, count: usize) -> FencingToken {
        let leases = node.leases();
        let mut highest = None;
        for number in 0..count {
            let lease = leases.lease(format!("{prefix}-{number}")).expect("valid");
            highest = highest.max(Some(lease.acquire(Wait::No).await.expect("free")));
        }
        leases.shutdown().await;
        highest.expect("at least one grant")
    }

    /// Saves backups until one has this number of waiters.
    async fn save_with_waiters(&self, node: &Node, waiting: u64) -> PathBuf {
        let saved = async {
            for number in 0.. {
                let file = self.file(&format!("{waiting}-{number}.backup"));
                if node.save_backup(&file, Consistency::Leader).await.expect("saved").waiting == waiting {
                    return file;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            unreachable!("the numbers do not end")
        };
        tokio::time::timeout(SOON, saved).await.expect("the claims wait")
    }

    fn restore(&self, cluster: &str, file: &Path, options: RestoreOptions) -> Result<FencingToken, RestoreError> {
        Ok(self.builder(cluster).restore(file, options)?.above)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn restored_tokens_are_above_all_earlier_ones() {
    let clusters = Clusters::new();
    let (first, second) = (clusters.file("first.backup"), clusters.file("second.backup"));
    let lost = clusters.start("lost").await;
    clusters.grant(&lost, "before", 3).await;
    lost.save_backup(&first, Consistency::Leader).await.expect("saved");
    let mut highest = clusters.grant(&lost, "after", 30).await;
    lost.shutdown().await;
    // Twice from one file, and each restored cluster grants leases.
    for cluster in ["new-1", "new-2"] {
        let above = clusters.restore(cluster, &first, RestoreOptions::new(STOPPED)).expect("restored");
        assert!(above > highest, "{cluster}: {above} after {highest}");
        let node = clusters.start(cluster).await;
        let granted = clusters.grant(&node, "after", 10).await;
        assert!(granted > above && granted.as_u64() > above.as_u64(), "{cluster}: {granted} after {above}");
        highest = granted;
        if cluster == "new-2" {
            node.save_backup(&second, Consistency::Leader).await.expect("saved");
            highest = clusters.grant(&node, "later", 10).await;
        }
        node.shutdown().await;
    }
    // A restore of a restore. The node keeps its tokens over a restart.
    let above = clusters.restore("new-3", &second, RestoreOptions::new(STOPPED)).expect("restored");
    assert!(above > highest, "{above} after {highest}");
    for _ in 0..2 {
        let node = clusters.start("new-3").await;
        let granted = clusters.grant(&node, "before", 3).await;
        assert!(granted > above && granted > highest, "{granted} after {above} and {highest}");
        highest = granted;
        node.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn restored_cluster_waits_for_the_lost_holders_to_expire() {
    let clusters = Clusters::new();
    let file = clusters.file("backup");
    let lost = clusters.start("lost").await;
    let leases = lost.leases();
    let ttl = LeaseOptions::new().ttl(Duration::from_secs(8)).lock_delay(Duration::from_millis(300));
    let held = leases.lease_with("job", ttl).expect("valid").acquire(Wait::No).await.expect("free");
    let info = lost.save_backup(&file, Consistency::Leader).await.expect("saved");
    assert_eq!((info.held, info.current, info.members.as_slice()), (1, true, [1].as_slice()));
    leases.shutdown().await;
    lost.shutdown().await;
    let short = RestoreOptions::new(LostHolders::StopWithin(Duration::from_millis(8_299)));
    let error = clusters.restore("new", &file, short).expect_err("the name is not free for 8.3 s");
    let RestoreError::TooSoon { ttl_ms: 8_000, lock_delay_ms: 300, given_ms: 8_299, .. } = error else {
        panic!("{error}")
    };
    let options = RestoreOptions::new(LostHolders::StopWithin(Duration::from_millis(8_500)));
    clusters.restore("new", &file, options).expect("restored");
    // A restart keeps the time.
    clusters.start("new").await.shutdown().await;
    let node = clusters.start("new").await;
    let leases = node.leases();
    for name in ["job", "other"] {
        let claimed = leases.lease(name).expect("valid").acquire(Wait::No).await;
        let Err(CallError::Refused(problem)) = claimed else { panic!("{name}: {claimed:?}") };
        assert!(problem.detail.contains("restored from a backup"), "{problem:?}");
        assert!(problem.retry_after_ms.is_some_and(|ms| ms <= 8_501), "{problem:?}");
    }
    let again = leases.lease("job").expect("valid").acquire(Wait::UpTo(SOON)).await.expect("it waits");
    assert!(again > held, "{again} after {held}");
    leases.shutdown().await;
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unsafe_restore_is_refused() {
    let clusters = Clusters::new();
    let file = clusters.file("backup");
    let lost = clusters.start("lost").await;
    lost.save_backup(&file, Consistency::Leader).await.expect("saved");
    let again = lost.save_backup(&file, Consistency::Leader).await;
    assert!(matches!(again, Err(BackupError::Exists { .. })), "{again:?}");
    lost.shutdown().await;
    let stopped = RestoreOptions::new(STOPPED);
    let same = clusters.restore("lost", &file, stopped);
    assert!(matches!(same, Err(RestoreError::SameCluster { .. })), "{same:?}");
    let (http, peer) = (clusters.plan.http(3), "127.0.0.1:9");
    let other = clusters.builder("new").member(2, http, peer).id(2).restore(&file, stopped);
    assert!(matches!(other, Err(RestoreError::OtherNode { node: 2, first: 1, .. })), "{other:?}");
    let late = FencingToken::try_from(i64::MAX as u64).expect("63 bits");
    let exhausted = clusters.restore("new", &file, stopped.above(late));
    assert!(matches!(exhausted, Err(RestoreError::Position(PositionError::Exhausted))), "{exhausted:?}");
    assert!(!clusters.file("new").exists(), "a refused restore creates nothing");
    clusters.restore("new", &file, stopped).expect("restored");
    let filled = clusters.restore("new", &file, stopped);
    assert!(matches!(filled, Err(RestoreError::Storage(StorageError::NotEmpty { .. }))), "{filled:?}");
    clusters.start("new").await.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn infinite_lease_needs_stopped_holders() {
    let clusters = Clusters::new();
    let file = clusters.file("backup");
    let lost = clusters.start("lost").await;
    let leases = lost.leases();
    let infinite = LeaseOptions::new().infinite();
    leases.lease_with("job", infinite).expect("valid").acquire(Wait::No).await.expect("free");
    leases.lease("report").expect("valid").acquire(Wait::No).await.expect("free");
    lost.save_backup(&file, Consistency::Stale).await.expect("saved");
    leases.shutdown().await;
    lost.shutdown().await;
    let day = RestoreOptions::new(LostHolders::StopWithin(Duration::from_secs(86_400)));
    let error = clusters.restore("new", &file, day).expect_err("the holder does not stop");
    assert!(matches!(error, RestoreError::Infinite { .. }), "{error}");
    clusters.restore("new", &file, RestoreOptions::new(STOPPED)).expect("restored");
}

fn within(ms: u64) -> RestoreOptions {
    RestoreOptions::new(LostHolders::StopWithin(Duration::from_millis(ms)))
}

/// After the backup, the lost cluster can have granted the lease to each waiter.
#[tokio::test(flavor = "multi_thread")]
async fn restored_cluster_waits_for_the_waiters_of_the_backup() {
    let clusters = Clusters::new();
    let lost = clusters.start("lost").await;
    let holds = lost.leases();
    let short = LeaseOptions::new().ttl(Duration::from_secs(8));
    holds.lease_with("job", short).expect("valid").acquire(Wait::No).await.expect("free");
    let long = LeaseOptions::new().ttl(Duration::from_secs(60)).lock_delay(Duration::from_millis(300));
    let (mut managers, mut files) = (vec![holds], Vec::new());
    for (waiting, options) in [(1, long), (2, LeaseOptions::new().infinite())] {
        let manager = lost.leases();
        let lease = manager.lease_with("job", options).expect("valid");
        tokio::spawn(async move { lease.acquire(Wait::UpTo(SOON * 2)).await });
        files.push(clusters.save_with_waiters(&lost, waiting).await);
        managers.push(manager);
    }
    for manager in managers.into_iter().rev() {
        manager.shutdown().await;
    }
    lost.shutdown().await;
    let error = clusters.restore("new", &files[0], within(60_299)).expect_err("the waiter can have it for 60.3 s");
    let RestoreError::TooSoon { ttl_ms: 60_000, lock_delay_ms: 300, given_ms: 60_299, .. } = error else {
        panic!("{error}")
    };
    clusters.restore("new", &files[0], within(60_300)).expect("restored");
    let error = clusters.restore("newer", &files[1], within(86_400_000)).expect_err("the last waiter does not stop");
    assert!(matches!(error, RestoreError::Infinite { .. }), "{error}");
    clusters.restore("newer", &files[1], RestoreOptions::new(STOPPED)).expect("restored");
}

#[tokio::test(flavor = "multi_thread")]
async fn restored_cluster_waits_for_each_holder_of_a_counted_lease() {
    let clusters = Clusters::new();
    let file = clusters.file("backup");
    let lost = clusters.start("lost").await;
    let managers = [lost.leases(), lost.leases()];
    for (manager, ttl) in managers.iter().zip([8, 60]) {
        let options = LeaseOptions::new().limit(2).ttl(Duration::from_secs(ttl));
        manager.lease_with("pool", options).expect("valid").acquire(Wait::No).await.expect("a free permit");
    }
    assert_eq!(lost.save_backup(&file, Consistency::Leader).await.expect("saved").held, 2);
    for manager in managers {
        manager.shutdown().await;
    }
    lost.shutdown().await;
    let error = clusters.restore("new", &file, within(59_999)).expect_err("the second holder has it for 60 s");
    assert!(matches!(error, RestoreError::TooSoon { ttl_ms: 60_000, given_ms: 59_999, .. }), "{error}");
    clusters.restore("new", &file, within(60_000)).expect("restored");
}

#[tokio::test(flavor = "multi_thread")]
async fn scheduled_backups_appear_and_old_ones_go() {
    let clusters = Clusters::new();
    let dir = clusters.file("backups");
    let schedule = BackupSchedule::new(&dir, Duration::from_secs(1), 2);
    let node = clusters.builder("orders").backup(schedule).start().await.expect("started");
    let files = || -> Vec<PathBuf> {
        let listed = std::fs::read_dir(&dir).into_iter().flatten().map(|item| item.expect("listed").path());
        let mut files: Vec<PathBuf> = listed.filter(|path| path.extension().is_some_and(|it| it == "backup")).collect();
        files.sort();
        files
    };
    let rotated = async {
        let first = loop {
            match files().first().cloned() {
                Some(first) => break first,
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        while first.exists() {
            clusters.grant(&node, "jobs", 1).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(SOON, rotated).await.expect("the third backup replaces the first");
    assert!(files().len() <= 3, "{:?}", files());
    let newest = files().pop().expect("a backup");
    assert_eq!(backup::inspect(newest).expect("valid").cluster_id, "orders");
    node.shutdown().await;
}
