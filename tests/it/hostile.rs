//! Clients that mean harm, or are broken, against the real listener and a real node. All the while an honest client claims
//! and releases, and no answer takes it longer than [`SERVED_WITHIN`].

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
    heads_and_bodies_that_come_byte_by_byte_are_not_waited_for,
    who_closes_its_half_or_vanishes_is_gone,
    idle_connections_fill_the_listener_and_nobody_who_is_served_notices,
    a_client_that_never_reads_is_given_up,
);
strict!(
    what_is_too_large_is_told_so_and_the_connection_is_closed,
    a_head_of_32_kib_and_100_fields_is_answered,
    pipelined_requests_are_answered_in_their_order,
    a_request_whose_end_is_in_doubt_is_the_last_of_its_connection,
);

/// The longest that an honest client waits for an answer, whatever others do; generous for a busy machine.
const SERVED_WITHIN: Duration = Duration::from_secs(3);
/// The listener's timeouts in these tests.
const SHORT: Duration = Duration::from_millis(500);
/// Time between two bytes of a slow client.
const DRIBBLE: Duration = Duration::from_millis(20);

const CLAIM: &str = "POST /v1/leases/jobs/acquire HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n";

/// A cluster, and somebody who uses it as it is meant.
struct Attacked {
    cluster: Cluster,
    honest: JoinHandle<(u32, Duration)>,
    enough: CancellationToken,
}

impl Attacked {
    async fn start(max_connections: usize) -> Attacked {
        let cluster = Cluster::start_with(|settings| {
            settings.head_timeout = SHORT;
            settings.body_timeout = SHORT;
            settings.write_timeout = SHORT;
            settings.limits.max_connections = max_connections;
        })
        .await;
        let enough = CancellationToken::new();
        let honest = tokio::spawn(claim_and_release(cluster.client.clone(), cluster.url(""), enough.clone()));
        Attacked { cluster, honest, enough }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.cluster.address).await.expect("it listens")
    }

    /// Sends bytes, and returns everything that comes until the connection is closed.
    async fn answers_to(&self, bytes: impl AsRef<[u8]>) -> String {
        let mut stream = self.connect().await;
        // It may be closed before everything is taken.
        let _ = stream.write_all(bytes.as_ref()).await;
        read_to_end(&mut stream).await
    }

    /// A client that asks, with next to no room for an answer.
    async fn deaf(&self, requests: &str) -> TcpStream {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(4096).expect("a plain option");
        let mut stream = socket.connect(self.cluster.address).await.expect("it listens");
        stream.write_all(requests.as_bytes()).await.expect("it takes requests");
        stream
    }

    async fn waiters(&self) -> usize {
        let (status, queue) = self.cluster.get("/v1/leases/jobs/queue").await;
        assert_eq!(status, 200, "{queue}");
        queue["waiters"].as_array().expect("a list").len()
    }

    async fn until_waiters(&self, count: usize) {
        let counted = async { while self.waiters().await != count {} };
        tokio::time::timeout(SOON, counted).await.unwrap_or_else(|_| panic!("there are never {count} waiters"));
    }

    /// Ends, if the honest client was served all the time.
    async fn end(self) {
        self.enough.cancel();
        let (served, slowest) = self.honest.await.expect("it was served");
        eprintln!("an honest client was served {served} times, the slowest in {slowest:?}");
        assert!(served > 0 && slowest < SERVED_WITHIN, "{served} times, the slowest in {slowest:?}");
        self.cluster.end().await;
    }
}

async fn claim_and_release(client: reqwest::Client, url: String, enough: CancellationToken) -> (u32, Duration) {
    let (mut served, mut slowest) = (0, Duration::ZERO);
    while !enough.is_cancelled() {
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

/// What comes until the other side closes, be it with a reset.
async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(SOON, stream.read_to_end(&mut bytes)).await;
    let _reset_or_not = read.expect("the connection is closed in time");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Sends the text byte by byte for as long as anybody takes it, and returns what came back and how long that took.
async fn dribble(mut stream: TcpStream, text: String) -> (String, Duration) {
    let began = Instant::now();
    let (mut reader, mut writer) = stream.split();
    let mut answer = Vec::new();
    let write = async {
        for byte in text.bytes().cycle() {
            if writer.write_all(&[byte]).await.is_err() {
                break;
            }
            tokio::time::sleep(DRIBBLE).await;
        }
        std::future::pending::<()>().await
    };
    let read = tokio::time::timeout(SOON, async {
        tokio::select! { _ = reader.read_to_end(&mut answer) => {}, () = write => {} }
    });
    read.await.expect("the connection is closed in time");
    (String::from_utf8_lossy(&answer).into_owned(), began.elapsed())
}

async fn heads_and_bodies_that_come_byte_by_byte_are_not_waited_for() {
    let attacked = Attacked::start(1_000).await;
    let mut slow = JoinSet::new();
    for number in 0..100 {
        let head = "GET /livez HTTP/1.1\r\nx-endless: ".to_owned() + &"x".repeat(10_000);
        let body = format!("{CLAIM}content-length: 30000\r\n\r\n");
        let mut stream = attacked.connect().await;
        let in_body = number % 2 == 0;
        if in_body {
            stream.write_all(body.as_bytes()).await.expect("it takes the head");
        }
        let rest = if in_body { " ".to_owned() } else { head };
        slow.spawn(async move { (in_body, dribble(stream, rest).await) });
    }
    while let Some(ended) = slow.join_next().await {
        let (in_body, (answer, took)) = ended.expect("it ended");
        assert!(took < SHORT + SERVED_WITHIN, "{took:?}");
        let expected = if in_body { "HTTP/1.1 408" } else { "" };
        assert!(answer.starts_with(expected) && (in_body || !answer.contains("200")), "{in_body}: {answer}");
        assert!(!in_body || answer.contains("\"code\":\"body_timeout\""), "{answer}");
    }
    attacked.end().await;
}

async fn what_is_too_large_is_told_so_and_the_connection_is_closed() {
    let attacked = Attacked::start(1_000).await;
    let head = format!("GET /livez HTTP/1.1\r\nhost: t\r\nx: {}\r\n\r\n", "x".repeat(64 << 10));
    let many = format!("GET /livez HTTP/1.1\r\nhost: t\r\n{}\r\n", "a: b\r\n".repeat(200));
    let uri = format!("GET /{} HTTP/1.1\r\nhost: t\r\n\r\n", "x".repeat(70_000));
    for (text, status) in [(head, "431"), (many, "431"), (uri, "431")] {
        let answer = attacked.answers_to(&text).await;
        // A reset can overtake the answer where much was left unread.
        assert!(answer.is_empty() || answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    }
    let announced = format!("{CLAIM}content-length: {}\r\n\r\n", MAX_BODY_BYTES + 1);
    let answer = attacked.answers_to(&announced).await;
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("\"code\":\"too_large\""), "{answer}");
    let asked_first = format!("{CLAIM}expect: 100-continue\r\ncontent-length: {}\r\n\r\n", MAX_BODY_BYTES + 1);
    let began = Instant::now();
    let answer = attacked.answers_to(&asked_first).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "it is not told to go on: {answer}");
    assert!(began.elapsed() < Duration::from_millis(500), "nor waited for: {:?}", began.elapsed());
    let chunk = format!("1000\r\n{}\r\n", " ".repeat(4096));
    let many_chunks = format!("{CLAIM}transfer-encoding: chunked\r\n\r\n") + &chunk.repeat(MAX_BODY_BYTES / 4096 + 2);
    let answer = attacked.answers_to(&many_chunks).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    attacked.end().await;
}

async fn a_head_of_32_kib_and_100_fields_is_answered() {
    let attacked = Attacked::start(1_000).await;
    let head = |bytes: usize| {
        let start = "GET /livez HTTP/1.1\r\nhost: t\r\nconnection: close\r\nx: ";
        format!("{start}{}\r\n\r\n", "x".repeat(bytes - start.len() - 4))
    };
    let fields = |count: usize| {
        format!("GET /livez HTTP/1.1\r\nhost: t\r\nconnection: close\r\n{}\r\n", "a: b\r\n".repeat(count - 2))
    };
    // Between 32 and 64 KiB it depends on the reads of the socket.
    for (text, status) in [(head(32 << 10), "200"), (fields(100), "200"), (fields(101), "431")] {
        let answer = attacked.answers_to(&text).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{} bytes: {answer}", text.len());
    }
    attacked.end().await;
}

async fn who_closes_its_half_or_vanishes_is_gone() {
    let attacked = Attacked::start(1_000).await;
    attacked.cluster.acquire("jobs", "holder").await;
    let waits = |holder: &str| {
        let body = json!({"holder": holder, "wait_ms": 60000}).to_string();
        format!("{CLAIM}content-length: {}\r\n\r\n{body}", body.len())
    };
    let (mut half, mut reset) = (attacked.connect().await, attacked.connect().await);
    half.write_all(waits("half").as_bytes()).await.expect("it takes a request");
    reset.write_all(waits("reset").as_bytes()).await.expect("it takes a request");
    attacked.until_waiters(2).await;
    half.shutdown().await.expect("its half is open");
    attacked.until_waiters(1).await;
    assert_eq!(read_to_end(&mut half).await, "", "the connection is ended, and nothing was granted");
    reset.set_zero_linger().expect("a plain option");
    drop(reset);
    attacked.until_waiters(0).await;
    // A request that needs nobody else is answered, or its connection is ended.
    let mut stream = attacked.connect().await;
    stream.write_all(b"GET /livez HTTP/1.1\r\nhost: t\r\n\r\n").await.expect("it takes a request");
    stream.shutdown().await.expect("its half is open");
    let answer = read_to_end(&mut stream).await;
    assert!(answer.is_empty() || answer.ends_with("{\"alive\":true}"), "{answer}");
    attacked.end().await;
}

async fn pipelined_requests_are_answered_in_their_order() {
    const REQUESTS: usize = 200;
    let attacked = Attacked::start(1_000).await;
    let requests: String = (0..REQUESTS)
        .map(|number| format!("GET /v1/leases/n{number} HTTP/1.1\r\nhost: t\r\n\r\n"))
        .chain(["GET /livez HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n".to_owned()])
        .collect();
    let answers = attacked.answers_to(&requests).await;
    let places: Vec<usize> =
        (0..REQUESTS).map(|number| answers.find(&format!("\\\"n{number}\\\"")).expect("each has its answer")).collect();
    assert!(places.is_sorted(), "{places:?}");
    assert_eq!(answers.matches("HTTP/1.1 ").count(), REQUESTS + 1);
    attacked.end().await;
}

async fn idle_connections_fill_the_listener_and_nobody_who_is_served_notices() {
    const ROOM: usize = 50;
    let attacked = Attacked::start(ROOM).await;
    let idle: Vec<TcpStream> = futures_util::future::join_all((0..ROOM).map(|_| attacked.connect())).await;
    for _ in 0..20 {
        // With a request, as clients send it at once: the refusal must not be lost in a reset.
        let answer = attacked.answers_to("GET /livez HTTP/1.1\r\nhost: t\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("\"code\":\"not_ready\""), "{answer}");
    }
    // Idle ones are closed after the head timeout, and then there is room again.
    for mut stream in idle {
        read_to_end(&mut stream).await;
    }
    let answer = attacked.answers_to("GET /livez HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    attacked.end().await;
}

/// What a proxy in front could take for one request must not be two here, nor the other way round.
async fn a_request_whose_end_is_in_doubt_is_the_last_of_its_connection() {
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

async fn a_client_that_never_reads_is_given_up() {
    const LEASES: usize = 1_000;
    /// Pages that it asks for, each of 1 MiB at least.
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
    let [mut lister, mut watcher] = [attacked.deaf(&list).await, attacked.deaf(&watch).await];
    // The silence itself, and not a wait for something.
    tokio::time::sleep(3 * SHORT).await;
    let whole = PAGES << 20;
    let listed = read_to_end(&mut lister).await.len();
    assert!(listed < whole, "{listed} bytes were kept for it");
    let watched = read_to_end(&mut watcher).await;
    assert!(watched.contains("event: granted"), "{watched}");
    attacked.end().await;
}
