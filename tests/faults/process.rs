//! A child process. It ends with the harness.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, set_parent_process_death_signal, waitid};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::clocks;

/// The largest part of the output in an error message.
const SHOWN_BYTES: u64 = 4_000;

/// A child process. Dropping it kills the process.
pub struct Process {
    pub name: String,
    child: Child,
    log: PathBuf,
    /// The offset in the log at which the output of this process begins.
    said_before: u64,
}

impl Process {
    /// Starts a process in a network namespace, if one is given, and appends its output to `log`.
    ///
    /// Call it from the main thread: the process ends with the thread that starts it, so a killed run leaves no
    /// process.
    #[expect(unsafe_code, reason = "code between fork and exec must be async-signal-safe")]
    pub fn start(name: &str, mut command: Command, namespace: Option<&str>, log: &Path) -> Result<Process> {
        let mut file = OpenOptions::new().create(true).append(true).open(log)?;
        let said_before = file.seek(SeekFrom::End(0))?;
        let network = namespace.map(|namespace| File::open(super::network::file(namespace))).transpose()?;
        // A separate process group, because Ctrl-C must reach only the run. The run ends the other processes in order.
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).process_group(0);
        // SAFETY: the closure makes two system calls. They neither allocate nor take a lock.
        unsafe {
            command.pre_exec(move || {
                if let Some(network) = &network {
                    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
                }
                Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
            });
        }
        let child = command.spawn().with_context(|| format!("{command:?}"))?;
        Ok(Process { name: name.to_owned(), child, log: log.to_owned(), said_before })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.child), signal)
            .with_context(|| format!("cannot send {signal:?} to {}", self.name))
    }

    /// Sends SIGSTOP and waits until all threads have stopped, or the process has ended.
    pub fn stop(&self) -> Result<()> {
        stop(&self.child).with_context(|| format!("cannot stop {}", self.name))
    }

    /// Sends SIGKILL and waits for the end of the process.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// The exit status, if the process has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// The last output of this process.
    pub fn said(&self) -> String {
        let read = || {
            let mut file = File::open(&self.log)?;
            let end = file.seek(SeekFrom::End(0))?;
            file.seek(SeekFrom::Start(self.said_before.max(end.saturating_sub(SHOWN_BYTES))))?;
            let mut said = Vec::new();
            file.read_to_end(&mut said)?;
            Ok::<_, std::io::Error>(String::from_utf8_lossy(&said).into_owned())
        };
        read().unwrap_or_else(|error| format!("{}: {error}", self.log.display()))
    }
}

/// Sends SIGSTOP and waits until all threads of the child have stopped, or the child has ended.
pub fn stop(child: &Child) -> rustix::io::Result<()> {
    let process = Pid::from_child(child);
    kill_process(process, Signal::STOP)?;
    let stopped = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(process), stopped).map(drop)
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.kill();
        clocks::remove_shared_files(self.id());
    }
}
