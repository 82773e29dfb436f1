//! A process that this one started: signalled, watched, and never left behind.

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

/// Most that is shown of what a process said last.
const SHOWN_BYTES: u64 = 4_000;

/// Killed when dropped.
pub struct Process {
    pub name: String,
    child: Child,
    log: PathBuf,
    /// Where in the log this life of it begins.
    said_before: u64,
}

impl Process {
    /// Starts it, in a namespace if one is named, with what it says at the end of `log`. It ends with the thread that
    /// calls this, so that a killed run leaves none behind: call it from the main thread.
    #[expect(unsafe_code, reason = "what runs between fork and exec is unsafe to choose")]
    pub fn start(name: &str, mut command: Command, namespace: Option<&str>, log: &Path) -> Result<Process> {
        let mut file = OpenOptions::new().create(true).append(true).open(log)?;
        let said_before = file.seek(SeekFrom::End(0))?;
        let network = namespace.map(|namespace| File::open(super::network::file(namespace))).transpose()?;
        // A group of its own: Ctrl-C is for the run, which ends the others in order.
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).process_group(0);
        // SAFETY: two system calls, which neither allocate nor take a lock.
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
        kill_process(Pid::from_child(&self.child), signal).with_context(|| format!("{signal:?} to {}", self.name))
    }

    /// Stops it, and returns when none of its threads runs, or when it has ended.
    pub fn stop(&self) -> Result<()> {
        stop(&self.child).with_context(|| format!("stopping {}", self.name))
    }

    /// `kill -9`, and waits until it is gone.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// The last of what it said in this life.
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

/// Stops a child, and returns when none of its threads runs, or when it has ended.
pub fn stop(child: &Child) -> rustix::io::Result<()> {
    let process = Pid::from_child(child);
    kill_process(process, Signal::STOP)?;
    let stopped = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(process), stopped).map(drop)
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails for one that has ended, which is as good.
        let _ = self.kill();
        clocks::forget(self.id());
    }
}
