//! Parts of requests, parsed. What cannot be parsed is a problem that says where.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, OriginalUri, Path, Query, Request};
use axum::http::HeaderName;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use axum::http::request::Parts;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::{IntoParams, ToSchema};

use super::app::App;
use super::refusal::Refused;
use crate::api::{Code, MAX_BODY_BYTES, NO_FORWARD_HEADER};
use crate::node::{self, Consistency, Forward};
use crate::types::LeaseName;

/// How long what is too large is taken from its client before that is told so.
const DISCARDED_WITHIN: Duration = Duration::from_secs(1);

/// A JSON body.
pub(super) struct Body<T>(pub T);

impl<T: DeserializeOwned> FromRequest<App> for Body<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, app: &App) -> Result<Body<T>, Refused> {
        let is_json = request.headers().get(CONTENT_TYPE).is_some_and(|kind| is_json(kind.as_bytes()));
        if !is_json {
            // Refused rather than guessed: a web page can send every other type to a local node without asking.
            return Err(Refused::new(Code::UnsupportedMediaType, "send the header content-type: application/json"));
        }
        let bytes = read_body(request, app).await?;
        let value = serde_json::from_slice(&bytes).map_err(|error| Refused::invalid(format!("body: {error}")))?;
        Ok(Body(value))
    }
}

fn is_json(content_type: &[u8]) -> bool {
    let essence = content_type.split(|byte| *byte == b';').next().unwrap_or_default();
    essence.trim_ascii().eq_ignore_ascii_case(b"application/json")
}

async fn read_body(request: Request, app: &App) -> Result<Bytes, Refused> {
    let (head, mut body) = request.into_parts();
    let announced = head.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > MAX_BODY_BYTES as u64) {
        // Whoever asks first sends nothing of it when it is refused now.
        return Err(if head.headers.contains_key(EXPECT) { too_large() } else { discard(body).await });
    }
    let limit = app.settings.body_timeout;
    match tokio::time::timeout(limit, Limited::new(&mut body, MAX_BODY_BYTES).collect()).await {
        Ok(Ok(read)) => Ok(read.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(discard(body).await),
        Ok(Err(error)) => Err(Refused::invalid(format!("body: {error}"))),
        Err(_) => Err(Refused::new(Code::BodyTimeout, format!("the body was not complete after {limit:?}"))),
    }
}

/// Refuses a body that is too large once the client has sent it: one that is answered earlier may see its connection
/// break under what it still sends, and not the answer.
async fn discard(mut body: axum::body::Body) -> Refused {
    let sent = async { while let Some(Ok(_)) = body.frame().await {} };
    let _ = tokio::time::timeout(DISCARDED_WITHIN, sent).await;
    too_large()
}

fn too_large() -> Refused {
    Refused::new(Code::TooLarge, format!("a body has at most {MAX_BODY_BYTES} bytes"))
}

/// The `{name}` of a path.
pub(super) struct Name(pub LeaseName);

/// By its own name: where the router is mounted there may be more in the path.
#[derive(Deserialize)]
struct Named {
    name: String,
}

impl FromRequestParts<App> for Name {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Name, Refused> {
        let path = Path::<Named>::from_request_parts(parts, app).await;
        let Path(Named { name }) = path.map_err(|error| Refused::invalid(format!("path: {error}")))?;
        LeaseName::new(name).map(Name).map_err(|error| Refused::invalid(error.to_string()))
    }
}

/// The query of a path. Unknown parameters are refused.
pub(super) struct Params<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<App> for Params<T> {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Params<T>, Refused> {
        let Query(params) =
            Query::try_from_uri(&parts.uri).map_err(|error| Refused::invalid(format!("query: {error}")))?;
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
    pub async fn ask(&self, app: &App, request: node::Request) -> Result<node::Response, Refused> {
        let answer = app.node()?.request(request, self.forward).await;
        answer.map_err(|error| Refused::from(error).redirect_to(&self.path_and_query))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_json_is_json() {
        for good in ["application/json", "Application/JSON; charset=utf-8", " application/json ;x=y"] {
            assert!(is_json(good.as_bytes()), "{good}");
        }
        for bad in ["", "text/plain", "application/jsonx", "application/x-www-form-urlencoded"] {
            assert!(!is_json(bad.as_bytes()), "{bad}");
        }
    }
}
