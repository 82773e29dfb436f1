//! The permits and the memory that a request takes. It returns them when it ends: answered, refused or dropped.
//!
//! The node has no leader, so a request that needs one stays open. Requests reach the router without a socket: one poll
//! takes a request to the node.

use std::io;
use std::pin::Pin;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::http::{Request, StatusCode};
use axum::response::Response;
use futures_util::{FutureExt, StreamExt, stream};
use metrics_exporter_prometheus::PrometheusBuilder;
use tempfile::TempDir;
use tenure::access::AccessToken;
use tenure::api::{Code, MAX_BODY_BYTES, MAX_LEASE_BODY_BYTES, Problem};
use tenure::http::Settings;
use tenure::node::Node;
use tokio::net::TcpListener;
use tokio::task::unconstrained;
use tower::Service;

use crate::metrics::value;

/// The first bytes of a body that do not count against the budget.
const UNCOUNTED: usize = 1024;

#[derive(Clone, Copy, Debug)]
struct Call {
    method: &'static str,
    path: &'static str,
    body: &'static str,
    /// Largest body, in bytes.
    max: usize,
}

const fn get(path: &'static str) -> Call {
    Call { method: "GET", path, body: "", max: 0 }
}

const fn post(path: &'static str, body: &'static str) -> Call {
    Call { method: "POST", path, body, max: MAX_LEASE_BODY_BYTES }
}

const LIST: Call = get("/v1/leases");
const CLAIM: Call = post("/v1/leases/a/acquire", r#"{"holder":"h"}"#);
const WAITING_CLAIM: Call = post("/v1/leases/a/acquire", r#"{"holder":"h","wait_ms":60000}"#);
const UPDATE: Call = post("/v1/leases/a/metadata", r#"{"holder":"h","token":"5","version":0,"metadata":{}}"#);
const BATCH: Call = Call {
    method: "POST",
    path: "/v1/renew",
    body: r#"{"holder":"h","leases":[{"name":"a","token":"5"}]}"#,
    max: MAX_BODY_BYTES,
};

/// A claim of the lease service.
const SERVICE_CLAIM: Call = post("/api/leases", r#"{"resource":"a","holder":"h"}"#);

/// Calls that count against `max_requests`.
const COUNTED: [Call; 15] = [
    LIST,
    get("/v1/leases/a"),
    get("/v1/leases/a/history"),
    get("/v1/leases/a/queue"),
    get("/v1/leases/a/explain"),
    Call { method: "DELETE", path: "/v1/leases/a", body: "", max: 0 },
    CLAIM,
    UPDATE,
    SERVICE_CLAIM,
    get("/api/leases"),
    get("/api/leases/active"),
    get("/api/leases/expired"),
    get("/api/leases/renewed"),
    get("/api/leases/released"),
    get("/api/leases/1"),
];
/// Calls that keep or free a lease.
const URGENT: [Call; 7] = [
    post("/v1/leases/a/renew", r#"{"holder":"h","token":"5"}"#),
    post("/v1/leases/a/release", r#"{"holder":"h","token":"5"}"#),
    post("/v1/leases/a/handover", r#"{"holder":"h","token":"5"}"#),
    BATCH,
    Call { method: "PUT", path: "/api/leases/renew", ..SERVICE_CLAIM },
    Call { method: "DELETE", path: "/api/leases/release", ..SERVICE_CLAIM },
    Call { method: "DELETE", path: "/api/leases/1", ..SERVICE_CLAIM },
];

type Open = Pin<Box<dyn Future<Output = Response>>>;

/// The router of a node whose only peer never starts.
struct Leaderless {
    router: Router,
    node: Node,
    _data: TempDir,
}

impl Leaderless {
    async fn start(change: impl FnOnce(&mut Settings)) -> Leaderless {
        let data = TempDir::new().expect("a temporary directory");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let peer = listener.local_addr().expect("the listener is bound").to_string();
        let builder =
            Node::builder("test").id(1).member(1, "127.0.0.1:2", peer).member(2, "127.0.0.1:3", "127.0.0.1:1");
        let builder = builder.data(data.path().join("1")).peer_listener(listener);
        let node = builder.start().await.expect("a node starts without its peers");
        let mut settings = Settings::new(1);
        settings.limits.compat_leases = true;
        change(&mut settings);
        Leaderless { router: node.router_with(settings), node, _data: data }
    }

    /// Sends a call. The response comes when the future is polled.
    fn send(&self, call: Call, body: Body) -> Open {
        let request = Request::builder().method(call.method).uri(call.path);
        let request = request.header("content-type", "application/json").body(body).expect("a valid request");
        let mut router = self.router.clone();
        Box::pin(async move {
            let Ok(response) = router.call(request).await;
            response
        })
    }

    /// Sends a call with a body of this many bytes, and returns its response if there is one at once.
    fn try_open(&self, call: Call, bytes: usize) -> Result<Open, Box<Response>> {
        let mut open = self.send(call, padded(call, bytes).into());
        match unconstrained(open.as_mut()).now_or_never() {
            None => Ok(open),
            Some(response) => Err(Box::new(response)),
        }
    }

    fn open(&self, call: Call) -> Open {
        match self.try_open(call, 0) {
            Ok(open) => open,
            Err(response) => panic!("{call:?} is answered at once with {}", response.status()),
        }
    }

    /// Asserts that the node refuses this call at once as too busy.
    async fn assert_busy(&self, call: Call, bytes: usize) {
        let Err(refused) = self.try_open(call, bytes) else { panic!("{call:?} is not refused") };
        assert_eq!(code(*refused).await, (StatusCode::TOO_MANY_REQUESTS, Code::TooBusy), "{call:?}");
    }

    async fn end(self) {
        self.node.shutdown().await;
    }
}

/// The body of this call, with spaces up to this many bytes.
fn padded(call: Call, bytes: usize) -> String {
    call.body.to_owned() + &" ".repeat(bytes.saturating_sub(call.body.len()))
}

async fn code(response: Response) -> (StatusCode, Code) {
    let status = response.status();
    let body = to_bytes(response.into_body(), MAX_BODY_BYTES).await.expect("a short body");
    let problem: Problem = serde_json::from_slice(&body).expect("a problem");
    (status, problem.code)
}

/// A body that begins with these bytes and never ends.
fn endless(bytes: Vec<u8>) -> Body {
    Body::from_stream(stream::iter([Ok::<Bytes, std::io::Error>(bytes.into())]).chain(stream::pending()))
}

/// A body that fails after these bytes.
fn broken(bytes: Vec<u8>) -> Body {
    let parts = [Ok(Bytes::from(bytes)), Err(std::io::Error::other("the client is gone"))];
    Body::from_stream(stream::iter(parts))
}

#[tokio::test]
async fn request_permits_are_returned_on_each_way_out() {
    let node = Leaderless::start(|settings| settings.limits.max_requests = 1).await;
    for call in COUNTED {
        let open = node.open(call);
        for other in COUNTED {
            node.assert_busy(other, 0).await;
        }
        let _urgent: Vec<Open> = URGENT.into_iter().map(|call| node.open(call)).collect();
        drop(open);
        // A claim that waits has exchanged its permit.
        let _waiting: Vec<Open> = (0..3).map(|_| node.open(WAITING_CLAIM)).collect();
        drop(node.open(call));
    }
    for call in [get("/v1/leases/a?consistency=stale"), get("/v1/leases?limit=0"), get("/v1/leases/a%20b"), get("/no")]
    {
        let answered = node.send(call, Body::empty()).await.status();
        assert_ne!(answered, StatusCode::TOO_MANY_REQUESTS, "{call:?}");
    }
    for body in ["{", "[]", r#"{"holder":"h","ttl_ms":1}"#, r#"{"holder":""}"#] {
        for call in [CLAIM, UPDATE] {
            let refused = code(node.send(call, body.into()).await).await;
            assert_eq!(refused, (StatusCode::BAD_REQUEST, Code::Invalid), "{call:?} {body}");
        }
    }
    let answered = node.open(LIST).await;
    assert_eq!(code(answered).await, (StatusCode::SERVICE_UNAVAILABLE, Code::NoLeader));
    drop(node.open(LIST));
    node.end().await;
}

/// After an earlier response, the connection cannot stay open.
#[tokio::test]
async fn request_is_refused_when_its_body_is_complete() {
    let node = Leaderless::start(|settings| settings.limits.max_requests = 0).await;
    let unknown = post("/v1/leases/a/renew?ttl_ms=5000", r#"{"holder":"h","token":"5"}"#);
    let too_busy = (StatusCode::TOO_MANY_REQUESTS, Code::TooBusy);
    for (call, expected) in [(CLAIM, too_busy), (UPDATE, too_busy), (unknown, (StatusCode::BAD_REQUEST, Code::Invalid))]
    {
        let (send, rest) = tokio::sync::oneshot::channel::<Bytes>();
        let mut refused = node.send(call, Body::from_stream(stream::once(rest)));
        let early = unconstrained(refused.as_mut()).now_or_never();
        assert!(early.is_none(), "{call:?} is answered before its body");
        send.send(Bytes::from(call.body)).expect("the node reads the body");
        assert_eq!(code(refused.await).await, expected, "{call:?}");
    }
    node.end().await;
}

/// The client sends `expect: 100-continue`, and no body before the answer.
#[tokio::test]
async fn refused_upload_is_not_invited() {
    let node = Leaderless::start(|settings| settings.limits.max_requests = 0).await;
    for (path, kind, status) in [
        (CLAIM.path, "application/json", StatusCode::TOO_MANY_REQUESTS),
        ("/v1/leases/a/renew?ttl_ms=5000", "application/json", StatusCode::BAD_REQUEST),
        ("/v1/leases/a/renew", "text/plain", StatusCode::UNSUPPORTED_MEDIA_TYPE),
    ] {
        let request = Request::post(path).header("content-type", kind).header("expect", "100-continue");
        let request = request.body(Body::from_stream(stream::pending::<io::Result<Bytes>>())).expect("valid");
        let mut router = node.router.clone();
        let answered = unconstrained(std::pin::pin!(router.call(request))).now_or_never();
        let Some(Ok(response)) = answered else { panic!("{path} waits for the body") };
        assert_eq!(response.status(), status, "{path}");
    }
    node.end().await;
}

#[tokio::test]
async fn wait_permits_are_returned_on_each_way_out() {
    let node = Leaderless::start(|settings| settings.limits.max_waits = 1).await;
    for _ in 0..3 {
        let waiting = node.open(WAITING_CLAIM);
        node.assert_busy(WAITING_CLAIM, 0).await;
        drop(node.open(CLAIM));
        drop(waiting);
    }
    let answered = node.open(WAITING_CLAIM).await;
    assert_eq!(code(answered).await, (StatusCode::SERVICE_UNAVAILABLE, Code::NoLeader));
    drop(node.open(WAITING_CLAIM));
    node.end().await;
}

#[tokio::test]
async fn watch_permits_are_returned_on_each_way_out() {
    let node = Leaderless::start(|settings| settings.limits.max_watches = 1).await;
    for call in [get("/v1/watch?after=x"), get("/v1/watch?colour=red")] {
        let refused = code(node.send(call, Body::empty()).await).await;
        assert_eq!(refused, (StatusCode::BAD_REQUEST, Code::Invalid), "{call:?}");
    }
    for _ in 0..3 {
        let stream = node.send(get("/v1/watch"), Body::empty()).await;
        assert_eq!(stream.status(), StatusCode::OK);
        node.assert_busy(get("/v1/watch"), 0).await;
    }
    node.end().await;
}

/// A body counts until its request is answered. The body of a claim counts until it is parsed, because a claim may wait
/// for a day.
#[tokio::test]
async fn bodies_of_open_requests_fill_their_share_of_the_budget() {
    const MIB: usize = 1 << 20;
    let node = Leaderless::start(|settings| settings.limits.body_budget_mib = 4).await;
    for (calls, share) in [(&URGENT[..], 3 * MIB), (&[UPDATE][..], MIB)] {
        for &call in calls {
            let most = share / (call.max - UNCOUNTED);
            let open: Vec<Open> = std::iter::from_fn(|| node.try_open(call, call.max).ok()).take(most + 1).collect();
            assert_eq!(open.len(), most, "{call:?}");
            node.assert_busy(call, call.max).await;
            if call.path == UPDATE.path {
                // They share it.
                node.assert_busy(CLAIM, CLAIM.max).await;
                node.assert_busy(SERVICE_CLAIM, SERVICE_CLAIM.max).await;
            }
            drop(node.try_open(call, UNCOUNTED).unwrap_or_else(|_| panic!("a small body of {call:?} is refused")));
            drop(open);
            drop(node.try_open(call, call.max).unwrap_or_else(|_| panic!("the budget of {call:?} is not free again")));
        }
    }
    let most = MIB / (MAX_LEASE_BODY_BYTES - UNCOUNTED);
    for call in [CLAIM, WAITING_CLAIM, SERVICE_CLAIM] {
        let open: Vec<Open> = std::iter::from_fn(|| node.try_open(call, call.max).ok()).take(most + 1).collect();
        assert_eq!(open.len(), most + 1, "{call:?}");
    }
    node.end().await;
}

/// The node has room for one of these bodies.
#[tokio::test]
async fn body_budget_is_returned_on_each_way_out() {
    const BYTES: usize = MAX_BODY_BYTES - UNCOUNTED;
    let short = Duration::from_millis(20);
    let node = Leaderless::start(|settings| {
        settings.limits.body_budget_mib = 4;
        settings.body_timeout = short;
    })
    .await;
    let begun = || vec![b' '; BYTES];
    let mut sending = node.send(BATCH, endless(begun()));
    assert!(unconstrained(sending.as_mut()).now_or_never().is_none(), "the body is not complete");
    node.assert_busy(BATCH, BYTES).await;
    drop(sending);
    let above = vec![b' '; MAX_BODY_BYTES + 1];
    let ways = [
        ("dropped", node.send(BATCH, endless(begun())), None),
        ("too slow", node.send(BATCH, endless(begun())), Some((StatusCode::REQUEST_TIMEOUT, Code::BodyTimeout))),
        ("broken", node.send(BATCH, broken(begun())), Some((StatusCode::BAD_REQUEST, Code::Invalid))),
        ("no JSON", node.send(BATCH, begun().into()), Some((StatusCode::BAD_REQUEST, Code::Invalid))),
        ("too large", node.send(BATCH, above.into()), Some((StatusCode::PAYLOAD_TOO_LARGE, Code::TooLarge))),
        (
            "answered",
            node.send(BATCH, padded(BATCH, BYTES).into()),
            Some((StatusCode::SERVICE_UNAVAILABLE, Code::NoLeader)),
        ),
    ];
    for (way, mut request, expected) in ways {
        match expected {
            Some(expected) => assert_eq!(code(request.await).await, expected, "{way}"),
            None => {
                assert!(unconstrained(request.as_mut()).now_or_never().is_none(), "{way}");
                drop(request);
            }
        }
        let next = node.try_open(BATCH, BYTES);
        assert!(next.is_ok(), "the budget is not free after a request that was {way}");
    }
    node.end().await;
}

#[tokio::test]
async fn refusals_are_counted_by_their_cause() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let render = recorder.handle();
    let _recording = ::metrics::set_default_local_recorder(&recorder);
    let node = Leaderless::start(|settings| {
        settings.limits.max_requests = 2;
        settings.limits.max_waits = 1;
        settings.limits.max_watches = 0;
        settings.limits.body_budget_mib = 4;
    })
    .await;
    let counted = |reason: &str| value(&render.render(), "tenure_refused_total", &[("reason", reason)]);
    let counts = || ["requests", "start_timeout", "waits", "watches", "bodies"].map(counted);
    let running = node.open(LIST);
    let late = node.open(LIST);
    assert_eq!(counts(), [0.0; 5]);
    for _ in 0..3 {
        node.assert_busy(LIST, 0).await;
    }
    assert_eq!(code(late.await).await, (StatusCode::TOO_MANY_REQUESTS, Code::TooBusy), "one request runs at a time");
    assert_eq!(counts(), [3.0, 1.0, 0.0, 0.0, 0.0]);
    drop(running);
    let _waiting = node.open(WAITING_CLAIM);
    node.assert_busy(WAITING_CLAIM, 0).await;
    node.assert_busy(get("/v1/watch"), 0).await;
    let _body = node.try_open(BATCH, BATCH.max).unwrap_or_else(|_| panic!("the budget is free"));
    for _ in 0..2 {
        node.assert_busy(BATCH, BATCH.max).await;
    }
    assert_eq!(counts(), [3.0, 1.0, 1.0, 1.0, 2.0]);
    node.end().await;
}

/// Without a leader, only a stale read has an answer.
#[tokio::test]
async fn each_read_takes_its_consistency() {
    let node = Leaderless::start(|_| {}).await;
    for path in
        ["/v1/leases?", "/v1/leases/a?", "/v1/leases/a/history?", "/v1/leases/a/queue?", "/v1/leases/a/explain?"]
    {
        for (consistency, has_answer) in [
            ("", false),
            ("consistency=leader", false),
            ("consistency=linearizable", false),
            ("consistency=stale", true),
        ] {
            let request = Request::get(format!("{path}{consistency}")).body(Body::empty()).expect("a valid request");
            let mut router = node.router.clone();
            let answer = unconstrained(router.call(request)).now_or_never();
            assert_eq!(answer.is_some(), has_answer, "{path}{consistency}");
            let status = answer.map(|answer| answer.unwrap_or_else(|never| match never {}).status());
            let is_refused = |status: StatusCode| status.is_server_error() || status == StatusCode::BAD_REQUEST;
            assert!(!status.is_some_and(is_refused), "{path}{consistency}: {status:?}");
        }
    }
    node.end().await;
}

/// The node may not know the token yet.
#[tokio::test]
async fn node_without_a_leader_calls_no_token_unknown_where_one_is_needed() {
    let node = Leaderless::start(|settings| settings.require_identity = Some(true)).await;
    let token = format!("Bearer {}", AccessToken::from_secret([7; 32]).expose());
    let not_ready = (StatusCode::SERVICE_UNAVAILABLE, Code::NotReady);
    let unknown = (StatusCode::UNAUTHORIZED, Code::Unauthenticated);
    for (header, expected) in [(token.as_str(), not_ready), ("Basic YTpi", unknown)] {
        for path in ["/v1/watch", "/v1/leases/a?consistency=stale", "/v1/cluster"] {
            let request = Request::get(path).header("authorization", header).body(Body::empty());
            let Ok(answer) = node.router.clone().call(request.expect("a valid request")).await;
            assert_eq!(code(answer).await, expected, "{header} at {path}");
        }
    }
    node.end().await;
}

/// The node has never heard from a leader.
#[tokio::test]
async fn state_of_unknown_age_has_no_age_header() {
    let node = Leaderless::start(|_| {}).await;
    for path in [
        "/v1/leases?consistency=stale",
        "/v1/leases/a?consistency=stale",
        "/v1/leases/a/history?consistency=stale",
        "/v1/leases/a/queue?consistency=stale",
        "/v1/leases/a/explain?consistency=stale",
    ] {
        let answer = node.send(get(path), Body::empty()).await;
        let headers = answer.headers();
        assert!(headers.contains_key("x-tenure-index"), "{path}: {headers:?}");
        assert!(!headers.contains_key("x-tenure-stale-ms"), "{path}: {headers:?}");
    }
    node.end().await;
}
