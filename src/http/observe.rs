//! What every request has, whatever its path: the node's header, a count and a duration.
//!
//! | metric | kind | labels |
//! |---|---|---|
//! | `tenure_http_requests_total` | counter | `method`, `route`, `status` |
//! | `tenure_http_request_seconds` | histogram | `method`, `route`; until the head of the answer, waits included |
//! | `tenure_http_connections` | gauge | |
//! | `tenure_http_connections_refused_total` | counter | |
//! | `tenure_http_watches` | gauge | |
//! | `tenure_refused_total` | counter | `reason`; the leader counts its own queue by the same name |

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::response::Response;
use metrics::{Counter, Gauge, Histogram, Unit, counter, histogram};
use tower::{Layer, Service};

use crate::api::NODE_HEADER;
use crate::types::NodeId;

/// Method and route of requests that no route matched.
const NO_ROUTE: &str = "none";
/// Answers that are common enough to have their counter at hand.
const STATUSES: [u16; 12] = [200, 307, 400, 404, 405, 409, 410, 413, 415, 429, 503, 504];

/// Describes the metrics of this module to the installed recorder.
pub fn describe_metrics() {
    use metrics::{describe_counter, describe_gauge, describe_histogram};
    describe_counter!("tenure_http_requests_total", "Requests answered");
    describe_histogram!("tenure_http_request_seconds", Unit::Seconds, "Time to the head of an answer, waits included");
    describe_gauge!("tenure_http_connections", "Connections of the public listener");
    describe_counter!("tenure_http_connections_refused_total", "Connections closed because there were too many");
    describe_counter!("tenure_refused_total", "Requests refused as too_busy");
    describe_gauge!("tenure_http_watches", "Watches that are open");
}

/// Adds one to a gauge for as long as it lives.
pub(super) struct Open(Gauge);

impl Open {
    pub fn new(gauge: Gauge) -> Open {
        gauge.increment(1.0);
        Open(gauge)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// The layer around all routes.
#[derive(Clone)]
pub(super) struct Observe(Arc<Observed>);

struct Observed {
    node: HeaderValue,
    routes: HashMap<&'static str, Vec<Arc<Meter>>>,
    no_route: Arc<Meter>,
}

/// The metrics of one method of one route, registered at most once: a lookup by labels for each request would cost
/// more than the request. A status that never was has no series.
struct Meter {
    method: Method,
    labels: Labels,
    seconds: Histogram,
    requests: [OnceLock<Counter>; STATUSES.len()],
}

#[derive(Clone)]
struct Labels {
    method: String,
    route: &'static str,
}

impl Observe {
    pub fn new(node: NodeId, routes: impl Iterator<Item = (&'static str, Method)>) -> Observe {
        let mut by_path: HashMap<&'static str, Vec<Arc<Meter>>> = HashMap::new();
        for (path, method) in routes {
            by_path.entry(path).or_default().push(Arc::new(Meter::new(method, path)));
        }
        // A method that a client made up must not become a label: there would be no end of them.
        let labels = Labels { method: NO_ROUTE.to_owned(), route: NO_ROUTE };
        let no_route = Arc::new(Meter::labelled(Method::GET, labels));
        Observe(Arc::new(Observed { node: HeaderValue::from(node), routes: by_path, no_route }))
    }
}

impl Observed {
    fn route(&self, path: &str) -> Option<&Vec<Arc<Meter>>> {
        // In a router that is mounted somewhere the path begins with where that is.
        let mounted =
            || self.routes.iter().filter(|(route, _)| path.ends_with(*route)).max_by_key(|(route, _)| route.len());
        self.routes.get(path).or_else(|| mounted().map(|(_, methods)| methods))
    }

    fn meter(&self, request: &Request) -> &Arc<Meter> {
        let path = request.extensions().get::<MatchedPath>();
        let methods = path.and_then(|path| self.route(path.as_str()));
        let found = methods.and_then(|methods| methods.iter().find(|meter| meter.method == request.method()));
        found.unwrap_or(&self.no_route)
    }
}

impl Meter {
    fn new(method: Method, route: &'static str) -> Meter {
        let labels = Labels { method: method.as_str().to_owned(), route };
        Meter::labelled(method, labels)
    }

    fn labelled(method: Method, labels: Labels) -> Meter {
        let Labels { method: name, route } = labels.clone();
        let seconds = histogram!("tenure_http_request_seconds", "method" => name, "route" => route);
        Meter { method, labels, seconds, requests: Default::default() }
    }

    fn counter(&self, status: StatusCode) -> Counter {
        let Labels { method, route } = self.labels.clone();
        counter!(
            "tenure_http_requests_total",
            "method" => method, "route" => route, "status" => status.as_str().to_owned()
        )
    }

    fn record(&self, status: StatusCode, began: Instant) {
        self.seconds.record(began.elapsed());
        match STATUSES.iter().position(|known| *known == status.as_u16()) {
            Some(at) => self.requests[at].get_or_init(|| self.counter(status)).increment(1),
            None => self.counter(status).increment(1),
        }
    }
}

impl<S> Layer<S> for Observe {
    type Service = ObservedService<S>;

    fn layer(&self, inner: S) -> ObservedService<S> {
        ObservedService { inner, observed: self.0.clone() }
    }
}

#[derive(Clone)]
pub(super) struct ObservedService<S> {
    inner: S,
    observed: Arc<Observed>,
}

impl<S> Service<Request> for ObservedService<S>
where
    S: Service<Request, Response = Response, Error = Infallible>,
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
        let observed = self.observed.clone();
        let meter = observed.meter(&request).clone();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let mut response = answer.await?;
            // Where nobody else said so, it was this node that answered.
            let name = HeaderName::from_static(NODE_HEADER);
            response.headers_mut().entry(name).or_insert_with(|| observed.node.clone());
            meter.record(response.status(), began);
            Ok(response)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mounted_route_is_counted_as_the_route_that_it_is() {
        let observe = Observe::new(1, [("/v1/leases", Method::GET), ("/v1/leases/{name}", Method::GET)].into_iter());
        for (path, route) in [
            ("/v1/leases", "/v1/leases"),
            ("/tenure/v1/leases", "/v1/leases"),
            ("/{tenant}/tenure/v1/leases/{name}", "/v1/leases/{name}"),
        ] {
            assert_eq!(observe.0.route(path).expect("it is known")[0].labels.route, route, "{path}");
        }
        assert!(observe.0.route("/v1/leases/{name}/history").is_none());
    }
}
