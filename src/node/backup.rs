//! Backups that this node writes: to a stream, to a file, and on schedule.

use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use metrics::{Gauge, counter, gauge};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Lifecycle, Node, NodeCore};
use crate::access::Caller;
use crate::backup::{self, BackupError, BackupHeader, BackupInfo, Folder, Freshness, NewFile};
use crate::config::BackupSchedule;
use crate::lease::ListFilter;
use crate::node::{Forward, Query, Request, RequestError, Served};
use crate::peer::Transport;
use crate::raft::State;
use crate::storage::Storage;
use crate::types::Consistency;

/// Backups that a node writes at a time, besides a scheduled one. Each keeps a view of the state in memory.
const MAX_BACKUPS: usize = 2;
/// Bytes in one chunk of a stream.
const CHUNK_BYTES: usize = 64 << 10;
/// Chunks between the encoder and a slow reader.
const CHUNKS_IN_FLIGHT: usize = 4;
/// How often a node checks whether a scheduled backup is due.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Limits for a step in the folder of the backups, and for writing one there.
const FOLDER_LIMIT: Duration = Duration::from_secs(30);
const WRITE_LIMIT: Duration = Duration::from_secs(10 * 60);
/// Longest time for which a shutdown waits for such a step.
const END_LIMIT: Duration = Duration::from_secs(5);
/// Attempts in one interval of the schedule after a failure.
const RETRIES: u64 = 10;

/// The permits of the backups of one node. Slow downloads do not delay the schedule.
pub(in crate::node) struct Backups {
    asked: Arc<Semaphore>,
    scheduled: Arc<Semaphore>,
}

impl Default for Backups {
    fn default() -> Backups {
        Backups { asked: Arc::new(Semaphore::new(MAX_BACKUPS)), scheduled: Arc::new(Semaphore::new(1)) }
    }
}

/// A backup as a stream of bytes.
pub(crate) struct BackupStream {
    pub served: Served,
    chunks: mpsc::Receiver<io::Result<Bytes>>,
}

impl BackupStream {
    /// The next bytes. After an error the stream is incomplete and ends.
    pub async fn next(&mut self) -> Option<io::Result<Bytes>> {
        self.chunks.recv().await
    }
}

/// A view of the state, with its header.
pub(crate) struct BackupView {
    pub header: BackupHeader,
    pub state: State,
    served: Served,
    permit: OwnedSemaphorePermit,
}

impl<S: Storage, T: Transport> Node<S, T> {
    /// Writes a backup to a new file, and returns its content.
    ///
    /// The file appears complete or not at all. With [`Consistency::Stale`] any node writes its own state. Otherwise only
    /// the leader can, after it has confirmed its leadership: then the backup has every change that was acknowledged
    /// before the call.
    ///
    /// # Errors
    ///
    /// The file exists or cannot be written; the node does not lead, shuts down, or already writes two backups. A write
    /// that hangs is one of the two until it ends.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop the write: the file may still appear.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(node: tenure::node::Node) -> Result<(), Box<dyn std::error::Error>> {
    /// use tenure::node::Consistency;
    ///
    /// let backup = node.save_backup("/backups/orders.backup", Consistency::Leader).await?;
    /// println!("{} leases at index {}", backup.held, backup.applied);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn save_backup(
        &self,
        file: impl Into<PathBuf>,
        consistency: Consistency,
    ) -> Result<BackupInfo, BackupError> {
        let file = file.into();
        self.inner.save_backup(consistency, file).await
    }

    /// Streams a backup. Only the leader answers, unless the consistency is stale.
    pub(crate) async fn backup(&self, consistency: Consistency) -> Result<BackupStream, RequestError> {
        let BackupView { header, state, served, permit } = self.backup_view(consistency).await?;
        let (sender, chunks) = mpsc::channel(CHUNKS_IN_FLIGHT);
        let mut out = ChunkWriter::new(sender, self.inner.lifecycle.stop.clone());
        self.inner.lifecycle.tasks.spawn_blocking(move || {
            if let Err(error) = backup::encode(&header, &state, &mut out) {
                out.fail(error);
            }
            drop(permit);
        });
        Ok(BackupStream { served, chunks })
    }

    /// The state for a backup. Only the leader answers, unless the consistency is stale.
    pub(crate) async fn backup_view(&self, consistency: Consistency) -> Result<BackupView, RequestError> {
        self.inner.backup_view(consistency, &self.inner.backups.asked).await
    }
}

/// An error and its sources. A log in JSON has only the outermost error of a field that is an error.
fn with_sources(error: &dyn Error) -> String {
    let all = std::iter::successors(Some(error), |&error| error.source());
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

impl<S: Storage, T: Transport> NodeCore<S, T> {
    async fn save_backup(self: &Arc<Self>, consistency: Consistency, file: PathBuf) -> Result<BackupInfo, BackupError> {
        let view = self.backup_view(consistency, &self.backups.asked).await;
        let view = view.map_err(|error| BackupError::Refused { source: error.into() })?;
        self.save(view, file).await
    }

    async fn save(&self, view: BackupView, file: PathBuf) -> Result<BackupInfo, BackupError> {
        let stop = self.lifecycle.stop.clone();
        let may_write = move || if stop.is_cancelled() { Err(shutting_down()) } else { Ok(()) };
        self.write_apart(file, move |file| write(file, &view, may_write)).await
    }

    /// Writes a file in a folder that may hang.
    async fn write_apart(
        &self,
        file: PathBuf,
        write: impl FnOnce(&Path) -> Result<BackupInfo, BackupError> + Send + 'static,
    ) -> Result<BackupInfo, BackupError> {
        let target = file.clone();
        let written = run_apart(&self.lifecycle.tasks, &self.lifecycle.stop, move || write(&target)).await;
        written.unwrap_or_else(|source| Err(BackupError::Io { action: "write", file, source }))
    }

    async fn backup_view(
        self: &Arc<Self>,
        consistency: Consistency,
        permits: &Arc<Semaphore>,
    ) -> Result<BackupView, RequestError> {
        let permit = permits.clone().try_acquire_owned().map_err(|_| RequestError::TooManyBackups)?;
        let served = self.confirmed(consistency).await?;
        let state = self.raft.replica().view();
        let freshness = match (consistency, served.stale_ms) {
            (Consistency::Stale, Some(ms)) => Freshness::Stale { ms },
            (Consistency::Stale, None) => Freshness::Unknown,
            _ => Freshness::Current,
        };
        let header = BackupHeader {
            cluster: self.settings.cluster.clone(),
            node: self.settings.id,
            position: state.position(),
            cluster_ms: state.machine.now(),
            wall_ms: self.requests.clock.reading().1,
            freshness,
        };
        let served = Served { applied: header.position.index, now: header.cluster_ms, ..served };
        Ok(BackupView { header, state, served, permit })
    }

    /// Waits until this node may take a view with this consistency.
    async fn confirmed(self: &Arc<Self>, consistency: Consistency) -> Result<Served, RequestError> {
        let consistency = match consistency {
            Consistency::Stale => Consistency::Stale,
            Consistency::Leader | Consistency::Linearizable => Consistency::Linearizable,
        };
        let query = Query::List { filter: ListFilter::default(), after: None, limit: 1 };
        Ok(self.route(&Caller::Program, Request::Read { query, consistency }, Forward::Never).boxed().await?.served)
    }

    /// Writes a backup whenever this node leads and the newest one in the folder is too old. `data` is the data directory of
    /// this node.
    pub(in crate::node) async fn back_up(self: Arc<Self>, schedule: BackupSchedule, data: PathBuf) {
        let folder = FolderWork::new(Folder::new(&schedule, &self.settings.cluster), &self.lifecycle);
        self.back_up_to(folder, schedule, data).await;
    }

    async fn back_up_to(self: Arc<Self>, folder: FolderWork, schedule: BackupSchedule, data: PathBuf) {
        let age = AgeGauge(gauge!("tenure_backup_age_seconds"));
        // Both exist from the start, so that a monitor sees their first increase.
        let [written, failed] =
            ["written", "failed"].map(|result| counter!("tenure_backups_total", "result" => result));
        let mut newest = None;
        // Not by the wall clock, which can step. It also bounds the attempts if the folder lists a new file late.
        let mut next_attempt = Instant::now();
        loop {
            let (_, now_ms) = self.requests.clock.reading();
            // While the folder does not answer, the age of the last known backup goes on. A folder that cannot be read has
            // no backup.
            if let Ok(found) = folder.run(FOLDER_LIMIT, move |folder| folder.newest_ms(now_ms)).await {
                newest = found.ok().flatten();
            }
            age.set(newest.map(|at| now_ms.saturating_sub(at)));
            let is_due = newest.is_none_or(|at| now_ms.saturating_sub(at) >= schedule.every_ms);
            let began = Instant::now();
            if is_due && began >= next_attempt && self.requests.clock.leader_term().is_some() {
                let (result, pause_ms) = match self.write_scheduled(&folder, &data).await {
                    Ok(()) => (&written, schedule.every_ms),
                    Err(error) => {
                        tracing::error!(error = %with_sources(&error), "the scheduled backup failed");
                        (&failed, schedule.every_ms / RETRIES)
                    }
                };
                next_attempt = began + Duration::from_millis(pause_ms);
                result.increment(1);
                continue;
            }
            tokio::time::sleep(CHECK_INTERVAL.min(Duration::from_millis(schedule.every_ms / RETRIES))).await;
        }
    }

    async fn write_scheduled(self: &Arc<Self>, folder_work: &FolderWork, data: &Path) -> Result<(), BackupError> {
        let folder = &folder_work.folder;
        let failed = |source| BackupError::Io { action: "use", file: folder.dir().to_owned(), source };
        folder_work.run(FOLDER_LIMIT, Folder::create).await.and_then(|created| created).map_err(failed)?;
        let view = self.backup_view(Consistency::Leader, &self.backups.scheduled).await;
        let view = view.map_err(|error| BackupError::Refused { source: error.into() })?;
        let file = folder.file(view.header.position, view.header.wall_ms);
        // Also here, because a write that takes longer than its limit still completes.
        folder_work.prune(&file).await;
        let (written, data) = (file.clone(), data.to_owned());
        let write = move |folder: &Folder| {
            let is_shared = folder.is_on_the_disk_of(&data).map_err(|source| BackupError::Io {
                action: "compare the disk of the backups with that of",
                file: data,
                source,
            })?;
            write(&file, &view, || if is_shared { folder.has_space() } else { Ok(()) })
        };
        let info = folder_work.run(WRITE_LIMIT, write).await.map_err(failed)??;
        tracing::info!(applied = info.applied, held = info.held, bytes = info.bytes, "wrote a scheduled backup");
        folder_work.prune(&written).await;
        Ok(())
    }
}

/// The age of the newest scheduled backup, infinite without one. The program can outlive its node, which then writes no
/// backups.
struct AgeGauge(Gauge);

impl AgeGauge {
    fn set(&self, ms: Option<u64>) {
        self.0.set(ms.map_or(f64::INFINITY, |ms| ms as f64 / 1e3));
    }
}

impl Drop for AgeGauge {
    fn drop(&mut self) {
        self.set(None);
    }
}

/// Runs work that may hang on a thread of its own. The shutdown of the node waits for it for at most [`END_LIMIT`].
async fn run_apart<R: Send + 'static>(
    tasks: &TaskTracker,
    stop: &CancellationToken,
    work: impl FnOnce() -> R + Send + 'static,
) -> io::Result<R> {
    let worked = tokio::task::spawn_blocking(work);
    let (done, is_done) = oneshot::channel();
    let stop = stop.clone();
    tasks.spawn(async move {
        let late = async {
            stop.cancelled().await;
            tokio::time::sleep(END_LIMIT).await;
        };
        tokio::select! {
            // The caller may have given up.
            worked = worked => drop(done.send(worked)),
            () = late => {}
        }
    });
    let worked = is_done.await.map_err(|_| shutting_down())?;
    worked.map_err(io::Error::other)
}

fn shutting_down() -> io::Error {
    io::Error::other("the node is shutting down")
}

/// The work in the folder of the backups. A file system on a network can hang: then the work fails after its limit, and
/// no other work starts before it has ended.
struct FolderWork {
    folder: Folder,
    one_at_a_time: Arc<Semaphore>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl FolderWork {
    fn new<S: Storage>(folder: Folder, lifecycle: &Lifecycle<S>) -> FolderWork {
        let (tasks, stop) = (lifecycle.tasks.clone(), lifecycle.stop.clone());
        FolderWork { folder, one_at_a_time: Arc::new(Semaphore::new(1)), tasks, stop }
    }

    /// Removes old backups. One that stays is no failure of the backup `written`.
    async fn prune(&self, written: &Path) {
        let written = written.to_owned();
        let pruned = self.run(FOLDER_LIMIT, move |folder| folder.prune(&written)).await.and_then(|pruned| pruned);
        if let Err(error) = pruned {
            tracing::warn!(%error, dir = %self.folder.dir().display(), "cannot remove an old backup");
        }
    }

    async fn run<R: Send + 'static>(
        &self,
        limit: Duration,
        work: impl FnOnce(&Folder) -> R + Send + 'static,
    ) -> io::Result<R> {
        let hangs =
            || io::Error::new(io::ErrorKind::TimedOut, format!("not done within {limit:?}: the file system may hang"));
        let worked = tokio::time::timeout(limit, async {
            let permit = self.one_at_a_time.clone().acquire_owned().await.expect("the semaphore is never closed");
            let folder = self.folder.clone();
            let work = move || {
                let done = work(&folder);
                drop(permit);
                done
            };
            run_apart(&self.tasks, &self.stop, work).await
        });
        worked.await.unwrap_or_else(|_| Err(hangs()))
    }
}

/// Writes a backup to a file and reads it back. `may_write` permits each chunk.
fn write(file: &Path, view: &BackupView, may_write: impl FnMut() -> io::Result<()>) -> Result<BackupInfo, BackupError> {
    let out = Permitted { file: NewFile::create(file, false)?, may_write };
    let mut out = io::BufWriter::with_capacity(CHUNK_BYTES, out);
    let written = backup::encode(&view.header, &view.state, &mut out);
    written.map_err(|source| BackupError::Io { action: "write", file: file.to_owned(), source })?;
    let (out, _) = out.into_parts();
    out.file.finish(|temporary| {
        backup::verify(temporary)?;
        backup::info(temporary, view.header.clone(), &view.state)
    })
}

/// A file to which each write needs a permission.
struct Permitted<F> {
    file: NewFile,
    may_write: F,
}

impl<F: FnMut() -> io::Result<()>> Write for Permitted<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (self.may_write)()?;
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Collects bytes in chunks and sends them to an async reader.
struct ChunkWriter {
    chunk: Vec<u8>,
    chunks: mpsc::Sender<io::Result<Bytes>>,
    stop: CancellationToken,
    runtime: Handle,
}

impl ChunkWriter {
    fn new(chunks: mpsc::Sender<io::Result<Bytes>>, stop: CancellationToken) -> ChunkWriter {
        ChunkWriter { chunk: Vec::with_capacity(CHUNK_BYTES), chunks, stop, runtime: Handle::current() }
    }

    /// Waits for the reader. The shutdown of the node ends the wait.
    fn send(&self, chunk: io::Result<Bytes>) -> io::Result<()> {
        self.runtime.block_on(async {
            tokio::select! {
                sent = self.chunks.send(chunk) => sent.map_err(|_| io::Error::other("the reader left")),
                () = self.stop.cancelled() => Err(shutting_down()),
            }
        })
    }

    fn fail(&self, error: io::Error) {
        let _ = self.send(Err(error));
    }
}

impl Write for ChunkWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = CHUNK_BYTES - self.chunk.len();
        let taken = &bytes[..bytes.len().min(room)];
        self.chunk.extend_from_slice(taken);
        if self.chunk.len() == CHUNK_BYTES {
            self.flush()?;
        }
        Ok(taken.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let chunk = std::mem::replace(&mut self.chunk, Vec::with_capacity(CHUNK_BYTES));
        self.send(Ok(chunk.into()))
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests;
