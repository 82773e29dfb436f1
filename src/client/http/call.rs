//! One HTTP request and its attempts at the nodes of the cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde::de::DeserializeOwned;

use super::Endpoints;
use super::credential::Http;
use super::endpoints::at;
use super::path;
use crate::api::{Problem, STALE_HEADER};
use crate::client::CallError;
use crate::client::RetryBudget;
use crate::client::retry::{Attempt, AttemptContext, ResolvedAnswer, RetryPolicy, attempts, classify_problem};
use crate::trace::{self, Span, SpanRole, TRACEPARENT, TRACESTATE};

/// Largest response body, in bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;
/// Path of a node's readiness check.
const READY: &str = "readyz";

/// Creates the body of an attempt. The argument is the time since the start of the first attempt.
pub(super) type Body = Box<dyn Fn(Duration) -> Vec<u8> + Send + Sync>;

/// A request before it is sent.
pub(super) struct Call {
    pub method: Method,
    /// Path relative to the endpoint, without a leading slash. [`path::path`] makes it.
    pub path: String,
    pub query: Vec<(&'static str, String)>,
    pub body: Option<Body>,
    pub policy: RetryPolicy,
    pub budget: RetryBudget,
    /// The wait for a lease, if the request has one.
    pub wait: Option<QueueWait>,
    /// Records the age of the state in a successful answer to a stale read.
    pub stale_age: Option<StaleAge>,
}

/// The largest age in milliseconds that nodes stated in answers to stale reads. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct StaleAge(Arc<AtomicU64>);

impl StaleAge {
    /// The value after an answer without an age: that node has not caught up since its start.
    const UNKNOWN: u64 = u64::MAX;

    pub fn get(&self) -> Option<Duration> {
        Some(self.0.load(Ordering::Relaxed)).filter(|ms| *ms != StaleAge::UNKNOWN).map(Duration::from_millis)
    }

    fn record(&self, response: &reqwest::Response) {
        let age = response.headers().get(STALE_HEADER).and_then(|age| age.to_str().ok()?.parse().ok());
        if response.status().is_success() {
            self.0.fetch_max(age.unwrap_or(StaleAge::UNKNOWN), Ordering::Relaxed);
        }
    }
}

/// A wait for a lease.
#[derive(Clone, Copy)]
pub(super) struct QueueWait {
    pub longest: Duration,
    /// The interval between readiness probes of the node, and the timeout of one probe.
    pub probe: Duration,
}

impl Call {
    /// Sends the request until an attempt resolves it or the budget is used up.
    pub async fn send<T: DeserializeOwned>(
        self,
        http: &Http,
        endpoints: &Endpoints,
    ) -> Result<ResolvedAnswer<T>, CallError> {
        self.send_and_read(http, endpoints, parse).await
    }

    /// Like [`send`](Self::send), and returns the body of the answer.
    pub async fn send_for_bytes(
        self,
        http: &Http,
        endpoints: &Endpoints,
    ) -> Result<ResolvedAnswer<Vec<u8>>, CallError> {
        self.send_and_read(http, endpoints, Ok).await
    }

    /// A node with an answer that `read` refuses counts as failed: something else may listen at its address.
    async fn send_and_read<T>(
        self,
        http: &Http,
        endpoints: &Endpoints,
        read: fn(Vec<u8>) -> Result<T, String>,
    ) -> Result<ResolvedAnswer<T>, CallError> {
        path::check(&self.path)?;
        let (urls, first) = (endpoints.urls(), endpoints.preferred());
        let urls = &*urls;
        let call = &self;
        let wait = self.wait.map_or(Duration::ZERO, |wait| wait.longest);
        let span = Span::operation(|| format!("tenure.{}", self.operation()));
        let sent = attempts(self.policy, self.budget, wait, urls.len(), |context| async move {
            let (index, url) = at(urls, first, context.number);
            // A wait has its own probes, and a renewal drops its late attempts.
            let is_counted = call.wait.is_none() && call.policy != RetryPolicy::Renewal;
            let unanswered = is_counted.then(|| endpoints.begin_attempt(index, urls.len()));
            let ended = call.attempt(http, url, context).await;
            if let Some(unanswered) = unanswered {
                unanswered.end();
            }
            let ended = ended.and_then(|body| match read(body) {
                Ok(answer) => Attempt::Done(answer),
                Err(why) => Attempt::Unknown(format!("{url}: {why}")),
            });
            match ended {
                Attempt::Done(_) | Attempt::Refused(_) => {
                    endpoints.prefer(index);
                    endpoints.refresh(http, url);
                }
                Attempt::NotDone(_) | Attempt::Unknown(_) => endpoints.avoid(index, urls.len()),
                #[cfg(feature = "server")]
                Attempt::ShutDown => endpoints.avoid(index, urls.len()),
            }
            ended
        });
        let sent = span.clone().instrument(sent).await;
        match &sent {
            Ok(_) => {}
            // Another client has the lease, for instance: nothing failed.
            Err(CallError::Refused(problem)) => span.set_text("tenure.code", problem.code.as_str()),
            Err(error) => span.fail(error),
        }
        sent
    }

    /// The name of the operation, without the names in the path.
    fn operation(&self) -> &str {
        let mut words = self.path.split('/').skip(1);
        match (words.next(), words.next(), words.next()) {
            (Some("leases"), Some(_), Some(action)) => action,
            (Some("leases"), Some(_), None) if self.method == Method::DELETE => "revoke",
            (Some("leases"), Some(_), None) => "get",
            (Some("leases"), None, _) => "list",
            (Some(noun), ..) => noun,
            // A path of one word, such as `metrics`.
            (None, ..) => &self.path,
        }
    }

    async fn attempt(&self, http: &Http, endpoint: &reqwest::Url, context: AttemptContext) -> Attempt<Vec<u8>> {
        let span = Span::child(|| self.method.to_string(), SpanRole::Client);
        span.set_text("http.request.method", self.method.as_str());
        span.set_text("server.address", endpoint.host_str().unwrap_or_default());
        span.set_number("server.port", endpoint.port_or_known_default().unwrap_or_default().into());
        span.set_number("http.request.resend_count", context.number as u64);
        let ended = self.attempt_in(&span, http, endpoint, context).await;
        if let Attempt::NotDone(why) | Attempt::Unknown(why) = &ended {
            span.fail(why);
        }
        ended
    }

    async fn attempt_in(
        &self,
        span: &Span,
        http: &Http,
        endpoint: &reqwest::Url,
        context: AttemptContext,
    ) -> Attempt<Vec<u8>> {
        let url = endpoint.join(&self.path).expect("a path has no scheme and no host");
        let mut request = http.request(self.method.clone(), url).query(&self.query);
        if let Some(body) = &self.body {
            request = request.header("content-type", "application/json").body(body(context.elapsed));
        }
        if let Some(parent) = span.context().or_else(trace::current) {
            request = request.header(TRACEPARENT, parent.to_string());
            if !parent.state.is_empty() {
                request = request.header(TRACESTATE, parent.state);
            }
        }
        let exchanged = tokio::select! {
            exchanged = tokio::time::timeout(context.limit, exchange(request, self.stale_age.as_ref())) => exchanged,
            why = self.wait_until_not_ready(http, endpoint) => return Attempt::Unknown(why),
        };
        match exchanged {
            Ok(Ok((status, body))) => {
                span.set_number("http.response.status_code", status.as_u16().into());
                classify_response(endpoint, status, body)
            }
            Ok(Err(error)) if error.is_connect() => Attempt::NotDone(describe_error(endpoint, &error)),
            Ok(Err(error)) => Attempt::Unknown(describe_error(endpoint, &error)),
            Err(_) => Attempt::Unknown(format!("{endpoint} did not answer within {:?}", context.limit)),
        }
    }

    /// Probes the readiness of the node while the request waits for a lease. Returns why the wait must continue at
    /// another node.
    ///
    /// A stopped or partitioned node closes no connection, so the open request alone cannot show that the node is
    /// alive.
    async fn wait_until_not_ready(&self, http: &Http, endpoint: &reqwest::Url) -> String {
        let Some(QueueWait { probe, .. }) = self.wait else { return std::future::pending().await };
        let url = endpoint.join(READY).expect("a constant path");
        loop {
            tokio::time::sleep(probe).await;
            match tokio::time::timeout(probe, http.get(url.clone()).send()).await {
                Ok(Ok(answer)) if answer.status() != StatusCode::SERVICE_UNAVAILABLE => {}
                Ok(Ok(_)) => return format!("{endpoint} is not ready"),
                Ok(Err(error)) => return describe_error(endpoint, &error),
                Err(_) => return format!("{endpoint} did not answer the readiness probe within {probe:?}"),
            }
        }
    }
}

pub(super) async fn exchange(
    request: reqwest::RequestBuilder,
    stale_age: Option<&StaleAge>,
) -> Result<(StatusCode, Vec<u8>), reqwest::Error> {
    let mut response = request.send().await?;
    if let Some(stale_age) = stale_age {
        stale_age.record(&response);
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > MAX_ANSWER_BYTES {
            // The truncated body fails to parse, which makes the outcome unknown.
            break;
        }
        body.extend_from_slice(&chunk);
    }
    Ok((response.status(), body))
}

pub(super) fn classify_response(endpoint: &reqwest::Url, status: StatusCode, body: Vec<u8>) -> Attempt<Vec<u8>> {
    if status.is_success() {
        return Attempt::Done(body);
    }
    match serde_json::from_slice::<Problem>(&body) {
        Ok(problem) => classify_problem(Problem { status: status.as_u16(), ..problem }, endpoint.as_str()),
        // A proxy between the client and the node answered. It cannot know whether the node applied the request.
        Err(_) => Attempt::Unknown(format!("{endpoint} answered {status} without a problem document")),
    }
}

fn parse<T: DeserializeOwned>(body: Vec<u8>) -> Result<T, String> {
    serde_json::from_slice(&body).map_err(|error| format!("the answer is invalid: {error}"))
}

/// The endpoint and the innermost cause of an error. The outer errors of an HTTP client carry little information.
pub(super) fn describe_error(endpoint: &reqwest::Url, error: &reqwest::Error) -> String {
    let mut words = format!("{endpoint}");
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    let mut last = String::new();
    while let Some(error) = cause {
        last = error.to_string();
        cause = error.source();
    }
    words.push_str(": ");
    words.push_str(&last);
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Code;
    use crate::client::http::Remote;
    use crate::types::LeaseName;

    #[test]
    fn answer_of_a_proxy_leaves_the_outcome_unknown() {
        let url = reqwest::Url::parse("http://127.0.0.1:7101/").expect("the value is valid");
        let proxy = classify_response(&url, StatusCode::BAD_GATEWAY, b"<html>".to_vec());
        assert!(matches!(proxy, Attempt::Unknown(_)));
    }

    #[test]
    fn status_line_counts_and_not_the_status_in_the_body() {
        let url = reqwest::Url::parse("http://127.0.0.1:7101/").expect("valid");
        let classified = |line: u16, body: u16| {
            let problem = Problem { status: body, ..Problem::new(Code::Other, "why") };
            let body = serde_json::to_vec(&problem).expect("plain");
            classify_response(&url, StatusCode::from_u16(line).expect("valid"), body)
        };
        assert!(matches!(classified(500, 400), Attempt::Unknown(_)));
        assert!(matches!(classified(400, 500), Attempt::Refused(_)));
    }

    /// The kernel accepts the connection of the hung node, but no answer comes.
    #[tokio::test]
    async fn request_after_a_lost_answer_starts_at_the_next_node() {
        let hung = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = hung.local_addr().expect("it is bound");
        let endpoints: Endpoints = format!("http://{address},http://127.0.0.1:1").parse().expect("valid");
        let remote = Remote::new(endpoints.clone()).with_timeout(Duration::from_millis(500));
        let sent = remote.revoke(&LeaseName::new("a").expect("valid"), "test").await;
        assert!(matches!(sent, Err(CallError::Unknown { .. })), "{sent:?}");
        assert_eq!(endpoints.preferred(), 1);
    }

    /// A URL drops these texts, so the request would go to another route.
    #[tokio::test]
    async fn dots_and_empty_texts_are_sent_to_no_node() {
        let remote = Remote::new("127.0.0.1:1".parse().expect("valid")).with_timeout(Duration::from_millis(500));
        for id in ["", ".", ".."] {
            let sent = remote.revoke_token(id).await;
            let is_refused = matches!(&sent, Err(CallError::Refused(problem)) if problem.code == Code::Invalid);
            assert!(is_refused, "{id:?}: {sent:?}");
        }
    }
}
