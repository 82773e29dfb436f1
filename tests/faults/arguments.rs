//! What the program is asked to do.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Parser;

use super::clocks;
use super::holder;
use super::kind::Kind;
use super::suspend;

/// A cluster of real processes under faults.
#[derive(Parser)]
pub enum Arguments {
    /// Runs a cluster, makes faults, and judges what its clients saw
    Run(Run),
    /// Judges the histories in a file that `run --history` has written
    Judge {
        /// JSON lines, as docs/testing.md describes them
        file: PathBuf,
    },
    /// A holder of that run, in a process of its own
    #[command(hide = true)]
    Hold(holder::Arguments),
}

#[derive(clap::Args, Clone)]
#[command(after_help = format!("The faults: {}", Kind::ALL.map(Kind::as_str).join(", ")))]
pub struct Run {
    /// 3 or more
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(3..=9))]
    pub nodes: u64,
    /// How long faults are made: `90s`, `3m`, `2h`
    #[arg(long = "for", default_value = "3m", value_parser = humantime::parse_duration)]
    pub time: Duration,
    /// Decides the schedule of the faults; without one, chance does
    #[arg(long, default_value_t = rand::random_range(1..1_000_000))]
    pub seed: u64,
    /// Only these faults, with commas between them
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<Kind>,
    /// Operations a second, while they are answered
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u64).range(1..=5_000))]
    pub rate: u64,
    /// Where logs, the table and the histories of leases that went wrong are left
    #[arg(long)]
    pub keep: PathBuf,
    /// Writes every operation and transition to this file, as JSON lines
    #[arg(long)]
    pub history: Option<PathBuf>,
    /// The program that is put to the test
    #[arg(long)]
    pub binary: PathBuf,
}

impl Run {
    /// The faults that may be made.
    pub fn kinds(&self) -> Result<Vec<Kind>> {
        let possible = |kind: &Kind| !(kind.needs_five() && self.nodes < 5);
        if let Some(kind) = self.only.iter().find(|kind| !possible(kind)) {
            bail!("{kind} needs five nodes");
        }
        let kinds: Vec<Kind> =
            if self.only.is_empty() { Kind::ALL.into_iter().filter(possible).collect() } else { self.only.clone() };
        if let Some(kind) = kinds.iter().find(|kind| kind.needs_faketime() && clocks::library().is_none()) {
            bail!("{kind} needs libfaketime (Debian: faketime)");
        }
        if let Some(kind) = kinds.iter().find(|kind| kind.suspends() && suspend::library().is_none()) {
            bail!("{kind} needs libsuspended_clock.so beside this program: cargo build --example suspended_clock");
        }
        Ok(kinds)
    }

    /// The command that repeats the schedule.
    pub fn command(&self) -> String {
        let only: Vec<&str> = self.only.iter().map(|kind| kind.as_str()).collect();
        let only = if only.is_empty() { String::new() } else { format!(" --only {}", only.join(",")) };
        let Run { nodes, seed, rate, .. } = self;
        let time = humantime::format_duration(self.time).to_string().replace(' ', "");
        format!("scripts/faults --nodes {nodes} --for {time} --seed {seed} --rate {rate}{only}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(format!("faults run --keep k --binary b {line}").split_whitespace())
    }

    #[test]
    fn the_command_in_the_table_repeats_the_schedule() {
        let Ok(Arguments::Run(run)) = parse("--nodes 5 --for 90s --seed 7 --only kill,power-cut") else {
            panic!("valid")
        };
        assert_eq!(run.command(), "scripts/faults --nodes 5 --for 1m30s --seed 7 --rate 250 --only kill,power-cut");
        assert_eq!(run.kinds().expect("possible"), [Kind::Kill, Kind::PowerCut]);
    }

    #[test]
    fn what_cannot_be_done_is_said() {
        let Ok(Arguments::Run(run)) = parse("--nodes 3 --only ring") else { panic!("valid") };
        assert!(run.kinds().is_err());
        assert!(parse("--nodes 2").is_err() && parse("--only tornado").is_err());
    }
}
