//! Extractors for the path, the query and the headers of a request. A parse error names the invalid part.

use std::convert::Infallible;

use axum::extract::{FromRequestParts, OriginalUri, Path, Query};
use axum::http::HeaderName;
use axum::http::request::Parts;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::app::App;
use super::response::ProblemResponse;
use crate::api::NO_FORWARD_HEADER;
use crate::node::{self, Forward};
use crate::types::LeaseName;

/// The `{name}` of a path.
pub(super) struct Name(pub LeaseName);

/// Deserialized by field name: a path prefix of the mounting application may have parameters, too.
#[derive(Deserialize)]
struct NameParam {
    name: String,
}

impl FromRequestParts<App> for Name {
    type Rejection = ProblemResponse;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Name, ProblemResponse> {
        let path = Path::<NameParam>::from_request_parts(parts, app).await;
        let Path(NameParam { name }) = path.map_err(|error| ProblemResponse::invalid(format!("path: {error}")))?;
        LeaseName::new(name).map(Name).map_err(|error| ProblemResponse::invalid(error.to_string()))
    }
}

/// The parsed query. Types with `deny_unknown_fields` reject unknown parameters.
pub(super) struct Params<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<App> for Params<T> {
    type Rejection = ProblemResponse;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Params<T>, ProblemResponse> {
        let Query(params) =
            Query::try_from_uri(&parts.uri).map_err(|error| ProblemResponse::invalid(format!("query: {error}")))?;
        Ok(Params(params))
    }
}

/// Whether this node may forward the request to the leader.
pub(super) struct Routing {
    forward: Forward,
    /// The path and query of the redirect to the leader. Empty if this node may forward.
    path_and_query: String,
}

impl FromRequestParts<App> for Routing {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Routing, Infallible> {
        const NO_FORWARD: HeaderName = HeaderName::from_static(NO_FORWARD_HEADER);
        if !parts.headers.contains_key(NO_FORWARD) {
            return Ok(Routing { forward: Forward::Once, path_and_query: String::new() });
        }
        // `OriginalUri` includes the prefix that this router is mounted under. The leader uses the same prefix.
        let uri = parts.extensions.get::<OriginalUri>().map_or(&parts.uri, |OriginalUri(uri)| uri);
        let path_and_query = uri.path_and_query().map(ToString::to_string).unwrap_or_default();
        Ok(Routing { forward: Forward::Never, path_and_query })
    }
}

impl Routing {
    /// Sends a request to the node, and adds the leader's address to a `not_leader` problem.
    pub async fn send(&self, app: &App, request: node::Request) -> Result<node::Response, ProblemResponse> {
        let response = app.node()?.request(request, self.forward).await;
        response.map_err(|error| ProblemResponse::from(error).redirect_to(&self.path_and_query))
    }
}
