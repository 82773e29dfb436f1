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
use crate::api::Problem;
use crate::config::{Config, NodeEntry};
use crate::peer;
use crate::tls::{ClientTls, TlsError};

/// Largest answer, in bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

#[derive(Args)]
#[command(after_help = "\
The command sends one request to the listener of the node on this machine, with the certificate of the node. It needs no \
access token.

Exit codes:
  0  yes
  1  a certificate cannot be read
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
    let tls = certificates(&config, entry).map_err(|error| Failure::Other(error.into()))?;
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
    let (status, body) = send(stream, host, path, tls).await.map_err(|error| format!("{at}: {error}"))?;
    if status.is_success() {
        return Ok(());
    }
    let why = serde_json::from_slice(&body).map_or_else(|_| status.to_string(), |problem: Problem| problem.detail);
    Err(format!("{at}{path}: {why}"))
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
    use super::*;

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
