//! Traces of real nodes and commands.

use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use reqwest::StatusCode;
use rustix::process::Signal;
use serde_json::json;
use tokio::net::TcpListener;

use crate::calm;
use crate::client::Call;
use crate::cluster::{Cluster, NODES, POLL, SOON, place};
use crate::otlp::{Receiver, Span};
use crate::plain_http;
use crate::process::{Process, tenure};
use crate::steady::{steady, strict};

strict!(
    one_trace_has_the_client_both_nodes_and_the_log,
    wait_span_has_the_time_in_the_queue,
    request_continues_the_trace_of_its_header,
    malformed_trace_headers_are_ignored,
    nothing_is_exported_without_an_endpoint,
    names_of_the_environment_take_precedence,
    url_of_traces_alone_is_enough,
    secrets_in_the_url_of_the_receiver_are_not_logged,
);
steady!(silent_receiver_delays_neither_requests_nor_shutdown, export_to_a_silent_receiver_ends_after_its_timeout);

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// A cluster whose nodes export to `receiver`.
async fn start(receiver: &Receiver) -> Cluster {
    let mut cluster = Cluster::new(calm::SETTINGS).await;
    cluster.variables = receiver.variables();
    cluster.launch_all().await;
    cluster.settled().await;
    cluster
}

fn url(cluster: &Cluster, id: u64) -> String {
    cluster.client.endpoints().split(',').nth(place(id)).expect("three nodes").to_owned()
}

/// Claims a free lease at node `id`, with these headers.
async fn acquire(cluster: &Cluster, id: u64, name: &str, headers: &[(&'static str, &str)]) {
    let url = format!("{}/v1/leases/{name}/acquire", url(cluster, id));
    let body = json!({"holder": "a", "ttl_ms": 60_000}).to_string();
    let request = plain_http::client().post(url).header("content-type", "application/json").body(body);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    assert_eq!(request.send().await.expect("an answer").status(), StatusCode::OK, "{headers:?}");
}

/// The child of `parent` with this name. There is exactly one.
fn child<'s>(spans: &'s [Span], parent: &Span, name: &str) -> &'s Span {
    let children = || spans.iter().filter(|span| span.parent == parent.id);
    let named: Vec<&Span> = children().filter(|span| span.name == name).collect();
    match named[..] {
        [child] => child,
        _ => panic!("{} has the children {:?}", parent.name, children().map(|child| &child.name).collect::<Vec<_>>()),
    }
}

/// The server's span of the claim of this lease.
fn served(spans: &[Span], lease: &str) -> Option<Span> {
    let path = format!("/v1/leases/{lease}/acquire");
    let is_of = |span: &&Span| span.kind == SpanKind::Server && span.attributes.get("url.path") == Some(&path);
    spans.iter().find(is_of).cloned()
}

async fn one_trace_has_the_client_both_nodes_and_the_log() {
    let receiver = Receiver::start().await;
    let cluster = start(&receiver).await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    let mut command = tenure();
    command.args(["lease", "acquire", "jobs", "--holder", "a", "--endpoints", &url(&cluster, follower)]);
    command.envs(receiver.variables());
    let mut acquire = Process::start("acquire", command, cluster.folder());
    assert!(acquire.exit(SOON).await.success(), "{}", acquire.said());

    let names = ["tenure.acquire", "POST", "forward", "serve", "propose", "disk", "apply"];
    let spans = receiver.wait(|spans| {
        let trace = &served(spans, "jobs")?.trace;
        let spans: Vec<Span> = spans.iter().filter(|span| span.trace == *trace).cloned().collect();
        names.iter().all(|name| spans.iter().any(|span| span.name == *name)).then_some(spans)
    });
    let spans = spans.await;
    let operation = spans.iter().find(|span| span.name == "tenure.acquire").expect("it has arrived");
    assert_eq!((&*operation.parent, operation.node()), ("", ""), "the command starts the trace");
    let attempt = child(&spans, operation, "POST");
    let request = child(&spans, attempt, "POST /v1/leases/{name}/acquire");
    let forward = child(&spans, request, "forward");
    let serve = child(&spans, forward, "serve");
    let propose = child(&spans, serve, "propose");
    let (disk, apply) = (child(&spans, propose, "disk"), child(&spans, propose, "apply"));
    assert_eq!(spans.len(), 8, "{spans:#?}");

    use SpanKind::{Client, Internal, Server};
    let made = [attempt, request, forward, serve, propose, disk, apply].map(|span| (span.kind, span.node().to_owned()));
    let (at_follower, at_leader) = (follower.to_string(), leader.to_string());
    let expected = [
        (Client, String::new()),
        (Server, at_follower.clone()),
        (Client, at_follower.clone()),
        (Server, at_leader.clone()),
        (Internal, at_leader.clone()),
        (Internal, at_leader.clone()),
        (Internal, at_leader.clone()),
    ];
    assert_eq!(made, expected);
    for span in &spans {
        assert_eq!(span.resource["service.name"], "tenure");
        assert_eq!(
            span.resource.get("tenure.cluster").map(String::as_str),
            (!span.node().is_empty()).then_some("test")
        );
        assert!(!span.is_error && span.from <= span.to, "{span:?}");
    }
    let attributes =
        |span: &Span, names: &[&str]| names.iter().map(|name| span.attributes[*name].clone()).collect::<Vec<_>>();
    let of_http = ["http.request.method", "http.response.status_code"];
    assert_eq!(attributes(attempt, &of_http), ["POST", "200"]);
    assert_eq!(attributes(attempt, &["http.request.resend_count"]), ["0"]);
    assert_eq!(attributes(request, &of_http), ["POST", "200"]);
    assert_eq!(attributes(request, &["http.route", "tenure.node"]), ["/v1/leases/{name}/acquire", &at_follower]);
    assert_eq!(attributes(forward, &["tenure.leader"]), [&*at_leader]);
    assert_eq!(attributes(serve, &["tenure.node"]), [&*at_leader]);
    // These are in one process, so they have one clock.
    let order = [propose.from, disk.from, disk.to, propose.to];
    assert!(order.is_sorted(), "{order:?}");
    let order = [disk.from, apply.from, apply.to, propose.to];
    assert!(order.is_sorted(), "{order:?}");
    assert!(disk.from < disk.to, "a sync takes time");
}

async fn wait_span_has_the_time_in_the_queue() {
    const QUEUED: Duration = Duration::from_millis(300);
    let receiver = Receiver::start().await;
    let cluster = start(&receiver).await;
    let leader = cluster.leader().await;
    let token = cluster.client.acquire("jobs", "a", 60_000).await;
    let claim = plain_http::client()
        .post(format!("{}/v1/leases/jobs/acquire", url(&cluster, leader)))
        .header("content-type", "application/json")
        .header("traceparent", format!("00-{TRACE}-{PARENT}-01"))
        .body(json!({"holder": "b", "ttl_ms": 60_000, "wait_ms": 60_000}).to_string());
    let claim = tokio::spawn(claim.send());
    let began = Instant::now();
    while cluster.client.done(place(leader), &Call::get("/v1/leases/jobs/queue")).await["total"] != json!(1) {
        assert!(began.elapsed() < SOON, "the claim does not wait");
        tokio::time::sleep(POLL).await;
    }
    tokio::time::sleep(QUEUED).await;
    cluster.client.done(place(leader), &Call::release("jobs", "a", token)).await;
    let granted = tokio::time::timeout(SOON, claim).await.expect("it is granted").expect("no panic");
    assert_eq!(granted.expect("an answer").status(), StatusCode::OK);
    let waited = receiver.wait(|spans| {
        let named = |name: &str| spans.iter().find(|span| span.trace == TRACE && span.name == name).cloned();
        Some((named("propose")?, named("wait")?))
    });
    let (propose, wait) = waited.await;
    assert_eq!(wait.parent, propose.parent, "{wait:?}");
    assert!(wait.to >= propose.to && wait.to - wait.from >= QUEUED.as_nanos() as u64 / 2, "{wait:?}");
}

async fn request_continues_the_trace_of_its_header() {
    let receiver = Receiver::start().await;
    let cluster = start(&receiver).await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    let sampled = format!("00-{TRACE}-{PARENT}-01");
    for (id, lease) in [(leader, "at-leader"), (follower, "at-follower")] {
        acquire(&cluster, id, lease, &[("traceparent", &sampled), ("tracestate", "a=1")]).await;
        let request = receiver.wait(|spans| served(spans, lease)).await;
        assert_eq!((&*request.trace, &*request.parent, request.node()), (TRACE, PARENT, &*id.to_string()));
        assert_eq!(request.state, "a=1");
    }
    let all = |spans: &[Span]| {
        let applied: Vec<Span> =
            spans.iter().filter(|span| span.name == "apply" && span.trace == TRACE).cloned().collect();
        (applied.len() == 2).then_some(applied)
    };
    for applied in receiver.wait(all).await {
        assert_eq!(applied.state, "a=1", "the nodes send it to each other");
    }

    // The client did not sample the trace. Spans of one node arrive in their order.
    let unsampled = format!("00-{}-{PARENT}-00", TRACE.replace('0', "1"));
    acquire(&cluster, leader, "unsampled", &[("traceparent", &unsampled)]).await;
    acquire(&cluster, leader, "sampled", &[]).await;
    receiver.wait(|spans| served(spans, "sampled")).await;
    assert_eq!(served(&receiver.spans(), "unsampled").map(|span| span.name), None);
}

async fn malformed_trace_headers_are_ignored() {
    let receiver = Receiver::start().await;
    let cluster = start(&receiver).await;
    let leader = cluster.leader().await;
    let valid = format!("00-{TRACE}-{PARENT}-01");
    let upper = valid.to_uppercase();
    let long = format!("{valid}{}", "-0".repeat(2000));
    let state = "a=".repeat(2000);
    let requests: [(&str, &[(&'static str, &str)]); 6] = [
        ("cut", &[("traceparent", &valid[..54])]),
        ("upper", &[("traceparent", &upper)]),
        ("long", &[("traceparent", &long)]),
        ("empty", &[("traceparent", "")]),
        ("twice", &[("traceparent", &valid), ("traceparent", &valid)]),
        ("state", &[("tracestate", &state)]),
    ];
    for (lease, headers) in requests {
        acquire(&cluster, leader, lease, headers).await;
        let request = receiver.wait(|spans| served(spans, lease)).await;
        assert!(request.trace != TRACE && request.parent.is_empty(), "{lease}: {request:?}");
    }
    // A valid `traceparent` counts without its `tracestate`.
    acquire(&cluster, leader, "both", &[("traceparent", &valid), ("tracestate", &state)]).await;
    assert_eq!(receiver.wait(|spans| served(spans, "both")).await.trace, TRACE);
}

async fn nothing_is_exported_without_an_endpoint() {
    let receiver = Receiver::start().await;
    let mut cluster = Cluster::new(calm::SETTINGS).await;
    // Node 1 has no endpoint, and each of the others turns the exporter off in another way.
    let off = [None, Some(("OTEL_SDK_DISABLED", "true")), Some(("OTEL_TRACES_EXPORTER", "none"))];
    for (id, off) in NODES.into_iter().zip(off) {
        let variables = |(name, value): (_, &str)| [receiver.variables(), vec![(name, value.to_owned())]].concat();
        cluster.variables = off.map_or(Vec::new(), variables);
        cluster.launch(id);
    }
    for id in NODES {
        cluster.ready(id).await;
        acquire(&cluster, id, &format!("at-{id}"), &[("traceparent", &format!("00-{TRACE}-{PARENT}-01"))]).await;
    }
    for id in NODES {
        cluster.node(id).signal(Signal::TERM);
        assert_eq!(cluster.node(id).exit(SOON).await.code(), Some(0));
    }
    assert_eq!(receiver.spans().len(), 0);
}

async fn names_of_the_environment_take_precedence() {
    let receiver = Receiver::start().await;
    let mut cluster = Cluster::new(calm::SETTINGS).await;
    let attributes = "service.instance.id=rack-4,deployment.environment.name=staging".to_owned();
    let names = vec![("OTEL_SERVICE_NAME", "locks".to_owned()), ("OTEL_RESOURCE_ATTRIBUTES", attributes)];
    cluster.variables = [receiver.variables(), names].concat();
    cluster.launch_all().await;
    acquire(&cluster, cluster.leader().await, "jobs", &[]).await;
    let request = receiver.wait(|spans| served(spans, "jobs")).await;
    let names = ["service.name", "service.instance.id", "deployment.environment.name", "tenure.cluster"];
    let found = names.map(|name| request.resource.get(name).map_or("", String::as_str));
    assert_eq!(found, ["locks", "rack-4", "staging", "test"]);
}

async fn url_of_traces_alone_is_enough() {
    let receiver = Receiver::start().await;
    let mut cluster = Cluster::new(calm::SETTINGS).await;
    let url = format!("{}/v1/traces", receiver.endpoint());
    cluster.variables = vec![("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", url), ("OTEL_BSP_SCHEDULE_DELAY", "50".to_owned())];
    cluster.launch_all().await;
    acquire(&cluster, cluster.leader().await, "jobs", &[]).await;
    receiver.wait(|spans| served(spans, "jobs")).await;
}

/// Neither in the log of a node that exports, nor in that of a node that cannot.
async fn secrets_in_the_url_of_the_receiver_are_not_logged() {
    let receiver = Receiver::start().await;
    let address = receiver.endpoint().strip_prefix("http://").expect("a URL").to_owned();
    let mut cluster = Cluster::new(calm::SETTINGS).await;
    for (id, user, line) in [(1, "user", "exporting traces"), (2, "us er", "cannot export traces to")] {
        cluster.variables = vec![("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{user}:secret@{address}"))];
        cluster.launch(id);
        let began = Instant::now();
        while !cluster.node(id).said().contains(line) {
            assert!(began.elapsed() < SOON, "no line {line:?}: {}", cluster.node(id).said());
            tokio::time::sleep(POLL).await;
        }
        let said = cluster.node(id).said();
        let line = said.lines().find(|said| said.contains(line)).expect("it is there");
        assert!(line.contains(&format!("http://{address}")) && !said.contains("secret"), "{said}");
    }
}

/// The receiver accepts connections and answers nothing. After its timeout, an export is given up, and the next one begins.
async fn export_to_a_silent_receiver_ends_after_its_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
    let mut cluster = Cluster::new(calm::SETTINGS).await;
    cluster.variables = vec![
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "200".to_owned()),
        ("OTEL_BSP_SCHEDULE_DELAY", "50".to_owned()),
    ];
    cluster.launch(1);
    cluster.variables.clear();
    cluster.launch(2);
    cluster.launch(3);
    cluster.ready(1).await;
    let began = Instant::now();
    let mut connections = Vec::new();
    while connections.len() < 2 {
        acquire(&cluster, 1, &format!("job-{}", connections.len()), &[]).await;
        if let Ok(accepted) = tokio::time::timeout(POLL, listener.accept()).await {
            connections.push(accepted.expect("a connection"));
        }
        assert!(began.elapsed() < SOON, "{} exports", connections.len());
    }
}

/// The receiver accepts connections and answers nothing, and the spans exceed the queue of the exporter.
async fn silent_receiver_delays_neither_requests_nor_shutdown() {
    /// A node without an exporter ends within about a second. The export of the last spans has 1 s.
    const ENDS_WITHIN: Duration = Duration::from_secs(4);
    const REQUESTS: usize = 50;
    const QUEUE: &str = "16";
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
    let mut cluster = Cluster::new("").await;
    cluster.variables = vec![
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
        ("OTEL_BSP_SCHEDULE_DELAY", "50".to_owned()),
        ("OTEL_BSP_MAX_QUEUE_SIZE", QUEUE.to_owned()),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", QUEUE.to_owned()),
    ];
    cluster.launch_all().await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    let (mut connection, _) = listener.accept().await.expect("a node exports");
    let began = Instant::now();
    for number in 0..REQUESTS {
        cluster.client.done(place(leader), &Call::acquire(&format!("job-{number}"), "a", 60_000)).await;
    }
    let took = began.elapsed();
    assert!(took < SOON, "{REQUESTS} requests took {took:?}");
    for id in [follower, leader] {
        let asked = Instant::now();
        cluster.node(id).signal(Signal::TERM);
        assert_eq!(cluster.node(id).exit(SOON).await.code(), Some(0));
        let took = asked.elapsed();
        assert!(took < ENDS_WITHIN, "node {id} ended after {took:?}");
    }
    let mut sent = [0; 4];
    let read = tokio::io::AsyncReadExt::read_exact(&mut connection, &mut sent).await;
    assert_eq!((read.is_ok(), &sent), (true, b"POST"), "the node exported to this receiver");
}
