//! A child process. It ends with its test.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, set_parent_process_death_signal, waitid};

/// The interval at which a process is polled for its exit.
const POLL: Duration = Duration::from_millis(5);
/// A failed test shows at most this many lines from the start and from the end of the output.
const SHOWN_LINES: usize = 20;

/// The number of processes so far.
static STARTED: AtomicU64 = AtomicU64::new(0);

/// The path of the tenure binary.
pub const TENURE: &str = env!("CARGO_BIN_EXE_tenure");

/// A command that runs it.
pub fn tenure() -> Command {
    Command::new(TENURE)
}

/// A child process. Dropping it kills the process.
pub struct Process {
    name: String,
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Process {
    /// Starts a process with its output in files of `folder`.
    ///
    /// Call it from the thread of the test: the process ends with the thread that starts it, so a killed test leaves no
    /// process.
    #[expect(unsafe_code, reason = "code between fork and exec must be async-signal-safe")]
    pub fn start(name: &str, mut command: Command, folder: &Path) -> Process {
        // Each start has separate output files, so that the output of an earlier process does not count.
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let [stdout, stderr] = ["stdout", "stderr"].map(|kind| folder.join(format!("{number} {name} {kind}")));
        let file = |path: &Path| File::create(path).expect("the folder is writable");
        command.stdin(Stdio::null()).stdout(file(&stdout)).stderr(file(&stderr));
        // SAFETY: the closure makes one system call, which neither allocates nor takes a lock.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
        }
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Process { name: name.to_owned(), child, stdout, stderr }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends a signal. SIGSTOP has stopped all threads of the process when this returns.
    pub fn signal(&self, signal: Signal) {
        let pid = self.pid();
        let mut sent = kill_process(pid, signal);
        if signal == Signal::STOP {
            // The thread that receives the signal may wait for a processor while the other threads still run.
            let stopped = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            sent = sent.and_then(|()| waitid(WaitId::Pid(pid), stopped).map(drop));
        }
        sent.unwrap_or_else(|error| panic!("cannot send {signal:?} to {}: {error}", self.name));
    }

    /// Sends SIGKILL and waits for the end of the process.
    pub fn kill(&mut self) {
        self.child.kill().expect("a child can be killed, also after its exit");
        self.child.wait().expect("the process is a child");
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("the process is a child").is_none()
    }

    /// Waits for the exit of the process.
    pub async fn exit(&mut self, within: Duration) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("the process is a child") {
                return status;
            }
            assert!(began.elapsed() < within, "{} still runs after {within:?}", self.name);
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits for the exit of the process with code 1. Returns its standard error.
    pub async fn failure(&mut self, within: Duration) -> String {
        let status = self.exit(within).await;
        let said = self.said();
        assert_eq!(status.code(), Some(1), "{} ended with {status}: {said}", self.name);
        said
    }

    /// The standard error so far.
    pub fn said(&self) -> String {
        read(&self.stderr)
    }

    /// The standard output so far.
    pub fn printed(&self) -> String {
        read(&self.stdout)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- standard error of {}:\n{}", self.name, first_and_last(&self.said()));
        }
    }
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

fn first_and_last(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    match lines.len().checked_sub(2 * SHOWN_LINES) {
        None | Some(0) => text.to_owned(),
        Some(hidden) => {
            let (first, last) = (&lines[..SHOWN_LINES], &lines[SHOWN_LINES + hidden..]);
            format!("{}\n({hidden} lines)\n{}", first.join("\n"), last.join("\n"))
        }
    }
}
