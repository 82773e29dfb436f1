//! The commands of the binary.
//!
//! Data goes to stdout, words go to stderr, and the exit code says what came of it. Flags come before the
//! environment, the environment before the file, the file before the default.
//!
//! | file | noun |
//! |---|---|
//! | `lease`, `cluster`, `config` | the commands of clients and operators |
//! | `run`, `elect` | a command that runs while a lease is held; leading, and seeing who leads |
//! | `serve`, `dev` | running nodes |
//! | `host` | one node with its listeners, from start to end |
//! | `signals` | being asked to stop |
//! | `open_files` | how many connections the process can have |
//! | `output` | tables, JSON, words |
//! | `failure` | what goes wrong, and its exit code |
//! | `duration`, `note` | durations and notes as people write them |

mod cluster;
mod config;
mod dev;
pub(crate) mod duration;
#[cfg(target_os = "linux")]
mod elect;
mod failure;
mod host;
mod lease;
pub(crate) mod metadata;
mod open_files;
mod output;
#[cfg(target_os = "linux")]
mod run;
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
    /// Run a command while a lease is held
    #[cfg(target_os = "linux")]
    #[command(after_help = run::HELP)]
    Run(run::Arguments),
    /// Stand for election and lead, or see who leads
    #[cfg(target_os = "linux")]
    #[command(after_help = elect::HELP)]
    Elect(elect::Arguments),
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    RunGuard(run::guard::Arguments),
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    RunLaunch(run::launch::Arguments),
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
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return misread(&error),
    };
    let ended = match cli.command {
        Command::Dev(arguments) => block_on(dev::run(arguments)),
        Command::Serve(arguments) => block_on(serve::run(arguments)),
        Command::Lease(command) => block_on(lease::run(command)),
        Command::Cluster(command) => block_on(cluster::run(command)),
        Command::Config(command) => config::run(command),
        Command::Completions { shell } => completions(shell),
        // These have exit codes of their own, because most codes are those of the command that they run.
        #[cfg(target_os = "linux")]
        Command::Run(arguments) => {
            return block_on(async { Ok(run::run(arguments).await) }).unwrap_or(ExitCode::from(run::codes::OURS));
        }
        #[cfg(target_os = "linux")]
        Command::Elect(arguments) => {
            return block_on(async { Ok(elect::run(arguments).await) }).unwrap_or(ExitCode::from(run::codes::OURS));
        }
        #[cfg(target_os = "linux")]
        Command::RunGuard(arguments) => return run::guard::run(arguments),
        #[cfg(target_os = "linux")]
        Command::RunLaunch(arguments) => return run::launch::run(arguments),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Says what is wrong with the command line, or shows the help that it asks for.
fn misread(error: &clap::Error) -> ExitCode {
    // Fails when nobody reads it.
    let _ = error.print();
    match error.use_stderr() {
        false => ExitCode::SUCCESS,
        #[cfg(target_os = "linux")]
        true if std::env::args_os().nth(1).is_some_and(|word| word == "run" || word == "elect") => {
            ExitCode::from(run::codes::OURS)
        }
        true => ExitCode::from(2),
    }
}

fn block_on<T>(command: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
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
