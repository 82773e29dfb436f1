//! Requests to the nodes and their outcomes: done, refused, not done or unknown.

use std::time::{Duration, Instant};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

/// The time limit of one attempt, in addition to its wait for a lease.
pub const ATTEMPT: Duration = Duration::from_secs(2);
/// A test fails if its request is neither done nor refused within this time.
const SETTLED_WITHIN: Duration = Duration::from_secs(30);
/// The pause before the next attempt.
const PAUSE: Duration = Duration::from_millis(20);

/// The outcome of one attempt.
#[derive(Debug)]
pub enum Outcome {
    Done(Value),
    Refused(Value),
    /// Certainly not applied. Another node, or a later attempt, may apply it.
    NotDone(String),
    Unknown(String),
}

/// A request that can be sent several times.
#[derive(Clone, Debug)]
pub struct Call {
    pub method: Method,
    pub path: String,
    pub body: Option<Value>,
    pub timeout: Duration,
}

impl Call {
    pub fn get(path: impl Into<String>) -> Call {
        Call { method: Method::GET, path: path.into(), body: None, timeout: ATTEMPT }
    }

    pub fn post(path: impl Into<String>, body: Value) -> Call {
        Call { method: Method::POST, path: path.into(), body: Some(body), timeout: ATTEMPT }
    }

    pub fn acquire(name: &str, holder: &str, ttl_ms: u64) -> Call {
        Call::post(format!("/v1/leases/{name}/acquire"), json!({"holder": holder, "ttl_ms": ttl_ms}))
    }

    /// Acquires a lease and waits for it.
    pub fn wait(name: &str, holder: &str, ttl_ms: u64, wait: Duration) -> Call {
        let body = json!({"holder": holder, "ttl_ms": ttl_ms, "wait_ms": wait.as_millis() as u64});
        Call { timeout: wait + ATTEMPT, ..Call::post(format!("/v1/leases/{name}/acquire"), body) }
    }

    pub fn renew(name: &str, holder: &str, token: u64) -> Call {
        Call::post(format!("/v1/leases/{name}/renew"), json!({"holder": holder, "token": token.to_string()}))
    }

    pub fn release(name: &str, holder: &str, token: u64) -> Call {
        Call::post(format!("/v1/leases/{name}/release"), json!({"holder": holder, "token": token.to_string()}))
    }
}

/// A client for the nodes of a cluster, in the order of its configuration file.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    urls: Vec<String>,
}

impl Client {
    pub fn new(urls: Vec<String>) -> Client {
        Client::with_http(crate::plain_http::builder(), urls)
    }

    /// A client with these options of its connections.
    pub fn with_http(options: reqwest::ClientBuilder, urls: Vec<String>) -> Client {
        let http = options.tcp_nodelay(true).retry(reqwest::retry::never()).build();
        Client { http: http.expect("valid options"), urls }
    }

    /// The node addresses in the format of `--endpoints`.
    pub fn endpoints(&self) -> String {
        self.urls.join(",")
    }

    /// Sends the request once. `place` is a position in the configuration file, modulo the number of nodes.
    pub async fn attempt(&self, place: usize, call: &Call) -> Outcome {
        self.attempt_stale(place, call).await.0
    }

    /// Like [`attempt`](Self::attempt), with the age of the state that a stale read returned.
    pub async fn attempt_stale(&self, place: usize, call: &Call) -> (Outcome, Option<Duration>) {
        let url = format!("{}{}", self.urls[place % self.urls.len()], call.path);
        let mut request = self.http.request(call.method.clone(), &url).timeout(call.timeout);
        if let Some(body) = &call.body {
            request = request.json(body);
        }
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) if error.is_connect() => return (Outcome::NotDone(format!("{url}: {error}")), None),
            Err(error) => return (Outcome::Unknown(format!("{url}: {error:?}")), None),
        };
        let status = response.status();
        let age = response.headers().get("x-tenure-stale-ms").map(|age| {
            let age = age.to_str().ok().and_then(|age| age.parse().ok());
            Duration::from_millis(age.expect("the header has a number"))
        });
        let outcome = match response.json::<Value>().await {
            Ok(value) => judge(status, value),
            Err(error) => Outcome::Unknown(format!("{url}: {status}, {error}")),
        };
        (outcome, age)
    }

    /// Sends the request to one node after the other, from `first` on, until it is done (`Ok`) or refused (`Err`).
    pub async fn call_until_known(&self, first: usize, call: &Call) -> Result<Value, Value> {
        let began = Instant::now();
        for place in first.. {
            let last = match self.attempt(place, call).await {
                Outcome::Done(value) => return Ok(value),
                Outcome::Refused(problem) => return Err(problem),
                Outcome::NotDone(why) | Outcome::Unknown(why) => why,
            };
            assert!(
                began.elapsed() < SETTLED_WITHIN,
                "{call:?} is neither done nor refused after {SETTLED_WITHIN:?}: {last}"
            );
            tokio::time::sleep(PAUSE).await;
        }
        unreachable!("places go on")
    }

    /// Like [`call_until_known`](Self::call_until_known), but panics if the request is refused.
    pub async fn done(&self, first: usize, call: &Call) -> Value {
        self.call_until_known(first, call).await.unwrap_or_else(|problem| panic!("{call:?} was refused: {problem}"))
    }

    /// Acquires a free lease and returns its token.
    pub async fn acquire(&self, name: &str, holder: &str, ttl_ms: u64) -> u64 {
        token(&self.done(0, &Call::acquire(name, holder, ttl_ms)).await)
    }
}

/// 503 and 429 mean certainly not applied. Other 4xx statuses are refusals. All other errors leave the outcome unknown.
fn judge(status: StatusCode, value: Value) -> Outcome {
    match status.as_u16() {
        200..300 => Outcome::Done(value),
        503 | 429 => Outcome::NotDone(value.to_string()),
        400..500 => Outcome::Refused(value),
        _ => Outcome::Unknown(value.to_string()),
    }
}

/// The fencing token in a JSON lease.
pub fn token(lease: &Value) -> u64 {
    let token = lease["token"].as_str().and_then(|text| text.parse().ok());
    token.unwrap_or_else(|| panic!("no token in {lease}"))
}
