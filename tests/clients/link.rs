//! The network between one driver and the nodes: a proxy for each node, with faults that a case sets.
//!
//! A proxy knows the requests and responses. It can delay a request, deliver it twice, lose it before the node gets it, or
//! lose the response after the node has carried it out. It records all of them.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::Value;
use tenure::clock::{Clock, SystemClock};
use tenure::token::FencingToken;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::http::Message;
use crate::port;
use crate::wait::{POLL, eventually};

/// The state of the path to one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    Open,
    /// Connections stay open and nothing moves, as with a stopped node.
    Frozen,
    /// Connections are closed, and new ones are refused.
    Refused,
}

/// A fault of a request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The connection breaks before the node gets the request.
    CutRequest,
    /// The connection breaks after the node has carried out the request.
    CutAnswer,
    /// As `CutAnswer`, but only at a signal of the case.
    CutAnswerAt(CancellationToken),
    DelayAnswer(Duration),
    /// The client gets the response at a signal of the case.
    DelayAnswerUntil(CancellationToken),
    /// The node gets the request later, also if the client has given it up by then.
    DelayRequest(Duration),
    /// The node gets the request once more before the client gets the response to the first one.
    Duplicate,
}

struct Rule {
    /// The end of the path of the request.
    request: &'static str,
    fault: Fault,
    /// How many more requests have the fault. `None`: all.
    left: Option<Arc<AtomicUsize>>,
}

/// The fault of one request.
struct Drawn {
    fault: Fault,
    /// The count of its rule.
    left: Option<Arc<AtomicUsize>>,
}

impl Drawn {
    /// Gives the fault to a later request: no node has carried out this one.
    fn put_back(&self) {
        if let Some(left) = &self.left {
            left.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// A request of the client and its response.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// From 0.
    pub node: usize,
    pub path: String,
    pub body: Value,
    /// When the proxy had read the request. The client sent it before.
    pub received: Duration,
    /// When the node got it.
    pub forwarded: Option<Duration>,
    /// The response of the node, also if the client did not get it.
    pub status: Option<u16>,
    pub answer: Value,
    /// Before the first byte of the response was written to the client.
    pub answered: Option<Duration>,
    /// The status of the response to a duplicate, and its body.
    pub duplicate: Option<(u16, Value)>,
    bytes: Bytes,
}

/// The bytes of a request, which no message of a failure shows.
#[derive(Clone)]
struct Bytes(Vec<u8>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.len())
    }
}

impl Exchange {
    pub fn is(&self, request: &str) -> bool {
        self.path.ends_with(request)
    }

    pub fn is_done(&self) -> bool {
        self.status == Some(200)
    }

    /// The tokens that the request names.
    pub fn tokens(&self) -> Vec<FencingToken> {
        let items = self.body["leases"].as_array().cloned().unwrap_or_else(|| vec![self.body.clone()]);
        items.iter().filter_map(|item| item["token"].as_str()?.parse().ok()).collect()
    }
}

/// The proxies of one driver.
pub struct Link {
    addresses: Vec<SocketAddr>,
    paths: Vec<watch::Sender<Path>>,
    traffic: Arc<Traffic>,
    _proxies: JoinSet<()>,
}

/// The requests that passed, and the faults of the next ones.
#[derive(Default)]
pub struct Traffic {
    rules: Mutex<Vec<Rule>>,
    exchanges: Mutex<Vec<Exchange>>,
}

impl Link {
    /// Opens a proxy for each node.
    pub async fn open(nodes: &[SocketAddr]) -> Link {
        let (traffic, mut proxies) = (Arc::<Traffic>::default(), JoinSet::new());
        let (mut addresses, mut paths) = (Vec::new(), Vec::new());
        let mut listeners = Vec::new();
        for _ in nodes {
            let listener = loop {
                // Another process may take the port first.
                if let Ok(listener) = TcpListener::bind(("127.0.0.1", port::free())).await {
                    break listener;
                }
            };
            addresses.push(listener.local_addr().expect("the listener is bound"));
            listeners.push(listener);
        }
        let names = nodes.iter().zip(&addresses).map(|(node, proxy)| (node.to_string(), proxy.to_string()));
        let names: Arc<[(String, String)]> = names.collect();
        for (node, listener) in listeners.into_iter().enumerate() {
            let (path, seen) = watch::channel(Path::Open);
            let names = names.clone();
            let proxy = Proxy { node, target: nodes[node], names, traffic: traffic.clone(), path: seen };
            proxies.spawn(proxy.listen(listener));
            paths.push(path);
        }
        Link { addresses, paths, traffic, _proxies: proxies }
    }

    pub fn urls(&self) -> Vec<String> {
        self.addresses.iter().map(|address| format!("http://{address}")).collect()
    }

    /// Changes the path to a node. Returns when new connections are refused, or accepted.
    pub async fn set(&self, node: usize, path: Path) {
        self.paths[node].send_replace(path);
        while TcpStream::connect(self.addresses[node]).await.is_err() != (path == Path::Refused) {
            tokio::task::yield_now().await;
        }
    }

    pub async fn set_all(&self, path: Path) {
        for node in 0..self.paths.len() {
            self.set(node, path).await;
        }
    }

    /// The next request with this end of its path has the fault. A request that a node refuses during an election, or
    /// that the client gives up before its response, leaves the fault to the next one.
    pub fn once(&self, request: &'static str, fault: Fault) {
        lock(&self.traffic.rules).push(Rule { request, fault, left: Some(Arc::new(AtomicUsize::new(1))) });
    }

    /// All requests with this end of their path have the fault.
    pub fn always(&self, request: &'static str, fault: Fault) {
        lock(&self.traffic.rules).push(Rule { request, fault, left: None });
    }

    /// Ends all faults of requests.
    pub fn heal(&self) {
        lock(&self.traffic.rules).clear();
    }

    pub fn traffic(&self) -> Arc<Traffic> {
        self.traffic.clone()
    }

    /// The requests so far with this end of their path.
    pub fn requests(&self, request: &str) -> Vec<Exchange> {
        self.traffic.exchanges().into_iter().filter(|exchange| exchange.is(request)).collect()
    }

    /// Waits until this many requests with this end of their path have arrived.
    pub async fn arrived(&self, request: &str, count: usize) -> Vec<Exchange> {
        eventually(&format!("{count} requests {request}"), || {
            Some(self.requests(request)).filter(|requests| requests.len() >= count)
        })
        .await
    }

    /// Waits until this many requests with this end of their path have a response of a node.
    pub async fn done(&self, request: &str, count: usize) -> Vec<Exchange> {
        eventually(&format!("{count} responses to {request}"), || {
            let done = self.requests(request).into_iter().filter(|exchange| exchange.status.is_some());
            Some(done.collect::<Vec<_>>()).filter(|done| done.len() >= count)
        })
        .await
    }

    /// Waits until a node has carried out this many requests with this end of their path.
    pub async fn carried_out(&self, request: &str, count: usize) -> Vec<Exchange> {
        eventually(&format!("{count} successes of {request}"), || {
            let done = self.requests(request).into_iter().filter(Exchange::is_done);
            Some(done.collect::<Vec<_>>()).filter(|done| done.len() >= count)
        })
        .await
    }

    /// Sends the bytes of an earlier request to its node once more, and again while the node refuses them during an
    /// election. Returns the status and the body of the response.
    pub async fn repeat(&self, exchange: &Exchange, nodes: &[SocketAddr]) -> (u16, Value) {
        loop {
            let (status, answer) = deliver(nodes[exchange.node], &exchange.bytes.0).await.expect("the node runs");
            if status != 503 {
                return (status, answer);
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

impl Traffic {
    pub fn exchanges(&self) -> Vec<Exchange> {
        lock(&self.exchanges).clone()
    }

    fn begin(&self, node: usize, request: &Message) -> (usize, Option<Drawn>) {
        let path = request.start().get(1).copied().unwrap_or_default();
        let path = path.split('?').next().unwrap_or_default().to_owned();
        let rules = lock(&self.rules);
        let is_left = |rule: &Rule| rule.left.as_ref().is_none_or(|left| left.load(Ordering::SeqCst) > 0);
        let drawn = rules.iter().find(|rule| path.ends_with(rule.request) && is_left(rule)).map(|rule| {
            if let Some(left) = &rule.left {
                left.fetch_sub(1, Ordering::SeqCst);
            }
            Drawn { fault: rule.fault.clone(), left: rule.left.clone() }
        });
        let mut exchanges = lock(&self.exchanges);
        exchanges.push(Exchange {
            node,
            path,
            body: request.json(),
            received: SystemClock.elapsed(),
            forwarded: None,
            status: None,
            answer: Value::Null,
            answered: None,
            duplicate: None,
            bytes: Bytes(request.bytes()),
        });
        (exchanges.len() - 1, drawn)
    }

    fn update(&self, number: usize, change: impl FnOnce(&mut Exchange)) {
        change(&mut lock(&self.exchanges)[number]);
    }
}

#[derive(Clone)]
struct Proxy {
    node: usize,
    target: SocketAddr,
    /// The addresses of the nodes and of their proxies.
    names: Arc<[(String, String)]>,
    traffic: Arc<Traffic>,
    path: watch::Receiver<Path>,
}

impl Proxy {
    async fn listen(mut self, listener: TcpListener) {
        let address = listener.local_addr().expect("the listener is bound");
        let mut listener = Some(listener);
        let mut connections = JoinSet::new();
        loop {
            if *self.path.borrow_and_update() == Path::Refused {
                listener = None;
                connections.shutdown().await;
            } else if listener.is_none() {
                listener = TcpListener::bind(address).await.ok();
            }
            let accepted = async {
                match &listener {
                    Some(listener) => listener.accept().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = self.path.changed() => if changed.is_err() { return },
                Ok((client, _)) = accepted => drop(connections.spawn(self.clone().serve(client))),
            }
        }
    }

    /// Serves a connection until it ends or a fault breaks it.
    async fn serve(mut self, client: TcpStream) {
        // Small messages must not wait for the acknowledgement of earlier ones.
        let _ = client.set_nodelay(true);
        let mut client = BufReader::new(client);
        while matches!(self.exchange(&mut client).await, Ok(true)) {}
    }

    /// Passes one request and its response on. Returns whether the connection goes on.
    async fn exchange(&mut self, client: &mut BufReader<TcpStream>) -> io::Result<bool> {
        let Some(request) = Message::read(client).await? else { return Ok(false) };
        let (number, drawn) = self.traffic.begin(self.node, &request);
        let mut fault = drawn.as_ref().map(|drawn| &drawn.fault);
        if matches!(fault, Some(Fault::CutRequest)) {
            return Ok(false);
        }
        if let Some(Fault::DelayRequest(delay)) = fault {
            tokio::time::sleep(*delay).await;
        }
        self.thawed().await;
        let mut node = BufReader::new(TcpStream::connect(self.target).await?);
        node.get_ref().set_nodelay(true)?;
        node.write_all(&request.bytes()).await?;
        self.traffic.update(number, |exchange| exchange.forwarded = Some(SystemClock.elapsed()));
        let is_delayed = matches!(fault, Some(Fault::DelayRequest(_)));
        let answer = tokio::select! {
            answer = Message::read_head(&mut node) => answer?,
            // A client that closes its connection leaves the queue of a lease.
            () = closed(client), if !is_delayed => {
                drawn.iter().for_each(Drawn::put_back);
                self.thawed().await;
                return Ok(false);
            }
        };
        let Some(mut answer) = answer else { return Ok(false) };
        if answer.is_stream() {
            self.thawed().await;
            answer.relay(&mut node, client).await?;
            return Ok(false);
        }
        answer.read_body(&mut node).await?;
        if request.start().get(1) == Some(&"/v1/cluster") {
            // A client that asks for the members must keep to the proxies.
            answer.rename(&self.names);
        }
        self.traffic.update(number, |exchange| {
            (exchange.status, exchange.answer) = (status(&answer), answer.json());
        });
        if let Some(drawn) = drawn.as_ref().filter(|drawn| drawn.left.is_some() && status(&answer) >= Some(500)) {
            drawn.put_back();
            fault = None;
        }
        match fault {
            Some(Fault::CutAnswer) => return Ok(false),
            Some(Fault::Duplicate) => {
                let duplicate = deliver(self.target, &request.bytes()).await?;
                self.traffic.update(number, |exchange| exchange.duplicate = Some(duplicate));
            }
            Some(Fault::CutAnswerAt(signal)) => {
                signal.cancelled().await;
                return Ok(false);
            }
            Some(Fault::DelayAnswer(delay)) => tokio::time::sleep(*delay).await,
            Some(Fault::DelayAnswerUntil(signal)) => signal.cancelled().await,
            _ => {}
        }
        self.thawed().await;
        self.traffic.update(number, |exchange| exchange.answered = Some(SystemClock.elapsed()));
        client.write_all(&answer.bytes()).await?;
        Ok(true)
    }

    /// Waits until the path is not frozen.
    async fn thawed(&mut self) {
        // The sender lives as long as the proxy.
        let _ = self.path.wait_for(|path| *path != Path::Frozen).await;
    }
}

/// Waits until the client closes its connection. It sends no second request before the response.
async fn closed(client: &mut BufReader<TcpStream>) {
    while client.fill_buf().await.is_ok_and(|bytes| !bytes.is_empty()) {
        std::future::pending::<()>().await;
    }
}

/// Sends the bytes of a request to a node. Returns the status and the body of the response.
async fn deliver(node: SocketAddr, request: &[u8]) -> io::Result<(u16, Value)> {
    let mut node = BufReader::new(TcpStream::connect(node).await?);
    node.write_all(request).await?;
    let answer = Message::read(&mut node).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok((status(&answer).ok_or(io::ErrorKind::InvalidData)?, answer.json()))
}

fn status(answer: &Message) -> Option<u16> {
    answer.start().get(1)?.parse().ok()
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().expect("no code panics while it holds this lock")
}
