//! The facts of one address: whether it is reachable, its certificate, and the answers of its node.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::access::ClientAccess;
use super::clock::{Measured, Reading, measure};
use crate::api::{Cluster, Code, Version};
use crate::client::{CallError, Remote};
use crate::clock::{Clock, SystemClock};
use crate::peer;
use crate::tls::Inspected;
use crate::types::NodeId;

/// How rustls begins the message about an alert of the other end, and about a certificate that this end refuses.
const ALERT: &str = "received fatal alert: ";
const UNTRUSTED: &str = "invalid peer certificate: ";
/// How hyper ends the message about a connection that the other end closed before the request.
const CLOSED: &str = "connection was not ready";
/// Further connections to a node that closes them.
const MORE_CONNECTIONS: usize = 3;
/// Time between the two readings of a clock.
pub const CLOCK_INTERVAL: Duration = Duration::from_secs(3);
/// Answers for one reading. The fastest one counts.
const ANSWERS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerKind {
    Http,
    Peer,
}

/// An address to check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeTarget {
    /// The node that should answer. An endpoint of the command line has none.
    pub node: Option<NodeId>,
    pub listener: ListenerKind,
    /// `host:port`.
    pub address: String,
    pub tls: bool,
    /// The path of an endpoint, with its slashes.
    pub path: String,
}

impl ProbeTarget {
    pub fn new(node: NodeId, listener: ListenerKind, address: &str, tls: bool) -> ProbeTarget {
        ProbeTarget { node: Some(node), listener, address: address.to_owned(), tls, path: "/".to_owned() }
    }

    /// The subject of findings about this address.
    pub fn subject(&self) -> String {
        match (self.node, self.listener) {
            (Some(node), ListenerKind::Http) => format!("{node}.http"),
            (Some(node), ListenerKind::Peer) => format!("{node}.peer"),
            (None, _) => self.address.clone(),
        }
    }

    fn url(&self) -> String {
        format!("{}://{}{}", if self.tls { "https" } else { "http" }, self.address, self.path)
    }

    fn host(&self) -> &str {
        self.address.rsplit_once(':').map_or(&*self.address, |(host, _)| host)
    }
}

/// The facts of an address. An error is a message.
#[derive(Clone, Debug)]
pub struct Reached {
    pub target: ProbeTarget,
    /// The time to connect.
    pub connected: Result<Duration, String>,
    /// The certificate; `None` without TLS or without a connection.
    pub certificate: Option<Result<Inspected, String>>,
    /// The answers; `None` at the peer listener or without a connection.
    pub answers: Option<Answers>,
}

/// The answers of a node.
#[derive(Clone, Debug)]
pub struct Answers {
    pub cluster: Result<Cluster, NoAnswer>,
    pub version: Result<Version, NoAnswer>,
    pub files: Result<OpenFiles, NoAnswer>,
    pub clock: Result<Measured, NoAnswer>,
}

/// The reason why there is no answer of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// The node refused the access token or the certificate of this client, or the client the certificate of the node.
    /// Then the state of the node is unknown.
    Denied(String),
    Failed(String),
}

impl NoAnswer {
    pub fn message(&self) -> &str {
        match self {
            NoAnswer::Denied(why) | NoAnswer::Failed(why) => why,
        }
    }
}

impl From<CallError> for NoAnswer {
    fn from(error: CallError) -> NoAnswer {
        match &error {
            CallError::Refused(problem) if matches!(problem.code, Code::Unauthenticated | Code::Forbidden) => {
                NoAnswer::Denied(format!("access control refuses this client ({})", problem.code.as_str()))
            }
            CallError::Refused(problem) => NoAnswer::Failed(problem.detail.clone()),
            CallError::Unavailable(why) => {
                let after = |text| why.rsplit_once(text).map(|(_, reason)| reason);
                match (after(ALERT), after(UNTRUSTED)) {
                    (Some(alert), _) => {
                        NoAnswer::Denied(format!("the node refuses the certificate of this client ({alert})"))
                    }
                    (None, Some(reason)) => {
                        let reason = reason.split(':').next().unwrap_or_default();
                        NoAnswer::Denied(format!("this client refuses the certificate of the node ({reason})"))
                    }
                    (None, None) => NoAnswer::Failed(error.to_string()),
                }
            }
            _ => NoAnswer::Failed(error.to_string()),
        }
    }
}

/// The open files of a node's process, and their limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OpenFiles {
    pub open: f64,
    pub limit: f64,
}

impl OpenFiles {
    /// Reads the metrics of a node.
    fn of(metrics: &str) -> Option<OpenFiles> {
        let value = |name: &str| {
            let line =
                metrics.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])));
            line?.rsplit_once(' ')?.1.parse::<f64>().ok()
        };
        Some(OpenFiles { open: value("process_open_fds")?, limit: value("process_max_fds")? })
    }
}

/// Checks all targets at the same time. First it only connects, so that handshakes do not lengthen the measured times.
pub async fn reach_all(targets: Vec<ProbeTarget>, access: &ClientAccess, limit: Duration) -> Vec<Reached> {
    let connections = join_all(targets.iter().map(|target| connect(target, limit))).await;
    let examined = targets.into_iter().zip(connections).map(|(target, connection)| async move {
        match connection {
            Ok((stream, elapsed)) => examine(target, stream, elapsed, access, limit).await,
            Err(why) => Reached { target, connected: Err(why), certificate: None, answers: None },
        }
    });
    join_all(examined).await
}

async fn connect(target: &ProbeTarget, limit: Duration) -> Result<(TcpStream, Duration), String> {
    let began = tokio::time::Instant::now();
    match timeout(limit, peer::connect(&target.address)).await {
        Ok(Ok(stream)) => Ok((stream, began.elapsed())),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no connection within {limit:?}")),
    }
}

/// Checks the certificate at an open connection, and asks the node with other connections.
async fn examine(
    target: ProbeTarget,
    stream: TcpStream,
    elapsed: Duration,
    access: &ClientAccess,
    limit: Duration,
) -> Reached {
    let certificate = match (&access.inspector, target.tls) {
        (Some(inspector), true) => {
            let handshake = timeout(limit, inspector.handshake(stream, target.host())).await;
            let handshake = handshake.map_err(|_| format!("no handshake within {limit:?}"));
            Some(handshake.and_then(|done| done.map_err(|error| error.to_string())))
        }
        _ => None,
    };
    let answers = match target.listener {
        ListenerKind::Http => Some(match access.remote(&target.url(), limit) {
            Ok(remote) => ask(&remote).await,
            Err(why) => Answers::none(NoAnswer::Failed(why)),
        }),
        ListenerKind::Peer => None,
    };
    Reached { target, connected: Ok(elapsed), certificate, answers }
}

impl Reached {
    pub fn is_denied(&self) -> bool {
        self.answers.as_ref().is_some_and(|answers| matches!(answers.cluster, Err(NoAnswer::Denied(_))))
    }

    pub fn cluster(&self) -> Option<&Cluster> {
        self.answers.as_ref()?.cluster.as_ref().ok()
    }
}

impl Answers {
    fn none(why: NoAnswer) -> Answers {
        let other = match &why {
            NoAnswer::Denied(_) => NoAnswer::Denied("this client is refused".to_owned()),
            NoAnswer::Failed(_) => NoAnswer::Failed("no answer".to_owned()),
        };
        Answers { cluster: Err(why), version: Err(other.clone()), files: Err(other.clone()), clock: Err(other) }
    }
}

/// Asks one node. After a first failure it asks nothing else, so that one timeout is enough, and that access control
/// does not count many failed attempts.
async fn ask(remote: &Remote) -> Answers {
    let (mut cluster, mut version) = tokio::join!(remote.cluster(), remote.version());
    // The node closed the connection before this client sent anything. If it refuses the certificate, its alert can come
    // at the same moment, and the next connection shows it.
    for _ in 0..MORE_CONNECTIONS {
        if !matches!(&cluster, Err(CallError::Unavailable(why)) if why.ends_with(CLOSED)) {
            break;
        }
        (cluster, version) = tokio::join!(remote.cluster(), remote.version());
    }
    let version = version.map_err(NoAnswer::from);
    let cluster = match cluster {
        Ok(cluster) => cluster,
        Err(error) => return Answers { version, ..Answers::none(error.into()) },
    };
    let no_files = || NoAnswer::Failed("the node has no such metrics".to_owned());
    let files = async {
        remote.metrics().await.map_err(NoAnswer::from).and_then(|text| OpenFiles::of(&text).ok_or_else(no_files))
    };
    let (files, clock) = tokio::join!(files, measure_clock(remote));
    Answers { cluster: Ok(cluster), version, files, clock }
}

async fn measure_clock(remote: &Remote) -> Result<Measured, NoAnswer> {
    let first = read_clock(remote).await?;
    tokio::time::sleep(CLOCK_INTERVAL).await;
    Ok(measure(&first, &read_clock(remote).await?))
}

/// The clocks in the fastest of some answers.
async fn read_clock(remote: &Remote) -> Result<Reading, NoAnswer> {
    let mut fastest: Option<Reading> = None;
    for _ in 0..ANSWERS {
        let asked = SystemClock.elapsed();
        let cluster = remote.cluster().await?;
        let (answered, wall_here) = (SystemClock.elapsed(), SystemClock.wall_ms());
        let reading = Reading {
            asked,
            answered,
            monotonic_ms: cluster.clock.monotonic_ms,
            wall_difference_ms: cluster.clock.wall.as_millis() as i64 - wall_here as i64,
        };
        if fastest.is_none_or(|fastest| reading.round_trip() < fastest.round_trip()) {
            fastest = Some(reading);
        }
    }
    Ok(fastest.expect("there is more than one answer"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_files_are_read_from_metrics() {
        let with_labels =
            "# HELP process_open_fds Open\nprocess_open_fds{node=\"1\"} 48\nprocess_max_fds{node=\"1\"} 1024\n";
        assert_eq!(OpenFiles::of(with_labels), Some(OpenFiles { open: 48.0, limit: 1024.0 }));
        let unlimited = OpenFiles::of("process_open_fds 48\nprocess_max_fds +Inf\n").expect("both values");
        assert_eq!(unlimited.limit, f64::INFINITY);
        assert_eq!(OpenFiles::of("process_open_fds_total 48\nprocess_max_fds 7\n"), None);
    }

    #[test]
    fn subject_of_an_endpoint_is_its_address() {
        let target = ProbeTarget::new(3, ListenerKind::Peer, "[::1]:7203", true);
        assert_eq!(
            (target.subject(), target.host(), target.url()),
            ("3.peer".into(), "[::1]", "https://[::1]:7203/".into())
        );
        assert_eq!(ProbeTarget { node: None, ..target }.subject(), "[::1]:7203");
    }

    /// A program can mount the routes of its node below a path.
    #[test]
    fn node_below_a_path_is_asked_there() {
        let target = ProbeTarget::new(3, ListenerKind::Http, "a:80", false);
        assert_eq!(ProbeTarget { path: "/tenure/".to_owned(), ..target }.url(), "http://a:80/tenure/");
    }

    #[test]
    fn refused_clients_are_denied_and_not_failed() {
        let refused = |code| NoAnswer::from(CallError::Refused(Box::new(crate::api::Problem::new(code, "why"))));
        assert!(matches!(refused(Code::Unauthenticated), NoAnswer::Denied(_)));
        assert!(matches!(refused(Code::Forbidden), NoAnswer::Denied(_)));
        assert_eq!(refused(Code::Invalid), NoAnswer::Failed("why".to_owned()));
        let unavailable = |why: &str| NoAnswer::from(CallError::Unavailable(why.to_owned()));
        let alert = unavailable("https://a/: received fatal alert: CertificateRequired");
        let expected = "the node refuses the certificate of this client (CertificateRequired)";
        assert_eq!(alert, NoAnswer::Denied(expected.to_owned()));
        let untrusted = unavailable("https://a/: invalid peer certificate: UnknownIssuer");
        let expected = "this client refuses the certificate of the node (UnknownIssuer)";
        assert_eq!(untrusted, NoAnswer::Denied(expected.to_owned()));
        assert!(matches!(unavailable("connection refused"), NoAnswer::Failed(_)));
    }
}
