//! One HTTP request: its attempts at one node after the other.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde::de::DeserializeOwned;

use super::attempts::{Attempt, Patience, Repeat, Settled, Trial, attempts, judge};
use super::{CallError, Endpoints};
use crate::api::Problem;

/// Largest answer that is read, in bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;
/// Where a node says whether requests should come to it.
const READY: &str = "readyz";

/// Makes the body of an attempt that begins this long after the first one did.
pub(super) type Body = Box<dyn Fn(Duration) -> Vec<u8> + Send + Sync>;

/// A request before it is sent.
pub(super) struct Call {
    pub method: Method,
    /// Path below the endpoint, without a slash in front.
    pub path: String,
    pub query: Vec<(&'static str, String)>,
    pub body: Option<Body>,
    pub repeat: Repeat,
    pub patience: Patience,
    /// What the request waits for a lease.
    pub wait: Option<WaitFor>,
}

/// A wait for a lease.
#[derive(Clone, Copy)]
pub(super) struct WaitFor {
    pub longest: Duration,
    /// How often to ask the node that has the request whether it is ready, and how long it may take to say so.
    pub probe: Duration,
}

impl Call {
    /// Sends the request until it is done, refused, of unknown outcome or out of time.
    pub async fn send<T: DeserializeOwned>(
        self,
        http: &reqwest::Client,
        endpoints: &Endpoints,
    ) -> Result<Settled<T>, CallError> {
        let first = endpoints.preferred();
        let call = &self;
        let wait = self.wait.map_or(Duration::ZERO, |wait| wait.longest);
        let settled = attempts(self.repeat, self.patience, wait, endpoints.len(), |trial| async move {
            let (place, url) = endpoints.at(first, trial.number);
            let ended = call.attempt(http, url, trial).await;
            match ended {
                Attempt::Done(_) | Attempt::Refused(_) => endpoints.prefer(place),
                Attempt::NotDone(_) | Attempt::Unknown(_) => endpoints.avoid(place),
                #[cfg(feature = "server")]
                Attempt::ShutDown => endpoints.avoid(place),
            }
            ended
        })
        .await?;
        Ok(Settled { answer: read::<T>(&settled.answer)?, doubt: settled.doubt })
    }

    async fn attempt(&self, http: &reqwest::Client, endpoint: &reqwest::Url, trial: Trial) -> Attempt<Vec<u8>> {
        let url = endpoint.join(&self.path).expect("paths are made of lease names, which need no escapes");
        let mut request = http.request(self.method.clone(), url).query(&self.query);
        if let Some(body) = &self.body {
            request = request.header("content-type", "application/json").body(body(trial.elapsed));
        }
        let exchanged = tokio::select! {
            exchanged = tokio::time::timeout(trial.limit, exchange(request)) => exchanged,
            why = self.node_is_gone(http, endpoint) => return Attempt::Unknown(why),
        };
        match exchanged {
            Ok(Ok((status, body))) => judge_answer(endpoint, status, body),
            Ok(Err(error)) if error.is_connect() => Attempt::NotDone(in_words(endpoint, &error)),
            Ok(Err(error)) => Attempt::Unknown(in_words(endpoint, &error)),
            Err(_) => Attempt::Unknown(format!("{endpoint} did not answer within {:?}", trial.limit)),
        }
    }

    /// While the request waits for a lease: asks its node again and again whether it is ready, on another connection.
    /// Returns why the wait has to go on elsewhere. A node that is stopped, or cut off, answers no request and closes no
    /// connection, so that an open request alone says nothing.
    async fn node_is_gone(&self, http: &reqwest::Client, endpoint: &reqwest::Url) -> String {
        let Some(WaitFor { probe, .. }) = self.wait else { return std::future::pending().await };
        let url = endpoint.join(READY).expect("it is a path");
        loop {
            tokio::time::sleep(probe).await;
            match tokio::time::timeout(probe, http.get(url.clone()).send()).await {
                Ok(Ok(answer)) if answer.status() != StatusCode::SERVICE_UNAVAILABLE => {}
                Ok(Ok(_)) => return format!("{endpoint} is not ready"),
                Ok(Err(error)) => return in_words(endpoint, &error),
                Err(_) => return format!("{endpoint} did not say within {probe:?} whether it is ready"),
            }
        }
    }
}

async fn exchange(request: reqwest::RequestBuilder) -> Result<(StatusCode, Vec<u8>), reqwest::Error> {
    let mut response = request.send().await?;
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > MAX_ANSWER_BYTES {
            // Cut short, it cannot be read, and that is what will be said of it.
            break;
        }
        body.extend_from_slice(&chunk);
    }
    Ok((response.status(), body))
}

fn judge_answer(endpoint: &reqwest::Url, status: StatusCode, body: Vec<u8>) -> Attempt<Vec<u8>> {
    if status.is_success() {
        return Attempt::Done(body);
    }
    match serde_json::from_slice::<Problem>(&body) {
        Ok(problem) => judge(Problem { status: status.as_u16(), ..problem }, endpoint.as_str()),
        // Not one of ours: something between here and the node answered, and cannot know.
        Err(_) => Attempt::Unknown(format!("{endpoint} answered {status} without saying why")),
    }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, CallError> {
    serde_json::from_slice(body)
        .map_err(|error| CallError::Unknown { why: format!("the answer cannot be read: {error}"), last: None })
}

/// An error with its causes: the outermost one of an HTTP client seldom says anything.
pub(super) fn in_words(endpoint: &reqwest::Url, error: &reqwest::Error) -> String {
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

    #[test]
    fn what_somebody_in_between_answered_says_nothing() {
        let url = reqwest::Url::parse("http://127.0.0.1:7101/").expect("valid");
        let proxy = judge_answer(&url, StatusCode::BAD_GATEWAY, b"<html>".to_vec());
        assert!(matches!(proxy, Attempt::Unknown(_)));
    }

    #[test]
    fn status_line_counts_and_not_the_status_in_the_body() {
        let url = reqwest::Url::parse("http://127.0.0.1:7101/").expect("valid");
        let judged = |line: u16, body: u16| {
            let problem = Problem { status: body, ..Problem::new(Code::Other, "why") };
            let body = serde_json::to_vec(&problem).expect("plain");
            judge_answer(&url, StatusCode::from_u16(line).expect("valid"), body)
        };
        assert!(matches!(judged(500, 400), Attempt::Unknown(_)));
        assert!(matches!(judged(400, 500), Attempt::Refused(_)));
    }
}
