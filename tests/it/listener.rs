//! Limits and errors of the HTTP listener that need no node.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use tenure::api::{Code, MAX_BODY_BYTES, MAX_LEASE_BODY_BYTES, Problem};
use tenure::http::{self, NodeRef, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::steady::{steady, strict};

steady!(
    slow_client_loses_its_connection,
    excess_connection_is_refused_and_the_others_stay,
    stopped_listener_closes_idle_connections_and_ends,
);
strict!(
    listener_without_a_node_is_alive_and_not_ready,
    unknown_paths_and_methods_are_problems,
    decoded_slash_begins_no_segment_of_a_path,
    unknown_query_parameters_are_refused,
    field_that_no_handler_reads_is_refused,
    body_must_be_json_of_a_bounded_size,
    body_without_a_length_is_bounded,
    values_are_accepted_up_to_their_bounds,
    bodies_are_accepted_up_to_their_bounds,
    ended_connection_makes_room_for_another,
);

/// Timeout that only a hang exceeds.
const SOON: Duration = Duration::from_secs(10);

struct Listener {
    address: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Listener {
    /// Starts a listener for node 7, which never starts.
    async fn start(change: impl FnOnce(&mut Settings)) -> Listener {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("the listener is bound");
        let mut settings = Settings::new(7);
        change(&mut settings);
        let stop = CancellationToken::new();
        let task = tokio::spawn(http::serve(listener, NodeRef::empty(), settings, stop.clone()));
        Listener { address, stop, task }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    async fn get(&self, path: &str) -> Response {
        crate::plain_http::client().get(self.url(path)).send().await.expect("an answer")
    }

    async fn post(&self, content_type: &str, body: impl Into<reqwest::Body>) -> Response {
        let request =
            crate::plain_http::client().post(self.url("/v1/leases/a/acquire")).header("content-type", content_type);
        request.body(body).send().await.expect("an answer")
    }

    async fn post_to(&self, path: &str, body: serde_json::Value) -> (StatusCode, Code) {
        code_of(crate::plain_http::client().post(self.url(path)).json(&body).send().await.expect("an answer")).await
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("the listener accepts connections")
    }
}

async fn code_of(response: Response) -> (StatusCode, Code) {
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let status = response.status();
    let problem: Problem = response.json().await.expect("a problem");
    assert_eq!(problem.status, status.as_u16());
    (status, problem.code)
}

/// Reads until the other side closes the connection.
async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let read = tokio::time::timeout(SOON, stream.read_to_end(&mut text)).await;
    read.expect("the connection closes in time").expect("the connection is not reset");
    String::from_utf8(text).expect("the answer is text")
}

async fn listener_without_a_node_is_alive_and_not_ready() {
    let listener = Listener::start(|_| {}).await;
    let live = listener.get("/livez").await;
    assert_eq!((live.status(), &live.headers()["x-tenure-node"]), (StatusCode::OK, &"7".parse().expect("plain")));
    let ready = listener.get("/readyz").await;
    assert_eq!(ready.headers()["retry-after"], "1");
    assert_eq!(code_of(ready).await, (StatusCode::SERVICE_UNAVAILABLE, Code::NotReady));
    let acquire = listener.post("application/json", r#"{"holder":"h"}"#).await;
    assert_eq!(code_of(acquire).await, (StatusCode::SERVICE_UNAVAILABLE, Code::NotReady));
    assert_eq!(listener.get("/version").await.status(), StatusCode::OK);
    assert_eq!(listener.get("/openapi.json").await.status(), StatusCode::OK);
}

async fn unknown_paths_and_methods_are_problems() {
    let listener = Listener::start(|_| {}).await;
    assert_eq!(code_of(listener.get("/v2").await).await, (StatusCode::NOT_FOUND, Code::NotFound));
    assert_eq!(code_of(listener.get("/metrics").await).await, (StatusCode::NOT_FOUND, Code::NotFound));
    let wrong = listener.get("/v1/renew").await;
    assert_eq!(wrong.headers()["allow"], "POST");
    assert_eq!(code_of(wrong).await, (StatusCode::METHOD_NOT_ALLOWED, Code::MethodNotAllowed));
    let name = listener.get("/v1/leases/a%20b").await;
    assert_eq!(code_of(name).await, (StatusCode::BAD_REQUEST, Code::Invalid));
    let query = listener.get("/v1/leases?colour=red").await;
    assert_eq!(code_of(query).await, (StatusCode::BAD_REQUEST, Code::Invalid));
}

/// Each request would remove something if the node decoded the path before it selects the route.
async fn decoded_slash_begins_no_segment_of_a_path() {
    let listener = Listener::start(|_| {}).await;
    for path in [
        "/v1/access/tokens/..%2Fprincipals%2Froot",
        "/v1/access/principals/a%2Froot",
        "/v1/access/roles/a%2Fadmin",
        "/v1/cluster/members/..%2Fmembers%2F3",
        "/v1/leases/..%2Fcluster%2Fmembers%2F3",
    ] {
        let response = crate::plain_http::client().delete(listener.url(path)).send().await.expect("an answer");
        assert_eq!(code_of(response).await, INVALID, "{path}");
    }
}

/// A valid request to each route below `/v1` and `/api`, and its body. `null`: it has none.
fn requests() -> impl Iterator<Item = (Method, &'static str, Value)> {
    let held = || json!({"holder": "h", "token": "5"});
    let claim = || json!({"resource": "a", "holder": "h"});
    [
        (Method::POST, "/v1/leases/a/acquire", json!({"holder": "h"})),
        (Method::POST, "/v1/leases/a/renew", held()),
        (Method::POST, "/v1/leases/a/release", held()),
        (Method::POST, "/v1/leases/a/handover", held()),
        (Method::POST, "/v1/leases/a/metadata", json!({"holder": "h", "token": "5", "version": 0, "metadata": {}})),
        (Method::POST, "/v1/renew", json!({"holder": "h", "leases": []})),
        (Method::DELETE, "/v1/leases/a", Value::Null),
        (Method::GET, "/v1/leases/a", Value::Null),
        (Method::GET, "/v1/leases/a/history", Value::Null),
        (Method::GET, "/v1/leases/a/queue", Value::Null),
        (Method::GET, "/v1/leases/a/explain", Value::Null),
        (Method::GET, "/v1/leases", Value::Null),
        (Method::GET, "/v1/watch", Value::Null),
        (Method::GET, "/v1/cluster", Value::Null),
        (Method::GET, "/v1/cluster/snapshot", Value::Null),
        (Method::POST, "/v1/cluster/members", json!({"id": 4, "http": "a:1", "peer": "a:2"})),
        (Method::POST, "/v1/cluster/members/4/promote", Value::Null),
        (Method::POST, "/v1/cluster/members/4/replace", json!({"with": 5})),
        (Method::POST, "/v1/cluster/members/4/addresses", json!({"http": "a:1", "peer": "a:2"})),
        (Method::DELETE, "/v1/cluster/members/4", Value::Null),
        (Method::POST, "/v1/cluster/transfer", json!({})),
        (Method::GET, "/v1/access", Value::Null),
        (Method::POST, "/v1/access/enable", Value::Null),
        (Method::POST, "/v1/access/disable", Value::Null),
        (Method::PUT, "/v1/access/roles/r", json!({"permissions": []})),
        (Method::DELETE, "/v1/access/roles/r", Value::Null),
        (Method::PUT, "/v1/access/principals/p", json!({"roles": []})),
        (Method::DELETE, "/v1/access/principals/p", Value::Null),
        (Method::POST, "/v1/access/principals/p/tokens", Value::Null),
        (Method::DELETE, "/v1/access/tokens/0123456789abcdef", Value::Null),
        (Method::POST, "/api/leases", claim()),
        (Method::PUT, "/api/leases/renew", claim()),
        (Method::DELETE, "/api/leases/release", claim()),
        (Method::DELETE, "/api/leases/1", claim()),
        (Method::GET, "/api/leases/1", Value::Null),
        (Method::GET, "/api/leases", Value::Null),
        (Method::GET, "/api/leases/active", Value::Null),
    ]
    .into_iter()
}

async fn unknown_query_parameters_are_refused() {
    let listener = Listener::start(|settings| settings.limits.compat_leases = true).await;
    for (method, path, body) in requests() {
        let ask = |query: &str| {
            let request = crate::plain_http::client().request(method.clone(), listener.url(&format!("{path}?{query}")));
            if body.is_null() { request.send() } else { request.json(&body).send() }
        };
        for query in ["", "&"] {
            let valid = ask(query).await.expect("an answer").status();
            assert_ne!(valid, StatusCode::BAD_REQUEST, "{method} {path}?{query}");
        }
        for query in ["colour=red", "&wait=", "=5000"] {
            let refused = ask(query).await.expect("an answer");
            assert_eq!(refused.status(), StatusCode::BAD_REQUEST, "{method} {path}?{query}");
            assert_eq!(code_of(refused).await, INVALID, "{method} {path}?{query}");
        }
    }
}

/// A lost `ttl_ms` would give a token that never expires.
async fn field_that_no_handler_reads_is_refused() {
    let listener = Listener::start(|settings| settings.limits.compat_leases = true).await;
    for (method, path, _) in requests().filter(|(_, _, body)| body.is_null()) {
        let bodies = [("", true), ("{}", true), (" { }\n", true), ("[]", false), (r#"{"ttl_ms":3600000}"#, false)];
        for (body, is_valid) in bodies {
            let request = crate::plain_http::client().request(method.clone(), listener.url(path));
            let request = request.header("content-type", "application/json").body(body);
            let answer = code_of(request.send().await.expect("an answer")).await;
            assert_eq!(answer, if is_valid { ACCEPTED } else { INVALID }, "{method} {path} with the body {body:?}");
        }
    }
    let spaces = format!("41\r\n{}\r\n0\r\n\r\n", " ".repeat(65));
    let chunked = [
        ("0\r\n\r\n", 503),
        ("1\r\n{\r\n1\r\n}\r\n0\r\n\r\n", 503),
        ("7\r\n{\"a\":1}\r\n0\r\n\r\n", 400),
        (&*spaces, 400),
    ];
    for (chunks, status) in chunked {
        let mut stream = listener.connect().await;
        let head = "DELETE /v1/leases/a HTTP/1.1\r\nhost: t\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(format!("{head}{chunks}").as_bytes()).await.expect("the listener reads the body");
        let answer = read_to_end(&mut stream).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{chunks:?}: {answer}");
    }
}

async fn body_must_be_json_of_a_bounded_size() {
    let listener = Listener::start(|_| {}).await;
    // A web page can send these content types to a local address without a CORS preflight.
    for content_type in ["text/plain", "application/x-www-form-urlencoded"] {
        let response = listener.post(content_type, r#"{"holder":"h"}"#).await;
        assert_eq!(code_of(response).await, (StatusCode::UNSUPPORTED_MEDIA_TYPE, Code::UnsupportedMediaType));
    }
    let array = r#"["x",5000,0,0,1,{}]"#;
    let fraction = r#"{"holder":"h","wait_ms":1262.5}"#;
    for body in ["", "{", array, fraction, r#"{"holder":"h","ttl":1}"#, r#"{"holder":"h"} x"#] {
        let response = listener.post("application/json", body).await;
        assert_eq!(code_of(response).await, (StatusCode::BAD_REQUEST, Code::Invalid), "{body}");
    }
    // The body is valid, but there is no node.
    let integers = r#"{"holder":"h","ttl_ms":1262.0,"wait_ms":1262.0,"lock_delay_ms":1e3,"limit":1.0}"#;
    let response = listener.post("application/json", integers).await;
    assert_eq!(code_of(response).await, (StatusCode::SERVICE_UNAVAILABLE, Code::NotReady));
    let response = listener.post("application/json", vec![b' '; MAX_BODY_BYTES + 1]).await;
    assert_eq!(code_of(response).await, (StatusCode::PAYLOAD_TOO_LARGE, Code::TooLarge));
}

async fn body_without_a_length_is_bounded() {
    let listener = Listener::start(|_| {}).await;
    let mut stream = listener.connect().await;
    let head = "POST /v1/renew HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n\
                transfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.expect("the listener reads the head");
    let chunk = [format!("{:x}\r\n", MAX_BODY_BYTES).into_bytes(), vec![b' '; MAX_BODY_BYTES], b"\r\n".to_vec()];
    stream.write_all(&chunk.concat()).await.expect("the listener reads up to the bound");
    stream.write_all(b"1\r\n \r\n").await.expect("the socket accepts the byte above the bound");
    let mut answer = [0; 32];
    let read = tokio::time::timeout(SOON, stream.read(&mut answer))
        .await
        .expect("the answer arrives in time")
        .expect("an answer");
    assert!(answer[..read].starts_with(b"HTTP/1.1 413"), "{}", String::from_utf8_lossy(&answer[..read]));
}

/// A valid request finds no node.
const ACCEPTED: (StatusCode, Code) = (StatusCode::SERVICE_UNAVAILABLE, Code::NotReady);
const INVALID: (StatusCode, Code) = (StatusCode::BAD_REQUEST, Code::Invalid);

async fn values_are_accepted_up_to_their_bounds() {
    let listener = Listener::start(|settings| settings.limits.compat_leases = true).await;
    for (bytes, expected) in [(200, ACCEPTED), (201, INVALID)] {
        let (name, holder) = ("n".repeat(bytes), "h".repeat(bytes));
        let lease = format!("/v1/leases/{name}");
        assert_eq!(code_of(listener.get(&lease).await).await, expected, "a name of {bytes} bytes");
        let claim = listener.post_to(&format!("{lease}/acquire"), json!({"holder": "h"})).await;
        assert_eq!(claim, expected, "a claim of a name of {bytes} bytes");
        let claim = listener.post_to("/v1/leases/a/acquire", json!({"holder": holder})).await;
        assert_eq!(claim, expected, "a holder of {bytes} bytes");
        let renewal = json!({"holder": "h", "leases": [{"name": name, "token": "1"}]});
        assert_eq!(listener.post_to("/v1/renew", renewal).await, expected, "a renewal of a name of {bytes} bytes");
    }
    for (entries, bytes, expected) in [(32, 4_096, ACCEPTED), (33, 4_096, INVALID), (32, 4_097, INVALID)] {
        let value = |number: usize| if number == 0 { "v".repeat(bytes - 2 * entries) } else { String::new() };
        let metadata: BTreeMap<String, String> =
            (0..entries).map(|number| (format!("{number:02}"), value(number))).collect();
        let claim = listener.post_to("/v1/leases/a/acquire", json!({"holder": "h", "metadata": metadata})).await;
        assert_eq!(claim, expected, "metadata of {entries} entries and {bytes} bytes");
    }
    for (limit, expected) in [(1, ACCEPTED), (1_000, ACCEPTED), (0, INVALID), (1_001, INVALID)] {
        for path in ["/v1/leases", "/api/leases", "/api/leases/active"] {
            let page = listener.get(&format!("{path}?limit={limit}")).await;
            assert_eq!(code_of(page).await, expected, "a page of {limit} of {path}");
        }
    }
}

async fn bodies_are_accepted_up_to_their_bounds() {
    let listener = Listener::start(|_| {}).await;
    let renewal = r#"{"holder":"h","leases":[{"name":"a","token":"1"}]}"#;
    for (path, json, max) in
        [("/v1/leases/a/acquire", r#"{"holder":"h"}"#, MAX_LEASE_BODY_BYTES), ("/v1/renew", renewal, MAX_BODY_BYTES)]
    {
        for (bytes, expected) in [(max, ACCEPTED), (max + 1, (StatusCode::PAYLOAD_TOO_LARGE, Code::TooLarge))] {
            let body = json.to_owned() + &" ".repeat(bytes - json.len());
            let with_length = format!("content-length: {bytes}\r\n\r\n{body}");
            let chunked = format!("transfer-encoding: chunked\r\n\r\n{bytes:x}\r\n{body}\r\n0\r\n\r\n");
            for rest in [with_length, chunked] {
                let mut stream = listener.connect().await;
                let head = format!(
                    "POST {path} HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\nconnection: close\r\n"
                );
                stream.write_all(format!("{head}{rest}").as_bytes()).await.expect("the listener reads the body");
                let answer = read_to_end(&mut stream).await;
                let (_, problem) = answer.split_once("\r\n\r\n").expect("the answer has a head and a body");
                let problem: Problem = serde_json::from_str(problem).expect("a problem");
                let (status, code) = expected;
                assert!(answer.starts_with(&format!("HTTP/1.1 {}", status.as_u16())), "{path}, {bytes}: {answer}");
                assert_eq!(problem.code, code, "{path}, {bytes}: {answer}");
            }
        }
    }
}

async fn slow_client_loses_its_connection() {
    // A busy machine sends the head of the second request within this time.
    let short = Duration::from_millis(500);
    let listener = Listener::start(|settings| {
        settings.head_timeout = short;
        settings.body_timeout = short;
    })
    .await;
    let mut slow_head = listener.connect().await;
    slow_head.write_all(b"GET /livez HTTP/1.1\r\nhost:").await.expect("the listener reads the first bytes");
    let mut slow_body = listener.connect().await;
    let head = "POST /v1/renew HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\r\n{";
    slow_body.write_all(head.as_bytes()).await.expect("the listener reads the first bytes");
    let mut idle = listener.connect().await;
    assert_eq!(read_to_end(&mut idle).await, "");
    let answer = read_to_end(&mut slow_head).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(read_to_end(&mut slow_body).await.starts_with("HTTP/1.1 408"));
}

async fn excess_connection_is_refused_and_the_others_stay() {
    let listener = Listener::start(|settings| settings.limits.max_connections = 1).await;
    let mut first = listener.connect().await;
    let request = "GET /livez HTTP/1.1\r\nhost: t\r\n\r\n";
    let mut answer = [0; 12];
    first.write_all(request.as_bytes()).await.expect("the listener reads the request");
    first.read_exact(&mut answer).await.expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 200");
    let refusal = read_to_end(&mut listener.connect().await).await;
    let (head, body) = refusal.split_once("\r\n\r\n").expect("the answer has a head and a body");
    assert!(head.starts_with("HTTP/1.1 503") && head.contains("\r\nx-tenure-node: 7\r\n"), "{head}");
    assert_eq!(serde_json::from_str::<Problem>(body).expect("a problem").code, Code::NotReady);
    // A client on a busy machine sends its request later. The refusal must wait for the request.
    let mut late = listener.connect().await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(late.try_read(&mut answer).map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));
    late.write_all(request.as_bytes()).await.expect("the listener reads the request");
    assert!(read_to_end(&mut late).await.starts_with("HTTP/1.1 503"));
    drop(first);
    // The listener accepts a connection again when it has noticed the closed one.
    let again = async {
        while listener.get("/livez").await.status() != StatusCode::OK {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, again).await.expect("the listener accepts a connection again in time");
}

/// In each way, more connections end than the limit allows at once.
async fn ended_connection_makes_room_for_another() {
    const MOST: usize = 4;
    let short = Duration::from_millis(100);
    let listener = Listener::start(|settings| {
        settings.limits.max_connections = MOST;
        settings.head_timeout = short;
        settings.body_timeout = short;
    })
    .await;
    let body = "POST /v1/renew HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\r\n{";
    for (way, bytes, client_closes) in [
        ("closed before a request", "", true),
        ("closed inside a head", "GET /livez HT", true),
        ("closed inside a body", body, true),
        ("answered and closed", "GET /livez HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n", false),
        ("refused as invalid", "hello\r\n\r\n", false),
        ("too slow with its head", "GET /livez HT", false),
        ("too slow with its body", body, false),
    ] {
        for _ in 0..2 {
            let mut open = Vec::new();
            for _ in 0..MOST {
                let mut stream = listener.connect().await;
                // If this test was slow to send them, the listener may have closed the connection.
                let _may_be_closed = stream.write_all(bytes.as_bytes()).await;
                open.push(stream);
            }
            for mut stream in open {
                if !client_closes {
                    let mut rest = Vec::new();
                    let ended = tokio::time::timeout(SOON, stream.read_to_end(&mut rest)).await;
                    let _may_be_reset = ended.expect("the connection ends in time");
                }
            }
            // The listener also closes the connection of a client that is slow to send its request.
            let ask = || crate::plain_http::client().get(listener.url("/livez")).send();
            let served = async { while !ask().await.is_ok_and(|answer| answer.status() == StatusCode::OK) {} };
            let served = tokio::time::timeout(SOON, served).await;
            assert!(served.is_ok(), "a connection that was {way} still counts");
        }
    }
}

async fn stopped_listener_closes_idle_connections_and_ends() {
    let listener = Listener::start(|_| {}).await;
    let mut idle = listener.connect().await;
    // After the answer the connection is idle.
    idle.write_all(b"GET /livez HTTP/1.1\r\nhost: t\r\n\r\n").await.expect("the listener reads the request");
    let mut answer = [0; 12];
    idle.read_exact(&mut answer).await.expect("an answer");
    listener.stop.cancel();
    tokio::time::timeout(SOON, listener.task)
        .await
        .expect("the listener ends in time")
        .expect("the listener does not panic");
    read_to_end(&mut idle).await;
    assert!(TcpStream::connect(listener.address).await.is_err(), "the address no longer accepts connections");
}
