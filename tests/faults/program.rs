//! Real processes under faults: a cluster of the binary, each node in a network namespace and on a disk of its own, with
//! clients, holders and watchers outside. `scripts/faults` runs it; `cargo test` runs the tests of its parts.
//!
//! | file | noun |
//! |---|---|
//! | `arguments`, `plan`, `kind` | what is asked for, what the seed decides, and the kinds of faults |
//! | `network`, `weather`, `disk`, `clocks`, `suspend` | what faults are made of |
//! | `process`, `cluster`, `holders`, `leftovers` | processes, and what a killed run leaves |
//! | `nemesis`, `run` | faults, begun and ended; and the episodes of a run |
//! | `workload`, `client`, `names`, `mode`, `watcher`, `holder`, `register` | who uses the cluster |
//! | `book`, `history`, `log` | what was asked and answered, and what the cluster's log says |
//! | `judge`, `promises`, `linear` | what must hold, one promise a file |
//! | `figures`, `drawing`, `shade`, `machine`, `verdict` | what is told of it |
//!
//! The process ends with 0 when every promise was kept, 1 when one was broken, 2 when it cannot run here, 3 when the harness
//! itself failed, and 130 when it was interrupted.

mod arguments;
mod book;
mod client;
mod clocks;
mod cluster;
#[cfg(test)]
mod control;
mod disk;
mod drawing;
mod export;
mod figures;
#[expect(dead_code, reason = "the simulation uses the rest of it")]
#[path = "../support/history.rs"]
mod history;
#[path = "../support/history_file.rs"]
mod history_file;
mod holder;
mod holders;
mod import;
mod judge;
mod kind;
mod leftovers;
#[path = "../support/linear.rs"]
mod linear;
mod log;
#[path = "../support/machine.rs"]
mod machine;
mod mode;
mod names;
mod nemesis;
mod network;
mod plan;
mod process;
mod progress;
mod promises;
mod register;
mod run;
mod shade;
mod suspend;
mod verdict;
mod watcher;
mod weather;
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
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
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
    match opened.and_then(|file| import::judge(BufReader::new(file))) {
        Ok(import::Judged { operations, leases, too_hard, untimed, broken }) => {
            broken.iter().for_each(|broken| println!("VIOLATION: {broken}"));
            println!(
                "{operations} operations on {leases} leases judged, {too_hard} too hard to order, {untimed} without \
                 bounds in time, {} violations",
                broken.len()
            );
            if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(BROKEN) }
        }
        Err(error) => {
            eprintln!("this file cannot be judged: {error:#}");
            ExitCode::from(HARNESS_FAILED)
        }
    }
}

/// Whether this machine and user can do what a run needs: tried once, on a small scale.
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
    leftovers::sweep()?;
    let folder = leftovers::Folder::new()?;
    let queued = network::Network::new(1).and_then(|mut network| network.set(&Default::default(), &[1].into()));
    queued.context("namespaces, or rules with NFQUEUE")?;
    disk::Disk::new(folder.path(), "disk").and_then(|disk| disk.cut()).context("an ext4 image that can be cut off")
}

async fn until_interrupted(arguments: &Run) -> ExitCode {
    let (mut interrupt, mut terminate) = match (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) {
        (Ok(interrupt), Ok(terminate)) => (interrupt, terminate),
        (Err(error), _) | (_, Err(error)) => {
            eprintln!("HARNESS FAILED: signals: {error}");
            return ExitCode::from(HARNESS_FAILED);
        }
    };
    // What is dropped here takes everything that it made with it.
    tokio::select! {
        code = judged(arguments) => code,
        _ = interrupt.recv() => interrupted(),
        _ = terminate.recv() => interrupted(),
    }
}

fn interrupted() -> ExitCode {
    eprintln!("INTERRUPTED: nothing is known");
    ExitCode::from(INTERRUPTED)
}

async fn judged(arguments: &Run) -> ExitCode {
    match play(arguments).await {
        Ok(0) => ExitCode::SUCCESS,
        Ok(violations) => {
            eprintln!("VIOLATIONS: {violations}. What is known of them is in {}", arguments.keep.display());
            eprintln!("The same schedule again: {}", arguments.command());
            ExitCode::from(BROKEN)
        }
        Err(error) => {
            eprintln!("HARNESS FAILED: {error:#}");
            ExitCode::from(HARNESS_FAILED)
        }
    }
}

/// One run. Returns how many promises were broken.
async fn play(arguments: &Run) -> Result<usize> {
    let _folder = take_folder(&arguments.keep)?;
    let mut run = run::Run::start(arguments, &arguments.keep).await?;
    let played = run.play(arguments.time).await;
    let broken = run.broken();
    let violations = broken.len() + usize::from(run.figures().stale() > 0);
    let table = run.figures().table(violations);
    println!("{table}");
    let lines: String = broken.iter().map(|broken| format!("\nVIOLATION: {broken}\n")).collect();
    std::fs::write(arguments.keep.join("summary.txt"), table + &lines)?;
    // What was seen of the product counts, even if the harness failed behind it.
    if violations == 0 {
        played?;
        run.figures().check()?;
    }
    Ok(violations)
}

/// Makes the folder that keeps the logs. Two runs in one folder would write into each other's logs.
fn take_folder(folder: &Path) -> Result<File> {
    let named = || folder.display().to_string();
    std::fs::create_dir_all(folder).with_context(named)?;
    let taken = File::open(folder).with_context(named)?;
    match taken.try_lock() {
        Ok(()) => Ok(taken),
        Err(TryLockError::WouldBlock) => {
            bail!("another run keeps its logs in {}: choose a folder with --keep", named())
        }
        Err(TryLockError::Error(error)) => Err(error).with_context(named),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_runs_do_not_share_a_folder() {
        let parent = tempfile::TempDir::new().expect("a folder");
        let folder = parent.path().join("kept");
        let first = take_folder(&folder).expect("it is free");
        let refused = take_folder(&folder).expect_err("it is taken");
        assert!(refused.to_string().contains("choose a folder with --keep"), "{refused}");
        drop(first);
        take_folder(&folder).expect("it is free again");
    }
}
