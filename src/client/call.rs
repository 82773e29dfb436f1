//! One HTTP request: its attempts at one node after the other.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde::de::DeserializeOwned;

use super::attempts::{Attempt, Patience, Repeat, Trial, attempts, judge};
use super::{CallError, Endpoints};
use crate::api::Problem;

/// Largest answer that is read, in bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;

/// A request before it is sent.
pub(super) struct Call {
    pub method: Method,
    /// Path below the endpoint, without a slash in front.
    pub path: String,
    pub query: Vec<(&'static str, String)>,
    /// The body for an attempt that begins this long after the first one did.
    pub body: Option<Box<dyn Fn(Duration) -> Vec<u8> + Send + Sync>>,
    pub repeat: Repeat,
    pub patience: Patience,
}

impl Call {
    /// Sends the request until it is done, refused, of unknown outcome or out of time.
    pub async fn send<T: DeserializeOwned>(
        self,
        http: &reqwest::Client,
        endpoints: &Endpoints,
    ) -> Result<T, CallError> {
        let first = endpoints.preferred();
        let call = &self;
        let body: Vec<u8> = attempts(self.repeat, self.patience, endpoints.len(), |trial| async move {
            let (place, url) = endpoints.at(first, trial.number);
            let ended = call.attempt(http, url, trial).await;
            match ended {
                Attempt::Done(_) | Attempt::Refused(_) => endpoints.prefer(place),
                Attempt::NotDone(_) | Attempt::Unknown(_) => endpoints.avoid(place),
            }
            ended
        })
        .await?;
        read(&body)
    }

    async fn attempt(&self, http: &reqwest::Client, endpoint: &reqwest::Url, trial: Trial) -> Attempt<Vec<u8>> {
        let url = endpoint.join(&self.path).expect("paths are made of lease names, which need no escapes");
        let mut request = http.request(self.method.clone(), url).query(&self.query);
        if let Some(body) = &self.body {
            request = request.header("content-type", "application/json").body(body(trial.elapsed));
        }
        match tokio::time::timeout(trial.limit, exchange(request)).await {
            Ok(Ok((status, body))) => judge_answer(endpoint, status, body),
            Ok(Err(error)) if error.is_connect() => Attempt::NotDone(in_words(endpoint, &error)),
            Ok(Err(error)) => Attempt::Unknown(in_words(endpoint, &error)),
            Err(_) => Attempt::Unknown(format!("{endpoint} did not answer within {:?}", trial.limit)),
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

    #[test]
    fn what_somebody_in_between_answered_says_nothing() {
        let url = reqwest::Url::parse("http://127.0.0.1:7101/").expect("valid");
        let proxy = judge_answer(&url, StatusCode::BAD_GATEWAY, b"<html>".to_vec());
        assert!(matches!(proxy, Attempt::Unknown(_)));
    }
}
