//! Sends more requests than a cluster can serve. Many clients with one connection each acquire separate names and
//! release them. They implement only the necessary part of HTTP/1.1, because they share the machine with the cluster.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// A request without an answer after this time counts as unanswered, and its client stops.
const UNANSWERED: Duration = Duration::from_secs(10);
/// The number of names that each client uses in turn.
const NAMES: usize = 50;

/// The load of a flood.
#[derive(Clone)]
pub struct Flood {
    /// The addresses `host:port` of the nodes. The clients are distributed over them.
    pub nodes: Vec<String>,
    pub clients: usize,
    /// The target rate of acquires of all clients together. A client with a late answer sends its next request late.
    /// `None`: each client acquires again directly after its release.
    pub per_second: Option<usize>,
    /// The bytes of metadata in each acquire.
    pub metadata: usize,
    pub time: Duration,
}

/// The results of a flood.
#[derive(Default)]
pub struct FloodResults {
    /// The latencies of granted acquires, and of acquires that were refused as too busy.
    pub served: Vec<Duration>,
    pub refused: Vec<Duration>,
    /// The latencies of the releases.
    pub released: Vec<Duration>,
    /// Refusals without a `retry-after` header.
    pub without_retry_after: usize,
    /// The other answers: by status, their count and one example.
    pub other: BTreeMap<u16, (usize, String)>,
    /// Requests without an answer, after a broken connection or a timeout.
    pub unanswered: usize,
}

impl Flood {
    /// Runs the flood on a separate thread, so that it does not delay the measurements of the caller.
    pub async fn run(self) -> FloodResults {
        let (done, results) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            // The caller is gone if its test has failed.
            let _ = done.send(runtime.block_on(self.all()));
        });
        results.await.expect("the clients do not panic")
    }

    async fn all(self) -> FloodResults {
        let until = Instant::now() + self.time;
        let mut clients = JoinSet::new();
        for number in 0..self.clients {
            clients.spawn(self.clone().client(number, until));
        }
        let mut all = FloodResults::default();
        while let Some(one) = clients.join_next().await {
            all.add(one.expect("the clients do not panic"));
        }
        all
    }

    async fn client(self, number: usize, until: Instant) -> FloodResults {
        let mut results = FloodResults::default();
        let node = &self.nodes[number % self.nodes.len()];
        let pause = self.per_second.map(|rate| Duration::from_secs_f64(self.clients as f64 / rate as f64));
        let mut due = Instant::now() + pause.unwrap_or_default().mul_f64(number as f64 / self.clients as f64);
        let Ok(mut connection) = Connection::open(node).await else {
            results.unanswered += 1;
            return results;
        };
        let metadata = "m".repeat(self.metadata);
        let body = format!(r#"{{"holder":"flood","ttl_ms":10000,"metadata":{{"m":"{metadata}"}}}}"#);
        for turn in 0.. {
            tokio::time::sleep_until(due.into()).await;
            if Instant::now() >= until {
                break;
            }
            if connection.claim(&format!("flood-{number}-{}", turn % NAMES), &body, &mut results).await.is_err() {
                results.unanswered += 1;
                break;
            }
            due = (due + pause.unwrap_or_default()).max(Instant::now() - Duration::from_millis(1));
        }
        results
    }
}

impl FloodResults {
    /// The number of acquires that were sent.
    pub fn offered(&self) -> usize {
        let other: usize = self.other.values().map(|(count, _)| count).sum();
        self.served.len() + self.refused.len() + other + self.unanswered
    }

    /// Sorts all latencies in ascending order.
    pub fn sort(&mut self) {
        [&mut self.served, &mut self.refused, &mut self.released].into_iter().for_each(|times| times.sort());
    }

    fn add(&mut self, one: FloodResults) {
        self.served.extend(one.served);
        self.refused.extend(one.refused);
        self.released.extend(one.released);
        self.without_retry_after += one.without_retry_after;
        for (status, (count, text)) in one.other {
            self.other.entry(status).or_insert((0, text)).0 += count;
        }
        self.unanswered += one.unanswered;
    }

    fn count(&mut self, answer: &Response, took: Duration) {
        match answer.status {
            200 => self.served.push(took),
            429 => {
                self.refused.push(took);
                self.without_retry_after += usize::from(!answer.retry_after);
            }
            status => self.other.entry(status).or_insert((0, answer.body.clone())).0 += 1,
        }
    }
}

/// A connection with one request at a time.
pub struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
}

pub struct Response {
    pub status: u16,
    pub retry_after: bool,
    pub body: String,
}

impl Connection {
    pub async fn open(node: &str) -> io::Result<Connection> {
        let stream = tokio::time::timeout(UNANSWERED, TcpStream::connect(node)).await??;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, received: Vec::new() })
    }

    async fn claim(&mut self, name: &str, body: &str, results: &mut FloodResults) -> io::Result<()> {
        let sent = Instant::now();
        let answer = self.post(&format!("leases/{name}/acquire"), body).await?;
        results.count(&answer, sent.elapsed());
        if answer.status != 200 {
            return Ok(());
        }
        let body = format!(r#"{{"holder":"flood","token":"{}"}}"#, token(&answer));
        let sent = Instant::now();
        let answer = self.post(&format!("leases/{name}/release"), &body).await?;
        match answer.status {
            200 => results.released.push(sent.elapsed()),
            _ => results.count(&answer, sent.elapsed()),
        }
        Ok(())
    }

    /// Sends a POST request below `/v1` and waits for its answer.
    pub async fn post(&mut self, path: &str, body: &str) -> io::Result<Response> {
        self.send_post(path, body).await?;
        tokio::time::timeout(UNANSWERED, self.read_response()).await?
    }

    /// Sends a POST request and does not wait for its answer.
    pub async fn send_post(&mut self, path: &str, body: &str) -> io::Result<()> {
        let length = body.len();
        let head = format!("content-type: application/json\r\ncontent-length: {length}");
        self.send(&format!("POST /v1/{path} HTTP/1.1\r\nhost: n\r\n{head}\r\n\r\n{body}")).await
    }

    pub async fn send(&mut self, request: &str) -> io::Result<()> {
        self.stream.write_all(request.as_bytes()).await
    }

    /// Reads until `wanted` arrives, and discards everything up to it.
    pub async fn read_until(&mut self, wanted: &str) -> io::Result<()> {
        self.received.clear();
        while !self.received.windows(wanted.len()).any(|window| window == wanted.as_bytes()) {
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    /// Reads the next answer.
    pub async fn read_response(&mut self) -> io::Result<Response> {
        self.received.clear();
        loop {
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(answer) = read(&self.received) {
                return Ok(answer);
            }
        }
    }
}

/// The token of the lease in an answer.
pub fn token(answer: &Response) -> &str {
    let (_, behind) = answer.body.split_once(r#""token":""#).unwrap_or_else(|| panic!("no token in {}", answer.body));
    behind.split_once('"').expect("the JSON string ends").0
}

/// Parses an answer. Returns `None` until it is complete.
fn read(bytes: &[u8]) -> Option<Response> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let length = head.split_once("content-length: ").expect("the answer has a content-length").1;
    let length: usize = length.split("\r\n").next().and_then(|length| length.parse().ok()).expect("a number");
    let complete = body.len() >= length;
    complete.then(|| Response {
        status: head[9..12].parse().expect("a status has three digits"),
        retry_after: head.contains("\r\nretry-after: "),
        body: body.to_owned(),
    })
}
