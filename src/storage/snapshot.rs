//! Writing a snapshot as a stream of bytes, with bounded memory on its way to the disk.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tokio::sync::{Notify, oneshot};

use super::{Done, MAX_SNAPSHOT_META_BYTES, SNAPSHOT_CHUNK_BYTES, SnapshotManifest, Storage, StorageError};

/// Most chunks between the writer and the disk: a small part of one group commit, so that a log entry that comes in
/// between does not wait long.
const CHUNKS_IN_FLIGHT: usize = 16;

/// Cuts a stream of bytes into chunks and hands them to the store.
///
/// Used by a node that encodes its own state (blocking, on a thread of its own) and by one that receives a snapshot
/// from a peer (async). Dropping it unfinished removes what it wrote. Nothing is seen of it before
/// [`finish`](SnapshotWriter::finish) reports that the manifest is durable.
pub struct SnapshotWriter<S: Storage> {
    storage: S,
    id: u64,
    chunks: u64,
    bytes: u64,
    crc: crc32fast::Hasher,
    buffer: Vec<u8>,
    window: Arc<Window>,
    /// How many bytes were read back as they were taken.
    checked: Option<u64>,
    finished: bool,
}

impl<S: Storage> SnapshotWriter<S> {
    pub(crate) fn new(storage: S, id: u64) -> SnapshotWriter<S> {
        SnapshotWriter {
            storage,
            id,
            chunks: 0,
            bytes: 0,
            crc: crc32fast::Hasher::new(),
            buffer: Vec::with_capacity(SNAPSHOT_CHUNK_BYTES),
            window: Arc::default(),
            checked: None,
            finished: false,
        }
    }

    /// The id that its manifest will have.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// How many bytes it has taken.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// crc32 of the bytes it has taken. A receiver compares it with the sender's before it finishes.
    pub fn crc(&self) -> u32 {
        self.crc.clone().finalize()
    }

    /// Takes bytes; waits while too many chunks are on their way. Blocks: not for async code.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<(), StorageError> {
        while !bytes.is_empty() {
            bytes = self.fill(bytes);
            if self.is_full() {
                self.window.enter_blocking()?;
                self.send_chunk();
            }
        }
        Ok(())
    }

    /// Takes bytes; waits while too many chunks are on their way.
    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<(), StorageError> {
        while !bytes.is_empty() {
            bytes = self.fill(bytes);
            if self.is_full() {
                self.window.enter().await?;
                self.send_chunk();
            }
        }
        Ok(())
    }

    /// Waits until the store has written what was taken, and hands it out as it is stored. Blocks: not for async code.
    ///
    /// # Errors
    ///
    /// The store has something else than was taken, or `see` refuses it.
    pub fn read_back<E: From<StorageError>>(&mut self, mut see: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        if !self.buffer.is_empty() {
            self.window.enter_blocking()?;
            self.send_chunk();
        }
        self.window.wait_until_empty()?;
        let (mut bytes, mut crc) = (0, crc32fast::Hasher::new());
        for number in 0..self.chunks {
            let chunk = self.storage.read_unfinished_snapshot(self.id, number)?;
            bytes += chunk.len() as u64;
            crc.update(&chunk);
            see(&chunk)?;
        }
        if (bytes, crc.finalize()) != (self.bytes, self.crc()) {
            return Err(StorageError::SnapshotDiffers { id: self.id, expected: self.bytes, found: bytes }.into());
        }
        self.checked = Some(self.bytes);
        Ok(())
    }

    /// Queues the manifest, with what the caller says about it; before that all is [read back](Self::read_back), which
    /// blocks unless it has been. `done` is called once the manifest, and so the snapshot, is durable; not when this fails.
    pub fn finish(mut self, meta: Vec<u8>, done: Done) -> Result<SnapshotManifest, StorageError> {
        if meta.len() > MAX_SNAPSHOT_META_BYTES {
            let (bytes, max) = (meta.len(), MAX_SNAPSHOT_META_BYTES);
            return Err(StorageError::SnapshotTooLarge { what: "meta", bytes, max });
        }
        if self.checked != Some(self.bytes) {
            self.read_back(|_| Ok::<_, StorageError>(()))?;
        }
        self.finished = true;
        let (chunks, bytes, crc) = (self.chunks, self.bytes, self.crc());
        let manifest = SnapshotManifest { id: self.id, meta, chunks, bytes, crc };
        self.storage.finish_snapshot(manifest.clone(), done);
        Ok(manifest)
    }

    /// [`finish`](SnapshotWriter::finish), and waits until the snapshot is durable.
    pub async fn finish_durable(self, meta: Vec<u8>) -> Result<SnapshotManifest, StorageError> {
        let (done, durable) = oneshot::channel();
        let manifest = self.finish(meta, Box::new(move |result| drop(done.send(result))))?;
        durable.await.unwrap_or(Err(StorageError::Closed))?;
        Ok(manifest)
    }

    /// [`finish`](SnapshotWriter::finish), and blocks until the snapshot is durable.
    #[cfg(test)]
    pub fn finish_blocking(self, meta: Vec<u8>) -> Result<SnapshotManifest, StorageError> {
        let (done, durable) = std::sync::mpsc::sync_channel(1);
        let manifest = self.finish(meta, Box::new(move |result| drop(done.send(result))))?;
        durable.recv().unwrap_or(Err(StorageError::Closed))?;
        Ok(manifest)
    }

    /// Takes as much as still fits into the current chunk and returns the rest.
    fn fill<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let (now, later) = bytes.split_at(bytes.len().min(SNAPSHOT_CHUNK_BYTES - self.buffer.len()));
        self.buffer.extend_from_slice(now);
        self.crc.update(now);
        self.bytes += now.len() as u64;
        later
    }

    fn is_full(&self) -> bool {
        self.buffer.len() == SNAPSHOT_CHUNK_BYTES
    }

    fn send_chunk(&mut self) {
        let chunk = Bytes::from(std::mem::replace(&mut self.buffer, Vec::with_capacity(SNAPSHOT_CHUNK_BYTES)));
        let window = Arc::clone(&self.window);
        let number = self.chunks;
        self.chunks += 1;
        self.storage.write_snapshot_chunk(self.id, number, chunk, Box::new(move |result| window.leave(result)));
    }
}

impl<S: Storage> io::Write for SnapshotWriter<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push(bytes).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<S: Storage> Drop for SnapshotWriter<S> {
    fn drop(&mut self) {
        if !self.finished {
            self.storage.abandon_snapshot(self.id);
        }
    }
}

/// How many chunks are between the writer and the disk.
#[derive(Default)]
struct Window {
    state: Mutex<WindowState>,
    left: Condvar,
    left_async: Notify,
}

#[derive(Default)]
struct WindowState {
    in_flight: usize,
    failure: Option<StorageError>,
}

impl Window {
    fn enter_blocking(&self) -> Result<(), StorageError> {
        let mut state = self.state.lock();
        while !state.try_enter()? {
            self.left.wait(&mut state);
        }
        Ok(())
    }

    async fn enter(&self) -> Result<(), StorageError> {
        while !self.state.lock().try_enter()? {
            // A permit is kept for us when a chunk leaves between the look and the wait.
            self.left_async.notified().await;
        }
        Ok(())
    }

    fn wait_until_empty(&self) -> Result<(), StorageError> {
        let mut state = self.state.lock();
        while state.in_flight > 0 {
            self.left.wait(&mut state);
        }
        state.failure.clone().map_or(Ok(()), Err)
    }

    fn leave(&self, result: Result<(), StorageError>) {
        let mut state = self.state.lock();
        state.in_flight -= 1;
        if let Err(error) = result {
            state.failure.get_or_insert(error);
        }
        drop(state);
        self.left.notify_one();
        self.left_async.notify_one();
    }
}

impl WindowState {
    fn try_enter(&mut self) -> Result<bool, StorageError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let free = self.in_flight < CHUNKS_IN_FLIGHT;
        self.in_flight += usize::from(free);
        Ok(free)
    }
}
