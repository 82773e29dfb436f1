//! The processes of the lease holders: several per lease, so that one of them always waits.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::Result;
use rustix::process::Signal;

use super::process::Process;
use super::security::Security;
use super::world::World;

const LEASES: usize = 2;
const EACH: usize = 3;

struct Holder {
    process: Option<Process>,
    /// Counts the processes of this holder. Each process has a new holder id.
    lives: u64,
}

pub struct Holders {
    holders: Vec<Holder>,
    world: Arc<World>,
    security: Security,
    register: PathBuf,
    logs: PathBuf,
}

/// The names of the leases that the holders use.
pub fn names() -> impl Iterator<Item = String> {
    (0..LEASES).map(|lease| format!("lock.{lease}"))
}

impl Holders {
    /// Creates the holders. [`restart`](Holders::restart) starts their processes.
    pub fn new(world: &Arc<World>, security: &Security, register: &Path, logs: &Path) -> Holders {
        let holders = (0..LEASES * EACH).map(|_| Holder { process: None, lives: 0 }).collect();
        let (world, security) = (world.clone(), security.clone());
        let (register, logs) = (register.to_owned(), logs.to_owned());
        Holders { holders, world, security, register, logs }
    }

    pub fn count(&self) -> usize {
        self.holders.len()
    }

    /// Starts the holders that do not run with the addresses of the present members, and resumes the paused ones.
    pub fn restart(&mut self) -> Result<()> {
        let urls: Vec<String> = self.world.hosts.lock().iter().map(|host| self.security.url(*host)).collect();
        for (place, holder) in self.holders.iter_mut().enumerate() {
            if let Some(process) = &holder.process {
                process.signal(Signal::CONT)?;
                continue;
            }
            holder.lives += 1;
            // The running program, even if a newer build has replaced the file at its path.
            let mut command = Command::new("/proc/self/exe");
            command.arg("hold").arg("--endpoints").arg(urls.join(",")).arg("--register").arg(&self.register);
            command.args(["--name", &format!("lock.{}", place % LEASES)]);
            command.args(["--holder", &format!("h{place}.{}", holder.lives)]);
            command.envs(self.security.environment());
            if let Some(folder) = self.security.folder() {
                command.arg("--tls").arg(folder);
            }
            let log = self.logs.join("holders.log");
            holder.process = Some(Process::start(&format!("holder {place}"), command, None, &log)?);
        }
        Ok(())
    }

    pub fn pause(&self, place: usize, pause: bool) -> Result<bool> {
        let Some(process) = &self.holders[place].process else { return Ok(false) };
        process.signal(if pause { Signal::STOP } else { Signal::CONT })?;
        Ok(true)
    }

    pub fn kill(&mut self, place: usize) -> Result<bool> {
        let Some(mut process) = self.holders[place].process.take() else { return Ok(false) };
        process.kill()?;
        Ok(true)
    }

    /// Detects holders that have exited, and returns their last output.
    pub fn unexpected_exits(&mut self) -> Result<Vec<String>> {
        let mut wrong = Vec::new();
        for holder in &mut self.holders {
            let Some(process) = &mut holder.process else { continue };
            if let Some(status) = process.ended()? {
                wrong.push(format!("{} ended with {status}: {}", process.name, process.said()));
                holder.process = None;
            }
        }
        Ok(wrong)
    }
}
