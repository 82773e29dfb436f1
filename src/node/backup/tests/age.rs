//! The exported age of the newest scheduled backup.

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

use super::*;

const HOUR_MS: u64 = 3_600_000;

fn sample(render: &PrometheusHandle, series: &str) -> Option<f64> {
    let text = render.render();
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    Some(value.parse().expect("a number"))
}

fn age(render: &PrometheusHandle) -> f64 {
    sample(render, "tenure_backup_age_seconds").expect("the gauge is exported")
}

fn count(render: &PrometheusHandle, result: &str) -> f64 {
    sample(render, &format!("tenure_backups_total{{result=\"{result}\"}}")).unwrap_or(0.0)
}

/// Waits for the first backup, and for its age.
async fn first_backup(render: &PrometheusHandle) {
    let written = async {
        while count(render, "written") == 0.0 {
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), written).await.expect("the node leads and writes a backup");
    tokio::time::sleep(3 * CHECK_INTERVAL).await;
}

/// As the folder of a network that does not answer.
#[tokio::test(start_paused = true)]
async fn age_of_the_last_known_backup_goes_on_while_the_folder_hangs() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let render = recorder.handle();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let cluster = Cluster::start(1, RaftTimings::lan(), LeaseSettings::default()).await;
    let inner = cluster.node(cluster.leader().await).inner.clone();
    let data = tempfile::tempdir().expect("a folder");
    let schedule = BackupSchedule { dir: data.path().join("backups"), every_ms: HOUR_MS, keep: 2 };
    let folder = FolderWork::new(Folder::new(&schedule, &inner.settings.cluster), &inner.lifecycle);
    let one_at_a_time = folder.one_at_a_time.clone();
    let backups = tokio::spawn(inner.back_up_to(folder, schedule, data.path().to_owned()));
    first_backup(&render).await;
    let before = age(&render);
    assert!((0.0..20.0).contains(&before), "control: {before} s");
    let _hung = one_at_a_time.acquire_owned().await.expect("it is never closed");
    tokio::time::sleep(3 * FOLDER_LIMIT).await;
    let after = age(&render);
    assert!(after >= before + FOLDER_LIMIT.as_secs_f64() && after.is_finite(), "{before} s, then {after} s");
    assert_eq!((count(&render, "written"), count(&render, "failed")), (1.0, 0.0), "no backup is due");
    backups.abort();
}

/// The program goes on after the end of its node.
#[tokio::test(start_paused = true)]
async fn node_that_has_ended_exports_no_backup() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let render = recorder.handle();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let cluster = Cluster::start(1, RaftTimings::lan(), LeaseSettings::default()).await;
    let node = cluster.node(cluster.leader().await);
    let data = tempfile::tempdir().expect("a folder");
    let schedule = BackupSchedule { dir: data.path().join("backups"), every_ms: HOUR_MS, keep: 2 };
    node.inner.lifecycle.spawn(node.inner.clone().back_up(schedule, data.path().to_owned()));
    first_backup(&render).await;
    assert!(age(&render).is_finite(), "control: {} s", age(&render));
    node.shutdown().await;
    assert_eq!(age(&render), f64::INFINITY);
}
