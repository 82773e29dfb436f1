//! The answers of a connection that are not yet written. One task writes them, several in one system call.

use std::collections::VecDeque;
use std::io;

use bytes::BytesMut;
use parking_lot::Mutex;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::frame::Frame;

/// The frames of one write have at most this size, unless the first one is larger.
const MAX_WRITE: usize = 64 << 10;

/// The frames of a connection that are not yet written. `T` is kept with a frame until the frame is written.
pub(super) struct Outbox<T> {
    frames: Mutex<VecDeque<(Frame, T)>>,
    added: Notify,
}

impl<T> Outbox<T> {
    pub fn new() -> Outbox<T> {
        Outbox { frames: Mutex::default(), added: Notify::new() }
    }

    /// Adds a frame behind all others.
    pub fn add(&self, frame: Frame, kept: T) {
        self.frames.lock().push_back((frame, kept));
        self.added.notify_one();
    }

    /// Writes all frames, in the order in which they were added, until `stop` or an error. After a stop, it still writes
    /// what the kernel takes at once. Nothing may be written afterwards: the last frame can be incomplete.
    pub async fn write_to<W: AsyncWrite + Unpin>(&self, mut writer: W, stop: &CancellationToken) -> io::Result<()> {
        let mut bytes = BytesMut::new();
        loop {
            let kept = self.next_frames(&mut bytes);
            if bytes.is_empty() {
                if stop.is_cancelled() {
                    return Ok(());
                }
                let added = async {
                    self.added.notified().await;
                    // Other tasks that are ready to run can add their frames to this write.
                    tokio::task::yield_now().await;
                };
                stop.run_until_cancelled(added).await;
                continue;
            }
            let write = async {
                writer.write_all(&bytes).await?;
                // TLS buffers a part of a frame if the socket is full.
                writer.flush().await
            };
            tokio::select! {
                biased;
                written = write => written?,
                () = stop.cancelled() => return Ok(()),
            }
            drop(kept);
            bytes.clear();
            if bytes.capacity() > 2 * MAX_WRITE {
                bytes = BytesMut::new();
            }
        }
    }

    /// Appends the next frames to the empty `bytes`. Returns what was kept with them.
    fn next_frames(&self, bytes: &mut BytesMut) -> Vec<T> {
        let mut kept = Vec::new();
        while let Some((frame, one)) = self.next_frame(bytes.len()) {
            frame.encode(bytes);
            kept.push(one);
        }
        kept
    }

    /// The next frame, unless it is too large for a write that has `before` bytes.
    fn next_frame(&self, before: usize) -> Option<(Frame, T)> {
        let fits = |next: &mut (Frame, T)| before == 0 || before + next.0.size() <= MAX_WRITE;
        self.frames.lock().pop_front_if(fits)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll};
    use std::time::Duration;

    use bytes::Bytes;
    use tokio::io::AsyncReadExt;

    use super::super::frame::{self, FrameKind};
    use super::*;

    /// A timeout that only a hang exceeds.
    const HANG_TIMEOUT: Duration = Duration::from_secs(20);

    fn frame(id: u64, bytes: usize) -> Frame {
        Frame { kind: FrameKind::Raft, id, body: vec![id as u8; bytes].into() }
    }

    /// Keeps the bytes of each write.
    #[derive(Clone, Default)]
    struct Writes(Arc<Mutex<Vec<Bytes>>>);

    impl AsyncWrite for Writes {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.0.lock().push(Bytes::copy_from_slice(bytes));
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// The ids of the frames of each write.
    async fn ids(writes: &Writes) -> Vec<Vec<u64>> {
        let writes = writes.0.lock().clone();
        let mut ids = Vec::new();
        for write in writes {
            let (mut reader, mut of_write) = (&write[..], Vec::new());
            while let Some(frame) = frame::read(&mut reader, usize::MAX / 2).await.expect("a write has whole frames") {
                assert!(frame.body.iter().all(|byte| *byte == frame.id as u8), "the bytes of another frame");
                of_write.push(frame.id);
            }
            ids.push(of_write);
        }
        ids
    }

    #[tokio::test]
    async fn frames_of_ready_tasks_share_a_write() {
        let (outbox, writes, stop) = (Arc::new(Outbox::new()), Writes::default(), CancellationToken::new());
        let writing = tokio::spawn({
            let (outbox, writes, stop) = (outbox.clone(), writes.clone(), stop.clone());
            async move { outbox.write_to(writes, &stop).await }
        });
        // The writer waits for the first frame. When it wakes, two tasks are ready to add theirs.
        tokio::task::yield_now().await;
        outbox.add(frame(1, 8), ());
        for id in 2..=3 {
            let outbox = outbox.clone();
            tokio::spawn(async move { outbox.add(frame(id, 8), ()) });
        }
        let written = async {
            while writes.0.lock().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(HANG_TIMEOUT, written).await.expect("the frames are written");
        assert_eq!(ids(&writes).await, [[1, 2, 3]]);
        stop.cancel();
        writing.await.expect("no panic").expect("a stop is no error");
    }

    #[tokio::test]
    async fn writes_are_limited_and_keep_the_order() {
        let (outbox, writes, stop) = (Outbox::new(), Writes::default(), CancellationToken::new());
        let kept = Arc::new(());
        for (id, bytes) in [(1, MAX_WRITE / 2), (2, MAX_WRITE / 2), (3, 2 * MAX_WRITE), (4, 8), (5, 8)] {
            outbox.add(frame(id, bytes), kept.clone());
        }
        let all_written = async {
            while Arc::strong_count(&kept) > 1 {
                tokio::task::yield_now().await;
            }
            stop.cancel();
        };
        let both = async { tokio::join!(outbox.write_to(writes.clone(), &stop), all_written) };
        let (written, ()) = tokio::time::timeout(HANG_TIMEOUT, both).await.expect("all frames are written");
        written.expect("a stop is no error");
        assert_eq!(ids(&writes).await, [vec![1], vec![2], vec![3], vec![4, 5]]);
    }

    /// The permit of a request is kept until its answer is written: it bounds the answers that a caller does not read.
    #[tokio::test]
    async fn blocked_write_keeps_what_belongs_to_its_frame() {
        let (outbox, stop, kept) = (Arc::new(Outbox::new()), CancellationToken::new(), Arc::new(()));
        let (near, mut far) = tokio::io::duplex(100);
        for id in 1..=2 {
            outbox.add(frame(id, MAX_WRITE), kept.clone());
        }
        let writing = tokio::spawn({
            let (outbox, stop) = (outbox.clone(), stop.clone());
            async move { outbox.write_to(near, &stop).await }
        });
        for left in [2, 1] {
            tokio::task::yield_now().await;
            assert_eq!(Arc::strong_count(&kept), 1 + left);
            let read = tokio::time::timeout(HANG_TIMEOUT, frame::read(&mut far, MAX_WRITE)).await;
            let read = read.expect("a frame in time").expect("a whole frame").expect("the connection is open");
            assert_eq!(read.id, 3 - left as u64);
        }
        for id in 3..=4 {
            outbox.add(frame(id, MAX_WRITE), kept.clone());
        }
        far.read_u8().await.expect("the third frame begins");
        stop.cancel();
        let mut rest = Vec::new();
        let ended = async { tokio::join!(writing, far.read_to_end(&mut rest)) };
        let (written, read) = tokio::time::timeout(HANG_TIMEOUT, ended).await.expect("a stop ends the writer");
        written.expect("no panic").expect("a stop is no error");
        read.expect("readable");
        assert!(rest.len() < MAX_WRITE, "a stop cuts the frame, and no frame follows it");
    }

    /// The requests that end just before a stop have their answers.
    #[tokio::test]
    async fn stop_does_not_drop_a_frame_that_can_be_written() {
        let (outbox, writes, stop) = (Arc::new(Outbox::new()), Writes::default(), CancellationToken::new());
        let writing = tokio::spawn({
            let (outbox, writes, stop) = (outbox.clone(), writes.clone(), stop.clone());
            async move { outbox.write_to(writes, &stop).await }
        });
        tokio::task::yield_now().await;
        outbox.add(frame(1, 8), ());
        stop.cancel();
        let ended = tokio::time::timeout(HANG_TIMEOUT, writing).await.expect("a stop ends the writer");
        ended.expect("no panic").expect("a stop is no error");
        assert_eq!(ids(&writes).await, [[1]]);
    }

    #[tokio::test]
    async fn failed_write_ends_the_writer() {
        let (near, far) = tokio::io::duplex(100);
        drop(far);
        let outbox = Outbox::new();
        outbox.add(frame(1, 8), ());
        outbox.write_to(near, &CancellationToken::new()).await.expect_err("the other end is closed");
    }
}
