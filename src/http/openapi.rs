//! The API's description of itself.

use utoipa::OpenApi;

use super::{claims, reads, status, watch};
use crate::api;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Tenure",
        description = "Leases with fencing tokens over Raft. Every refusal is application/problem+json with a `code`. \
            Beside the answers listed, every path can answer 400 `invalid`, 413 `too_large`, 415 \
            `unsupported_media_type`, 429 `too_busy`, 503 `no_leader`, `not_ready` or `shutting_down` (certainly not \
            done; with Retry-After) and 504 `outcome_unknown` (may have been done; sending it again is safe). \
            Any node answers any request; `X-Tenure-Node`, `X-Tenure-Term` and `X-Tenure-Index` say who served it \
            and from what state. With the request header `X-Tenure-No-Forward` a node that does not lead answers 307 \
            with the leader's address.",
        license(name = "MIT OR Apache-2.0")
    ),
    paths(
        claims::acquire, claims::renew, claims::release, claims::hand_over, claims::renew_batch, claims::revoke,
        reads::get, reads::history, reads::queue, reads::explain, reads::list, watch::watch,
        status::cluster, status::livez, status::readyz, status::metrics, status::version, status::openapi,
    ),
    components(schemas(api::Code, api::StateFilter)),
    tags(
        (name = "claims", description = "Changing who holds a lease"),
        (name = "reads", description = "Seeing who holds it"),
        (name = "status", description = "The node and its cluster"),
    )
)]
struct Document;

/// The OpenAPI document, as JSON.
pub fn document() -> String {
    Document::openapi().to_json().expect("the document is made of texts and numbers")
}
