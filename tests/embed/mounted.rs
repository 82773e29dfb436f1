//! The API of a node inside an axum application.

use axum::Router;
use axum::routing::get;
use reqwest::redirect::Policy;
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use tenure::api::Acquire;
use tenure::client::Remote;
use tenure::http::Settings;
use tenure::node::Node;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::steady::strict;
use crate::trio::{Plan, SOON, holder, listener, name};

strict!(
    nested_router_answers_at_every_node,
    merged_router_leaves_other_routes_alone,
    router_serves_metrics_with_a_renderer,
    router_serves_the_lease_service_with_its_setting,
    router_does_not_keep_its_node_alive,
);

/// Serves one application per node. `mount` builds the application with the router of its node.
fn serve(listeners: Vec<TcpListener>, nodes: &[Node], mount: impl Fn(&Node) -> Router) -> Vec<JoinHandle<()>> {
    let serve = |(listener, node)| {
        let app = mount(node);
        tokio::spawn(async move { axum::serve(listener, app).await.expect("the server runs") })
    };
    listeners.into_iter().zip(nodes).map(serve).collect()
}

fn client() -> Client {
    crate::plain_http::builder().redirect(Policy::none()).build().expect("a client")
}

async fn ask(method: Method, url: String, body: Option<Value>) -> (StatusCode, Value) {
    let request = client().request(method, url);
    let request = if let Some(body) = body { request.json(&body) } else { request };
    let answer = request.send().await.expect("an answer");
    (answer.status(), answer.json().await.unwrap_or_default())
}

async fn nested_router_answers_at_every_node() {
    let listeners = vec![listener().await, listener().await, listener().await];
    let plan = Plan::new(&listeners);
    let trio = plan.start().await;
    let servers = serve(listeners, &trio.nodes, |node| {
        Router::new().route("/hello", get(async || "hello")).nest("/{tenant}/leases", node.router())
    });
    let url = |id: u64, path: &str| format!("http://{}/x/leases{path}", plan.http(id));

    let claim = json!({"holder": "a", "ttl_ms": 60000});
    let (status, lease) = ask(Method::POST, url(1, "/v1/leases/job/acquire"), Some(claim)).await;
    assert_eq!((status, &lease["holder"]), (StatusCode::OK, &json!("a")), "{lease}");
    let renew = json!({"holder": "a", "token": lease["token"]});
    let (status, renewed) = ask(Method::POST, url(2, "/v1/leases/job/renew"), Some(renew)).await;
    assert_eq!((status, &renewed["renewals"]), (StatusCode::OK, &json!(1)), "{renewed}");
    let (status, read) = ask(Method::GET, url(3, "/v1/leases/job"), None).await;
    assert_eq!((status, &read["token"]), (StatusCode::OK, &lease["token"]), "{read}");
    for path in ["/livez", "/readyz", "/version", "/openapi.json", "/v1/cluster"] {
        assert_eq!(ask(Method::GET, url(1, path), None).await.0, StatusCode::OK, "{path}");
    }
    let (status, problem) = ask(Method::GET, url(1, "/v1/renew"), None).await;
    assert_eq!((status, &problem["code"]), (StatusCode::METHOD_NOT_ALLOWED, &json!("method_not_allowed")));
    for path in ["/nothing", "/metrics"] {
        assert_eq!(
            ask(Method::GET, url(1, path), None).await,
            (StatusCode::NOT_FOUND, Value::Null),
            "the application answers"
        );
    }

    // A lease manager works with the URL prefix.
    let urls = format!("{},{}/", url(1, ""), url(2, ""));
    let manager = tenure::client::LeaseManager::connect_lazy(&urls).expect("URLs with a path");
    assert_eq!(manager.with("under-a-prefix", |lease| async move { lease.is_held() }).await, Ok(true));

    // A request that must not be forwarded is redirected to the same path at the leader.
    let (leader, follower) = trio.leader_and_follower().await;
    let request = client().get(url(follower.id(), "/v1/leases/job?consistency=leader"));
    let answer = request.header("x-tenure-no-forward", "1").send().await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::TEMPORARY_REDIRECT);
    assert_eq!(answer.headers()["x-tenure-node"], follower.id().to_string());
    // The location has the scheme of the request.
    let location = format!("http:{}", answer.headers()["location"].to_str().expect("text"));
    assert_eq!(location, url(leader.id(), "/v1/leases/job?consistency=leader"));
    assert_eq!(ask(Method::GET, location, None).await.0, StatusCode::OK);
    let backup = "/v1/cluster/snapshot?consistency=linearizable";
    let answer = client().get(url(follower.id(), backup)).send().await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::TEMPORARY_REDIRECT);
    let location = format!("http:{}", answer.headers()["location"].to_str().expect("text"));
    assert_eq!(location, url(leader.id(), backup));

    trio.shutdown().await;
    servers.iter().for_each(JoinHandle::abort);
}

async fn merged_router_leaves_other_routes_alone() {
    let listeners = vec![listener().await, listener().await, listener().await];
    let plan = Plan::new(&listeners);
    let trio = plan.start().await;
    let servers = serve(listeners, &trio.nodes, |node| {
        let own = Router::new().route("/metrics", get(async || "own")).fallback(async || "elsewhere");
        own.merge(node.router())
    });
    let endpoints = [plan.http(1), plan.http(2), plan.http(3)].join(",");
    let remote = Remote::new(endpoints.parse().expect("three addresses"));
    let lease = remote.acquire(&name("job"), &Acquire::new(holder("a"))).await.expect("granted");
    assert_eq!(remote.get(&name("job")).await.expect("found").token, lease.token);
    for (path, said) in [("/metrics", "own"), ("/anything", "elsewhere")] {
        let answer = client().get(format!("http://{}{path}", plan.http(1))).send().await.expect("an answer");
        assert_eq!(answer.text().await.expect("text"), said);
    }
    trio.shutdown().await;
    servers.iter().for_each(JoinHandle::abort);
}

async fn router_serves_metrics_with_a_renderer() {
    let listeners = vec![listener().await, listener().await, listener().await];
    let plan = Plan::new(&listeners);
    let trio = plan.start().await;
    let servers = serve(listeners, &trio.nodes, |node| {
        let mut settings = Settings::new(node.id());
        settings.metrics = Some(std::sync::Arc::new(|| "up 1\n".to_owned()));
        Router::new().nest("/tenure", node.router_with(settings))
    });
    let answer = client().get(format!("http://{}/tenure/metrics", plan.http(2))).send().await.expect("an answer");
    assert_eq!(answer.text().await.expect("text"), "up 1\n");
    trio.shutdown().await;
    servers.iter().for_each(JoinHandle::abort);
}

async fn router_serves_the_lease_service_with_its_setting() {
    let listeners = vec![listener().await, listener().await, listener().await];
    let plan = Plan::new(&listeners);
    let trio = plan.start().await;
    let servers = serve(listeners, &trio.nodes, |node| {
        let mut settings = Settings::new(node.id());
        settings.limits.compat_leases = node.id() != 3;
        Router::new().nest("/tenure", node.router_with(settings))
    });
    let url = |id: u64| format!("http://{}/tenure/api/leases", plan.http(id));
    let claim = json!({"resource": "job", "holder": "a"});
    let (status, lease) = ask(Method::POST, url(1), Some(claim)).await;
    assert_eq!((status, &lease["holder"]), (StatusCode::CREATED, &json!("a")), "{lease}");
    assert_eq!(ask(Method::GET, format!("{}/{}", url(2), lease["id"]), None).await, (StatusCode::OK, lease));
    assert_eq!(ask(Method::GET, url(3), None).await.0, StatusCode::NOT_FOUND, "node 3 has no setting");
    trio.shutdown().await;
    servers.iter().for_each(JoinHandle::abort);
}

async fn router_does_not_keep_its_node_alive() {
    let listeners = vec![listener().await, listener().await, listener().await];
    let plan = Plan::new(&listeners);
    let mut trio = plan.start().await;
    let servers = serve(listeners, &trio.nodes, |node| Router::new().nest("/tenure", node.router()));
    let url = |path: &str| format!("http://{}/tenure{path}", plan.http(1));
    let mut watch = client().get(url("/v1/watch")).send().await.expect("a stream");
    assert!(watch.chunk().await.expect("the stream is open").is_some(), "the stream begins with its position");

    let claim = json!({"holder": "a", "ttl_ms": 600000});
    let (status, _) = ask(Method::POST, url("/v1/leases/job/acquire"), Some(claim)).await;
    assert_eq!(status, StatusCode::OK);
    let claim = json!({"holder": "b", "wait_ms": 600000});
    let wait = tokio::spawn(ask(Method::POST, url("/v1/leases/job/acquire"), Some(claim)));
    let queued = async { while ask(Method::GET, url("/v1/leases/job"), None).await.1["waiters"] != json!(1) {} };
    tokio::time::timeout(SOON, queued).await.expect("the request waits");

    let weak = trio.nodes[0].downgrade();
    drop(trio.nodes.remove(0));
    assert!(weak.upgrade().is_none());
    let (status, problem) =
        tokio::time::timeout(SOON, wait).await.expect("a request ends with its node").expect("the task does not panic");
    let ends = [StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT];
    assert!(ends.contains(&status), "{status} {problem}");
    let ended = async { while watch.chunk().await.expect("the stream ends cleanly").is_some() {} };
    tokio::time::timeout(SOON, ended).await.expect("the watch ends with its node");
    let (status, problem) = ask(Method::GET, url("/v1/leases/job"), None).await;
    assert_eq!((status, &problem["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("shutting_down")), "{problem}");
    let (_, problem) = ask(Method::GET, url("/readyz"), None).await;
    assert_eq!(problem["code"], json!("shutting_down"));
    trio.shutdown().await;
    servers.iter().for_each(JoinHandle::abort);
}
