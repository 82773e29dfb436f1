//! The commands of the binary.
//!
//! Data goes to stdout, words go to stderr, and the exit code says what came of it. Flags come before the
//! environment, the environment before the file, the file before the default.
//!
//! | file | noun |
//! |---|---|
//! | `lease`, `cluster`, `config` | the commands of clients and operators |
//! | `serve`, `dev` | running nodes |
//! | `host` | one node with its listeners, from start to end |
//! | `signals` | being asked to stop |
//! | `output` | tables, JSON, words |
//! | `failure` | what goes wrong, and its exit code |
//! | `duration` | durations as people write them |

mod cluster;
mod config;
mod dev;
mod duration;
mod failure;
mod host;
mod lease;
mod output;
mod serve;
mod signals;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::client::{DEFAULT_ENDPOINTS, ENDPOINTS_VARIABLE, Endpoints, Remote};
use failure::Failure;
use output::Format;

/// Leases with fencing tokens over Raft.
#[derive(Parser)]
#[command(name = "tenure", version, after_help = EXIT_CODES, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  refused, with the reason on stderr; or a node that could not go on
  2  the command or a configuration file is not valid
  3  the outcome is unknown: it may have been done; sending it again is safe
  4  unavailable: certainly not done, because no node could be reached or could serve";

#[derive(Subcommand)]
enum Command {
    /// Run three real nodes in this process, for trying things out
    Dev(dev::Arguments),
    /// Run one node of a cluster
    Serve(serve::Arguments),
    /// Claim, keep, give back and see leases
    #[command(subcommand, after_help = EXIT_CODES)]
    Lease(lease::Command),
    /// See the cluster
    #[command(subcommand, after_help = EXIT_CODES)]
    Cluster(cluster::Command),
    /// Check configuration files
    #[command(subcommand)]
    Config(config::Command),
    /// Print a completion script for a shell
    Completions { shell: clap_complete::Shell },
}

/// What every command has that asks a cluster.
#[derive(Args)]
struct ClientArguments {
    /// URLs of the nodes, with commas between them
    #[arg(long, env = ENDPOINTS_VARIABLE, default_value = DEFAULT_ENDPOINTS, value_name = "URLS")]
    endpoints: Endpoints,
    /// Time for the request, beside what it waits for a lease
    #[arg(long, default_value = "5s", value_parser = duration::parse, value_name = "DURATION")]
    timeout: Duration,
    /// How to print what was found
    #[arg(short, long, default_value = "table")]
    output: Format,
}

impl ClientArguments {
    fn remote(&self) -> Remote {
        Remote::new(self.endpoints.clone()).with_timeout(self.timeout)
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let ended = match Cli::parse().command {
        Command::Dev(arguments) => block_on(dev::run(arguments)),
        Command::Serve(arguments) => block_on(serve::run(arguments)),
        Command::Lease(command) => block_on(lease::run(command)),
        Command::Cluster(command) => block_on(cluster::run(command)),
        Command::Config(command) => config::run(command),
        Command::Completions { shell } => completions(shell),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn block_on(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Runtime::new().map_err(|error| Failure::Other(error.into()))?;
    let ended = runtime.block_on(command);
    // What is still open has had its time: a connection that does not end must not keep the process.
    runtime.shutdown_background();
    ended
}

fn completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tenure", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
