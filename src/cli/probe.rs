//! `tenure probe`: the health of the node on this machine, for Docker and Kubernetes.
//!
//! A probe of Kubernetes over HTTPS presents no certificate, so a node that requires one refuses it. This command presents
//! the certificate of the node.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::{Args, ValueEnum};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::header::HOST;
use hyper::{Request, StatusCode, client};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::duration;
use super::failure::Failure;
use crate::api::{Code, Problem};
use crate::config::{Config, NodeEntry};
use crate::peer;
use crate::tls::{ClientTls, TlsError};

/// Largest answer, in bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

#[derive(Args)]
#[command(after_help = "\
The command sends one request to the listener of the node on this machine, with the certificate of the node. It needs no \
access token.

A node is alive unless it answers that it has failed, or does not answer. A refused certificate is an answer. To be \
ready, the node must accept the certificate, and its own certificate must be valid.

Exit codes:
  0  yes
  1  a certificate cannot be read (`ready` only)
  2  the command line or the configuration file is invalid
  4  no, or no answer in time (stderr has the reason)")]
pub struct Arguments {
    #[arg(value_name = "CHECK")]
    check: Check,
    /// Configuration file of the cluster
    #[arg(long, default_value = "cluster.toml", env = "TENURE_CONFIG")]
    config: PathBuf,
    /// Id of the node, from the file
    #[arg(long, env = "TENURE_NODE", value_name = "ID")]
    node: u64,
    /// Time limit
    #[arg(long, default_value = "2s", value_parser = duration::parse, value_name = "DURATION")]
    timeout: Duration,
}

#[derive(Clone, Copy, ValueEnum)]
enum Check {
    /// Is the node alive? GET /livez
    Live,
    /// Does the node serve requests? GET /readyz
    Ready,
}

pub async fn run(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { check, config: path, node, timeout: limit } = arguments;
    let config = Config::load(&path)?;
    let no_node = || Failure::Usage(format!("{} has no node {node}", path.display()));
    let entry = config.node(node).ok_or_else(no_node)?;
    let tls = match (certificates(&config, entry), check) {
        (Ok(tls), _) => tls,
        // A running node goes on with its earlier certificates.
        (Err(_), Check::Live) => Some(ClientTls::default()),
        (Err(error), Check::Ready) => return Err(Failure::Other(error.into())),
    };
    let late = |_| Failure::Unavailable(format!("node {node} did not answer within {limit:?}"));
    timeout(limit, ask(entry, check, tls.as_ref())).await.map_err(late)?.map_err(Failure::Unavailable)
}

fn certificates(config: &Config, entry: &NodeEntry) -> Result<Option<ClientTls>, TlsError> {
    let Some(settings) = &config.tls else { return Ok(None) };
    let files = settings.of_node(entry.id);
    ClientTls::with_certificate(files.ca, files.cert, files.key).map(Some)
}

async fn ask(entry: &NodeEntry, check: Check, tls: Option<&ClientTls>) -> Result<(), String> {
    let address = &entry.listen_http;
    let all = bound(address).await.map_err(|error| format!("cannot resolve {address}: {error}"))?;
    // The certificate of the node has the host of `http`, which may be an address of another machine, or have no
    // address inside a container.
    let host = entry.http.rsplit_once(':').map_or(&*entry.http, |(host, _)| host);
    let path = match check {
        Check::Live => "/livez",
        Check::Ready => "/readyz",
    };
    let stream = peer::connect_any(all).await.map_err(|error| format!("{address}: {error}"))?;
    let at = stream.peer_addr().map_err(|error| format!("{address}: {error}"))?;
    let (status, body) = match (send(stream, host, path, tls).await, check) {
        (Ok(answer), _) => answer,
        // The process has accepted the connection and then ended it: for example, a certificate has expired, or the node
        // has too many connections. A restart would help against neither.
        (Err(error), Check::Live) => {
            message!("{at}: the node is alive, but refused the request: {error}");
            return Ok(());
        }
        (Err(error), Check::Ready) => return Err(format!("{at}: {error}")),
    };
    if status.is_success() {
        return Ok(());
    }
    let problem: Option<Problem> = serde_json::from_slice(&body).ok();
    let has_failed = problem.as_ref().is_some_and(|problem| problem.code == Code::Failed);
    let why = problem.map_or_else(|| status.to_string(), |problem| problem.detail);
    match check {
        Check::Live if !has_failed => {
            message!("{at}{path}: the node is alive, but refused the request: {why}");
            Ok(())
        }
        Check::Live | Check::Ready => Err(format!("{at}{path}: {why}")),
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Sends one request to the node.
async fn send(
    stream: TcpStream,
    host: &str,
    path: &str,
    tls: Option<&ClientTls>,
) -> Result<(StatusCode, Bytes), BoxError> {
    let Some(tls) = tls else { return get(stream, host, path).await };
    let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())?;
    get(TlsConnector::from(Arc::new(tls.config())).connect(name, stream).await?, host, path).await
}

async fn get(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    host: &str,
    path: &str,
) -> Result<(StatusCode, Bytes), BoxError> {
    let (mut sender, connection) = client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get(path).header(HOST, host).body(Empty::<Bytes>::new())?;
    let exchange = async move {
        let answer = sender.send_request(request).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await?;
        Ok::<_, BoxError>((status, body.to_bytes()))
    };
    // The connection ends after the exchange, which drops the sender. The exchange has its errors.
    let (answered, _) = tokio::join!(exchange, connection);
    answered
}

/// The addresses at which this machine reaches a listener.
async fn bound(address: &str) -> io::Result<Vec<SocketAddr>> {
    let reached = |mut at: SocketAddr| {
        if at.ip().is_unspecified() {
            at.set_ip(match at.ip() {
                IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        at
    };
    Ok(lookup_host(address).await?.map(reached).collect())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        arguments: Arguments,
    }

    /// Docker and Kubernetes end a probe after 5 s, without its message.
    #[test]
    fn probe_takes_at_most_2_s_by_default() {
        let line = CommandLine::try_parse_from(["probe", "live", "--node", "1"]).expect("it is complete");
        assert_eq!(line.arguments.timeout, Duration::from_secs(2));
    }

    fn entry(address: SocketAddr) -> NodeEntry {
        let [http, listen_http] = [(); 2].map(|()| address.to_string());
        NodeEntry { id: 1, http, listen_http, peer: String::new(), listen_peer: String::new(), data: PathBuf::new() }
    }

    /// The results of both checks at a node that sends this response to each request and closes the connection.
    async fn checks(response: String) -> [Result<(), String>; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let entry = entry(listener.local_addr().expect("it is bound"));
        let serving = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                let _ = stream.read(&mut [0; 1024]).await;
                let _ = stream.write_all(response.as_bytes()).await;
            }
        });
        let results = [ask(&entry, Check::Live, None).await, ask(&entry, Check::Ready, None).await];
        serving.abort();
        results
    }

    #[tokio::test]
    async fn node_is_alive_unless_it_says_that_it_has_failed() {
        let response = |status: &str, body: &str| {
            format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
        };
        let problem = |code| serde_json::to_string(&Problem::new(code, "the reason")).expect("plain values");
        let full = response("503 Service Unavailable", &problem(Code::NotReady));
        for answer in [String::new(), full, response("400 Bad Request", "")] {
            let [live, ready] = checks(answer.clone()).await;
            assert!(live.is_ok() && ready.is_err(), "{answer}: {live:?}, {ready:?}");
        }
        for result in checks(response("503 Service Unavailable", &problem(Code::Failed))).await {
            let why = result.expect_err("the node has failed");
            assert!(why.ends_with(": the reason"), "{why}");
        }
        for result in checks(response("200 OK", "{}")).await {
            assert_eq!(result, Ok(()));
        }
    }

    #[tokio::test]
    async fn node_without_a_listener_is_not_alive() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        drop(listener);
        assert!(ask(&entry(address), Check::Live, None).await.is_err());
    }

    #[tokio::test]
    async fn listener_of_all_addresses_is_reached_at_loopback() {
        for (address, expected) in
            [("0.0.0.0:7101", "127.0.0.1:7101"), ("[::]:7101", "[::1]:7101"), ("10.0.0.1:7101", "10.0.0.1:7101")]
        {
            let expected: SocketAddr = expected.parse().expect("valid");
            assert_eq!(bound(address).await.expect("no name to resolve"), [expected]);
        }
    }
}
