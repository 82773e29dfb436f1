//! The API's description of itself.

use serde_json::{Value, json};
use utoipa::OpenApi;

use super::{claims, reads, status, watch};
use crate::api;
use crate::types::MAX_NAME_BYTES;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Tenure",
        description = "Leases with fencing tokens over Raft. Every refusal is application/problem+json with a `code`. \
            What is refused with 503 or 429 is certainly not done, and has Retry-After; 504 `outcome_unknown` may have \
            been done, and sending it again is safe. Any node answers any request; `X-Tenure-Node`, `X-Tenure-Term` and `X-Tenure-Index` say who served it \
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

/// What a lease's name looks like. The characters are ASCII, so bytes are counted as well.
const NAME_PATTERN: &str = "^[A-Za-z0-9][A-Za-z0-9._:-]*$";

/// Answers that are the same wherever they can be given.
struct Common {
    status: &'static str,
    description: &'static str,
    applies: fn(&Operation) -> bool,
}

/// What decides which of them can be given.
struct Operation {
    /// It is about leases, and so goes to the leader or this node's memory.
    asks: bool,
    has_body: bool,
    has_parameters: bool,
    needs_node: bool,
}

const COMMON: [Common; 9] = [
    Common { status: "307", description: "`not_leader`: only if asked not to forward", applies: |it| it.asks },
    Common { status: "400", description: "`invalid`", applies: |it| it.has_body || it.has_parameters },
    Common { status: "408", description: "`body_timeout`", applies: |it| it.has_body },
    Common { status: "413", description: "`too_large`", applies: |it| it.has_body },
    Common { status: "415", description: "`unsupported_media_type`", applies: |it| it.has_body },
    Common { status: "429", description: "`too_busy`", applies: |it| it.asks },
    Common { status: "501", description: "`unsupported`: the leader's build does not know it", applies: |it| it.asks },
    Common {
        status: "503",
        description: "`no_leader`, `not_ready`, `shutting_down`: certainly not done",
        applies: |it| it.needs_node,
    },
    Common {
        status: "504",
        description: "`outcome_unknown`: it may have been done, or be done yet; send it again",
        applies: |it| it.asks,
    },
];

/// The OpenAPI document, as JSON.
pub fn document() -> String {
    let mut document = serde_json::to_value(Document::openapi()).expect("the document is made of texts and numbers");
    for (path, methods) in document["paths"].as_object_mut().expect("it has paths") {
        for operation in methods.as_object_mut().expect("a path has methods").values_mut() {
            complete(path, operation);
        }
    }
    document.to_string()
}

/// Adds to an operation what it has in common with others.
fn complete(path: &str, operation: &mut Value) {
    let parameters = operation["parameters"].as_array_mut();
    let has_parameters = parameters.as_ref().is_some_and(|parameters| !parameters.is_empty());
    for parameter in parameters.into_iter().flatten().filter(|parameter| parameter["in"] == "path") {
        parameter["schema"] = json!({"type": "string", "pattern": NAME_PATTERN, "maxLength": MAX_NAME_BYTES});
    }
    let needs_node = path.starts_with("/v1");
    let asks = needs_node && !["/v1/watch", "/v1/cluster"].contains(&path);
    let has_body = operation.get("requestBody").is_some();
    let is = Operation { asks, has_body, has_parameters, needs_node };
    let responses = operation["responses"].as_object_mut().expect("an operation has responses");
    for Common { status, description, .. } in COMMON.iter().filter(|common| (common.applies)(&is)) {
        let schema = json!({"schema": {"$ref": "#/components/schemas/Problem"}});
        let content = json!({"application/problem+json": schema});
        let common = || json!({"description": description, "content": content});
        responses.entry(*status).or_insert_with(common);
    }
}
