//! Starts a cluster, a database, services, generators and workers, and prints how the tasks went.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tenure::client::ENDPOINTS_VARIABLE;
use tenure::http::{self, NodeRef, Settings};
use tenure::node::Node;
use tokio::net::TcpListener;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::plain_http::send;
use crate::postgres::PostgresServer;
use crate::{Done, number};

/// A process of the example. Dropping it kills the process.
struct Part(Child);

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Part {
    fn start(arguments: &[&str], variables: &[(&str, String)]) -> Done<Part> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(arguments).envs(variables.iter().map(|(name, value)| (name, value))).stdin(Stdio::null());
        let output = if arguments[0] == "worker" { Stdio::inherit() } else { Stdio::piped() };
        Ok(Part(command.stdout(output).spawn()?))
    }

    /// The address that the process prints.
    fn address(&mut self) -> Done<String> {
        let mut line = String::new();
        BufReader::new(self.0.stdout.take().ok_or("the output is a pipe")?).read_line(&mut line)?;
        Ok(line.split_whitespace().last().ok_or("the process ended early")?.to_owned())
    }
}

/// One node in this process, unless `TENURE_ENDPOINTS` names a cluster.
struct Cluster {
    endpoints: String,
    node: Option<Node>,
    _data: TempDir,
}

impl Cluster {
    async fn start() -> Done<Cluster> {
        let data = TempDir::new()?;
        if let Ok(endpoints) = std::env::var(ENDPOINTS_VARIABLE) {
            return Ok(Cluster { endpoints, node: None, _data: data });
        }
        let (public, peer) = (TcpListener::bind("127.0.0.1:0").await?, TcpListener::bind("127.0.0.1:0").await?);
        let (address, peer_address) = (public.local_addr()?.to_string(), peer.local_addr()?.to_string());
        let builder = Node::builder("task-queue").id(1).member(1, &address, peer_address);
        let node = builder.peer_listener(peer).data(data.path().join("node")).start().await?;
        tokio::spawn(http::serve(public, NodeRef::from(&node), Settings::new(1), CancellationToken::new()));
        Ok(Cluster { endpoints: format!("http://{address}"), node: Some(node), _data: data })
    }
}

pub async fn run() -> Done {
    let own = match std::env::var("DATABASE_URL") {
        Ok(_) => None,
        Err(_) => Some(PostgresServer::start().await.ok_or("set DATABASE_URL, or install PostgreSQL")?),
    };
    let cluster = Cluster::start().await?;
    let mut variables = vec![(ENDPOINTS_VARIABLE, cluster.endpoints.clone())];
    variables.extend(own.as_ref().map(|server| ("DATABASE_URL", server.text())));
    let mut parts = Vec::new();
    let (mut services, mut generators) = (Vec::new(), Vec::new());
    for (kind, addresses) in [("service", &mut services), ("generator", &mut generators)] {
        for _ in 0..2 {
            let mut part = Part::start(&[kind], &variables)?;
            addresses.push(part.address()?);
            parts.push(part);
        }
    }
    let mut arguments = vec!["worker"];
    arguments.extend(services.iter().map(String::as_str));
    for _ in 0..4 {
        parts.push(Part::start(&arguments, &variables)?);
    }
    println!("services: {services:?}, generators: {generators:?}");
    let ask = async |generator: &str, action: &str| loop {
        match send(generator, "POST", &format!("/api/generator/{action}"), &Value::Null).await {
            Ok((200, answer)) => break answer,
            // No instance holds the lease yet.
            _ => sleep(Duration::from_millis(50)).await,
        }
    };
    println!("start: {}", ask(&generators[0], "start").await);
    tokio::select! {
        () = sleep(Duration::from_secs(number("EXAMPLE_SECONDS", 10))) => {}
        pressed = tokio::signal::ctrl_c() => pressed?,
    }
    for generator in &generators {
        println!("stop at {generator}: {}", ask(generator, "stop").await);
    }
    let all = async |path: &str| -> Done<usize> {
        let (_, tasks) = send(&services[0], "GET", path, &Value::Null).await?;
        Ok(tasks.as_array().map_or(0, Vec::len))
    };
    let (processed, tasks) = (all("/api/tasks/processed").await?, all("/api/tasks").await?);
    println!("{processed} of {tasks} tasks are processed");
    drop(parts);
    if let Some(node) = cluster.node {
        node.shutdown().await;
    }
    Ok(())
}
