//! Access control at one node: watches whose caller loses its right, unknown tokens, and the count of refusals.
//!
//! Watches reach the router without a socket, so a stream that the test does not read makes no chunk.

use axum::body::{Body, BodyDataStream};
use axum::http::{Request, StatusCode};
use futures_util::StreamExt;
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::json;
use tenure::access::{AccessName, AccessToken, Right};
use tenure::api::{CreatedToken, Permission};
use tenure::http::Settings;
use tower::ServiceExt;

use crate::cluster::{Cluster, SOON, read};
use crate::metrics::value;

/// A cluster with access control. The principal `root` has the right `admin`.
struct Guarded {
    cluster: Cluster,
    root: String,
}

impl Guarded {
    /// Starts with changed settings of the listener.
    async fn start(change: impl FnOnce(&mut Settings)) -> Guarded {
        let cluster = Cluster::start_with(change).await;
        let (node, admin, root) = (&cluster.node, name("admin"), name("root"));
        node.set_role(&admin, &[Permission::new(Right::Admin, "")]).await.expect("created");
        node.set_principal(&root, &[admin]).await.expect("created");
        let root = node.create_token(&root, None).await.expect("created").token;
        node.enable_access(true).await.expect("on");
        Guarded { cluster, root }
    }

    /// A new token of the principal `worker`, which may hold the leases below `jobs/`.
    async fn worker(&self) -> CreatedToken {
        let (node, worker) = (&self.cluster.node, name("worker"));
        node.set_role(&worker, &[Permission::new(Right::Hold, "jobs/")]).await.expect("created");
        node.set_principal(&worker, std::slice::from_ref(&worker)).await.expect("created");
        node.create_token(&worker, None).await.expect("created")
    }

    /// Opens a watch of `jobs/` at a router with these settings, and reads its position.
    async fn watch(&self, settings: Settings, token: &str) -> BodyDataStream {
        let request = Request::get("/v1/watch?prefix=jobs/").header("authorization", format!("Bearer {token}"));
        let request = request.body(Body::empty()).expect("a valid request");
        let Ok(response) = self.cluster.node.router_with(settings).oneshot(request).await;
        assert_eq!(response.status(), StatusCode::OK);
        let mut watch = response.into_body().into_data_stream();
        let position = next(&mut watch).await.expect("the watch is open");
        assert!(position.starts_with("id: "), "{position}");
        watch
    }

    /// Acquires a lease with the token of the administrator.
    async fn acquire(&self, lease: &str) {
        let request =
            self.cluster.client.post(self.cluster.url(&format!("/v1/leases/{}/acquire", lease.replace('/', "%2F"))));
        let (status, lease) = read(request.bearer_auth(&self.root).json(&json!({"holder": "h"}))).await;
        assert_eq!(status, 200, "{lease}");
    }
}

fn name(text: &str) -> AccessName {
    AccessName::new(text).expect("valid")
}

/// The next chunk of a watch, or `None` at its end.
async fn next(watch: &mut BodyDataStream) -> Option<String> {
    let chunk = tokio::time::timeout(SOON, watch.next()).await.expect("the watch goes on, or ends")?;
    Some(String::from_utf8(chunk.expect("it ends in order").to_vec()).expect("text"))
}

/// A listener that other machines reach refuses each new request of this client.
#[tokio::test]
async fn watch_ends_when_access_control_no_longer_identifies_its_caller() {
    let guarded = Guarded::start(|_| {}).await;
    let worker = guarded.worker().await;
    let (on_loopback, mut reached) = (Settings::new(1), Settings::new(1));
    reached.require_identity = Some(true);
    let mut on_loopback = guarded.watch(on_loopback, &worker.token).await;
    let mut reached = guarded.watch(reached, &worker.token).await;
    guarded.cluster.node.enable_access(false).await.expect("off");
    assert_eq!(next(&mut reached).await, None, "no credential identifies the caller");
    guarded.cluster.acquire("jobs%2Fa", "h").await;
    let event = next(&mut on_loopback).await.expect("all callers may read");
    assert!(event.contains("event: granted"), "{event}");
    guarded.cluster.end().await;
}

/// The client reads nothing for a while, so the end of its right and the events are ready together.
#[tokio::test]
async fn watch_shows_nothing_that_is_later_than_the_revoke_of_its_token() {
    // Without the check, each watch has an even chance to show the events first.
    const WATCHES: usize = 16;
    let guarded = Guarded::start(|_| {}).await;
    let worker = guarded.worker().await;
    let mut watches = Vec::new();
    for _ in 0..WATCHES {
        watches.push(guarded.watch(Settings::new(1), &worker.token).await);
    }
    guarded.cluster.node.revoke_token(&worker.id).await.expect("revoked");
    for number in 0..10 {
        guarded.acquire(&format!("jobs/{number}")).await;
    }
    for watch in &mut watches {
        assert_eq!(next(watch).await, None, "events after the revoke");
    }
    guarded.cluster.end().await;
}

#[tokio::test]
async fn watch_ends_when_its_principal_loses_the_prefix() {
    let guarded = Guarded::start(|_| {}).await;
    for changes_role in [true, false] {
        let worker = guarded.worker().await;
        let mut watch = guarded.watch(Settings::new(1), &worker.token).await;
        let (node, principal) = (&guarded.cluster.node, name("worker"));
        let changed = match changes_role {
            true => node.set_role(&principal, &[Permission::new(Right::Hold, "other/")]).await,
            false => node.set_principal(&principal, &[]).await,
        };
        changed.expect("made");
        guarded.acquire("jobs/a").await;
        assert_eq!(next(&mut watch).await, None, "the role changes: {changes_role}");
    }
    guarded.cluster.end().await;
}

#[tokio::test]
async fn watch_goes_on_when_other_rights_change() {
    let guarded = Guarded::start(|_| {}).await;
    let worker = guarded.worker().await;
    let mut watch = guarded.watch(Settings::new(1), &worker.token).await;
    guarded.cluster.node.create_token(&name("root"), None).await.expect("created");
    guarded.acquire("jobs/a").await;
    let event = next(&mut watch).await.expect("its caller may still read");
    assert!(event.contains("event: granted"), "{event}");
    guarded.cluster.end().await;
}

#[tokio::test]
async fn unknown_tokens_are_limited_where_each_client_needs_one() {
    let guarded = Guarded::start(|settings| settings.require_identity = Some(true)).await;
    let ask = |token: &str| read(guarded.cluster.client.get(guarded.cluster.url("/v1/leases")).bearer_auth(token));
    let unknown = AccessToken::from_secret([7; 32]);
    let mut seen = Vec::new();
    for _ in 0..12 {
        seen.push(ask(unknown.expose()).await.0);
    }
    assert_eq!(seen, [[401; 10].as_slice(), &[429; 2]].concat());
    assert_eq!(ask(&guarded.root).await.0, 200, "a valid token always passes");
    guarded.cluster.end().await;
}

#[tokio::test]
async fn request_without_a_token_is_no_failed_attempt() {
    let guarded = Guarded::start(|_| {}).await;
    let ask = || guarded.cluster.client.get(guarded.cluster.url("/v1/leases"));
    for _ in 0..20 {
        assert_eq!(read(ask()).await.0, 401);
    }
    let unknown = AccessToken::from_secret([7; 32]);
    assert_eq!(read(ask().bearer_auth(unknown.expose())).await.0, 401, "the first unknown token of the address");
    guarded.cluster.end().await;
}

/// The leader refuses the read, and the node that is asked refuses the watch.
#[tokio::test]
async fn each_refusal_counts_by_its_reason() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let render = recorder.handle();
    let _recording = ::metrics::set_default_local_recorder(&recorder);
    let guarded = Guarded::start(|_| {}).await;
    let worker = guarded.worker().await;
    for path in ["/v1/leases/other", "/v1/watch?prefix=other/"] {
        let ask = || guarded.cluster.client.get(guarded.cluster.url(path));
        assert_eq!(read(ask().bearer_auth(&worker.token)).await.0, 403, "{path}");
        assert_eq!(read(ask()).await.0, 401, "{path}");
    }
    let text = render.render();
    for (reason, count) in [("forbidden", 2.0), ("unauthenticated", 2.0), ("limited", 0.0)] {
        assert_eq!(value(&text, "tenure_access_refused_total", &[("reason", reason)]), count, "{reason}: {text}");
    }
    for route in ["/v1/leases/{name}", "/v1/watch"] {
        for status in ["401", "403"] {
            let labels = [("method", "GET"), ("route", route), ("status", status)];
            assert_eq!(value(&text, "tenure_http_requests_total", &labels), 1.0, "{labels:?}: {text}");
        }
    }
    guarded.cluster.end().await;
}
