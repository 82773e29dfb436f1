//! One process of the binary: started, signalled, waited for, and never left behind.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

/// How often it is looked whether a process has ended.
const POLL: Duration = Duration::from_millis(5);
/// Most lines that a failed test shows of a process's first and of its last words.
const SHOWN_LINES: usize = 20;

/// How many processes were started so far.
static STARTED: AtomicU64 = AtomicU64::new(0);

/// The command line of the binary.
pub fn tenure() -> Command {
    Command::new(env!("CARGO_BIN_EXE_tenure"))
}

/// A running process, or one that has ended. Killed when dropped.
pub struct Process {
    name: String,
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Process {
    /// Starts it with its output in files of `folder`. To be called from the test's own thread: the process ends with
    /// the thread that started it, so that a killed test leaves none behind.
    #[expect(unsafe_code, reason = "what runs between fork and exec is unsafe to choose")]
    pub fn start(name: &str, mut command: Command, folder: &Path) -> Process {
        // Files of its own for each start: what an earlier one said does not count for this one.
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let [stdout, stderr] = ["stdout", "stderr"].map(|kind| folder.join(format!("{number} {name} {kind}")));
        let file = |path: &Path| File::create(path).expect("the folder is the test's own");
        command.stdin(Stdio::null()).stdout(file(&stdout)).stderr(file(&stderr));
        // SAFETY: one system call, which neither allocates nor takes a lock.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
        }
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Process { name: name.to_owned(), child, stdout, stderr }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap_or_else(|error| panic!("{signal:?} to {}: {error}", self.name));
    }

    /// `kill -9`, and waits until the process is gone.
    pub fn kill(&mut self) {
        self.child.kill().expect("it is a child that was not waited for yet, or has ended");
        self.child.wait().expect("it is a child");
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("it is a child").is_none()
    }

    /// Waits until it ends by itself.
    pub async fn exit(&mut self, within: Duration) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("it is a child") {
                return status;
            }
            assert!(began.elapsed() < within, "{} still runs after {within:?}", self.name);
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until it ends by itself, with a failure, and returns what it said.
    pub async fn failure(&mut self, within: Duration) -> String {
        let status = self.exit(within).await;
        let said = self.said();
        assert_eq!(status.code(), Some(1), "{} ended with {status}: {said}", self.name);
        said
    }

    /// What it said on stderr so far.
    pub fn said(&self) -> String {
        read(&self.stderr)
    }

    /// What it printed on stdout so far.
    pub fn printed(&self) -> String {
        read(&self.stdout)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails for one that has ended, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- what {} said:\n{}", self.name, first_and_last(&self.said()));
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
