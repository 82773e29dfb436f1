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
use crate::worker::CRASHED;
use crate::{Done, database, number};

const UNPROCESSED: &str = "SELECT count(*) FROM tasks WHERE processed_at IS NULL";
const COUNTS: &str = "SELECT (SELECT count(*) FROM tasks), count(*), count(DISTINCT task) FROM completions";

const POLL: Duration = Duration::from_millis(50);
/// The time for the rest of the tasks.
const REST: Duration = Duration::from_secs(60);

/// A process of the example. Dropping it kills the process.
struct Part(Child);

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Part {
    /// Call it from the main thread: the process ends with the thread that starts it.
    fn start(arguments: &[&str], variables: &[(&str, String)]) -> Done<Part> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(std::env::current_exe()?);
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

/// The workers, and the number of their crashes.
struct Workers<'a> {
    arguments: &'a [&'a str],
    variables: &'a [(&'a str, String)],
    parts: Vec<Part>,
    crashes: usize,
}

impl Workers<'_> {
    /// Starts each worker again that has ended.
    async fn keep_running(&mut self) -> Done {
        loop {
            for part in &mut self.parts {
                if let Some(status) = part.0.try_wait()? {
                    self.crashes += usize::from(status.code() == Some(CRASHED));
                    *part = Part::start(self.arguments, self.variables)?;
                }
            }
            sleep(POLL).await;
        }
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
    let started: Done<Vec<Part>> = (0..4).map(|_| Part::start(&arguments, &variables)).collect();
    let mut workers = Workers { arguments: &arguments, variables: &variables, parts: started?, crashes: 0 };
    println!("services: {services:?}, generators: {generators:?}");
    let ask = async |generator: &str, action: &str| loop {
        match send(generator, "POST", &format!("/api/generator/{action}"), &Value::Null).await {
            Ok((200, answer)) => break answer,
            // No instance holds the lease yet.
            _ => sleep(POLL).await,
        }
    };
    println!("start: {}", ask(&generators[0], "start").await);
    tokio::select! {
        () = sleep(Duration::from_secs(number("EXAMPLE_SECONDS", 10))) => {}
        pressed = tokio::signal::ctrl_c() => pressed?,
        ended = workers.keep_running() => ended?,
    }
    for generator in &generators {
        println!("stop at {generator}: {}", ask(generator, "stop").await);
    }
    let database = match &own {
        Some(server) => server.connect().await,
        None => database::connect().await?,
    };
    let rest = async {
        while database.query_one(UNPROCESSED, &[]).await?.try_get::<_, i64>(0)? > 0 {
            sleep(POLL).await;
        }
        Done::Ok(())
    };
    tokio::select! {
        ended = tokio::time::timeout(REST, rest) => ended.map_err(|_| "tasks are left")??,
        ended = workers.keep_running() => ended?,
    }
    let row = database.query_one(COUNTS, &[]).await?;
    let count = |column: usize| row.try_get::<_, i64>(column);
    let crashes = workers.crashes;
    // A worker can still print that its task has been completed by another one.
    drop(workers);
    println!("{} tasks, {} completions of {} tasks; {crashes} crashes", count(0)?, count(1)?, count(2)?);
    drop(parts);
    if let Some(node) = cluster.node {
        node.shutdown().await;
    }
    Ok(())
}
