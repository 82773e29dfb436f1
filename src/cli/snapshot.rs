//! `tenure snapshot`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use tokio::runtime::Handle;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::failure::Failure;
use super::output::{self, Format, OutputArgument};
use super::signals::{self, Signals};
use super::{ClientArguments, duration};
use crate::backup::{self, BackupError, BackupInfo, LostHolders, NewFile, RestoreError, RestoreOptions};
use crate::config::Config;
use crate::node::Node;
use crate::token::FencingToken;
use crate::types::Consistency;

/// How long a save waits after a signal for a disk.
const SIGNAL_LIMIT: Duration = Duration::from_secs(1);
/// How long a save that its disk has blocked can complete after the removal of its temporary file.
const COMPLETION_LIMIT: Duration = Duration::from_millis(50);

#[derive(Subcommand)]
pub enum Command {
    /// Save a backup of the cluster to a file
    Save {
        /// The new file
        file: PathBuf,
        /// Overwrite the file if it exists
        #[arg(long)]
        force: bool,
        /// Which node writes the backup
        #[arg(long, default_value = "leader")]
        consistency: BackupSource,
        #[command(flatten)]
        client: ClientArguments,
    },
    /// Check a backup and show its content
    Inspect {
        /// The file
        file: PathBuf,
        #[command(flatten)]
        format: OutputArgument,
    },
    /// Check a backup: its checksum and every record
    Check {
        /// The file
        file: PathBuf,
        #[command(flatten)]
        format: OutputArgument,
    },
    /// Start a new cluster from a backup: fill the empty directory of its first node
    #[command(after_help = RESTORE_HELP)]
    Restore(Restore),
}

const RESTORE_HELP: &str = "\
The new cluster needs another name than the lost one. Its other nodes start with empty directories.
Every lease of the backup ends. State how long holders of the lost cluster can still be active: \
with --grant-after, or with --holders-stopped.";

/// The node that writes a backup.
#[derive(Clone, Copy, ValueEnum)]
pub enum BackupSource {
    /// The leader, with every acknowledged change
    Leader,
    /// The first node that answers; the backup has the age of its state
    Stale,
}

#[derive(Args)]
pub struct Restore {
    /// The backup
    file: PathBuf,
    /// Configuration file of the new cluster
    #[arg(long, default_value = "cluster.toml", env = "TENURE_CONFIG")]
    config: PathBuf,
    /// The node to restore: the one with the lowest id
    #[arg(long, env = "TENURE_NODE", value_name = "ID")]
    node: u64,
    /// Grant no lease for this time: the longest ttl and lock delay that the lost cluster can have granted
    #[arg(long, value_parser = duration::parse, value_name = "DURATION", required_unless_present = "holders_stopped")]
    grant_after: Option<Duration>,
    /// All holders of the lost cluster have stopped: grant leases at once, except during a lock delay of the backup
    #[arg(long, conflicts_with = "grant_after")]
    holders_stopped: bool,
    /// The highest token that the lost cluster can have granted, if the clock cannot tell
    #[arg(long, value_name = "TOKEN")]
    above: Option<FencingToken>,
    #[command(flatten)]
    format: OutputArgument,
}

impl Command {
    /// The output format that the user asked for.
    pub fn output(&self) -> Format {
        match self {
            Command::Save { client, .. } => client.output,
            Command::Inspect { format, .. }
            | Command::Check { format, .. }
            | Command::Restore(Restore { format, .. }) => format.output,
        }
    }
}

pub async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Save { file, force, consistency, client } => {
            let consistency = match consistency {
                BackupSource::Leader => Consistency::Leader,
                BackupSource::Stale => Consistency::Stale,
            };
            // Without a handler, a signal ends the process before it removes its temporary file.
            let mut signals = Signals::listen_with_hangup()?;
            let (format, shown) = (client.output, file.display().to_string());
            let temporary = Arc::new(OnceLock::new());
            let saving = {
                let temporary = temporary.clone();
                async move || save(&file, force, consistency, &client, &temporary).await
            };
            match until_signal(saving, signals.next(), &temporary).await? {
                Ok(saved) => show(&saved, format),
                Err(signal) => {
                    Err(Failure::Stopped(signals::exit_code(signal), format!("{signal}: {shown} is not saved")))
                }
            }
        }
        Command::Inspect { file, format } => show(&backup::inspect(file)?, format.output),
        Command::Check { file, format } => {
            backup::verify(&file)?;
            if format.output == Format::Json {
                return output::json(&json!({"file": file.display().to_string(), "valid": true}));
            }
            message!("{}: valid", file.display());
            Ok(())
        }
        Command::Restore(arguments) => restore(arguments),
    }
}

/// Runs work that can block on a disk until a signal comes, and returns the signal then. `temporary` is the file to
/// remove. After a signal, neither the work nor a disk that hangs delays the end by more than [`SIGNAL_LIMIT`] each.
async fn until_signal<T: Send + 'static>(
    work: impl AsyncFnOnce() -> Result<T, Failure> + Send + 'static,
    signal: impl Future<Output = &'static str>,
    temporary: &Arc<OnceLock<PathBuf>>,
) -> Result<Result<T, &'static str>, Failure> {
    let (stop, runtime) = (CancellationToken::new(), Handle::current());
    let stopped = stop.clone();
    // A blocked thread of the runtime would also block the signals.
    let mut working = spawn_blocking(move || runtime.block_on(stopped.run_until_cancelled(work())));
    let failed = |error: JoinError| Failure::Other(error.into());
    let signal = tokio::select! {
        done = &mut working => return Ok(done.map_err(failed)?.transpose()?.ok_or("cancelled")),
        signal = signal => signal,
    };
    stop.cancel();
    let done = match timeout(SIGNAL_LIMIT, &mut working).await {
        // The work was complete before it saw the signal.
        Ok(done) => done.map_err(failed)?.transpose()?,
        Err(_) => {
            let temporary = temporary.clone();
            let removing = spawn_blocking(move || temporary.get().map(std::fs::remove_file));
            let _ = timeout(SIGNAL_LIMIT, removing).await;
            // It can complete just before the removal. A failure can be that of the removal.
            match timeout(COMPLETION_LIMIT, &mut working).await {
                Ok(Ok(Some(Ok(done)))) => Some(done),
                _ => None,
            }
        }
    };
    Ok(done.ok_or(signal))
}

async fn save(
    file: &Path,
    force: bool,
    consistency: Consistency,
    client: &ClientArguments,
    temporary: &OnceLock<PathBuf>,
) -> Result<BackupInfo, Failure> {
    let mut new = NewFile::create(file, force)?;
    temporary.get_or_init(|| new.temporary().to_owned());
    let mut backup = client.remote()?.snapshot(consistency).await?;
    while let Some(part) = backup.next().await? {
        let written = new.write_all(&part);
        written.with_context(|| format!("cannot write {}", file.display())).map_err(Failure::Other)?;
    }
    Ok(new.finish(|received| backup::inspect(received))?)
}

fn restore(arguments: Restore) -> Result<(), Failure> {
    let config = Config::load(&arguments.config)?;
    let holders = arguments.grant_after.map_or(LostHolders::Stopped, LostHolders::StopWithin);
    let options = RestoreOptions { above: arguments.above, ..RestoreOptions::new(holders) };
    let restored = Node::builder_from(&config, arguments.node).restore(&arguments.file, options)?;
    let grant_after_ms = arguments.grant_after.map(|time| time.as_millis() as u64);
    if arguments.format.output == Format::Json {
        return output::json(&json!({
            "cluster": config.cluster, "node": arguments.node, "from_cluster": restored.from_cluster,
            "ended": restored.ended, "dropped": restored.dropped, "above": restored.above,
            "grant_after_ms": grant_after_ms,
        }));
    }
    message!(
        "restored node {} of cluster {} from a backup of cluster {}: {} leases ended, {} waiters removed, new tokens are \
         above {}",
        arguments.node,
        config.cluster,
        restored.from_cluster,
        restored.ended,
        restored.dropped,
        restored.above
    );
    if let Some(ms) = grant_after_ms {
        let time = duration::show(ms);
        message!("the cluster grants no lease until it has run for {time}");
    }
    Ok(())
}

fn show(info: &BackupInfo, format: Format) -> Result<(), Failure> {
    if format == Format::Json {
        return output::json(info);
    }
    output::table(&["BACKUP", ""], rows(info).into_iter().map(|(label, value)| vec![label.to_owned(), value]))
}

/// The rows of a table.
fn rows(info: &BackupInfo) -> [(&'static str, String); 10] {
    let state = match (info.current, info.stale_ms) {
        (true, _) => "current".to_owned(),
        (false, Some(ms)) => format!("at most {} old", duration::show(ms)),
        (false, None) => "of unknown age".to_owned(),
    };
    let members: Vec<String> = info.members.iter().map(ToString::to_string).collect();
    [
        ("CLUSTER", info.cluster_id.clone()),
        ("WRITTEN", format!("{} by node {}", info.at, info.node)),
        ("STATE", state),
        ("TERM", info.term.to_string()),
        ("APPLIED", info.applied.to_string()),
        ("MEMBERS", members.join(", ")),
        ("NAMES", info.names.to_string()),
        ("HELD", info.held.to_string()),
        ("WAITING", info.waiting.to_string()),
        ("BYTES", info.bytes.to_string()),
    ]
}

impl From<BackupError> for Failure {
    fn from(error: BackupError) -> Failure {
        match error {
            BackupError::Exists { .. } => Failure::Usage(error.to_string()),
            error => Failure::Other(anyhow!(error)),
        }
    }
}

impl From<RestoreError> for Failure {
    fn from(error: RestoreError) -> Failure {
        match error {
            RestoreError::Backup(error) => error.into(),
            error @ (RestoreError::Storage(_) | RestoreError::State(_)) => Failure::Other(anyhow!(error)),
            error => Failure::Usage(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::sync::oneshot;

    use super::*;
    use crate::api::Timestamp;

    /// A file system of a network can block for hours.
    #[tokio::test]
    async fn signal_ends_a_save_whose_disk_hangs() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a.partial");
        std::fs::write(&file, "part").expect("writable");
        let temporary = Arc::new(OnceLock::from(file.clone()));
        let ((begin, begun), (hung, hangs)) = (oneshot::channel(), mpsc::channel::<()>());
        let saving = async move || {
            begin.send(()).expect("the test waits for it");
            let _ = hangs.recv();
            Ok(())
        };
        let signal = async { begun.await.map_or("no signal", |()| "SIGTERM") };
        let ended = until_signal(saving, signal, &temporary);
        let ended = timeout(Duration::from_secs(30), ended).await;
        drop(hung);
        assert_eq!(ended.expect("the signal ends it").expect("no panic"), Err("SIGTERM"));
        assert!(!file.exists());
    }

    #[tokio::test]
    async fn save_that_is_complete_at_a_signal_counts_as_saved() {
        let (begin, begun) = oneshot::channel();
        let saving = async move || {
            begin.send(()).expect("the test waits for it");
            std::thread::sleep(Duration::from_millis(50));
            Ok(7)
        };
        let signal = async { begun.await.map_or("no signal", |()| "SIGINT") };
        let ended = until_signal(saving, signal, &Arc::default()).await;
        assert_eq!(ended.expect("no panic"), Ok(7));
    }

    /// Interrupts a save that its disk blocks until the removal of its temporary file.
    async fn interrupted(saved: Result<u32, Failure>) -> Result<Result<u32, &'static str>, Failure> {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a.partial");
        std::fs::write(&file, "part").expect("writable");
        let temporary = Arc::new(OnceLock::from(file.clone()));
        let ((begin, begun), (hear, heard)) = (oneshot::channel(), oneshot::channel());
        let saving = async move || {
            begin.send(()).expect("the test waits for it");
            let began = std::time::Instant::now();
            while file.exists() {
                assert!(began.elapsed() < Duration::from_secs(30), "the file is not removed");
                std::thread::sleep(Duration::from_millis(5));
            }
            saved
        };
        let signal = async {
            begun.await.expect("it begins");
            hear.send(()).expect("the test waits for it");
            "SIGINT"
        };
        // The paused clock does not advance by itself while a thread works.
        let pass_limit = async {
            heard.await.expect("a signal comes");
            tokio::time::advance(2 * SIGNAL_LIMIT).await;
        };
        tokio::join!(until_signal(saving, signal, &temporary), pass_limit).0
    }

    #[tokio::test(start_paused = true)]
    async fn save_that_completes_beside_its_removal_counts_as_saved() {
        assert_eq!(interrupted(Ok(7)).await.expect("no panic"), Ok(7));
    }

    #[tokio::test(start_paused = true)]
    async fn save_that_fails_by_its_removal_ends_with_the_signal() {
        let failed = Err(Failure::Other(anyhow!("no such file")));
        assert_eq!(interrupted(failed).await.expect("the signal ends it"), Err("SIGINT"));
    }

    #[test]
    fn table_shows_the_content_and_the_age_of_a_backup() {
        let mut info = BackupInfo {
            cluster_id: "prod".to_owned(),
            node: 2,
            term: 3,
            applied: 40,
            cluster_time_ms: 5_000,
            at: Timestamp::from_millis(0),
            current: true,
            stale_ms: None,
            members: vec![1, 2, 5],
            names: 60,
            held: 7,
            waiting: 8,
            bytes: 900,
        };
        let expected = [
            ("CLUSTER", "prod"),
            ("WRITTEN", "1970-01-01T00:00:00.000Z by node 2"),
            ("STATE", "current"),
            ("TERM", "3"),
            ("APPLIED", "40"),
            ("MEMBERS", "1, 2, 5"),
            ("NAMES", "60"),
            ("HELD", "7"),
            ("WAITING", "8"),
            ("BYTES", "900"),
        ];
        assert_eq!(rows(&info), expected.map(|(label, value)| (label, value.to_owned())));
        info.current = false;
        assert_eq!(rows(&info)[2].1, "of unknown age");
        info.stale_ms = Some(1_500);
        assert_eq!(rows(&info)[2].1, format!("at most {} old", duration::show(1_500)));
    }
}
