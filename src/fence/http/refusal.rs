//! The responses to refused requests: RFC 9457 problem details. A refused request has written nothing.

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use serde_json::{Value, json};

use crate::fence::{Refused, Stale};

/// 400: the request has no token.
pub const MISSING: &str = "fencing_token_missing";
/// 400: the token is not one decimal integer of at most 63 bits.
pub const MALFORMED: &str = "fencing_token_malformed";
/// 412, with `offered` and `highest`: the resource has seen a higher token. A retry cannot succeed.
pub const STALE: &str = "fencing_token_stale";
/// 400: the resource's name is empty or too long.
pub const RESOURCE: &str = "fence_resource_invalid";
/// 503 with `Retry-After`: older requests are still in progress, or too many requests wait for them.
pub const BUSY: &str = "fence_busy";
/// 503: the gate has reached its limit of resources.
pub const FULL: &str = "fence_full";
/// 503: the gate has failed to store a mark. The service must open a new gate.
pub const FAILED: &str = "fence_failed";

/// The `Retry-After` of a busy gate, in seconds.
const RETRY_SECONDS: HeaderValue = HeaderValue::from_static("1");

#[derive(Debug)]
pub(crate) struct FenceProblem {
    status: StatusCode,
    code: &'static str,
    title: &'static str,
    detail: String,
    stale: Option<Stale>,
}

impl FenceProblem {
    pub fn missing() -> FenceProblem {
        let detail = "send the lease's token as a decimal integer in the Fencing-Token header";
        FenceProblem::new(StatusCode::BAD_REQUEST, MISSING, "The request has no fencing token", detail)
    }

    pub fn malformed(detail: impl Into<String>) -> FenceProblem {
        FenceProblem::new(StatusCode::BAD_REQUEST, MALFORMED, "The fencing token is malformed", detail)
    }

    fn new(status: StatusCode, code: &'static str, title: &'static str, detail: impl Into<String>) -> FenceProblem {
        FenceProblem { status, code, title, detail: detail.into(), stale: None }
    }

    pub fn into_response<B: From<String>>(self) -> Response<B> {
        let mut response = Response::new(B::from(self.json().to_string()));
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.code == BUSY {
            response.headers_mut().insert(RETRY_AFTER, RETRY_SECONDS);
        }
        response
    }

    /// Tokens are decimal strings, because JavaScript and jq round numbers above 2^53.
    fn json(&self) -> Value {
        let mut json = json!({
            "type": format!("urn:tenure:problem:{}", self.code),
            "title": self.title,
            "status": self.status.as_u16(),
            "detail": self.detail,
            "code": self.code,
        });
        if let Some(stale) = self.stale {
            json["offered"] = stale.offered.to_string().into();
            json["highest"] = stale.highest.to_string().into();
        }
        json
    }
}

impl From<Refused> for FenceProblem {
    fn from(refused: Refused) -> FenceProblem {
        let unavailable = StatusCode::SERVICE_UNAVAILABLE;
        let (status, code, title) = match refused {
            Refused::Stale(_) => (StatusCode::PRECONDITION_FAILED, STALE, "The fencing token is stale"),
            Refused::Busy { .. } | Refused::TooManyWaiting => (unavailable, BUSY, "Older requests are in progress"),
            Refused::TooManyResources => (unavailable, FULL, "The gate has reached its limit of resources"),
            Refused::ResourceName { .. } => (StatusCode::BAD_REQUEST, RESOURCE, "The resource name is invalid"),
            Refused::Failed(_) => (unavailable, FAILED, "The gate has failed to store a mark"),
        };
        // Hides the cause, which may have a path of this machine, from the client.
        let detail = if let Refused::Failed(_) = refused { title.to_owned() } else { refused.to_string() };
        let stale = if let Refused::Stale(stale) = refused { Some(stale) } else { None };
        FenceProblem { status, code, title, detail, stale }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::token::FencingToken;

    #[test]
    fn each_refusal_has_its_status_and_code() {
        let [older, newer] = [1, 2].map(|index| FencingToken { term: 1, index });
        let busy = Refused::Busy { offered: newer, older, waited: Duration::from_secs(10) };
        let cases = [
            (Refused::Stale(Stale { offered: older, highest: newer }), 412, STALE, false),
            (busy, 503, BUSY, true),
            (Refused::TooManyWaiting, 503, BUSY, true),
            (Refused::TooManyResources, 503, FULL, false),
            (Refused::ResourceName { bytes: 0 }, 400, RESOURCE, false),
            (Refused::Failed("/var/lib/secret".into()), 503, FAILED, false),
        ];
        for (refused, status, code, retries) in cases {
            let response = FenceProblem::from(refused.clone()).into_response::<String>();
            assert_eq!(response.status().as_u16(), status, "{refused}");
            assert_eq!(response.headers().get(RETRY_AFTER), retries.then_some(&RETRY_SECONDS), "{refused}");
            let body: Value = serde_json::from_str(response.body()).expect("JSON");
            assert_eq!((&body["code"], &body["status"]), (&code.into(), &status.into()), "{refused}");
            assert!(!response.body().contains("secret"), "{body}");
        }
    }
}
