//! `tenure doctor`: checks a cluster from this machine.
//!
//! | file | contents |
//! |---|---|
//! | `finding` | the result of one check, and the output |
//! | `local` | checks of this machine: configuration, disks, open files |
//! | `access` | the certificates and the access token of this client |
//! | `probe` | the facts of each address, with a time limit for each step |
//! | `certificate`, `cluster`, `clock` | findings from these facts |

mod access;
mod certificate;
mod clock;
mod cluster;
mod finding;
mod local;
mod probe;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Uri;
use clap::Args;

use super::failure::Failure;
use super::output::{self, Format};
use super::{CredentialArguments, duration};
use crate::client::{ENDPOINTS_VARIABLE, Endpoints};
use crate::config::Config;
use access::ClientAccess;
use finding::Finding;
use probe::{ListenerKind, ProbeTarget, Reached, reach_all};

/// The checks of this machine may use this many timeouts: they read files, and sync a disk for one timeout.
const LOCAL_TIMEOUTS: u32 = 2;

#[derive(Args)]
#[command(after_help = "\
Each check prints one line: ok, warning, problem or unknown, the name of the check, and its facts. A second line says what \
to do. The output has no secrets.
With --config, the command checks all addresses of the file. With --node, it also checks the certificates, the disks and \
the limits of this machine, which runs that node. Run it as the user of the node. It does not disturb a running node.

Exit codes:
  0  no problem; there may be warnings and unknown results
  2  the command line is invalid
  9  at least one problem")]
pub struct Arguments {
    /// Configuration file of the cluster
    #[arg(long, env = "TENURE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Id of the node that this machine runs, from the file
    #[arg(long, env = "TENURE_NODE", value_name = "ID", requires = "config")]
    node: Option<u64>,
    /// URLs of the nodes, separated by commas [default: those of the file, or of `tenure dev`]
    #[arg(long, env = ENDPOINTS_VARIABLE, value_name = "URLS")]
    endpoints: Option<Endpoints>,
    #[command(flatten)]
    credentials: CredentialArguments,
    /// Timeout of each step: a connection, a handshake, an answer
    #[arg(long, default_value = "2s", value_parser = duration::parse, value_name = "DURATION")]
    timeout: Duration,
    /// Output format
    #[arg(short, long, default_value = "table")]
    pub output: Format,
}

pub async fn run(arguments: Arguments) -> Result<(), Failure> {
    let arguments = Arc::new(arguments);
    let findings = examine(arguments.clone()).await;
    let printed = match arguments.output {
        Format::Json => output::json(&findings),
        Format::Table => output::print(&finding::render(&findings)),
    };
    finding::problems(&findings).map_or(printed, |problems| Err(Failure::Unhealthy(problems)))
}

async fn examine(arguments: Arc<Arguments>) -> Vec<Finding> {
    let limit = arguments.timeout;
    let given = arguments.clone();
    let read =
        blocking(limit, "configuration", move || local::configuration(given.config.as_deref(), given.node)).await;
    let (config, mut findings) = read.unwrap_or_else(|late| (None, vec![late]));
    let config = config.map(Arc::new);
    let (given, of_file) = (arguments.clone(), config.clone());
    let loaded =
        blocking(limit, "credentials", move || ClientAccess::load(&given.credentials, of_file.as_deref(), given.node));
    let (access, unusable) = loaded.await.unwrap_or_else(|late| (ClientAccess::default(), vec![late]));
    findings.extend(unusable);

    let (given, of_file) = (arguments.clone(), config.clone());
    let here = blocking(limit * LOCAL_TIMEOUTS, "this_machine", move || {
        local::checks(of_file.as_deref(), given.node, &given.credentials, limit)
    });
    let (here, reached) = tokio::join!(here, reach_cluster(&arguments, config.as_deref(), &access));
    findings.extend(here.unwrap_or_else(|late| vec![late]));
    let name = config.as_deref().map(|config| &*config.cluster);
    let name = name.or_else(|| cluster::view(&reached, None).map(|view| &*view.cluster_id));
    let now = certificate::now();
    findings.extend(cluster::judge(&reached, config.as_deref()));
    findings.extend(reached.iter().filter_map(|reached| certificate::at_address(reached, name, now)));
    findings
}

/// Runs a function that may block, for instance on a disk that does not answer.
async fn blocking<T: Send + 'static>(
    limit: Duration,
    name: &str,
    function: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Finding> {
    let late = || {
        let advice = "check the disks of this machine: a read or a sync does not return";
        Finding::problem(name, format!("not finished within {limit:?}"), advice)
    };
    match tokio::time::timeout(limit, tokio::task::spawn_blocking(function)).await {
        Ok(done) => Ok(done.expect("the checks do not panic")),
        Err(_) => Err(late()),
    }
}

/// Checks the addresses of the file and of the command line, then those of members that neither has.
async fn reach_cluster(arguments: &Arguments, config: Option<&Config>, access: &ClientAccess) -> Vec<Reached> {
    let mut reached = reach_all(targets(arguments, config), access, arguments.timeout).await;
    let Some(view) = cluster::view(&reached, config).cloned() else { return reached };
    let tls = reached.iter().any(|reached| reached.target.tls);
    let mut others = Vec::new();
    for member in &view.members {
        for (listener, address) in [(ListenerKind::Http, &member.http), (ListenerKind::Peer, &member.peer)] {
            match reached.iter_mut().find(|reached| reached.target.address == *address) {
                // The node that an endpoint belongs to was not known before.
                Some(known) => known.target.node = known.target.node.or(Some(member.id)),
                None => others.push(ProbeTarget::new(member.id, listener, address, tls)),
            }
        }
    }
    reached.extend(reach_all(others, access, arguments.timeout).await);
    reached.sort_by_key(|reached| (reached.target.node.is_none(), reached.target.node));
    reached
}

/// The addresses of the file and of the command line.
fn targets(arguments: &Arguments, config: Option<&Config>) -> Vec<ProbeTarget> {
    let mut targets = Vec::new();
    let endpoints = match (&arguments.endpoints, &arguments.config) {
        (Some(endpoints), _) => endpoints.to_string(),
        (None, Some(_)) => String::new(),
        (None, None) => Endpoints::default().to_string(),
    };
    for node in config.map_or(&[][..], |config| &config.nodes) {
        let tls = config.is_some_and(|config| config.tls.is_some());
        targets.push(ProbeTarget::new(node.id, ListenerKind::Http, &node.http, tls));
        targets.push(ProbeTarget::new(node.id, ListenerKind::Peer, &node.peer, tls));
    }
    for target in endpoints.split(',').filter_map(endpoint) {
        if targets.iter().all(|known: &ProbeTarget| known.address != target.address) {
            targets.push(target);
        }
    }
    targets
}

/// The address of a URL.
fn endpoint(url: &str) -> Option<ProbeTarget> {
    let uri: Uri = url.parse().ok()?;
    let tls = uri.scheme_str() == Some("https");
    let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
    let address = format!("{}:{port}", uri.host()?);
    Some(ProbeTarget { node: None, listener: ListenerKind::Http, address, tls, path: uri.path().to_owned() })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn each_step_takes_at_most_2_s_by_default() {
        let line = CommandLine::try_parse_from(["doctor"]).expect("no option is required");
        assert_eq!(line.arguments.timeout, Duration::from_secs(2));
    }

    #[test]
    fn address_of_an_endpoint_has_a_port() {
        let parts = |url: &str| endpoint(url).map(|target| (target.address, target.tls, target.path));
        let expected = |address: &str, tls, path: &str| Some((address.to_owned(), tls, path.to_owned()));
        assert_eq!(parts("http://127.0.0.1:7101/"), expected("127.0.0.1:7101", false, "/"));
        assert_eq!(parts("https://[::1]/tenure/"), expected("[::1]:443", true, "/tenure/"));
        assert_eq!(parts("http://a"), expected("a:80", false, "/"));
    }
}
