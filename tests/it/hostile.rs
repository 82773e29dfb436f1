//! Malicious and broken clients against the real listener and a real node.
//!
//! During each test an honest client acquires and releases a lease. Each of its answers arrives within
//! [`SERVED_WITHIN`].

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde_json::{Value, json};
use tenure::api::MAX_BODY_BYTES;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::cluster::{Cluster, SOON};
use crate::steady::{steady, strict};

steady!(
    slow_heads_and_bodies_time_out,
    half_closed_and_reset_connections_end_their_waits,
    bytes_behind_a_waiting_claim_do_not_hide_that_its_client_left,
    idle_connections_do_not_delay_served_clients,
    client_that_never_reads_loses_its_connection,
);
strict!(
    too_large_requests_are_refused_and_the_connection_closed,
    head_of_32_kib_or_100_fields_is_answered,
    pipelined_requests_are_answered_in_order,
    request_with_an_ambiguous_end_closes_the_connection,
    page_of_another_site_changes_nothing,
);

/// Bound for an answer to the honest client. It has a margin for a busy machine.
const SERVED_WITHIN: Duration = Duration::from_secs(3);
/// The listener's timeouts in these tests.
const SHORT: Duration = Duration::from_millis(500);
/// Pause between two bytes of a slow client.
const BYTE_INTERVAL: Duration = Duration::from_millis(20);

const CLAIM: &str = "POST /v1/leases/jobs/acquire HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n";

/// A cluster under attack, with an honest client.
struct Attacked {
    cluster: Cluster,
    honest: JoinHandle<(u32, Duration)>,
    stop: CancellationToken,
}

impl Attacked {
    async fn start(max_connections: usize) -> Attacked {
        Attacked::with_body_timeout(max_connections, SHORT).await
    }

    async fn with_body_timeout(max_connections: usize, body_timeout: Duration) -> Attacked {
        let cluster = Cluster::start_with(|settings| {
            settings.head_timeout = SHORT;
            settings.body_timeout = body_timeout;
            settings.write_timeout = SHORT;
            settings.limits.max_connections = max_connections;
        })
        .await;
        let stop = CancellationToken::new();
        let honest = tokio::spawn(claim_and_release(cluster.client.clone(), cluster.url(""), stop.clone()));
        Attacked { cluster, honest, stop }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.cluster.address).await.expect("the listener accepts connections")
    }

    /// Sends bytes and returns all answers until the connection closes.
    async fn answers_to(&self, bytes: impl AsRef<[u8]>) -> String {
        let mut stream = self.connect().await;
        // The listener may close the connection before it reads everything.
        let _ = stream.write_all(bytes.as_ref()).await;
        read_to_end(&mut stream).await
    }

    /// Sends requests from a client with a very small receive buffer.
    async fn connect_without_buffer(&self, requests: &str) -> TcpStream {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(4096).expect("the option is valid");
        let mut stream = socket.connect(self.cluster.address).await.expect("the listener accepts connections");
        stream.write_all(requests.as_bytes()).await.expect("the listener reads requests");
        stream
    }

    async fn waiters(&self) -> usize {
        let (status, queue) = self.cluster.get("/v1/leases/jobs/queue").await;
        assert_eq!(status, 200, "{queue}");
        queue["waiters"].as_array().expect("a list").len()
    }

    async fn wait_for_waiters(&self, count: usize) {
        let counted = async { while self.waiters().await != count {} };
        tokio::time::timeout(SOON, counted)
            .await
            .unwrap_or_else(|_| panic!("the queue did not reach {count} waiters within {SOON:?}"));
    }

    /// Ends the test and checks that the honest client was served all the time.
    async fn end(self) {
        self.stop.cancel();
        let (served, slowest) = self.honest.await.expect("the honest client is served");
        eprintln!("the honest client was served {served} times, the slowest in {slowest:?}");
        assert!(served > 0 && slowest < SERVED_WITHIN, "{served} times, the slowest in {slowest:?}");
        self.cluster.end().await;
    }
}

async fn claim_and_release(client: reqwest::Client, url: String, stop: CancellationToken) -> (u32, Duration) {
    let (mut served, mut slowest) = (0, Duration::ZERO);
    while !stop.is_cancelled() {
        let began = Instant::now();
        let claim = client.post(format!("{url}/v1/leases/honest/acquire")).json(&json!({"holder": "h"}));
        let lease: Value = claim.send().await.expect("an answer").json().await.expect("JSON");
        let release = json!({"holder": "h", "token": lease["token"]});
        let release = client.post(format!("{url}/v1/leases/honest/release")).json(&release);
        let released: Value = release.send().await.expect("an answer").json().await.expect("JSON");
        assert_eq!(released, json!({"released": true}), "{lease}");
        slowest = slowest.max(began.elapsed());
        served += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    (served, slowest)
}

/// Reads until the other side closes or resets the connection.
async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(SOON, stream.read_to_end(&mut bytes)).await;
    let _may_be_reset = read.expect("the connection closes in time");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Sends the text byte by byte, repeatedly, until the connection closes. Returns the answer and the time it took.
async fn send_slowly(mut stream: TcpStream, text: String) -> (String, Duration) {
    let began = Instant::now();
    let (mut reader, mut writer) = stream.split();
    let mut answer = Vec::new();
    let write = async {
        for byte in text.bytes().cycle() {
            if writer.write_all(&[byte]).await.is_err() {
                break;
            }
            tokio::time::sleep(BYTE_INTERVAL).await;
        }
        std::future::pending::<()>().await
    };
    let read = tokio::time::timeout(SOON, async {
        tokio::select! { _ = reader.read_to_end(&mut answer) => {}, () = write => {} }
    });
    read.await.expect("the connection closes in time");
    (String::from_utf8_lossy(&answer).into_owned(), began.elapsed())
}

async fn slow_heads_and_bodies_time_out() {
    let attacked = Attacked::start(1_000).await;
    let mut slow = JoinSet::new();
    for number in 0..100 {
        let head = "GET /livez HTTP/1.1\r\nx-endless: ".to_owned() + &"x".repeat(10_000);
        let body = format!("{CLAIM}content-length: 30000\r\n\r\n");
        let mut stream = attacked.connect().await;
        let in_body = number % 2 == 0;
        if in_body {
            stream.write_all(body.as_bytes()).await.expect("the listener reads the head");
        }
        let rest = if in_body { " ".to_owned() } else { head };
        slow.spawn(async move { (in_body, send_slowly(stream, rest).await) });
    }
    while let Some(ended) = slow.join_next().await {
        let (in_body, (answer, took)) = ended.expect("the task does not panic");
        assert!(took < SHORT + SERVED_WITHIN, "{took:?}");
        let expected = if in_body { "HTTP/1.1 408" } else { "" };
        assert!(answer.starts_with(expected) && (in_body || !answer.contains("200")), "{in_body}: {answer}");
        assert!(!in_body || answer.contains("\"code\":\"body_timeout\""), "{answer}");
    }
    attacked.end().await;
}

async fn too_large_requests_are_refused_and_the_connection_closed() {
    let attacked = Attacked::with_body_timeout(1_000, 6 * SOON).await;
    let head = format!("GET /livez HTTP/1.1\r\nhost: t\r\nx: {}\r\n\r\n", "x".repeat(64 << 10));
    let many = format!("GET /livez HTTP/1.1\r\nhost: t\r\n{}\r\n", "a: b\r\n".repeat(200));
    let uri = format!("GET /{} HTTP/1.1\r\nhost: t\r\n\r\n", "x".repeat(70_000));
    for (text, status) in [(head, "431"), (many, "431"), (uri, "431")] {
        let answer = attacked.answers_to(&text).await;
        // A reset can destroy the answer if the listener left much of the request unread.
        assert!(answer.is_empty() || answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    }
    let announced = format!("{CLAIM}content-length: {}\r\n\r\n", MAX_BODY_BYTES + 1);
    let answer = attacked.answers_to(&announced).await;
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("\"code\":\"too_large\""), "{answer}");
    let with_expect = format!("{CLAIM}expect: 100-continue\r\ncontent-length: {}\r\n\r\n", MAX_BODY_BYTES + 1);
    let answer = tokio::time::timeout(SOON, attacked.answers_to(&with_expect)).await.expect("no wait for the body");
    assert!(answer.starts_with("HTTP/1.1 413"), "no `100 Continue`: {answer}");
    let chunk = format!("1000\r\n{}\r\n", " ".repeat(4096));
    let many_chunks = format!("{CLAIM}transfer-encoding: chunked\r\n\r\n") + &chunk.repeat(MAX_BODY_BYTES / 4096 + 2);
    let answer = attacked.answers_to(&many_chunks).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    attacked.end().await;
}

async fn head_of_32_kib_or_100_fields_is_answered() {
    let attacked = Attacked::start(1_000).await;
    let head = |bytes: usize| {
        let start = "GET /livez HTTP/1.1\r\nhost: t\r\nconnection: close\r\nx: ";
        format!("{start}{}\r\n\r\n", "x".repeat(bytes - start.len() - 4))
    };
    let fields = |count: usize| {
        format!("GET /livez HTTP/1.1\r\nhost: t\r\nconnection: close\r\n{}\r\n", "a: b\r\n".repeat(count - 2))
    };
    // Between 32 and 64 KiB the result depends on the sizes of the socket reads.
    for (text, status) in [(head(32 << 10), "200"), (fields(100), "200"), (fields(101), "431")] {
        let answer = attacked.answers_to(&text).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{} bytes: {answer}", text.len());
    }
    attacked.end().await;
}

fn waiting_claim(holder: &str) -> String {
    let body = json!({"holder": holder, "wait_ms": 60000}).to_string();
    format!("{CLAIM}content-length: {}\r\n\r\n{body}", body.len())
}

async fn half_closed_and_reset_connections_end_their_waits() {
    let attacked = Attacked::start(1_000).await;
    attacked.cluster.acquire("jobs", "holder").await;
    let (mut half, mut reset) = (attacked.connect().await, attacked.connect().await);
    half.write_all(waiting_claim("half").as_bytes()).await.expect("the listener reads the request");
    reset.write_all(waiting_claim("reset").as_bytes()).await.expect("the listener reads the request");
    attacked.wait_for_waiters(2).await;
    half.shutdown().await.expect("the write half is open");
    attacked.wait_for_waiters(1).await;
    assert_eq!(read_to_end(&mut half).await, "", "the connection closes without a grant");
    reset.set_zero_linger().expect("the option is valid");
    drop(reset);
    attacked.wait_for_waiters(0).await;
    // A request that does not wait is answered, or its connection closes.
    let mut stream = attacked.connect().await;
    stream.write_all(b"GET /livez HTTP/1.1\r\nhost: t\r\n\r\n").await.expect("the listener reads the request");
    stream.shutdown().await.expect("the write half is open");
    let answer = read_to_end(&mut stream).await;
    assert!(answer.is_empty() || answer.ends_with("{\"alive\":true}"), "{answer}");
    attacked.end().await;
}

/// The listener does not read further requests during the claim.
async fn bytes_behind_a_waiting_claim_do_not_hide_that_its_client_left() {
    let attacked = Attacked::start(1_000).await;
    let claim = json!({"holder": "holder", "ttl_ms": "infinite"});
    assert_eq!(attacked.cluster.post("/v1/leases/jobs/acquire", claim).await.0, 200);
    let request = "GET /livez HTTP/1.1\r\nhost: t\r\n\r\n".to_owned();
    let mut answered = 0;
    for behind in ["\r\n".to_owned(), request.clone(), waiting_claim("second"), request.repeat(100)] {
        for way in ["closes", "half closes", "resets"] {
            let mut stream = attacked.connect().await;
            stream.write_all(waiting_claim("first").as_bytes()).await.expect("the listener reads the request");
            attacked.wait_for_waiters(1).await;
            stream.write_all(behind.as_bytes()).await.expect("the socket has room for these bytes");
            if way == "resets" {
                stream.set_zero_linger().expect("the option is valid");
            }
            let half = if way == "half closes" {
                stream.shutdown().await.expect("the write half is open");
                Some(stream)
            } else {
                drop(stream);
                None
            };
            let counted = async { while attacked.waiters().await != 0 {} };
            let counted = tokio::time::timeout(SOON, counted).await;
            assert!(counted.is_ok(), "a client that {way} with {} bytes behind its claim waits on", behind.len());
            let Some(mut half) = half else { continue };
            let answer = read_to_end(&mut half).await;
            // Its lease may have been granted in that moment.
            let is_unknown = answer.starts_with("HTTP/1.1 504 ")
                && answer.contains("\r\nconnection: close\r\n")
                && answer.contains("\"code\":\"outcome_unknown\"");
            assert!(answer.is_empty() || is_unknown, "{answer}");
            answered += usize::from(is_unknown);
        }
    }
    assert!(answered > 0, "no client has an answer");
    attacked.end().await;
}

async fn pipelined_requests_are_answered_in_order() {
    const REQUESTS: usize = 200;
    let attacked = Attacked::start(1_000).await;
    let requests: String = (0..REQUESTS)
        .map(|number| format!("GET /v1/leases/n{number} HTTP/1.1\r\nhost: t\r\n\r\n"))
        .chain(["GET /livez HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n".to_owned()])
        .collect();
    let answers = attacked.answers_to(&requests).await;
    let offsets: Vec<usize> = (0..REQUESTS)
        .map(|number| answers.find(&format!("\\\"n{number}\\\"")).expect("each request has an answer"))
        .collect();
    assert!(offsets.is_sorted(), "{offsets:?}");
    assert_eq!(answers.matches("HTTP/1.1 ").count(), REQUESTS + 1);
    attacked.end().await;
}

async fn idle_connections_do_not_delay_served_clients() {
    const MAX_CONNECTIONS: usize = 50;
    let attacked = Attacked::start(MAX_CONNECTIONS).await;
    let idle: Vec<TcpStream> = futures_util::future::join_all((0..MAX_CONNECTIONS).map(|_| attacked.connect())).await;
    for _ in 0..20 {
        // Clients send a request at once. A reset must not destroy the refusal.
        let answer = attacked.answers_to("GET /livez HTTP/1.1\r\nhost: t\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("\"code\":\"not_ready\""), "{answer}");
    }
    // The listener closes idle connections after the head timeout.
    for mut stream in idle {
        read_to_end(&mut stream).await;
    }
    let answer = attacked.answers_to("GET /livez HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    attacked.end().await;
}

/// Prevents request smuggling: a proxy and the listener must see the same request boundaries.
async fn request_with_an_ambiguous_end_closes_the_connection() {
    let attacked = Attacked::start(1_000).await;
    let smuggled = "GET /v1/leases/smuggled HTTP/1.1\r\nhost: t\r\n\r\n";
    let heads = [
        "content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n",
        "content-length: 2\r\ncontent-length: 60\r\n\r\n{}",
        "content-length: 2, 60\r\n\r\n{}",
        "content-length: +2\r\n\r\n{}",
        "content-length: 0x2\r\n\r\n{}",
        "transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
        "transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "transfer-encoding: identity\r\n\r\n{}",
        "transfer-encoding : chunked\r\n\r\n0\r\n\r\n",
        "transfer-encoding: chunked\r\n\r\n-1\r\n\r\n",
        "transfer-encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n",
        "transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n{}\r\n0\r\n\r\n",
        "transfer-encoding: chunked\r\n\r\n2\r\n{}x0\r\n\r\n",
        "x: y\r\n folded: z\r\ncontent-length: 2\r\n\r\n{}",
    ];
    for head in heads {
        let answer = attacked.answers_to(format!("{CLAIM}{head}{smuggled}")).await;
        assert!(!answer.contains("smuggled"), "{head:?}: {answer}");
        assert!(answer.matches("HTTP/1.1 ").count() <= 1 && !answer.contains("HTTP/1.1 200"), "{head:?}: {answer}");
    }
    attacked.end().await;
}

async fn client_that_never_reads_loses_its_connection() {
    const LEASES: usize = 1_000;
    /// Number of requested pages, of at least 1 MiB each.
    const PAGES: usize = 12;
    let attacked = Attacked::start(1_000).await;
    let cluster = &attacked.cluster;
    let claims = (0..LEASES).map(|number| async move {
        let claim = json!({"holder": "h".repeat(200), "metadata": {"text": "x".repeat(4_000)}});
        assert_eq!(cluster.post(&format!("/v1/leases/large-{number}/acquire"), claim).await.0, 200);
    });
    futures_util::stream::iter(claims).buffer_unordered(50).collect::<()>().await;
    let list = "GET /v1/leases?prefix=large-&limit=1000 HTTP/1.1\r\nhost: t\r\n\r\n".repeat(PAGES);
    let watch = "GET /v1/watch?after=0 HTTP/1.1\r\nhost: t\r\n\r\n".to_owned();
    let [mut list_client, mut watch_client] =
        [attacked.connect_without_buffer(&list).await, attacked.connect_without_buffer(&watch).await];
    // The time without a read is part of the test, not a wait for an event.
    tokio::time::sleep(3 * SHORT).await;
    let whole = PAGES << 20;
    let listed = read_to_end(&mut list_client).await.len();
    assert!(listed < whole, "the node sent {listed} of {whole} bytes to a client that does not read");
    let watched = read_to_end(&mut watch_client).await;
    assert!(watched.contains("event: granted"), "{watched}");
    attacked.end().await;
}

/// A browser sends the certificate of its user with each request, also with one that a page of another site asks for.
async fn page_of_another_site_changes_nothing() {
    let cluster = Cluster::start().await;
    let sent = async |request: reqwest::RequestBuilder, site: &str| {
        crate::cluster::read(request.header("sec-fetch-site", site)).await
    };
    let disable = || cluster.client.post(cluster.url("/v1/access/disable"));
    for site in ["cross-site", "same-site", "other"] {
        let (status, problem) = sent(disable(), site).await;
        assert_eq!((status, &problem["code"]), (403, &json!("forbidden")), "{site}: {problem}");
        // A browser adds the password for a proxy itself.
        let (status, problem) = sent(disable().basic_auth("user", Some("password")), site).await;
        assert_eq!((status, &problem["code"]), (403, &json!("forbidden")), "{site}: {problem}");
        let (status, read) = sent(cluster.client.get(cluster.url("/v1/cluster")), site).await;
        assert_eq!(status, 200, "{site}: a read changes nothing: {read}");
    }
    for site in ["same-origin", "none"] {
        let (status, answer) = sent(disable(), site).await;
        assert_eq!(status, 200, "{site}: {answer}");
    }
    let (status, answer) = crate::cluster::read(disable()).await;
    assert_eq!(status, 200, "no browser sends this: {answer}");
    cluster.end().await;
}
