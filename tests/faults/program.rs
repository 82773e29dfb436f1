//! Tests a cluster of real processes under faults. Each node runs in a network namespace and has a disk. Clients, holders and
//! watchers run outside the nodes. `scripts/faults` runs this program; `cargo test` runs its unit tests.
//!
//! | files | content |
//! |---|---|
//! | `arguments`, `plan`, `kind` | the command line, the fault schedule, and the fault kinds |
//! | `network`, `network_faults`, `disk`, `clocks`, `suspend` | the means of fault injection |
//! | `process`, `cluster`, `security`, `holders`, `run_directory` | processes, and the cleanup after killed runs |
//! | `nemesis`, `members`, `run` | fault injection, changes of the members, and the episodes of a run |
//! | `workload`, `client`, `names`, `mode`, `watcher`, `holder`, `register` | the users of the cluster |
//! | `recorder`, `log`, `import`, `export` | requests, outcomes, and the transitions in the log |
//! | `refusals` | the codes that a node may refuse a request with |
//! | `backups` | the check of scheduled backups, and a restore |
//! | `judge`, `bounds`, `episodes` | the checks, one promise per file, and their use |
//! | `figures`, `drawing`, `fault_window`, `machine` | the report |
//!
//! Exit codes: 0 if every promise holds, 1 if one is broken, 2 if the program cannot run on this machine, 3 if the
//! harness failed, 130 after an interrupt.

mod arguments;
mod backups;
mod bounds;
mod client;
mod clocks;
mod cluster;
#[cfg(test)]
mod control;
mod disk;
mod drawing;
mod episodes;
mod export;
mod fault_window;
mod figures;
mod holder;
mod holders;
mod import;
#[expect(dead_code, reason = "the lease machine and the simulation use the rest of it")]
#[path = "../judge/mod.rs"]
mod judge;
mod kind;
mod log;
#[path = "../support/machine.rs"]
mod machine;
mod members;
mod mode;
mod names;
mod nemesis;
mod network;
mod network_faults;
#[path = "../support/plain_http.rs"]
mod plain_http;
mod plan;
mod process;
mod recorder;
mod refusals;
mod register;
mod run;
mod run_directory;
mod security;
mod suspend;
mod watcher;
mod workload;
mod world;

use std::fs::{File, TryLockError};
use std::io::BufReader;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use self::arguments::{Arguments, Run};

const BROKEN: u8 = 1;
const CANNOT_RUN: u8 = 2;
const HARNESS_FAILED: u8 = 3;
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let runtime = Builder::new_current_thread().enable_all().build().expect("the system has threads");
    match Arguments::parse() {
        Arguments::Hold(arguments) => match runtime.block_on(holder::run(arguments)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("holder: {error:#}");
                ExitCode::from(HARNESS_FAILED)
            }
        },
        Arguments::Judge { file } => judge_file(&file),
        Arguments::Run(arguments) => {
            if let Err(error) = possible(&arguments) {
                eprintln!("scripts/faults: cannot run here: {error:#}");
                return ExitCode::from(CANNOT_RUN);
            }
            runtime.block_on(until_interrupted(&arguments))
        }
    }
}

fn judge_file(file: &Path) -> ExitCode {
    let opened = File::open(file).with_context(|| file.display().to_string());
    match opened.and_then(|file| import::judge_lines(BufReader::new(file))) {
        Ok(import::JudgedFile { operations, leases, too_hard, untimed, broken }) => {
            broken.iter().for_each(|broken| println!("VIOLATION: {broken}"));
            println!(
                "{operations} operations on {leases} leases judged, {too_hard} too hard to order, {untimed} without \
                 bounds in time, {} violations",
                broken.len()
            );
            if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(BROKEN) }
        }
        Err(error) => {
            eprintln!("cannot check {}: {error:#}", file.display());
            ExitCode::from(HARNESS_FAILED)
        }
    }
}

/// Fails if this machine or user cannot run the faults. It tries the required operations once.
fn possible(arguments: &Run) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("network namespaces and mounts need root");
    }
    let tools = [("ip", "iproute2"), ("iptables-restore", "iptables"), ("mkfs.ext4", "e2fsprogs"), ("mount", "mount")];
    for (tool, package) in tools {
        let found = std::process::Command::new(tool).arg("-V").output();
        found.with_context(|| format!("{tool} (Debian: {package})"))?;
    }
    arguments.kinds()?;
    run_directory::remove_orphans()?;
    let folder = run_directory::RunDirectory::new()?;
    let queued = network::Network::new(1).and_then(|mut network| network.set(&Default::default(), &[1].into()));
    queued.context("cannot create namespaces or NFQUEUE rules")?;
    disk::Disk::new(folder.path(), "disk")
        .and_then(|disk| disk.cut_power())
        .context("cannot simulate a power cut on an ext4 image")
}

async fn until_interrupted(arguments: &Run) -> ExitCode {
    let (mut interrupt, mut terminate) = match (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) {
        (Ok(interrupt), Ok(terminate)) => (interrupt, terminate),
        (Err(error), _) | (_, Err(error)) => {
            eprintln!("HARNESS FAILED: signals: {error}");
            return ExitCode::from(HARNESS_FAILED);
        }
    };
    // Dropping the run removes everything that it created.
    tokio::select! {
        code = judged(arguments) => code,
        _ = interrupt.recv() => interrupted(),
        _ = terminate.recv() => interrupted(),
    }
}

fn interrupted() -> ExitCode {
    eprintln!("INTERRUPTED: no result");
    ExitCode::from(INTERRUPTED)
}

async fn judged(arguments: &Run) -> ExitCode {
    match run_once(arguments).await {
        Ok(0) => ExitCode::SUCCESS,
        Ok(violations) => {
            eprintln!("VIOLATIONS: {violations}. Details are in {}", arguments.keep.display());
            eprintln!("To repeat the schedule: {}", arguments.command());
            ExitCode::from(BROKEN)
        }
        Err(error) => {
            eprintln!("HARNESS FAILED: {error:#}");
            ExitCode::from(HARNESS_FAILED)
        }
    }
}

/// Runs the program once. Returns the number of broken promises.
async fn run_once(arguments: &Run) -> Result<usize> {
    let _folder = take_folder(&arguments.keep)?;
    let mut run = run::Run::start(arguments, &arguments.keep).await?;
    let completed = run.run_episodes(arguments.time).await;
    let broken = run.broken();
    let violations = broken.len() + usize::from(run.figures().stale() > 0);
    let table = run.figures().table(violations);
    println!("{table}");
    let lines: String = broken.iter().map(|broken| format!("\nVIOLATION: {broken}\n")).collect();
    std::fs::write(arguments.keep.join("summary.txt"), table + &lines)?;
    // Observed violations count even if the harness failed later.
    if violations == 0 {
        completed?;
        run.figures().check()?;
    }
    Ok(violations)
}

/// Creates and locks the directory of the logs. Two runs in one directory would mix their logs.
fn take_folder(folder: &Path) -> Result<File> {
    let named = || folder.display().to_string();
    std::fs::create_dir_all(folder).with_context(named)?;
    let taken = File::open(folder).with_context(named)?;
    match taken.try_lock() {
        Ok(()) => Ok(taken),
        Err(TryLockError::WouldBlock) => {
            bail!("another run writes its logs to {}: choose a folder with --keep", named())
        }
        Err(TryLockError::Error(error)) => Err(error).with_context(named),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_run_in_a_folder_is_refused() {
        let parent = tempfile::TempDir::new().expect("a folder");
        let folder = parent.path().join("kept");
        let first = take_folder(&folder).expect("it is free");
        let refused = take_folder(&folder).expect_err("it is taken");
        assert!(refused.to_string().contains("choose a folder with --keep"), "{refused}");
        drop(first);
        take_folder(&folder).expect("it is free again");
    }
}
