//! Log lines on their way to stderr. One thread writes them, so a full pipe blocks no task of the node.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Lines that wait for stderr. At about 200 bytes each, they take 2 MB.
const MAX_LINES: usize = 10_000;
/// Maximum time for the last lines when the process ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
const FLUSH_POLL: Duration = Duration::from_millis(1);

/// Accepts one line with each write, and never blocks. A line is lost if too many lines wait.
#[derive(Clone)]
pub struct LogQueue {
    lines: SyncSender<Vec<u8>>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    accepted: AtomicU64,
    done: AtomicU64,
    lost: AtomicU64,
}

/// Waits for the last lines when it is dropped.
pub struct LogFlush {
    counts: Arc<Counts>,
}

impl LogQueue {
    /// # Errors
    ///
    /// The operating system has no thread left.
    pub fn start(output: impl Write + Send + 'static) -> io::Result<(LogQueue, LogFlush)> {
        LogQueue::with_capacity(MAX_LINES, output)
    }

    fn with_capacity(capacity: usize, mut output: impl Write + Send + 'static) -> io::Result<(LogQueue, LogFlush)> {
        let (lines, waiting) = sync_channel::<Vec<u8>>(capacity);
        let counts = Arc::new(Counts::default());
        let (queue, flush) = (LogQueue { lines, counts: counts.clone() }, LogFlush { counts: counts.clone() });
        thread::Builder::new().name("log".to_owned()).spawn(move || {
            for line in waiting {
                if output.write_all(&line).is_err() {
                    counts.lost.fetch_add(1, Ordering::Relaxed);
                }
                counts.done.fetch_add(1, Ordering::Release);
            }
        })?;
        Ok((queue, flush))
    }
}

impl Write for LogQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // Counted before it is sent: a flush must not overlook it.
        self.counts.accepted.fetch_add(1, Ordering::Relaxed);
        if self.lines.try_send(line.to_vec()).is_err() {
            self.counts.lost.fetch_add(1, Ordering::Relaxed);
            self.counts.done.fetch_add(1, Ordering::Release);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl LogFlush {
    /// The number of lost lines.
    pub fn lost(&self) -> impl Fn() -> u64 + Send + Sync + use<> {
        let counts = self.counts.clone();
        move || counts.lost.load(Ordering::Relaxed)
    }
}

impl Drop for LogFlush {
    fn drop(&mut self) {
        let (start, accepted) = (Instant::now(), self.counts.accepted.load(Ordering::Relaxed));
        while self.counts.done.load(Ordering::Acquire) < accepted && start.elapsed() < FLUSH_TIMEOUT {
            thread::sleep(FLUSH_POLL);
        }
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::{Mutex, MutexGuard};

    use super::*;

    /// An output that blocks while a test locks it.
    #[derive(Clone, Default)]
    struct Output(Arc<Mutex<Vec<u8>>>);

    impl Output {
        fn block(&self) -> MutexGuard<'_, Vec<u8>> {
            self.0.lock()
        }
    }

    impl Write for Output {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if bytes.starts_with(b"refused") {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn blocked_output_blocks_no_writer() {
        let output = Output::default();
        let (mut queue, flush) = LogQueue::with_capacity(3, output.clone()).expect("a thread");
        let lost = flush.lost();
        let blocked = output.block();
        for number in 0..10 {
            queue.write_all(format!("{number}\n").as_bytes()).expect("no error");
        }
        // Three wait, and the thread can hold one more.
        assert!((6..=7).contains(&lost()), "{} lines are lost", lost());
        drop(blocked);
        drop(flush);
        let written = String::from_utf8(output.block().clone()).expect("UTF-8");
        assert!(["0\n1\n2\n", "0\n1\n2\n3\n"].contains(&&*written), "{written}");
    }

    #[test]
    fn lines_after_an_error_are_written() {
        let output = Output::default();
        let (mut queue, flush) = LogQueue::start(output.clone()).expect("a thread");
        let lost = flush.lost();
        for line in ["first\n", "refused\n", "last\n"] {
            queue.write_all(line.as_bytes()).expect("no error");
        }
        drop(flush);
        assert_eq!(*output.block(), b"first\nlast\n");
        assert_eq!(lost(), 1);
    }

    #[test]
    fn end_of_the_process_does_not_wait_for_a_blocked_output() {
        let output = Output::default();
        let (mut queue, flush) = LogQueue::start(output.clone()).expect("a thread");
        let blocked = output.block();
        queue.write_all(b"line\n").expect("no error");
        let start = Instant::now();
        drop(flush);
        assert!(start.elapsed() >= FLUSH_TIMEOUT, "it waits for the line: {:?}", start.elapsed());
        drop(blocked);
    }
}
