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
        claims::acquire, claims::renew, claims::release, claims::hand_over,
 claims::update_metadata, claims::renew_batch, claims::revoke,
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
/// What a cursor looks like that a page came with.
const CURSOR_PATTERN: &str = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,199}~[0-9]{1,19}$";
/// What a holder must not have: control characters.
const HOLDER_PATTERN: &str = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$";
/// States, with commas between them. Empty ones are passed over.
const STATES_PATTERN: &str = "^((active|renewed|expired|released|revoked|handed_over)?,)*(active|renewed|expired|released|revoked|handed_over)?$";
/// A place in a watch.
const PLACE_PATTERN: &str = "^[0-9]{1,19}(\\.[0-9]{1,9})?$";

/// Query parameters of which the types say too little.
const QUERY_PATTERNS: [(&str, &str); 4] =
    [("cursor", CURSOR_PATTERN), ("holder", HOLDER_PATTERN), ("state", STATES_PATTERN), ("after", PLACE_PATTERN)];

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

/// The pattern of a decimal integer of at most 63 bits: zeros, and then fewer digits than the largest has, or as many of
/// which the first that differs is smaller.
fn token_pattern() -> String {
    let largest = i64::MAX.to_string();
    let smaller = largest.char_indices().filter(|(_, digit)| *digit > '0').map(|(at, digit)| {
        let below = char::from(digit as u8 - 1);
        format!("{}[0-{below}][0-9]{{{}}}", &largest[..at], largest.len() - at - 1)
    });
    let alternatives: Vec<String> = smaller.chain([largest.clone()]).collect();
    format!("^0*([0-9]{{1,{}}}|{})$", largest.len() - 1, alternatives.join("|"))
}

/// The OpenAPI document, as JSON.
pub fn document() -> String {
    let mut document = serde_json::to_value(Document::openapi()).expect("the document is made of texts and numbers");
    for (path, methods) in document["paths"].as_object_mut().expect("it has paths") {
        for operation in methods.as_object_mut().expect("a path has methods").values_mut() {
            complete(path, operation);
        }
    }
    let token = json!(token_pattern());
    for schema in document["components"]["schemas"].as_object_mut().expect("it has schemas").values_mut() {
        // Those of answers have no pattern.
        if let Some(pattern) = schema.pointer_mut("/properties/token/pattern") {
            *pattern = token.clone();
        }
    }
    document.to_string()
}

/// Adds to an operation what it has in common with others.
fn complete(path: &str, operation: &mut Value) {
    // Not by index, which would put a null where there are none.
    let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
    let has_parameters = parameters.as_ref().is_some_and(|parameters| !parameters.is_empty());
    for parameter in parameters.into_iter().flatten() {
        if parameter["in"] == "path" {
            parameter["schema"] = json!({"type": "string", "pattern": NAME_PATTERN, "maxLength": MAX_NAME_BYTES});
        }
        let pattern = QUERY_PATTERNS.iter().find(|(name, _)| parameter["name"] == *name);
        if let Some((_, pattern)) = pattern {
            parameter["schema"]["pattern"] = json!(pattern);
            // One that is empty is not an absent one.
            parameter["schema"]["type"] = json!("string");
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn nulls(path: &str, value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Null => found.push(path.to_owned()),
            Value::Object(fields) => {
                fields.iter().for_each(|(key, field)| nulls(&format!("{path}/{key}"), field, found))
            }
            Value::Array(items) => items.iter().for_each(|item| nulls(path, item, found)),
            _ => {}
        }
    }

    #[test]
    fn the_document_has_no_null() {
        let mut found = Vec::new();
        nulls("", &serde_json::from_str(&document()).expect("it is JSON"), &mut found);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn the_pattern_of_a_token_is_63_bits() {
        let validator = jsonschema::validator_for(&json!({"pattern": token_pattern()})).expect("a schema");
        for text in ["0", "281474976710661", "9223372036854775807", "09223372036854775807", "8999999999999999999"] {
            assert!(validator.is_valid(&json!(text)) && text.parse::<crate::FencingToken>().is_ok(), "{text}");
        }
        for text in ["", "9223372036854775808", "9999999999999999999", "464964355482207795590547", "-1", "0x5"] {
            assert!(!validator.is_valid(&json!(text)) && text.parse::<crate::FencingToken>().is_err(), "{text}");
        }
    }

    #[test]
    fn every_cursor_fits_its_pattern() {
        let document: Value = serde_json::from_str(&document()).expect("it is JSON");
        let parameters = document["paths"]["/v1/leases"]["get"]["parameters"].as_array().expect("it has parameters");
        let cursor = parameters.iter().find(|parameter| parameter["name"] == "cursor").expect("it has a cursor");
        let validator = jsonschema::validator_for(&cursor["schema"]).expect("a schema");
        for good in ["a~1", "jobs:nightly.7~9223372036854775807"] {
            assert!(validator.is_valid(&json!(good)), "{good}");
        }
        for bad in ["", "~", "a~", "~1", "a", "a~-1", "a~1~2"] {
            assert!(!validator.is_valid(&json!(bad)), "{bad}");
        }
    }
}
