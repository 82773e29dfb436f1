//! The tower layer, in an axum service on a TCP socket.

use std::convert::Infallible;
use std::future::Ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ::http::{Method, Request, Response as AnyResponse};
use axum::routing::{any, put};
use axum::{Extension, Router};
use reqwest::{RequestBuilder, Response};
use serde_json::Value;
use tenure::fence::http::{self, FenceLayer, Fenced};
use tenure::fence::{Gate, HighWater, MAX_RESOURCES};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tower::Layer;

use crate::plain_http;
use crate::token::token;

/// A timeout that only a hang exceeds.
const SOON: Duration = Duration::from_secs(20);

struct Service {
    url: String,
    task: JoinHandle<()>,
}

impl Service {
    async fn serve(routes: Router, gate: &Gate) -> Service {
        let layer = FenceLayer::by(gate.clone(), |request| request.uri.path().to_owned());
        let routes = routes.route_layer(layer).route("/free", put(async || "no token needed"));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("the listener is bound"));
        let task = tokio::spawn(async { axum::serve(listener, routes).await.expect("the server never fails") });
        Service { url, task }
    }

    fn put(&self, path: &str) -> RequestBuilder {
        plain_http::client().put(format!("{}{path}", self.url))
    }

    async fn put_with(&self, path: &str, token: impl ToString) -> Response {
        self.put(path).header("Fencing-Token", token.to_string()).send().await.expect("an answer")
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn problem(response: Response) -> (u16, Value) {
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let status = response.status().as_u16();
    let problem: Value = response.json().await.expect("JSON");
    assert_eq!(problem["status"], status);
    let code = problem["code"].as_str().expect("a code");
    assert_eq!(problem["type"], format!("urn:tenure:problem:{code}"));
    (status, problem)
}

async fn seen(Extension(fenced): Extension<Fenced>) -> String {
    format!("{} of {}", fenced.token(), fenced.resource())
}

#[tokio::test]
async fn request_needs_a_token_that_is_not_stale() {
    let gate = Gate::in_memory();
    let service = Service::serve(Router::new().route("/reports/{id}", put(seen)), &gate).await;
    let answer = service.put_with("/reports/7", token(5)).await.text().await.expect("text");
    assert_eq!(answer, format!("{} of /reports/7", token(5)));
    assert_eq!(service.put_with("/reports/7", token(5).padded()).await.status(), 200);
    assert_eq!(service.put_with("/reports/8", token(4)).await.status(), 200, "resources are independent");
    assert_eq!(service.put("/free").send().await.expect("an answer").status(), 200);

    let (status, stale) = problem(service.put_with("/reports/7", token(4)).await).await;
    assert_eq!((status, stale["code"].as_str()), (412, Some(http::STALE)));
    assert_eq!(stale["offered"], token(4).to_string());
    assert_eq!(stale["highest"], token(5).to_string());

    let missing = service.put("/reports/7").send().await.expect("an answer");
    let (status, missing) = problem(missing).await;
    assert_eq!((status, missing["code"].as_str()), (400, Some(http::MISSING)));
    for bad in ["", "-1", "1.5", "9223372036854775808", "abc"] {
        let (status, malformed) = problem(service.put_with("/reports/7", bad).await).await;
        assert_eq!((status, malformed["code"].as_str()), (400, Some(http::MALFORMED)), "{bad:?}");
    }
    let twice = service.put("/reports/7").header("Fencing-Token", "1").header("Fencing-Token", "2");
    assert_eq!(problem(twice.send().await.expect("an answer")).await.1["code"], http::MALFORMED);
    assert_eq!(gate.highest("/reports/7"), HighWater::NONE.offer(token(5)).expect("the first"));
}

/// The layer cannot know which methods of a service write.
#[tokio::test]
async fn each_method_needs_a_token_that_is_not_stale() {
    let gate = Gate::in_memory();
    let service = Service::serve(Router::new().route("/a", any(seen)), &gate).await;
    let url = format!("{}/a", service.url);
    let own = Method::from_bytes(b"PURGE").expect("a valid method");
    let known = [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE, Method::POST, Method::PUT, Method::PATCH];
    for method in known.into_iter().chain([Method::DELETE, own]) {
        let request = || plain_http::client().request(method.clone(), &url);
        let with = |index| request().header("Fencing-Token", token(index).to_string());
        for (request, expected) in [(with(5), 200), (with(4), 412), (request(), 400)] {
            assert_eq!(request.send().await.expect("an answer").status(), expected, "{method}");
        }
    }
}

#[tokio::test]
async fn older_handler_ends_before_a_newer_one_starts() {
    let gate = Gate::in_memory();
    let (started, may_end) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let handler = {
        let (started, may_end) = (Arc::clone(&started), Arc::clone(&may_end));
        async move |Extension(fenced): Extension<Fenced>| {
            started.add_permits(1);
            may_end.acquire().await.expect("never closed").forget();
            fenced.token().to_string()
        }
    };
    let service = Arc::new(Service::serve(Router::new().route("/a", put(handler)), &gate).await);
    let request = |index| {
        let service = Arc::clone(&service);
        tokio::spawn(async move { service.put_with("/a", token(index)).await.status() })
    };
    let older = request(1);
    started.acquire().await.expect("never closed").forget();
    let newer = request(2);
    while gate.highest("/a").token() != token(2) {
        tokio::task::yield_now().await;
    }
    assert_eq!(
        service.put_with("/a", token(1)).await.status(),
        412,
        "the newer token is the mark, although its request still waits"
    );
    assert_eq!(started.available_permits(), 0, "the newer handler started during the older one");
    may_end.add_permits(1);
    assert_eq!(older.await.expect("no panic"), 200);
    started.acquire().await.expect("never closed").forget();
    may_end.add_permits(1);
    assert_eq!(newer.await.expect("no panic"), 200);
}

/// The layer fences a handler that does not extract `Fenced`, too.
#[tokio::test]
async fn handler_without_fenced_blocks_newer_ones() {
    let gate = Gate::in_memory().with_max_wait(Duration::from_millis(50));
    let (started, may_end) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let handler = {
        let (started, may_end) = (Arc::clone(&started), Arc::clone(&may_end));
        async move || {
            started.add_permits(1);
            may_end.acquire().await.expect("never closed").forget();
        }
    };
    let service = Arc::new(Service::serve(Router::new().route("/a", put(handler)), &gate).await);
    let older = tokio::spawn({
        let service = Arc::clone(&service);
        async move { service.put_with("/a", token(1)).await.status() }
    });
    started.acquire().await.expect("never closed").forget();
    let newer = tokio::time::timeout(SOON, service.put_with("/a", token(2))).await;
    let (status, busy) = problem(newer.expect("the newer handler started during the older one")).await;
    assert_eq!((status, busy["code"].as_str()), (503, Some(http::BUSY)));
    assert_eq!(started.available_permits(), 0, "the newer handler started");
    may_end.add_permits(2);
    assert_eq!(older.await.expect("no panic"), 200);
    assert_eq!(service.put_with("/a", token(2)).await.status(), 200);
}

/// Work that outlives the handler blocks newer tokens with a clone of `Fenced`.
#[tokio::test]
async fn work_after_the_response_blocks_newer_tokens() {
    let gate = Gate::in_memory().with_max_wait(Duration::from_millis(50));
    let may_end = Arc::new(Semaphore::new(0));
    let handler = {
        let may_end = Arc::clone(&may_end);
        async move |Extension(fenced): Extension<Fenced>| {
            tokio::spawn(async move {
                may_end.acquire().await.expect("never closed").forget();
                drop(fenced);
            });
        }
    };
    let service = Service::serve(Router::new().route("/a", put(handler)), &gate).await;
    assert_eq!(service.put_with("/a", token(1)).await.status(), 200);
    let busy = service.put_with("/a", token(2)).await;
    assert_eq!(busy.headers()["retry-after"], "1");
    let (status, busy) = problem(busy).await;
    assert_eq!((status, busy["code"].as_str()), (503, Some(http::BUSY)));
    may_end.add_permits(2);
    assert_eq!(service.put_with("/a", token(2)).await.status(), 200);
}

/// A service that is never ready.
#[derive(Clone)]
struct NeverReady;

impl tower::Service<Request<String>> for NeverReady {
    type Response = AnyResponse<String>;
    type Error = Infallible;
    type Future = Ready<Result<AnyResponse<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Pending
    }

    fn call(&mut self, _: Request<String>) -> Self::Future {
        unreachable!("the service is never ready")
    }
}

#[test]
fn fenced_service_is_ready_only_when_the_inner_one_is() {
    let mut fenced = FenceLayer::by(Gate::in_memory(), |_| "a".to_owned()).layer(NeverReady);
    let mut context = Context::from_waker(Waker::noop());
    assert!(tower::Service::poll_ready(&mut fenced, &mut context).is_pending());
}

/// A service that counts its requests.
#[derive(Clone, Default)]
struct Counting(Arc<AtomicUsize>);

impl tower::Service<Request<String>> for Counting {
    type Response = AnyResponse<String>;
    type Error = Infallible;
    type Future = Ready<Result<AnyResponse<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<String>) -> Self::Future {
        self.0.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok(AnyResponse::default()))
    }
}

#[tokio::test]
async fn invalid_or_new_resource_of_a_full_gate_is_refused() {
    let (gate, handler) = (Gate::in_memory(), Counting::default());
    let fill = gate.clone();
    let filled = tokio::task::spawn_blocking(move || {
        (0..MAX_RESOURCES).for_each(|number| drop(fill.enter_blocking(&number.to_string(), token(1)).expect("room")));
    });
    filled.await.expect("no panic");
    let layer = FenceLayer::by(gate, |request| request.uri.path().trim_start_matches('/').to_owned());
    let mut fenced = layer.layer(handler.clone());
    for (path, status, code) in [("/", 400, http::RESOURCE), ("/new", 503, http::FULL)] {
        let request = Request::put(path).header(http::HEADER, token(1).to_string()).body(String::new());
        let refused = tower::Service::call(&mut fenced, request.expect("valid")).await.expect("an answer");
        let problem: Value = serde_json::from_str(refused.body()).expect("JSON");
        assert_eq!((refused.status().as_u16(), problem["code"].as_str()), (status, Some(code)), "{problem}");
    }
    assert_eq!(handler.0.load(Ordering::SeqCst), 0);
    let known = Request::put("/0").header(http::HEADER, token(1).to_string()).body(String::new()).expect("valid");
    assert_eq!(tower::Service::call(&mut fenced, known).await.expect("an answer").status(), 200);
    assert_eq!(handler.0.load(Ordering::SeqCst), 1);
}

/// A service whose clone is not ready, like one behind a limit of concurrent requests.
#[derive(Default)]
struct Limited {
    is_ready: bool,
}

impl Clone for Limited {
    fn clone(&self) -> Limited {
        Limited::default()
    }
}

impl tower::Service<Request<String>> for Limited {
    type Response = AnyResponse<String>;
    type Error = Infallible;
    type Future = Ready<Result<AnyResponse<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<String>) -> Self::Future {
        assert!(std::mem::take(&mut self.is_ready), "the service is called before it is ready");
        std::future::ready(Ok(AnyResponse::default()))
    }
}

#[tokio::test]
async fn fence_calls_the_service_that_was_ready() {
    let mut fenced = FenceLayer::by(Gate::in_memory(), |_| "a".to_owned()).layer(Limited::default());
    for index in [1, 2] {
        let mut context = Context::from_waker(Waker::noop());
        assert!(tower::Service::poll_ready(&mut fenced, &mut context).is_ready());
        let request = Request::put("/").header(http::HEADER, token(index).to_string()).body(String::new());
        let answer = tower::Service::call(&mut fenced, request.expect("valid")).await.expect("an answer");
        assert_eq!(answer.status(), 200);
    }
}
