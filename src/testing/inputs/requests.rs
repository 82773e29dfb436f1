//! Requests of clients over HTTP.

use std::cell::OnceCell;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::response::Response;
use http_body_util::BodyExt;
use tokio::runtime::Runtime;
use tower::ServiceExt;

use super::{Input, input, json, texts};
use crate::api::{
    Acquire, AddMember, Code, HandOver, Problem, Release, Renew, RenewBatch, ReplaceMember, SetPrincipal, SetRole,
    Transfer, TtlMs,
};
use crate::config::TtlPolicy;
use crate::http;
use crate::service;
use crate::types::{LeaseName, MAX_LIMIT, MAX_LOCK_DELAY_MS, MAX_WAIT_MS};

pub(super) fn inputs() -> Vec<Input> {
    vec![input("http_body", 4096, body, bodies), input("http_request", 2048, request, requests)]
}

/// The body of a request. The first byte of the input selects the type of the request.
fn body(bytes: &[u8]) -> bool {
    let Some((kind, body)) = bytes.split_first() else { return false };
    let (policy, name) = (TtlPolicy::default(), LeaseName::new("a").expect("it is valid"));
    match kind {
        b'a' => json(body).is_some_and(|body| acquire(&policy, name, body)),
        b'n' => json::<Renew>(body).is_some_and(|body| service::renew(&policy, name, body).is_ok()),
        b'b' => json::<RenewBatch>(body).is_some_and(|body| service::renew_batch(&policy, body).is_ok()),
        b'r' => json::<Release>(body).is_some(),
        b'h' => json::<HandOver>(body).is_some(),
        b'm' => json::<AddMember>(body).is_some(),
        b'p' => json::<ReplaceMember>(body).is_some(),
        b't' => json::<Transfer>(body).is_some(),
        b'o' => json::<SetRole>(body).is_some(),
        b'i' => json::<SetPrincipal>(body).is_some(),
        _ => false,
    }
}

fn acquire(policy: &TtlPolicy, name: LeaseName, body: Acquire) -> bool {
    let Ok(claim) = service::claim(policy, name, body) else { return false };
    assert_eq!(policy.check(claim.ttl.as_millis().map_or(TtlMs::Infinite, TtlMs::Millis)), Ok(claim.ttl));
    assert!((1..=MAX_LIMIT).contains(&claim.limit) && claim.lock_delay_ms <= MAX_LOCK_DELAY_MS, "{claim:?}");
    assert!(claim.wait_ms.is_none_or(|wait| (1..=MAX_WAIT_MS).contains(&wait)), "{claim:?}");
    true
}

fn bodies() -> Vec<Vec<u8>> {
    texts([
        r#"a{"holder":"h"}"#,
        r#"a{"holder":"worker-1","ttl_ms":30000,"wait_ms":5000,"lock_delay_ms":100,"limit":3,"metadata":{"pid":"7"}}"#,
        r#"a{"holder":"h","ttl_ms":"infinite"}"#,
        r#"n{"holder":"h","token":"281474976710661","ttl_ms":1500}"#,
        r#"b{"holder":"h","leases":[{"name":"a","token":"1"},{"name":"b.c:d-e_f","token":"2","ttl_ms":"infinite"}]}"#,
        r#"r{"holder":"h","token":"00000281474976710661"}"#,
        r#"h{"holder":"h","token":"1","to":"w"}"#,
        r#"m{"id":4,"http":"d:1","peer":"d:2"}"#,
        r#"p{"with":4}"#,
        r#"t{"to":2}"#,
        r#"o{"permissions":[{"right":"hold","prefix":"jobs/"},{"right":"admin"}]}"#,
        r#"i{"roles":["worker"]}"#,
    ])
}

thread_local! {
    static ROUTER: OnceCell<(Runtime, Router)> = const { OnceCell::new() };
}

/// A complete request to a node that has not started: `METHOD PATH [CONTENT-TYPE]`, a line end, and the body.
///
/// The request counts as accepted if the only error is that the node is not ready.
fn request(bytes: &[u8]) -> bool {
    let line = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let (line, body) = (&bytes[..line], bytes.get(line + 1..).unwrap_or_default());
    let mut words = line.splitn(3, |byte| *byte == b' ');
    let mut request = Request::builder().method(words.next().unwrap_or_default()).uri(words.next().unwrap_or_default());
    if let Some(content_type) = words.next() {
        request = request.header(CONTENT_TYPE, content_type);
    }
    let Ok(request) = request.body(Body::from(body.to_vec())) else { return false };
    ROUTER.with(|served| {
        let (runtime, router) = served.get_or_init(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            (runtime.expect("tokio starts a runtime"), http::router_without_a_node())
        });
        runtime.block_on(async {
            check_answer(router.clone().oneshot(request).await.expect("the router never fails")).await
        })
    })
}

async fn check_answer(response: Response) -> bool {
    let (head, body) = response.into_parts();
    let body = body.collect().await.expect("the body is in memory").to_bytes();
    let status = head.status.as_u16();
    assert!(head.headers.contains_key("x-tenure-node"), "{head:?}");
    if status == 200 {
        return true;
    }
    assert_eq!(head.headers[CONTENT_TYPE], "application/problem+json");
    let problem: Problem = serde_json::from_slice(&body).expect("a problem");
    assert_eq!((problem.status, problem.code.status()), (status, status), "{problem:?}");
    assert!(!matches!(problem.code, Code::Other | Code::Internal), "{problem:?}");
    assert_eq!(head.headers.contains_key(RETRY_AFTER), matches!(status, 429 | 503), "{problem:?}");
    problem.code == Code::NotReady
}

fn requests() -> Vec<Vec<u8>> {
    texts([
        "POST /v1/leases/jobs/acquire application/json\n{\"holder\":\"h\",\"wait_ms\":5}",
        "POST /v1/leases/jobs/renew application/json; charset=utf-8\n{\"holder\":\"h\",\"token\":\"7\"}",
        "POST /v1/leases/jobs/release application/json\n{\"holder\":\"h\",\"token\":\"7\"}",
        "POST /v1/leases/jobs/handover application/json\n{\"holder\":\"h\",\"token\":\"7\"}",
        "POST /v1/renew application/json\n{\"holder\":\"h\",\"leases\":[{\"name\":\"a\",\"token\":\"7\"}]}",
        "DELETE /v1/leases/jobs?reason=it%20hangs",
        "GET /v1/leases/jobs?consistency=linearizable",
        "GET /v1/leases/jobs/history?consistency=stale",
        "GET /v1/leases/jobs/queue?consistency=leader",
        "GET /v1/leases/jobs/explain?holder=a%2Fb",
        "GET /v1/leases?prefix=jo&holder=h&state=active,renewed&limit=5&cursor=a~7",
        "GET /v1/watch?prefix=jo&after=7.1",
        "GET /v1/cluster",
        "GET /v1/access",
        "PUT /v1/access/roles/worker application/json\n{\"permissions\":[{\"right\":\"read\",\"prefix\":\"\"}]}",
        "PUT /v1/access/principals/ci application/json\n{\"roles\":[\"worker\"]}",
        "POST /v1/access/principals/ci/tokens",
        "DELETE /v1/access/tokens/0123456789abcdef",
        "GET /livez",
        "GET /openapi.json",
    ])
}
