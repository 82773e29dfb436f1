//! One request: its attempts at one node after the other, and what their ends mean together.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::{CallError, Endpoints};
use crate::api::{Code, Problem};

/// Pauses between rounds over all nodes, doubled from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LAST_PAUSE: Duration = Duration::from_millis(400);
/// Largest answer that is read, in bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;

/// Whether a request whose answer was lost is sent again by itself, and what a later answer then says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    /// Changes nothing: sent again, and never of unknown outcome.
    Read,
    /// A renewal: sent again. A later answer settles it, because a lease that is lost stays lost.
    Renewal,
    /// A claim: sent again, because the same holder claims again without harm. A later grant settles it; a later
    /// refusal does not, because the first attempt may still be granted.
    Claim,
    /// Not sent again: `released: false` to the second attempt would hide that the first one released.
    Never,
}

/// A request before it is sent.
pub(super) struct Call {
    pub method: Method,
    /// Path below the endpoint, without a slash in front.
    pub path: String,
    pub query: Vec<(&'static str, String)>,
    /// The body for an attempt that begins this long after the first one did.
    pub body: Option<Box<dyn Fn(Duration) -> Vec<u8> + Send + Sync>>,
    pub repeat: Repeat,
    /// One attempt may take this long.
    pub attempt: Duration,
    /// All attempts together may take this long.
    pub total: Duration,
}

/// How one attempt ended.
enum Attempt {
    Done(Vec<u8>),
    Refused(Box<Problem>),
    /// Certainly not done; another node, or a later moment, may do it.
    NotDone(String),
    Unknown(String),
}

impl Call {
    /// Sends the request until it is done, refused, of unknown outcome or out of time.
    pub async fn send<T: DeserializeOwned>(
        self,
        http: &reqwest::Client,
        endpoints: &Endpoints,
    ) -> Result<T, CallError> {
        let began = Instant::now();
        let first = endpoints.preferred();
        let mut doubt: Option<String> = None;
        let mut not_done = format!("no attempt ended within {:?}", self.total);
        let mut pause = FIRST_PAUSE;
        for attempt in 0.. {
            let (place, url) = endpoints.at(first, attempt);
            match self.attempt(http, url, began).await {
                Attempt::Done(body) => {
                    endpoints.prefer(place);
                    return read(&body);
                }
                Attempt::Refused(problem) => {
                    endpoints.prefer(place);
                    return Err(settle(self.repeat, doubt, problem));
                }
                Attempt::NotDone(why) => not_done = why,
                Attempt::Unknown(why) if self.repeat == Repeat::Read => not_done = why,
                Attempt::Unknown(why) if self.repeat == Repeat::Never => {
                    return Err(CallError::Unknown { why, last: None });
                }
                Attempt::Unknown(why) => doubt = Some(why),
            }
            let is_round_over = (attempt + 1) % endpoints.len() == 0;
            if is_round_over {
                tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
                pause = (pause * 2).min(LAST_PAUSE);
            }
            if began.elapsed() >= self.total {
                break;
            }
        }
        Err(match doubt {
            Some(why) => CallError::Unknown { why, last: None },
            None => CallError::Unavailable(not_done),
        })
    }

    async fn attempt(&self, http: &reqwest::Client, endpoint: &reqwest::Url, began: Instant) -> Attempt {
        let url = endpoint.join(&self.path).expect("paths are made of lease names, which need no escapes");
        let mut request = http.request(self.method.clone(), url).query(&self.query);
        if let Some(body) = &self.body {
            request = request.header("content-type", "application/json").body(body(began.elapsed()));
        }
        let left = self.total.saturating_sub(began.elapsed()).min(self.attempt);
        match tokio::time::timeout(left, exchange(request)).await {
            Ok(Ok((status, body))) => judge(endpoint, status, body),
            Ok(Err(error)) if error.is_connect() => Attempt::NotDone(in_words(endpoint, &error)),
            Ok(Err(error)) => Attempt::Unknown(in_words(endpoint, &error)),
            Err(_) => Attempt::Unknown(format!("{endpoint} did not answer within {left:?}")),
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

fn judge(endpoint: &reqwest::Url, status: StatusCode, body: Vec<u8>) -> Attempt {
    if status.is_success() {
        return Attempt::Done(body);
    }
    let Ok(problem) = serde_json::from_slice::<Problem>(&body) else {
        // Not one of ours: something between here and the node answered, and cannot know.
        return Attempt::Unknown(format!("{endpoint} answered {status} without saying why"));
    };
    match problem.code {
        Code::NoLeader | Code::NotReady | Code::ShuttingDown | Code::TooBusy | Code::Failed | Code::NotLeader => {
            Attempt::NotDone(format!("{endpoint}: {}", problem.detail))
        }
        Code::OutcomeUnknown | Code::Internal => Attempt::Unknown(format!("{endpoint}: {}", problem.detail)),
        Code::Other if status.is_server_error() => Attempt::Unknown(format!("{endpoint}: {}", problem.detail)),
        _ => Attempt::Refused(Box::new(problem)),
    }
}

fn settle(repeat: Repeat, doubt: Option<String>, problem: Box<Problem>) -> CallError {
    match doubt {
        Some(why) if repeat == Repeat::Claim => CallError::Unknown { why, last: Some(problem) },
        _ => CallError::Refused(problem),
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

    fn judged(status: u16, code: Code) -> Attempt {
        let url = reqwest::Url::parse("http://127.0.0.1:7101/").expect("valid");
        let problem = Problem { status, ..Problem::new(code, "why") };
        judge(&url, StatusCode::from_u16(status).expect("valid"), serde_json::to_vec(&problem).expect("plain"))
    }

    #[test]
    fn unknown_is_never_refused_and_not_done_is_never_unknown() {
        for code in [Code::NoLeader, Code::NotReady, Code::ShuttingDown, Code::TooBusy] {
            assert!(matches!(judged(code.status(), code), Attempt::NotDone(_)), "{code:?}");
        }
        for code in [Code::OutcomeUnknown, Code::Internal] {
            assert!(matches!(judged(code.status(), code), Attempt::Unknown(_)), "{code:?}");
        }
        for code in [Code::Held, Code::Lost, Code::QueueFull, Code::NotFound, Code::Invalid] {
            assert!(matches!(judged(code.status(), code), Attempt::Refused(_)), "{code:?}");
        }
        assert!(matches!(judged(500, Code::Other), Attempt::Unknown(_)), "a code of a newer server");
        let url = reqwest::Url::parse("http://127.0.0.1:7101/").expect("valid");
        let proxy = judge(&url, StatusCode::BAD_GATEWAY, b"<html>".to_vec());
        assert!(matches!(proxy, Attempt::Unknown(_)), "somebody between answered");
    }

    #[test]
    fn a_refusal_after_a_lost_answer_settles_a_renewal_and_not_a_claim() {
        let held = || Box::new(Problem::new(Code::Held, "held"));
        let doubt = || Some("the connection broke".to_owned());
        assert!(matches!(settle(Repeat::Claim, doubt(), held()), CallError::Unknown { last: Some(_), .. }));
        assert!(matches!(settle(Repeat::Claim, None, held()), CallError::Refused(_)));
        assert!(matches!(settle(Repeat::Renewal, doubt(), held()), CallError::Refused(_)));
    }
}
