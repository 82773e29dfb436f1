//! The handler that streams a backup.

use axum::body::Body;
use axum::extract::{OriginalUri, State};
use axum::http::StatusCode;
use axum::response::Response;
use futures_util::stream;

use super::admission::RequestPermit;
use super::app::App;
use super::auth::{Audited, Credentials};
use super::input::Params;
use super::reads::ReadParams;
use super::response::{self, ProblemResponse};
use crate::access::Need;
use crate::api::Problem;

/// Download a backup of the cluster.
///
/// With the default consistency, only the leader answers, after it has confirmed its leadership. Another node redirects
/// to it. With `stale`, any node answers with its own state. A response that ends early lacks its end record:
/// `tenure snapshot check` finds that.
#[utoipa::path(get, path = "/v1/cluster/snapshot", tag = "status", params(ReadParams),
    responses(
        (status = 200, description = "The backup", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 307, description = "`not_leader`: `location` has the URL at the leader", body = Problem, content_type = "application/problem+json"),
        (status = 429, description = "`too_busy`: the node already writes two backups", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn snapshot(
    State(app): State<App>,
    _permit: RequestPermit,
    credentials: Credentials,
    OriginalUri(uri): OriginalUri,
    Params(params): Params<ReadParams>,
) -> Result<Response, ProblemResponse> {
    let node = app.node()?;
    let audited = Audited::backup(params.consistency);
    credentials.authorize(&app, &node, &Need::Admin, &audited)?;
    let backup = node.backup(params.consistency).await;
    if backup.is_ok() {
        // Meanwhile, this node may have become the leader and applied a change of the rights.
        credentials.authorize(&app, &node, &Need::Admin, &audited)?;
    }
    credentials.audit(&app, &node, &audited, backup.as_ref().map(|_| None));
    let backup = backup.map_err(|error| {
        let location = uri.path_and_query().map(ToString::to_string).unwrap_or_default();
        ProblemResponse::from(error).redirect_to(&location)
    })?;
    let served = backup.served;
    let chunks = stream::unfold(backup, |mut backup| async move { Some((backup.next().await?, backup)) });
    let mut response = response::with_type(StatusCode::OK, "application/octet-stream", Body::from_stream(chunks));
    response::stamp(response.headers_mut(), &served);
    Ok(response)
}
