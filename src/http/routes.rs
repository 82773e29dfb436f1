//! The route table.

use axum::Router;
use axum::http::{Method, Uri};
use axum::routing::{MethodRouter, delete, get, post};

use super::app::App;
use super::observe::MetricsLayer;
use super::response::HttpProblem;
use super::{claims, reads, status, watch};
use crate::api::Code;

/// This route exists only if [`Settings::metrics`](super::Settings::metrics) is set.
const METRICS: &str = "/metrics";

/// One method of one path.
struct Route {
    method: Method,
    path: &'static str,
    handler: MethodRouter<App>,
}

fn table() -> Vec<Route> {
    let route = |method, path, handler| Route { method, path, handler };
    vec![
        route(Method::POST, "/v1/leases/{name}/acquire", post(claims::acquire)),
        route(Method::POST, "/v1/leases/{name}/renew", post(claims::renew)),
        route(Method::POST, "/v1/leases/{name}/release", post(claims::release)),
        route(Method::POST, "/v1/leases/{name}/handover", post(claims::hand_over)),
        route(Method::POST, "/v1/leases/{name}/metadata", post(claims::update_metadata)),
        route(Method::POST, "/v1/renew", post(claims::renew_batch)),
        route(Method::DELETE, "/v1/leases/{name}", delete(claims::revoke)),
        route(Method::GET, "/v1/leases/{name}", get(reads::get)),
        route(Method::GET, "/v1/leases/{name}/history", get(reads::history)),
        route(Method::GET, "/v1/leases/{name}/queue", get(reads::queue)),
        route(Method::GET, "/v1/leases/{name}/explain", get(reads::explain)),
        route(Method::GET, "/v1/leases", get(reads::list)),
        route(Method::GET, "/v1/watch", get(watch::watch)),
        route(Method::GET, "/v1/cluster", get(status::cluster)),
        route(Method::GET, "/livez", get(status::livez)),
        route(Method::GET, "/readyz", get(status::readyz)),
        route(Method::GET, METRICS, get(status::metrics)),
        route(Method::GET, "/version", get(status::version)),
        route(Method::GET, "/openapi.json", get(status::openapi)),
    ]
}

/// The routes of the node, and a problem for every other path.
pub(super) fn standalone_router(app: App) -> Router {
    observed(&app, router(&app).fallback(no_such_path)).with_state(app)
}

/// The routes of the node without a fallback: the program that mounts them handles all other paths.
pub(super) fn mountable_router(app: App) -> Router {
    observed(&app, router(&app)).with_state(app)
}

fn router(app: &App) -> Router<App> {
    let has_metrics = app.settings.metrics.is_some();
    let routes = table().into_iter().filter(|route| has_metrics || route.path != METRICS);
    routes.fold(Router::new(), |router, route| router.route(route.path, route.handler))
}

fn observed(app: &App, router: Router<App>) -> Router<App> {
    let layer = MetricsLayer::new(app.settings.node, table().into_iter().map(|route| (route.path, route.method)));
    // One layer does all the work: each layer costs every request an allocation and an indirect call.
    router.method_not_allowed_fallback(no_such_method).layer(layer)
}

async fn no_such_path(uri: Uri) -> HttpProblem {
    HttpProblem::new(Code::NotFound, format!("there is no path {:?}; see /openapi.json", uri.path()))
}

async fn no_such_method(method: Method, uri: Uri) -> HttpProblem {
    HttpProblem::new(Code::MethodNotAllowed, format!("{} has no method {method}; see /openapi.json", uri.path()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn openapi_document_lists_exactly_the_routes() {
        let routes: BTreeSet<(String, String)> =
            table().iter().map(|route| (route.path.to_owned(), route.method.as_str().to_lowercase())).collect();
        let document: serde_json::Value =
            serde_json::from_str(&super::super::document()).expect("the document is JSON");
        let paths = document["paths"].as_object().expect("the document has paths");
        let documented: BTreeSet<(String, String)> = paths
            .iter()
            .flat_map(|(path, item)| {
                let methods = item.as_object().expect("a path has methods").keys();
                methods.map(move |method| (path.clone(), method.clone()))
            })
            .collect();
        assert_eq!(routes, documented);
    }
}
