//! The middleware around all routes: it sets the node header, counts requests, measures their duration, and traces them.
//! It refuses a body that no handler reads: its fields would have no effect.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::HttpBody;
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::future::Either;
use metrics::{Counter, Gauge, Histogram, Unit, counter, gauge, histogram};
use tower::{Layer, Service, ServiceExt};

use super::input;
use crate::api::NODE_HEADER;
use crate::trace::{self, Span};
use crate::types::NodeId;

/// The labels `method` and `route` of requests that match no route.
const NO_ROUTE: &str = "none";
/// A request to another route is traced only if its client sent a trace: monitors ask for those routes every few seconds.
const TRACED: &str = "/v1/";
/// Statuses with a cached counter. Other statuses are rare and look up their counter per request.
const STATUSES: [u16; 12] = [200, 307, 400, 404, 405, 409, 410, 413, 415, 429, 503, 504];

/// Describes the metrics of HTTP listeners to the installed recorder.
/// [`node::describe_metrics`](crate::node::describe_metrics) describes those of nodes.
pub fn describe_metrics() {
    use metrics::{describe_counter, describe_gauge, describe_histogram};
    describe_counter!("tenure_http_requests_total", Unit::Count, "Responses by method, route and status");
    describe_histogram!(
        "tenure_http_request_seconds",
        Unit::Seconds,
        "Seconds from a request to its response head, including the time in a queue"
    );
    describe_gauge!("tenure_http_connections", Unit::Count, "Open connections of the public listener");
    describe_counter!(
        "tenure_http_connections_refused_total",
        Unit::Count,
        "Connections refused above the limit max_connections"
    );
    describe_gauge!("tenure_http_watches", Unit::Count, "Open watches");
    describe_counter!("tenure_access_refused_total", Unit::Count, "Requests that access control refused, by reason");
}

/// Adds one to a gauge until drop.
pub(super) struct GaugeGuard(Gauge);

impl GaugeGuard {
    pub fn new(gauge: Gauge) -> GaugeGuard {
        gauge.increment(1.0);
        GaugeGuard(gauge)
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// The layer around all routes.
#[derive(Clone)]
pub(super) struct MetricsLayer(Arc<HttpMetrics>);

struct HttpMetrics {
    id: NodeId,
    node: HeaderValue,
    routes: HashMap<Arc<str>, Vec<Arc<RouteMetrics>>>,
    no_route: Arc<RouteMetrics>,
    body_timeout: Duration,
}

/// An operation of the OpenAPI document.
pub(super) struct RouteOperation<'r> {
    pub path: &'r str,
    pub method: Method,
    pub has_body: bool,
}

/// The metrics of one method of one route. Each is registered at most once, because a lookup by labels costs more than
/// a request. A status without a response has no series.
struct RouteMetrics {
    method: Method,
    labels: Labels,
    /// Whether a request may have a body.
    takes_body: bool,
    seconds: Histogram,
    requests: [OnceLock<Counter>; STATUSES.len()],
}

#[derive(Clone)]
struct Labels {
    method: String,
    route: Arc<str>,
}

impl MetricsLayer {
    pub fn new<'r>(
        node: NodeId,
        body_timeout: Duration,
        routes: impl Iterator<Item = RouteOperation<'r>>,
    ) -> MetricsLayer {
        let mut by_path: HashMap<Arc<str>, Vec<Arc<RouteMetrics>>> = HashMap::new();
        for route in routes {
            by_path.entry(route.path.into()).or_default().push(Arc::new(RouteMetrics::new(route)));
        }
        // A client can send any method. As a label, it would create an unbounded number of series.
        let labels = Labels { method: NO_ROUTE.to_owned(), route: NO_ROUTE.into() };
        let no_route = Arc::new(RouteMetrics::labelled(Method::GET, labels, true));
        // These exist from the start, so that a monitor sees their first increase.
        counter!("tenure_http_connections_refused_total").increment(0);
        gauge!("tenure_http_watches").increment(0.0);
        let header = HeaderValue::from(node);
        MetricsLayer(Arc::new(HttpMetrics { id: node, node: header, routes: by_path, no_route, body_timeout }))
    }
}

impl HttpMetrics {
    fn route(&self, path: &str) -> Option<&Vec<Arc<RouteMetrics>>> {
        // The matched path of a mounted router starts with the prefix of the mounting application.
        let mounted =
            || self.routes.iter().filter(|(route, _)| path.ends_with(&***route)).max_by_key(|(route, _)| route.len());
        self.routes.get(path).or_else(|| mounted().map(|(_, methods)| methods))
    }

    fn meter(&self, request: &Request) -> &Arc<RouteMetrics> {
        let path = request.extensions().get::<MatchedPath>();
        let methods = path.and_then(|path| self.route(path.as_str()));
        // The handler of `GET` answers `HEAD`.
        let is_head = *request.method() == Method::HEAD;
        let is_for = |method: &Method| method == request.method() || (is_head && *method == Method::GET);
        let found = methods.and_then(|methods| methods.iter().find(|meter| is_for(&meter.method)));
        found.unwrap_or(&self.no_route)
    }
}

impl RouteMetrics {
    fn new(RouteOperation { path, method, has_body }: RouteOperation<'_>) -> RouteMetrics {
        let labels = Labels { method: method.as_str().to_owned(), route: path.into() };
        // Outside of /v1 and /api, the node ignores unknown input.
        let is_strict = path.starts_with("/v1/") || path.starts_with("/api/");
        RouteMetrics::labelled(method, labels, has_body || !is_strict)
    }

    fn labelled(method: Method, labels: Labels, takes_body: bool) -> RouteMetrics {
        let Labels { method: name, route } = labels.clone();
        let seconds = histogram!("tenure_http_request_seconds", "method" => name, "route" => route);
        RouteMetrics { method, labels, takes_body, seconds, requests: Default::default() }
    }

    fn counter(&self, status: StatusCode) -> Counter {
        let Labels { method, route } = self.labels.clone();
        counter!(
            "tenure_http_requests_total",
            "method" => method, "route" => route, "status" => status.as_str().to_owned()
        )
    }

    /// The span of a request to this route.
    fn span(&self, request: &Request, node: NodeId) -> Span {
        let Labels { method, route } = &self.labels;
        let header = |name: &str| {
            let mut values = request.headers().get_all(name).iter();
            values.next().filter(|_| values.next().is_none()).map(HeaderValue::as_bytes)
        };
        let span = Span::of_request(|| format!("{method} {route}"), route.starts_with(TRACED), header);
        span.set_text("http.request.method", method);
        span.set_text("http.route", route);
        span.set_text("url.path", request.uri().path());
        span.set_number(trace::NODE, node);
        span
    }

    fn record(&self, status: StatusCode, began: Instant) {
        self.seconds.record(began.elapsed());
        match STATUSES.iter().position(|known| *known == status.as_u16()) {
            Some(at) => self.requests[at].get_or_init(|| self.counter(status)).increment(1),
            None => self.counter(status).increment(1),
        }
    }
}

impl<S> Layer<S> for MetricsLayer {
    type Service = MetricsService<S>;

    fn layer(&self, inner: S) -> MetricsService<S> {
        MetricsService { inner, metrics: self.0.clone() }
    }
}

#[derive(Clone)]
pub(super) struct MetricsService<S> {
    inner: S,
    metrics: Arc<HttpMetrics>,
}

impl<S> Service<Request> for MetricsService<S>
where
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let began = Instant::now();
        let metrics = self.metrics.clone();
        let meter = metrics.meter(&request).clone();
        let span = meter.span(&request, metrics.id);
        let answer = if meter.takes_body || request.body().is_end_stream() {
            Either::Left(self.inner.call(request))
        } else {
            let (inner, limit) = (self.inner.clone(), metrics.body_timeout);
            Either::Right(Box::pin(async move {
                match input::without_fields(request, limit).await {
                    Ok(request) => inner.oneshot(request).await,
                    Err(problem) => Ok(problem.into_response()),
                }
            }))
        };
        Box::pin(span.clone().instrument(async move {
            let mut response = answer.await?;
            // A handler sets this header if another node has served the request.
            let name = HeaderName::from_static(NODE_HEADER);
            response.headers_mut().entry(name).or_insert_with(|| metrics.node.clone());
            meter.record(response.status(), began);
            span.set_number("http.response.status_code", response.status().as_u16().into());
            if response.status().is_server_error() {
                span.fail(&response.status());
            }
            Ok(response)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounted_route_is_counted_without_its_prefix() {
        let routes = ["/v1/leases", "/v1/leases/{name}"];
        let operations = routes.map(|path| RouteOperation { path, method: Method::GET, has_body: false });
        let observe = MetricsLayer::new(1, Duration::ZERO, operations.into_iter());
        for (path, route) in [
            ("/v1/leases", "/v1/leases"),
            ("/tenure/v1/leases", "/v1/leases"),
            ("/{tenant}/tenure/v1/leases/{name}", "/v1/leases/{name}"),
        ] {
            assert_eq!(observe.0.route(path).expect("the route matches")[0].labels.route.as_ref(), route, "{path}");
        }
        assert!(observe.0.route("/v1/leases/{name}/history").is_none());
    }
}
