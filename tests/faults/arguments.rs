//! The command line of the program.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Parser, ValueEnum};

use super::clocks;
use super::holder;
use super::kind::Kind;
use super::suspend;

/// Tests a cluster of real processes under faults.
#[derive(Parser)]
pub enum Arguments {
    /// Runs a cluster, injects faults, and checks the operations of its clients
    Run(Run),
    /// Checks the histories in a file that `run --history` wrote
    Judge {
        /// JSON lines, as tests/judge/file.rs describes them
        file: PathBuf,
    },
    /// Runs one lease holder of a run (internal)
    #[command(hide = true)]
    Hold(holder::Arguments),
}

#[derive(clap::Args, Clone)]
#[command(after_help = format!("The faults: {}", Kind::ALL.map(Kind::as_str).join(", ")))]
pub struct Run {
    /// Number of nodes, from 3 to 9
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(3..=9))]
    pub nodes: u64,
    /// How long the run injects faults: `90s`, `3m`, `2h`
    #[arg(long = "for", default_value = "3m", value_parser = humantime::parse_duration)]
    pub time: Duration,
    /// Seed of the fault schedule; random by default
    #[arg(long, default_value_t = rand::random_range(1..1_000_000))]
    pub seed: u64,
    /// Inject only these faults, separated by commas
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<Kind>,
    /// Whether nodes and clients use TLS; by default, an even seed turns it on
    #[arg(long, value_enum, value_name = "SWITCH")]
    pub tls: Option<Switch>,
    /// Whether access control is on; by default, the seed decides
    #[arg(long, value_enum, value_name = "SWITCH")]
    pub access: Option<Switch>,
    /// Target rate of operations per second while the cluster responds
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u64).range(1..=5_000))]
    pub rate: u64,
    /// Directory for logs, the table and the histories of leases with violations
    #[arg(long)]
    pub keep: PathBuf,
    /// Write each operation and transition to this file, as JSON lines
    #[arg(long)]
    pub history: Option<PathBuf>,
    /// The tenure binary under test
    #[arg(long)]
    pub binary: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

impl Switch {
    fn as_str(self) -> &'static str {
        match self {
            Switch::On => "on",
            Switch::Off => "off",
        }
    }
}

impl Run {
    pub fn tls(&self) -> bool {
        self.tls_switch() == Switch::On
    }

    pub fn access(&self) -> bool {
        self.access_switch() == Switch::On
    }

    fn tls_switch(&self) -> Switch {
        let by_seed = if self.seed.is_multiple_of(2) { Switch::On } else { Switch::Off };
        self.tls.unwrap_or(by_seed)
    }

    fn access_switch(&self) -> Switch {
        let by_seed = if (self.seed / 2).is_multiple_of(2) { Switch::On } else { Switch::Off };
        self.access.unwrap_or(by_seed)
    }

    /// The fault kinds that this run may inject.
    pub fn kinds(&self) -> Result<Vec<Kind>> {
        let possible = |kind: &Kind| !(kind.needs_five() && self.nodes < 5);
        if let Some(kind) = self.only.iter().find(|kind| !possible(kind)) {
            bail!("fault {kind} with --nodes {}: expected at least 5 nodes", self.nodes);
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

    /// The command that repeats the fault schedule of this run.
    pub fn command(&self) -> String {
        let only: Vec<&str> = self.only.iter().map(|kind| kind.as_str()).collect();
        let only = if only.is_empty() { String::new() } else { format!(" --only {}", only.join(",")) };
        let Run { nodes, seed, rate, .. } = self;
        let time = humantime::format_duration(self.time).to_string().replace(' ', "");
        let (tls, access) = (self.tls_switch().as_str(), self.access_switch().as_str());
        format!(
            "scripts/faults --nodes {nodes} --for {time} --seed {seed} --rate {rate} --tls {tls} --access {access}{only}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(format!("faults run --keep k --binary b {line}").split_whitespace())
    }

    #[test]
    fn table_command_repeats_the_schedule() {
        let Ok(Arguments::Run(run)) = parse("--nodes 5 --for 90s --seed 7 --only kill,power-cut") else {
            panic!("valid")
        };
        let expected =
            "scripts/faults --nodes 5 --for 1m30s --seed 7 --rate 250 --tls off --access off --only kill,power-cut";
        assert_eq!(run.command(), expected);
        assert_eq!(run.kinds().expect("possible"), [Kind::Kill, Kind::PowerCut]);
    }

    #[test]
    fn seed_decides_the_security_unless_it_is_given() {
        let chosen = |line: &str| {
            let Ok(Arguments::Run(run)) = parse(line) else { panic!("valid") };
            (run.tls(), run.access())
        };
        let seeds = (4..8).map(|seed| chosen(&format!("--seed {seed}")));
        assert_eq!(seeds.collect::<Vec<_>>(), [(true, true), (false, true), (true, false), (false, false)]);
        assert_eq!(chosen("--seed 4 --tls off --access off"), (false, false));
        assert_eq!(chosen("--seed 7 --tls on --access on"), (true, true));
    }

    #[test]
    fn impossible_fault_plan_is_refused() {
        let Ok(Arguments::Run(run)) = parse("--nodes 3 --only ring") else { panic!("valid") };
        assert!(run.kinds().is_err());
        assert!(parse("--tls maybe").is_err() && parse("--nodes 2").is_err() && parse("--only tornado").is_err());
    }
}
