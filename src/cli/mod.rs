//! The commands of the binary.
//!
//! Data goes to stdout and messages go to stderr. The exit code tells the result. A flag overrides the environment, the
//! environment overrides the file, and the file overrides the default.
//!
//! | file | contents |
//! |---|---|
//! | `lease`, `cluster`, `member`, `snapshot`, `auth`, `config`, `tls` | the commands for clients and operators |
//! | `run`, `elect` | a command that runs while a lease is held; leader election and observers |
//! | `doctor`, `probe` | checks of a cluster from this machine; the health of one node |
//! | `serve`, `dev` | the commands that run nodes |
//! | `host` | one node with its listeners, from start to shutdown |
//! | `signals` | shutdown signals |
//! | `open_files` | the limit of open files and connections |
//! | `output` | tables and JSON |
//! | `failure` | errors and their exit codes |
//! | `duration`, `metadata` | parsers for arguments |

/// Prints a message to stderr. A message that cannot be written is lost: `eprintln!` would panic, for instance if stderr
/// is a file on a full disk.
macro_rules! message {
    ($($part:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($part)*);
    }};
}

mod auth;
mod cluster;
mod config;
mod dev;
mod doctor;
pub(crate) mod duration;
#[cfg(target_os = "linux")]
mod elect;
mod failure;
mod host;
mod lease;
mod member;
pub(crate) mod metadata;
mod open_files;
mod output;
mod probe;
#[cfg(target_os = "linux")]
mod run;
mod serve;
mod signals;
mod snapshot;
mod tls;

use std::env::VarError;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::access::AccessToken;
use crate::client::{DEFAULT_ENDPOINTS, ENDPOINTS_VARIABLE, Endpoints, Remote};
#[cfg(feature = "otlp")]
use crate::telemetry;
use crate::tls::ClientTls;
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
  0  success
  1  the cluster refused the request (stderr has the reason), or a node failed
  2  the command line, a configuration file or a value is invalid
  3  unknown outcome: the request may be applied; it is safe to send it again
  4  unavailable: no node could be reached or could serve; the request is certainly not applied
  5  another client has the lease, or the lease is in its lock delay
  6  the lease is not held with this token: it is lost
  7  the cluster has no record of the lease, or the node is not a member";

#[derive(Subcommand)]
enum Command {
    /// Run a three-node cluster in this process, for development
    Dev(dev::Arguments),
    /// Run one node of a cluster
    Serve(serve::Arguments),
    /// Acquire, renew, release and inspect leases
    #[command(subcommand, after_help = EXIT_CODES)]
    Lease(lease::Command),
    /// Run a command while a lease is held
    #[cfg(target_os = "linux")]
    #[command(after_help = run::HELP)]
    Run(run::Arguments),
    /// Take part in a leader election, or observe it
    #[cfg(target_os = "linux")]
    #[command(after_help = elect::HELP)]
    Elect(elect::Arguments),
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    RunGuard(run::guard::Arguments),
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    RunLaunch(run::launch::Arguments),
    /// Inspect the cluster
    #[command(subcommand, after_help = EXIT_CODES)]
    Cluster(cluster::Command),
    /// Add, remove and replace nodes
    #[command(subcommand, after_help = EXIT_CODES)]
    Member(member::Command),
    /// Save, check and restore backups
    #[command(subcommand, after_help = EXIT_CODES)]
    Snapshot(snapshot::Command),
    /// Manage access control: roles, principals and access tokens
    #[command(subcommand, after_help = EXIT_CODES)]
    Auth(auth::Command),
    /// Check a cluster, its addresses and this machine, and say what to do
    Doctor(doctor::Arguments),
    /// Ask the node on this machine whether it is alive or ready, for Docker and Kubernetes
    Probe(probe::Arguments),
    /// Check configuration files
    #[command(subcommand)]
    Config(config::Command),
    /// Make a CA and certificates for a trial cluster
    #[command(subcommand)]
    Tls(tls::Command),
    /// Print a shell completion script
    Completions { shell: clap_complete::Shell },
}

/// The arguments of all commands that send requests to a cluster.
#[derive(Args)]
struct ClientArguments {
    /// URLs of the nodes, separated by commas
    #[arg(long, env = ENDPOINTS_VARIABLE, default_value = DEFAULT_ENDPOINTS, value_name = "URLS")]
    endpoints: Endpoints,
    #[command(flatten)]
    credentials: CredentialArguments,
    /// Timeout of the request, for instance 500ms or 5s; the wait for a lease does not count
    #[arg(long, default_value = "5s", value_parser = duration::parse, value_name = "DURATION")]
    timeout: Duration,
    /// Output format
    #[arg(short, long, default_value = "table")]
    output: Format,
}

impl ClientArguments {
    fn remote(&self) -> Result<Remote, Failure> {
        Ok(self.credentials.remote(&self.endpoints)?.with_timeout(self.timeout))
    }
}

/// Environment variable with the access token itself. No option takes it: other users see the options of a process.
const TOKEN_VARIABLE: &str = "TENURE_ACCESS_TOKEN";
/// Environment variables with the files of the access token and of certificates.
const TOKEN_FILE_VARIABLE: &str = "TENURE_ACCESS_TOKEN_FILE";
const CA_VARIABLE: &str = "TENURE_CA";
const CERT_VARIABLE: &str = "TENURE_CERT";
const KEY_VARIABLE: &str = "TENURE_KEY";

/// The certificates for `https` endpoints, and the access token.
#[derive(Args)]
struct CredentialArguments {
    /// File with the access token, alone on its first line; without it, the variable TENURE_ACCESS_TOKEN has the token
    #[arg(long, env = TOKEN_FILE_VARIABLE, value_name = "FILE")]
    access_token_file: Option<PathBuf>,
    /// Trust only the CAs in this PEM file, instead of those of the system
    #[arg(long, env = CA_VARIABLE, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Present the certificate in this PEM file
    #[arg(long, env = CERT_VARIABLE, value_name = "FILE", requires = "ca", requires = "key")]
    cert: Option<PathBuf>,
    /// PEM file with the key of the certificate
    #[arg(long, env = KEY_VARIABLE, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
}

impl CredentialArguments {
    /// The arguments as environment variables, for a child process.
    #[cfg(target_os = "linux")]
    fn variables(&self) -> impl Iterator<Item = (&'static str, &PathBuf)> {
        let all = [
            (TOKEN_FILE_VARIABLE, &self.access_token_file),
            (CA_VARIABLE, &self.ca),
            (CERT_VARIABLE, &self.cert),
            (KEY_VARIABLE, &self.key),
        ];
        all.into_iter().filter_map(|(name, path)| Some((name, path.as_ref()?)))
    }

    /// The access token from its file, or from the environment.
    fn token(&self) -> Result<Option<AccessToken>, Failure> {
        let (source, text) = match &self.access_token_file {
            Some(path) => {
                let read = std::fs::read_to_string(path);
                let unreadable = |error| Failure::Usage(format!("cannot read {}: {error}", path.display()));
                (path.display().to_string(), read.map_err(unreadable)?)
            }
            None => match std::env::var(TOKEN_VARIABLE) {
                Ok(text) if !text.is_empty() => (TOKEN_VARIABLE.to_owned(), text),
                Ok(_) | Err(VarError::NotPresent) => return Ok(None),
                // The text of this error has the value, which is a secret.
                Err(VarError::NotUnicode(_)) => {
                    return Err(Failure::Usage(format!("{TOKEN_VARIABLE}: the value is not UTF-8")));
                }
            },
        };
        let token = text.lines().next().unwrap_or_default().trim().parse();
        token.map(Some).map_err(|error| Failure::Usage(format!("{source}: {error}")))
    }

    fn remote(&self, endpoints: &Endpoints) -> Result<Remote, Failure> {
        let remote = Remote::new(endpoints.clone());
        let remote = self.token()?.iter().fold(remote, Remote::with_token);
        let tls = match (&self.ca, &self.cert, &self.key) {
            (Some(ca), Some(cert), Some(key)) => ClientTls::with_certificate(ca, cert, key),
            (Some(ca), ..) => ClientTls::trusting(ca),
            (None, ..) => return Ok(remote),
        };
        Ok(remote.with_tls(&tls.map_err(|error| Failure::Usage(format!("{:#}", anyhow::Error::from(error))))?))
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return report_usage(&error),
    };
    let format = match &cli.command {
        Command::Lease(command) => command.output(),
        Command::Cluster(command) => command.output(),
        Command::Member(command) => command.output(),
        Command::Snapshot(command) => command.output(),
        Command::Auth(command) => command.output(),
        Command::Config(command) => command.output(),
        Command::Doctor(arguments) => arguments.output,
        _ => Format::Table,
    };
    let ended = match cli.command {
        Command::Dev(arguments) => block_on(dev::run(arguments)),
        Command::Serve(arguments) => serve::run(arguments),
        Command::Lease(command) => block_on(lease::run(command)),
        Command::Cluster(command) => block_on(cluster::run(command)),
        Command::Member(command) => block_on(member::run(command)),
        Command::Snapshot(command) => block_on(snapshot::run(command)),
        Command::Auth(command) => block_on(auth::run(command)),
        Command::Doctor(arguments) => block_on(doctor::run(arguments)),
        Command::Probe(arguments) => block_on(probe::run(arguments)),
        Command::Config(command) => config::run(command),
        Command::Tls(command) => tls::run(command),
        Command::Completions { shell } => completions(shell),
        // These commands pass on the exit code of their child command, so they use other codes for their own errors.
        #[cfg(target_os = "linux")]
        Command::Run(arguments) => {
            return block_on(async { Ok(run::run(arguments).await) }).unwrap_or(ExitCode::from(run::codes::FAILED));
        }
        #[cfg(target_os = "linux")]
        Command::Elect(arguments) => {
            return block_on(async { Ok(elect::run(arguments).await) }).unwrap_or(ExitCode::from(run::codes::FAILED));
        }
        #[cfg(target_os = "linux")]
        Command::RunGuard(arguments) => return run::guard::run(arguments),
        #[cfg(target_os = "linux")]
        Command::RunLaunch(arguments) => return run::launch::run(arguments),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(format),
    }
}

/// Prints a usage error, or the requested help.
fn report_usage(error: &clap::Error) -> ExitCode {
    if error.use_stderr() && asks_for_json(std::env::args_os().skip(1)) {
        return Failure::Usage(summary(&error.to_string())).report(Format::Json);
    }
    // Fails if the output is closed.
    let _ = error.print();
    match error.use_stderr() {
        false => ExitCode::SUCCESS,
        #[cfg(target_os = "linux")]
        true if std::env::args_os().nth(1).is_some_and(|word| word == "run" || word == "elect") => {
            ExitCode::from(run::codes::FAILED)
        }
        true => ExitCode::from(2),
    }
}

/// Whether an invalid command line asks for JSON. `run` and `elect` have no output format: their words belong to a command.
fn asks_for_json(words: impl Iterator<Item = OsString>) -> bool {
    let words: Vec<OsString> = words.collect();
    if words.first().is_some_and(|word| word == "run" || word == "elect") {
        return false;
    }
    let is_pair = |pair: &[OsString]| (pair[0] == "-o" || pair[0] == "--output") && pair[1] == "json";
    words.windows(2).any(is_pair)
        || words.iter().any(|word| ["-ojson", "-o=json", "--output=json"].contains(&&*word.to_string_lossy()))
}

/// The first paragraph of a usage error, on one line. The others show the usage.
fn summary(error: &str) -> String {
    let paragraph = error.trim_start_matches("error: ").split("\n\n").next().unwrap_or_default();
    paragraph.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Runs a command, with the traces that the environment configures.
fn block_on<T>(command: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    #[cfg(feature = "otlp")]
    let _traces = telemetry::Traces::install(None).unwrap_or_else(|error| {
        message!("tenure: {error}");
        None
    });
    block_on_runtime(command)
}

fn block_on_runtime<T>(command: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Runtime::new().map_err(|error| Failure::Other(error.into()))?;
    let ended = runtime.block_on(command);
    // All timeouts have passed here. A connection that does not close must not delay the exit.
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
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn json_is_found_in_an_invalid_command_line() {
        let asks = |line: &str| asks_for_json(line.split(' ').map(OsString::from));
        for line in ["lease get -o json", "lease get -ojson", "lease -o=json", "--output=json", "get --output json a"] {
            assert!(asks(line), "{line}");
        }
        for line in ["lease get", "lease get json -o", "lease get -o table", "run jobs -- kubectl get -o json", ""] {
            assert!(!asks(line), "{line}");
        }
    }

    #[test]
    fn summary_is_the_first_paragraph() {
        let missing = Cli::try_parse_from(["tenure", "lease", "acquire", "-o", "json"]).err().expect("two are missing");
        let expected = "the following required arguments were not provided: --holder <HOLDER> <NAME>";
        assert_eq!(summary(&missing.to_string()), expected);
        let unknown = Cli::try_parse_from(["tenure", "lease", "list", "--nonsense"]).err().expect("no such option");
        assert_eq!(summary(&unknown.to_string()), "unexpected argument '--nonsense' found");
    }
}
