//! Parts of requests beside their bodies, parsed. What cannot be parsed is a problem that says where.

use std::convert::Infallible;

use axum::extract::{FromRequestParts, OriginalUri, Path, Query};
use axum::http::HeaderName;
use axum::http::request::Parts;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::{IntoParams, ToSchema};

use super::app::App;
use super::refusal::HttpProblem;
use crate::api::NO_FORWARD_HEADER;
use crate::node::{self, Consistency, Forward};
use crate::types::LeaseName;

/// The `{name}` of a path.
pub(super) struct Name(pub LeaseName);

/// By its own name: where the router is mounted there may be more in the path.
#[derive(Deserialize)]
struct Named {
    name: String,
}

impl FromRequestParts<App> for Name {
    type Rejection = HttpProblem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Name, HttpProblem> {
        let path = Path::<Named>::from_request_parts(parts, app).await;
        let Path(Named { name }) = path.map_err(|error| HttpProblem::invalid(format!("path: {error}")))?;
        LeaseName::new(name).map(Name).map_err(|error| HttpProblem::invalid(error.to_string()))
    }
}

/// The query of a path. Unknown parameters are refused.
pub(super) struct Params<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<App> for Params<T> {
    type Rejection = HttpProblem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Params<T>, HttpProblem> {
        let Query(params) =
            Query::try_from_uri(&parts.uri).map_err(|error| HttpProblem::invalid(format!("query: {error}")))?;
        Ok(Params(params))
    }
}

/// Whether the caller lets this node forward to the leader.
pub(super) struct Hop {
    pub forward: Forward,
    /// What to ask the leader for, if this node may not.
    path_and_query: String,
}

impl FromRequestParts<App> for Hop {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Hop, Infallible> {
        const NO_FORWARD: HeaderName = HeaderName::from_static(NO_FORWARD_HEADER);
        if !parts.headers.contains_key(NO_FORWARD) {
            return Ok(Hop { forward: Forward::Once, path_and_query: String::new() });
        }
        // The whole path, also where this router is mounted below a prefix: it hangs in the same place at the leader.
        let uri = parts.extensions.get::<OriginalUri>().map_or(&parts.uri, |OriginalUri(uri)| uri);
        let path_and_query = uri.path_and_query().map(ToString::to_string).unwrap_or_default();
        Ok(Hop { forward: Forward::Never, path_and_query })
    }
}

impl Hop {
    /// Puts a request to the node.
    pub async fn ask(&self, app: &App, request: node::Request) -> Result<node::Response, HttpProblem> {
        let answer = app.node()?.request(request, self.forward).await;
        answer.map_err(|error| HttpProblem::from(error).redirect_to(&self.path_and_query))
    }
}

/// How current a read must be.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum ConsistencyParam {
    /// From the leader's memory while its leadership lease is fresh, otherwise like `linearizable`.
    #[default]
    Leader,
    /// Confirmed by a round trip to a majority.
    Linearizable,
    /// From the memory of the node asked; `X-Tenure-Stale-Ms` says how old it can be.
    Stale,
}

impl From<ConsistencyParam> for Consistency {
    fn from(consistency: ConsistencyParam) -> Consistency {
        match consistency {
            ConsistencyParam::Leader => Consistency::Leader,
            ConsistencyParam::Linearizable => Consistency::Linearizable,
            ConsistencyParam::Stale => Consistency::Stale,
        }
    }
}

/// The query of a read.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ReadParams {
    /// How current the answer must be.
    #[serde(default)]
    #[param(inline, required = false)]
    pub consistency: ConsistencyParam,
}
