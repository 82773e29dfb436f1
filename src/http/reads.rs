//! Handlers that read leases.

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;

use super::admission::RequestPermit;
use super::app::App;
use super::input::{Name, Params, Routing};
use super::response;
use super::response::ProblemResponse;
use crate::api::{self, DEFAULT_PAGE, MAX_PAGE, Problem, StateFilter};
use crate::lease::{ListCursor, ListFilter};
use crate::node::{self, Query, Request};
use crate::service;
use crate::types::{Consistency, HolderId, LeaseName};

/// The query of a read.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ReadParams {
    /// Consistency of the read.
    #[serde(default)]
    #[param(inline, required = false)]
    pub consistency: Consistency,
}

/// Get one lease: its holders, or its last grant while the node remembers it.
#[utoipa::path(get, path = "/v1/leases/{name}", tag = "reads",
    params(("name" = String, Path, description = "The lease's name"), ReadParams),
    responses(
        (status = 200, description = "The lease", body = api::LeaseInfo),
        (status = 404, description = "`not_found`: the lease was never granted, or the node has forgotten it", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn get(
    State(app): State<App>,
    _permit: RequestPermit,
    routing: Routing,
    Name(name): Name,
    Params(params): Params<ReadParams>,
) -> Result<Response, ProblemResponse> {
    let response = read(&app, routing, Query::Lease(name.clone()), params.consistency).await?;
    response::reply(response, |answer, now| service::found(&name, answer, now))
}

/// Get the last transitions of a lease, oldest first.
#[utoipa::path(get, path = "/v1/leases/{name}/history", tag = "reads",
    params(("name" = String, Path, description = "The lease's name"), ReadParams),
    responses((status = 200, description = "The grants of the lease and how each ended", body = api::History)))]
pub(super) async fn history(
    State(app): State<App>,
    _permit: RequestPermit,
    routing: Routing,
    Name(name): Name,
    Params(params): Params<ReadParams>,
) -> Result<Response, ProblemResponse> {
    let response = read(&app, routing, Query::History(name.clone()), params.consistency).await?;
    response::reply(response, |answer, _| service::history(name, answer))
}

/// Get the queue of a lease, next waiter first.
#[utoipa::path(get, path = "/v1/leases/{name}/queue", tag = "reads",
    params(("name" = String, Path, description = "The lease's name"), ReadParams),
    responses((status = 200, description = "The queue", body = api::Queue)))]
pub(super) async fn queue(
    State(app): State<App>,
    _permit: RequestPermit,
    routing: Routing,
    Name(name): Name,
    Params(params): Params<ReadParams>,
) -> Result<Response, ProblemResponse> {
    let response = read(&app, routing, Query::Queue(name.clone()), params.consistency).await?;
    response::reply(response, |answer, now| service::queue(name, answer, now))
}

/// The query of an explanation.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ExplainParams {
    /// Also explain this holder's relation to the lease.
    #[param(value_type = Option<String>, min_length = 1, max_length = 200)]
    holder: Option<HolderId>,
    /// Consistency of the read.
    #[serde(default)]
    #[param(inline, required = false)]
    consistency: Consistency,
}

/// Explain why a lease is held or not, which waiter gets it next and when, and how one holder lost it.
#[utoipa::path(get, path = "/v1/leases/{name}/explain", tag = "reads",
    params(("name" = String, Path, description = "The lease's name"), ExplainParams),
    responses((status = 200, description = "The explanation", body = api::Explanation)))]
pub(super) async fn explain(
    State(app): State<App>,
    _permit: RequestPermit,
    routing: Routing,
    Name(name): Name,
    Params(params): Params<ExplainParams>,
) -> Result<Response, ProblemResponse> {
    let query = Query::Explain { name: name.clone(), holder: params.holder };
    let response = read(&app, routing, query, params.consistency).await?;
    response::reply(response, |answer, now| service::explained(name, answer, now))
}

/// The query of a list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// Only names with this prefix.
    #[serde(default)]
    #[param(required = false)]
    prefix: String,
    /// Only leases of this holder.
    #[param(value_type = Option<String>, min_length = 1, max_length = 200)]
    holder: Option<HolderId>,
    /// Only leases in one of these states, separated by commas: `active`, `renewed` (active, and renewed at least
    /// once), `expired`, `released`, `revoked`, `handed_over`, `restored`.
    state: Option<String>,
    /// Maximum number of leases on the page, 1 to 1000. Default: 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// The `cursor` of the previous page.
    cursor: Option<String>,
    /// Consistency of the read.
    #[serde(default)]
    #[param(inline, required = false)]
    consistency: Consistency,
}

/// List leases in the order of their names, page by page.
///
/// Each page reflects a different point in time: a lease that changes its holder between two pages can be on both
/// pages or on neither.
#[utoipa::path(get, path = "/v1/leases", tag = "reads", params(ListParams),
    responses((status = 200, description = "One page", body = api::LeasePage)))]
pub(super) async fn list(
    State(app): State<App>,
    _permit: RequestPermit,
    routing: Routing,
    Params(params): Params<ListParams>,
) -> Result<Response, ProblemResponse> {
    let limit = params.limit.unwrap_or(DEFAULT_PAGE);
    if !(1..=MAX_PAGE).contains(&limit) {
        return Err(ProblemResponse::invalid(format!("limit: {limit} is outside 1 to {MAX_PAGE}")));
    }
    let states = params.state.as_deref().map(read_states).transpose()?.unwrap_or_default();
    let after = params.cursor.as_deref().map(read_cursor).transpose()?;
    let filter = ListFilter { prefix: params.prefix, holder: params.holder, states };
    let response = read(&app, routing, Query::List { filter, after, limit }, params.consistency).await?;
    response::reply(response, |answer, now| {
        let (leases, next) = service::listed(answer, now)?;
        Ok(api::LeasePage { leases, cursor: next.as_ref().map(service::write_cursor) })
    })
}

async fn read(
    app: &App,
    routing: Routing,
    query: Query,
    consistency: Consistency,
) -> Result<node::Response, ProblemResponse> {
    routing.send(app, Request::Read { query, consistency }).await
}

fn read_states(text: &str) -> Result<Vec<StateFilter>, ProblemResponse> {
    let state = |word: &str| {
        let filter: Result<StateFilter, serde::de::value::Error> =
            StateFilter::deserialize(serde::de::value::StrDeserializer::new(word));
        filter.map_err(|error| ProblemResponse::invalid(format!("state: {error}")))
    };
    text.split(',').filter(|word| !word.is_empty()).map(state).collect()
}

/// Parses a cursor that [`service::write_cursor`] wrote.
pub(crate) fn read_cursor(text: &str) -> Result<ListCursor, ProblemResponse> {
    let parts = text
        .split_once('~')
        .and_then(|(name, token)| Some(ListCursor { name: LeaseName::new(name).ok()?, token: token.parse().ok()? }));
    parts.ok_or_else(|| ProblemResponse::invalid("cursor: unknown format; send the `cursor` of the previous page"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_round_trips() {
        let cursor = ListCursor { name: LeaseName::new("jobs:nightly.7").expect("valid"), token: u64::MAX };
        assert_eq!(read_cursor(&service::write_cursor(&cursor)).expect("the cursor is valid"), cursor);
        for bad in ["", "~", "a~", "~1", "a", "a~-1", "a~1~2"] {
            assert!(read_cursor(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn state_filter_accepts_only_known_states() {
        assert_eq!(read_states("active,renewed").expect("known"), [StateFilter::Active, StateFilter::Renewed]);
        assert_eq!(read_states("").expect("an empty list is valid"), []);
        assert!(format!("{:?}", read_states("active,held").expect_err("held is no state")).contains("held"));
    }
}
