#[cfg(feature = "cli")]
mod age;

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::config::{LeaseSettings, RaftTimings};
use crate::lease::Acquire;
use crate::storage::Position;
use crate::testing::{Cluster, TestNode};
use crate::types::{HolderId, LeaseName, MAX_METADATA_BYTES, Metadata, NodeId, Ttl};

/// More bytes than the chunks of a stream that is not read.
const LEASES: usize = 2 * CHUNKS_IN_FLIGHT * CHUNK_BYTES / MAX_METADATA_BYTES;

fn claim(number: usize) -> Request {
    let metadata = Metadata::new([("k".to_owned(), "v".repeat(MAX_METADATA_BYTES - 1))].into());
    Request::Acquire(Acquire {
        name: LeaseName::new(format!("lease-{number}")).expect("valid"),
        holder: HolderId::new("a").expect("valid"),
        ttl: Ttl::INFINITE,
        wait_ms: None,
        lock_delay_ms: 0,
        limit: 1,
        metadata: metadata.expect("it fits"),
    })
}

/// As the folder of a network that does not answer.
#[tokio::test]
async fn folder_that_hangs_fails_each_step_and_starts_no_other() {
    let dir = tempfile::tempdir().expect("a folder");
    let schedule = BackupSchedule { dir: dir.path().into(), every_ms: 1_000, keep: 2 };
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let one_at_a_time = Arc::new(Semaphore::new(1));
    let folder =
        FolderWork { folder: Folder::new(&schedule, "a"), one_at_a_time, tasks: tasks.clone(), stop: stop.clone() };
    let limit = Duration::from_millis(50);
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let hung = folder.run(limit, move |_| ended.recv()).await;
    assert_eq!(hung.expect_err("it hangs").kind(), io::ErrorKind::TimedOut);
    let later = folder.run(limit, |_| ()).await;
    assert_eq!(later.expect_err("the earlier step has not ended").kind(), io::ErrorKind::TimedOut);
    drop(end);
    let newest = folder
        .run(Duration::from_secs(20), |folder| folder.newest_ms(u64::MAX / 2))
        .await
        .expect("the folder answers again");
    assert_eq!(newest.expect("readable"), None);
    let (_end, ended) = std::sync::mpsc::channel::<()>();
    assert!(folder.run(limit, move |_| ended.recv()).await.is_err());
    stop.cancel();
    tasks.close();
    tokio::time::timeout(END_LIMIT * 2, tasks.wait()).await.expect("a shutdown does not wait for the folder");
}

/// As a save to a network that does not answer.
#[tokio::test]
async fn shutdown_waits_5_s_for_a_save_that_hangs() {
    let cluster = Cluster::start(1, RaftTimings::lan(), LeaseSettings::default()).await;
    let node = cluster.node(cluster.leader().await);
    let (_end, ended) = std::sync::mpsc::channel::<()>();
    let (begin, began) = oneshot::channel();
    let hang = move |file: &Path| {
        let _ = begin.send(());
        let _ = ended.recv();
        Err(BackupError::Exists { file: file.to_owned() })
    };
    let save = node.inner.write_apart("a.backup".into(), hang);
    let shutdown = async {
        began.await.expect("the save begins");
        let ended = tokio::time::timeout(END_LIMIT * 4, node.shutdown()).await;
        ended.expect("the shutdown does not wait for the folder");
    };
    let (saved, ()) = tokio::join!(save, shutdown);
    assert!(matches!(saved, Err(BackupError::Io { .. })), "{saved:?}");
}

#[tokio::test]
async fn save_ends_at_a_shutdown_and_leaves_no_file() {
    let (cluster, leader) = filled().await;
    let node = cluster.node(leader);
    let view = node.backup_view(Consistency::Leader).await.expect("it leads");
    let dir = tempfile::tempdir().expect("a folder");
    node.shutdown().await;
    let saved = node.inner.save(view, dir.path().join("a.backup")).await;
    assert!(matches!(saved, Err(BackupError::Io { .. })), "{saved:?}");
    assert_eq!(std::fs::read_dir(dir.path()).expect("readable").count(), 0, "no file stays");
}

/// A cluster of three nodes whose backup has more bytes than the chunks in flight.
async fn filled() -> (Cluster, NodeId) {
    // No delay of this machine lets another node lead.
    let cluster = Cluster::start(3, RaftTimings::wan(), LeaseSettings::default()).await;
    let leader = cluster.leader().await;
    for number in 0..LEASES {
        cluster.node(leader).request(claim(number), Forward::Never).await.expect("granted");
    }
    (cluster, leader)
}

/// A failing disk can change a byte that the node has written.
#[tokio::test]
async fn backup_with_a_changed_byte_gets_no_name() {
    let (cluster, leader) = filled().await;
    let view = cluster.node(leader).backup_view(Consistency::Leader).await.expect("it leads");
    let dir = tempfile::tempdir().expect("a folder");
    let mut writes = 0;
    let damage = || -> io::Result<()> {
        writes += 1;
        if writes == 2 {
            let partial = std::fs::read_dir(dir.path())?.next().expect("the temporary file")?.path();
            let mut bytes = std::fs::read(&partial)?;
            *bytes.last_mut().expect("the first write") ^= 1;
            std::fs::write(partial, bytes)?;
        }
        Ok(())
    };
    let written = write(&dir.path().join("a.backup"), &view, damage);
    assert!(matches!(written, Err(BackupError::Damaged { .. })), "{written:?}");
    assert_eq!(std::fs::read_dir(dir.path()).expect("readable").count(), 0, "no file stays");
}

/// Other files fill the disk during the backup.
#[tokio::test]
async fn scheduled_backup_asks_for_space_before_each_write() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    fn falling(_: &Path) -> io::Result<u64> {
        Ok(if ASKED.fetch_add(1, Ordering::Relaxed) == 0 { u64::MAX } else { 0 })
    }
    let (cluster, leader) = filled().await;
    let node = cluster.node(leader);
    let data = tempfile::tempdir().expect("a folder");
    let schedule = BackupSchedule { dir: data.path().join("backups"), every_ms: 1_000, keep: 2 };
    let folder = FolderWork::new(Folder::new(&schedule, "a").with_free(falling), &node.inner.lifecycle);
    let failed = node.inner.write_scheduled(&folder, data.path()).await;
    let is_full = matches!(&failed, Err(BackupError::Io { source, .. }) if source.kind() == io::ErrorKind::StorageFull);
    assert!(is_full, "{failed:?}");
    assert_eq!(std::fs::read_dir(&schedule.dir).expect("readable").count(), 0, "no file stays");
}

/// A write that takes longer than its limit fails, and its file appears later.
#[tokio::test]
async fn old_backups_are_removed_although_the_next_one_fails() {
    let (cluster, leader) = filled().await;
    let node = cluster.node(leader);
    let data = tempfile::tempdir().expect("a folder");
    let schedule = BackupSchedule { dir: data.path().join("backups"), every_ms: 1_000, keep: 2 };
    let folder = Folder::new(&schedule, "a").with_free(|_| Ok(0));
    folder.create().expect("created");
    let old = [1, 2, 3, 4].map(|index| folder.file(Position { term: 0, index }, 1_767_225_600_000));
    old.iter().for_each(|file| std::fs::write(file, "").expect("writable"));
    let folder = FolderWork::new(folder, &node.inner.lifecycle);
    let failed = node.inner.write_scheduled(&folder, data.path()).await;
    assert!(failed.is_err(), "control: there is no space");
    assert_eq!(old.map(|file| file.exists()), [false, false, true, true]);
}

/// A file has the place of the folder, and is then removed.
#[tokio::test(start_paused = true)]
async fn failed_backup_is_tried_again_in_the_same_interval() {
    let cluster = Cluster::start(1, RaftTimings::lan(), LeaseSettings::default()).await;
    let inner = cluster.node(cluster.leader().await).inner.clone();
    while inner.requests.clock.leader_term().is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let data = tempfile::tempdir().expect("a folder");
    let dir = data.path().join("backups");
    std::fs::write(&dir, "no folder").expect("writable");
    let schedule = BackupSchedule { dir: dir.clone(), every_ms: 100_000, keep: 2 };
    let folder = Folder::new(&schedule, &inner.settings.cluster);
    let began = Instant::now();
    let backups = tokio::spawn(inner.back_up(schedule, data.path().to_owned()));
    tokio::time::sleep(Duration::from_secs(5)).await;
    std::fs::remove_file(&dir).expect("the first attempt has failed");
    while folder.newest_ms(u64::MAX / 2).ok().flatten().is_none() {
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
    let waited = began.elapsed();
    assert!((Duration::from_secs(10)..Duration::from_secs(15)).contains(&waited), "{waited:?}");
    backups.abort();
}

async fn save(node: &TestNode, mut backup: BackupStream) -> BackupInfo {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let mut bytes = Vec::new();
    while let Some(chunk) = backup.next().await {
        let chunk = chunk.expect("the stream is complete");
        assert!(chunk.len() <= CHUNK_BYTES, "{} bytes", chunk.len());
        bytes.extend_from_slice(&chunk);
    }
    std::fs::write(file.path(), bytes).expect("written");
    let info = backup::inspect(file.path()).expect("valid");
    assert_eq!(info.node, node.id());
    info
}

// A paused clock stands still while a blocking thread waits for the reader.
#[tokio::test]
async fn third_backup_at_a_time_is_refused() {
    let (cluster, leader) = filled().await;
    let node = cluster.node(leader);
    let first = node.backup(Consistency::Leader).await.expect("streamed");
    let _second = node.backup(Consistency::Leader).await.expect("streamed");
    assert_eq!(node.backup(Consistency::Leader).await.err(), Some(RequestError::TooManyBackups));
    let info = save(node, first).await;
    assert_eq!((info.held, info.current), (LEASES as u64, true));
    while node.backup(Consistency::Stale).await.is_err() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn slow_downloads_do_not_delay_the_schedule() {
    let (cluster, leader) = filled().await;
    let node = cluster.node(leader);
    let _downloads = [node.backup(Consistency::Leader).await, node.backup(Consistency::Leader).await];
    let dir = tempfile::tempdir().expect("a folder");
    let schedule = BackupSchedule { dir: dir.path().join("backups"), every_ms: 1_000, keep: 2 };
    let folder = FolderWork::new(Folder::new(&schedule, "a"), &node.inner.lifecycle);
    node.inner.write_scheduled(&folder, dir.path()).await.expect("written");
    assert!(folder.folder.newest_ms(u64::MAX / 2).expect("listed").is_some(), "a file");
}

#[tokio::test(start_paused = true)]
async fn only_the_leader_writes_a_current_backup() {
    let (cluster, leader) = filled().await;
    let follower = cluster.ids().find(|id| *id != leader).expect("three nodes");
    let refused = cluster.node(follower).backup(Consistency::Leader).await.err();
    assert!(matches!(refused, Some(RequestError::NotLeader { leader: at, .. }) if at == leader), "{refused:?}");
    let stale = cluster.node(follower).backup(Consistency::Stale).await.expect("streamed");
    let info = save(cluster.node(follower), stale).await;
    assert!(!info.current && info.stale_ms.is_some(), "{info:?}");
}

/// It may lack any number of changes.
#[tokio::test(start_paused = true)]
async fn backup_of_a_node_that_has_heard_no_leader_has_no_age() {
    let (mut cluster, leader) = filled().await;
    let survivor = cluster.ids().find(|id| *id != leader).expect("three nodes");
    for id in cluster.ids() {
        cluster.crash(id).await;
    }
    cluster.restart(survivor).await;
    let node = cluster.node(survivor);
    let stale = node.backup(Consistency::Stale).await.expect("streamed");
    let info = save(node, stale).await;
    assert_eq!((info.current, info.stale_ms), (false, None), "{info:?}");
}

/// The next leader does not know yet that a majority has the grant.
#[tokio::test(start_paused = true)]
async fn backup_of_a_new_leader_has_every_acknowledged_change() {
    const PAUSE: Duration = Duration::from_millis(1);
    let cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
    let old = cluster.leader().await;
    let others: Vec<NodeId> = cluster.ids().filter(|id| *id != old).collect();
    // The first entry of the new leader takes longer than the pause between two attempts.
    cluster.board.delay(others[0], others[1], 5 * PAUSE);
    cluster.board.delay(others[1], others[0], 5 * PAUSE);
    cluster.node(old).request(claim(0), Forward::Never).await.expect("granted");
    cluster.board.isolate(old, cluster.ids());
    let applied = |id: NodeId| cluster.node(id).raft().replica().view().position().index;
    assert!(others.iter().all(|id| applied(*id) < applied(old)), "control: no other node has applied the grant");
    let attempts = others.iter().map(|id| {
        let node = cluster.node(*id);
        let attempts = async move {
            loop {
                match node.backup(Consistency::Leader).await {
                    Ok(backup) => return (node, backup),
                    Err(_) => tokio::time::sleep(PAUSE).await,
                }
            }
        };
        attempts.boxed_local()
    });
    let elected = tokio::time::timeout(Duration::from_secs(20), futures_util::future::select_all(attempts)).await;
    let ((node, backup), ..) = elected.expect("another node is elected");
    let info = save(node, backup).await;
    assert_eq!((info.held, info.current), (1, true), "the new leader saves the grant");
}

// A paused clock stands still while a blocking thread waits for the reader.
#[tokio::test]
async fn shutdown_ends_a_backup_that_is_not_read() {
    let (cluster, leader) = filled().await;
    let mut backup = cluster.node(leader).backup(Consistency::Leader).await.expect("streamed");
    cluster.node(leader).shutdown().await;
    let mut last = None;
    while let Some(chunk) = backup.next().await {
        last = Some(chunk.is_ok());
    }
    assert!(last.is_some(), "the chunks in flight arrive");
}
