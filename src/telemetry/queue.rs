//! Log lines on their way to stderr. One thread writes them, so a full pipe blocks no task of the node.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// The lines that wait for stderr, and their bytes.
const MAX_LINES: usize = 10_000;
const MAX_BYTES: usize = 4 << 20;
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
    /// Lines that the thread has written, or could not write.
    done: AtomicU64,
    lost: AtomicU64,
    waiting_bytes: AtomicUsize,
}

/// Writes each panic of this process to the queue, after the lines before it.
pub fn report_panics(queue: LogQueue) {
    std::panic::set_hook(Box::new(move |panic| {
        let thread = thread::current();
        let backtrace = match Backtrace::capture() {
            backtrace if backtrace.status() == BacktraceStatus::Captured => format!("\n{backtrace}"),
            _ => String::new(),
        };
        let text = format!("thread '{}' {panic}{backtrace}\n", thread.name().unwrap_or("without a name"));
        // The queue accepts each write.
        let _ = queue.clone().write(text.as_bytes());
    }));
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
                counts.waiting_bytes.fetch_sub(line.len(), Ordering::Relaxed);
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
        let waiting = self.counts.waiting_bytes.fetch_add(line.len(), Ordering::Relaxed);
        if waiting + line.len() > MAX_BYTES || self.lines.try_send(line.to_vec()).is_err() {
            self.counts.waiting_bytes.fetch_sub(line.len(), Ordering::Relaxed);
            self.counts.accepted.fetch_sub(1, Ordering::Relaxed);
            self.counts.lost.fetch_add(1, Ordering::Relaxed);
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

    /// Waits until all lines are written, at most 1 s.
    pub fn wait(&self) {
        let start = Instant::now();
        let waits = || self.counts.done.load(Ordering::Acquire) < self.counts.accepted.load(Ordering::Relaxed);
        while waits() && start.elapsed() < FLUSH_TIMEOUT {
            thread::sleep(FLUSH_POLL);
        }
    }
}

impl Drop for LogFlush {
    fn drop(&mut self) {
        self.wait();
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::{Mutex, MutexGuard};

    use super::*;

    /// An output that blocks while a test locks it.
    #[derive(Clone, Default)]
    struct Output {
        written: Arc<Mutex<Vec<u8>>>,
        writes: Arc<AtomicUsize>,
    }

    impl Output {
        fn block(&self) -> MutexGuard<'_, Vec<u8>> {
            self.written.lock()
        }

        /// Waits until the thread writes its first line.
        fn wait_for_a_write(&self) {
            while self.writes.load(Ordering::Relaxed) == 0 {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    impl Write for Output {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.writes.fetch_add(1, Ordering::Relaxed);
            if bytes.starts_with(b"refused") {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.written.lock().extend_from_slice(bytes);
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
        queue.write_all(b"0\n").expect("no error");
        output.wait_for_a_write();
        for number in 1..10 {
            queue.write_all(format!("{number}\n").as_bytes()).expect("no error");
        }
        assert_eq!(lost(), 6, "three lines wait behind the first one");
        drop(blocked);
        drop(flush);
        assert_eq!(*output.block(), b"0\n1\n2\n3\n");
    }

    #[test]
    fn waiting_lines_take_limited_memory() {
        let output = Output::default();
        let (mut queue, flush) = LogQueue::start(output.clone()).expect("a thread");
        let lost = flush.lost();
        let blocked = output.block();
        for _ in 0..5 {
            queue.write_all(&vec![b'x'; MAX_BYTES / 4]).expect("no error");
        }
        assert_eq!(lost(), 1);
        drop(blocked);
        flush.wait();
        queue.write_all(&vec![b'x'; MAX_BYTES]).expect("no error");
        drop(flush);
        assert_eq!((output.block().len(), lost()), (2 * MAX_BYTES, 1));
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
    fn refused_lines_leave_room_for_later_ones() {
        let output = Output::default();
        let (mut queue, flush) = LogQueue::start(output.clone()).expect("a thread");
        let mut line = b"refused".to_vec();
        line.resize(MAX_BYTES / 4, b'x');
        for _ in 0..5 {
            queue.write_all(&line).expect("no error");
            flush.wait();
        }
        queue.write_all(b"last\n").expect("no error");
        drop(flush);
        assert_eq!(*output.block(), b"last\n");
    }

    #[test]
    fn panic_follows_the_lines_before_it() {
        let output = Output::default();
        let (mut queue, flush) = LogQueue::start(output.clone()).expect("a thread");
        report_panics(queue.clone());
        queue.write_all(b"first\n").expect("no error");
        let panicking =
            thread::Builder::new().name("some".to_owned()).spawn(|| panic!("the reason")).expect("a thread");
        panicking.join().expect_err("it panics");
        drop(std::panic::take_hook());
        drop((queue, flush));
        let written = String::from_utf8(output.block().clone()).expect("UTF-8");
        let panic = written.strip_prefix("first\nthread 'some' panicked at src/telemetry/queue.rs:");
        assert!(panic.is_some_and(|panic| panic.contains(":\nthe reason\n")), "{written}");
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
