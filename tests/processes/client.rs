//! Calls to the nodes, and what came of them: done, refused, not done or unknown.

use std::time::{Duration, Instant};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

/// Time for one attempt at one node, beside what it waits for a lease.
pub const ATTEMPT: Duration = Duration::from_secs(2);
/// A request that is neither done nor refused after this long fails its test.
const SETTLED_WITHIN: Duration = Duration::from_secs(30);
/// Pause before a request is sent again.
const PAUSE: Duration = Duration::from_millis(20);

/// What came of one attempt.
#[derive(Debug)]
pub enum Outcome {
    Done(Value),
    Refused(Value),
    /// Certainly not done; another node, or a later moment, may do it.
    NotDone(String),
    Unknown(String),
}

/// One request, as often as it has to be sent.
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

    /// Claims a lease and waits for it.
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

/// The nodes of a cluster, by their place in its file.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    urls: Vec<String>,
}

impl Client {
    pub fn new(urls: Vec<String>) -> Client {
        let http = reqwest::Client::builder().no_proxy().tcp_nodelay(true).retry(reqwest::retry::never()).build();
        Client { http: http.expect("it has nothing to load"), urls }
    }

    /// The nodes, as `--endpoints` takes them.
    pub fn endpoints(&self) -> String {
        self.urls.join(",")
    }

    /// One attempt at the node in this place; places go around.
    pub async fn attempt(&self, place: usize, call: &Call) -> Outcome {
        let url = format!("{}{}", self.urls[place % self.urls.len()], call.path);
        let mut request = self.http.request(call.method.clone(), &url).timeout(call.timeout);
        if let Some(body) = &call.body {
            request = request.json(body);
        }
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) if error.is_connect() => return Outcome::NotDone(format!("{url}: {error}")),
            Err(error) => return Outcome::Unknown(format!("{url}: {error:?}")),
        };
        let status = response.status();
        match response.json::<Value>().await {
            Ok(value) => judge(status, value),
            Err(error) => Outcome::Unknown(format!("{url}: {status}, {error}")),
        }
    }

    /// Sends the request at one node after the other, from this place on, until it is done (`Ok`) or refused (`Err`).
    pub async fn settle(&self, first: usize, call: &Call) -> Result<Value, Value> {
        let began = Instant::now();
        for place in first.. {
            let last = match self.attempt(place, call).await {
                Outcome::Done(value) => return Ok(value),
                Outcome::Refused(problem) => return Err(problem),
                Outcome::NotDone(why) | Outcome::Unknown(why) => why,
            };
            assert!(began.elapsed() < SETTLED_WITHIN, "{call:?} is not settled after {SETTLED_WITHIN:?}: {last}");
            tokio::time::sleep(PAUSE).await;
        }
        unreachable!("places go on")
    }

    /// [`settle`](Self::settle) for a request that must not be refused.
    pub async fn done(&self, first: usize, call: &Call) -> Value {
        self.settle(first, call).await.unwrap_or_else(|problem| panic!("{call:?} was refused: {problem}"))
    }

    /// Claims a lease that is free, and returns its token.
    pub async fn acquire(&self, name: &str, holder: &str, ttl_ms: u64) -> u64 {
        token(&self.done(0, &Call::acquire(name, holder, ttl_ms)).await)
    }
}

/// 503 and 429 say that nothing was done, other 4xx are refusals, and the rest leaves it open.
fn judge(status: StatusCode, value: Value) -> Outcome {
    match status.as_u16() {
        200..300 => Outcome::Done(value),
        503 | 429 => Outcome::NotDone(value.to_string()),
        400..500 => Outcome::Refused(value),
        _ => Outcome::Unknown(value.to_string()),
    }
}

/// The fencing token of a lease on the wire.
pub fn token(lease: &Value) -> u64 {
    let token = lease["token"].as_str().and_then(|text| text.parse().ok());
    token.unwrap_or_else(|| panic!("no token in {lease}"))
}
