//! Requests to single nodes and their outcomes: done, refused or unknown, as docs/http.md defines them.

use std::time::Duration;

use anyhow::Result;
use reqwest::{Method, StatusCode};
use serde_json::Value;
use tenure::api::INDEX_HEADER;

use super::security::Security;

/// The time for an answer, in addition to the wait time of the request.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// After this time without delivery the kernel drops the connection. It does not send the request again when the
/// network recovers.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub enum Reply {
    /// The answer, and the log index of the state that it shows.
    Done(Value, Option<u64>),
    /// Certainly not applied: the error code, and the log index if the refusal shows the state of a lease.
    Refused(String, Option<u64>),
    Unknown,
    /// An answer that no node of this release may give, such as a fault of the node. The outcome is unknown.
    Fault(String),
}

#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    security: Security,
}

impl Client {
    pub fn new(security: &Security) -> Result<Client> {
        let http = security
            .http()?
            .tcp_nodelay(true)
            .connect_timeout(Duration::from_millis(700))
            .tcp_user_timeout(DELIVERY_TIMEOUT)
            .pool_idle_timeout(Duration::from_secs(20))
            .retry(reqwest::retry::never())
            .redirect(reqwest::redirect::Policy::none());
        Ok(Client { http: http.build()?, security: security.clone() })
    }

    pub async fn send(&self, host: u64, method: Method, path: &str, body: Option<Value>, wait: Duration) -> Reply {
        let url = self.security.url(host) + path;
        let mut request = self.http.request(method, url).timeout(REQUEST_TIMEOUT + wait);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) if error.is_connect() => return Reply::Refused("unreachable".to_owned(), None),
            Err(_) => return Reply::Unknown,
        };
        let index = response.headers().get(INDEX_HEADER).and_then(|index| index.to_str().ok()?.parse().ok());
        let status = response.status();
        let Ok(body) = response.bytes().await else { return Reply::Unknown };
        match serde_json::from_slice(&body) {
            Ok(value) => classify(status, value, index),
            // The body is complete: the node sent it like this.
            Err(error) => Reply::Fault(format!("{status} with a body that is no JSON ({error}): {body:?}")),
        }
    }
}

fn classify(status: StatusCode, value: Value, index: Option<u64>) -> Reply {
    if status.is_success() {
        return Reply::Done(value, index);
    }
    match value["code"].as_str() {
        Some(code) if !status.is_server_error() || status == StatusCode::SERVICE_UNAVAILABLE => {
            Reply::Refused(code.to_owned(), index)
        }
        Some("outcome_unknown") => Reply::Unknown,
        _ => Reply::Fault(format!("{status} with {value}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn refusal_needs_a_code_and_a_definite_status() {
        let reply = |status: u16, value| classify(StatusCode::from_u16(status).expect("a status"), value, None);
        let refused = |status, value| matches!(reply(status, value), Reply::Refused(..));
        assert!(refused(409, json!({"code": "held"})));
        assert!(refused(503, json!({"code": "no_leader"})));
        assert!(!refused(504, json!({"code": "outcome_unknown"})));
        assert!(!refused(500, json!({"code": "internal"})));
        assert!(!refused(409, json!({})));
        assert!(matches!(reply(504, json!({"code": "outcome_unknown"})), Reply::Unknown));
        let code = |code: &str| json!({"code": code});
        for (status, value) in [
            (500, code("internal")),
            (501, code("unsupported")),
            (504, code("held")),
            (409, json!({})),
            (503, json!(7)),
        ] {
            assert!(matches!(reply(status, value.clone()), Reply::Fault(_)), "{status} {value}");
        }
    }
}
