//! Writes a snapshot as a stream of bytes with bounded memory.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use super::{Done, MAX_SNAPSHOT_META_BYTES, SNAPSHOT_CHUNK_BYTES, SnapshotManifest, Storage, StorageError};

/// Maximum chunks between the writer and the disk. They are a small part of one group commit, so that a log entry
/// behind them does not wait long.
const CHUNKS_IN_FLIGHT: usize = 16;

/// Splits a stream of bytes into chunks and writes them to the store.
///
/// A node that encodes its own state uses the blocking methods on a separate thread. A node that receives a snapshot
/// from a peer uses the async ones. Dropping an unfinished writer removes its chunks. Readers do not see the snapshot
/// before [`finish`](SnapshotWriter::finish) reports that the manifest is durable.
pub struct SnapshotWriter<S: Storage> {
    storage: S,
    id: u64,
    chunks: u64,
    bytes: u64,
    crc: crc32fast::Hasher,
    buffer: Vec<u8>,
    window: Arc<Window>,
    /// The number of bytes when the last read-back matched.
    verified_bytes: Option<u64>,
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
            verified_bytes: None,
            finished: false,
        }
    }

    /// The id of the snapshot.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The number of bytes written so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// crc32 of the bytes written so far. A receiver compares it with the sender's before it finishes.
    pub fn crc(&self) -> u32 {
        self.crc.clone().finalize()
    }

    /// Appends bytes and blocks while too many chunks are in flight. Not for async code.
    ///
    /// # Errors
    ///
    /// The failure of the store.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<(), StorageError> {
        while !bytes.is_empty() {
            bytes = self.fill(bytes);
            if self.is_full() {
                self.window.acquire_blocking()?;
                self.send_chunk();
            }
        }
        Ok(())
    }

    /// Appends bytes and waits while too many chunks are in flight.
    ///
    /// # Errors
    ///
    /// The failure of the store.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: a dropped call may have appended some of `bytes`. Drop the writer then.
    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<(), StorageError> {
        while !bytes.is_empty() {
            bytes = self.fill(bytes);
            if self.is_full() {
                self.window.acquire().await?;
                self.send_chunk();
            }
        }
        Ok(())
    }

    /// Waits until the store has written all bytes, reads them back and passes each chunk to `visit`. Blocks: not for
    /// async code.
    ///
    /// # Errors
    ///
    /// [`StorageError::SnapshotDiffers`] if the stored bytes differ from the written ones; the failure of the store;
    /// the error of `visit`.
    pub fn read_back<E: From<StorageError>>(&mut self, mut visit: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        if !self.buffer.is_empty() {
            self.window.acquire_blocking()?;
            self.send_chunk();
        }
        self.window.wait_until_empty()?;
        let (mut bytes, mut crc) = (0, crc32fast::Hasher::new());
        for number in 0..self.chunks {
            let chunk = self.storage.read_unfinished_snapshot(self.id, number)?;
            bytes += chunk.len() as u64;
            crc.update(&chunk);
            visit(&chunk)?;
        }
        if (bytes, crc.finalize()) != (self.bytes, self.crc()) {
            return Err(StorageError::SnapshotDiffers { id: self.id, expected: self.bytes, found: bytes }.into());
        }
        self.verified_bytes = Some(self.bytes);
        Ok(())
    }

    /// Queues the manifest with `meta` from the caller. `done` runs after the snapshot with its manifest is durable.
    ///
    /// Unless the caller has [read back](Self::read_back) all bytes, this reads them back first, which blocks.
    ///
    /// # Errors
    ///
    /// [`StorageError::SnapshotTooLarge`] if `meta` exceeds [`MAX_SNAPSHOT_META_BYTES`], and the errors of
    /// [`read_back`](Self::read_back). `done` does not run then.
    pub fn finish(mut self, meta: Vec<u8>, done: Done) -> Result<SnapshotManifest, StorageError> {
        if meta.len() > MAX_SNAPSHOT_META_BYTES {
            let (bytes, max) = (meta.len(), MAX_SNAPSHOT_META_BYTES);
            return Err(StorageError::SnapshotTooLarge { what: "meta", bytes, max });
        }
        if self.verified_bytes != Some(self.bytes) {
            self.read_back(|_| Ok::<_, StorageError>(()))?;
        }
        self.finished = true;
        let (chunks, bytes, crc) = (self.chunks, self.bytes, self.crc());
        let manifest = SnapshotManifest { id: self.id, meta, chunks, bytes, crc };
        self.storage.finish_snapshot(manifest.clone(), done);
        Ok(manifest)
    }

    /// Calls [`finish`](SnapshotWriter::finish) and blocks until the snapshot is durable.
    ///
    /// # Errors
    ///
    /// The errors of [`finish`](SnapshotWriter::finish), or the failure of the write.
    pub fn finish_blocking(self, meta: Vec<u8>) -> Result<SnapshotManifest, StorageError> {
        let (done, durable) = std::sync::mpsc::sync_channel(1);
        let manifest = self.finish(meta, Box::new(move |result| drop(done.send(result))))?;
        durable.recv().unwrap_or(Err(StorageError::Closed))?;
        Ok(manifest)
    }

    /// Fills the current chunk and returns the bytes that do not fit.
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
        let in_flight = InFlight(Some(window));
        self.storage.write_snapshot_chunk(self.id, number, chunk, Box::new(move |result| in_flight.end(result)));
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

/// A chunk between the writer and the disk. A store whose thread panics may drop its callback.
struct InFlight(Option<Arc<Window>>);

impl InFlight {
    fn end(mut self, result: Result<(), StorageError>) {
        self.0.take().expect("a chunk ends once").release(result);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(window) = self.0.take() {
            window.release(Err(StorageError::Closed));
        }
    }
}

/// Bounds the chunks between the writer and the disk.
#[derive(Default)]
struct Window {
    state: Mutex<WindowState>,
    released: Condvar,
    released_async: Notify,
}

#[derive(Default)]
struct WindowState {
    in_flight: usize,
    failure: Option<StorageError>,
}

impl Window {
    fn acquire_blocking(&self) -> Result<(), StorageError> {
        let mut state = self.state.lock();
        while !state.try_acquire()? {
            self.released.wait(&mut state);
        }
        Ok(())
    }

    async fn acquire(&self) -> Result<(), StorageError> {
        while !self.state.lock().try_acquire()? {
            // `Notify` keeps a permit if a chunk is released between the check and the wait.
            self.released_async.notified().await;
        }
        Ok(())
    }

    fn wait_until_empty(&self) -> Result<(), StorageError> {
        let mut state = self.state.lock();
        while state.in_flight > 0 {
            self.released.wait(&mut state);
        }
        state.failure.clone().map_or(Ok(()), Err)
    }

    fn release(&self, result: Result<(), StorageError>) {
        let mut state = self.state.lock();
        state.in_flight -= 1;
        if let Err(error) = result {
            state.failure.get_or_insert(error);
        }
        drop(state);
        self.released.notify_one();
        self.released_async.notify_one();
    }
}

impl WindowState {
    fn try_acquire(&mut self) -> Result<bool, StorageError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let free = self.in_flight < CHUNKS_IN_FLIGHT;
        self.in_flight += usize::from(free);
        Ok(free)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn dropped_chunk_fails_the_writer() {
        let window = Arc::<Window>::default();
        window.acquire_blocking().expect("no chunk is in flight");
        let dropped = InFlight(Some(window.clone()));
        let waiting = std::thread::spawn(move || window.wait_until_empty());
        drop(dropped);
        assert_eq!(waiting.join().expect("no panic"), Err(StorageError::Closed));
    }

    /// More chunks would delay a log entry behind them.
    #[test]
    fn writer_waits_while_16_chunks_are_in_flight() {
        let window = Window::default();
        for _ in 0..16 {
            assert_eq!(window.acquire().now_or_never(), Some(Ok(())));
        }
        let mut next = Box::pin(window.acquire());
        assert_eq!(next.as_mut().now_or_never(), None);
        window.release(Ok(()));
        assert_eq!(next.now_or_never(), Some(Ok(())));
        assert_eq!(window.acquire().now_or_never(), None, "one chunk was released");
    }
}
