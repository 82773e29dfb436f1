//! The OpenAPI document.

use serde_json::{Value, json};
use utoipa::OpenApi;

use super::routes;
use crate::api;
use crate::types::{MAX_ACCESS_NAME_BYTES, MAX_NAME_BYTES};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Tenure",
        description = "Leases with fencing tokens over Raft. Every error is application/problem+json with a `code`. \
            A request that fails with 503 or 429 is certainly not applied; the response has Retry-After. A request \
            that fails with 504 `outcome_unknown` may be applied, and it is safe to send it again. \
            Every node accepts every request. `X-Tenure-Node`, `X-Tenure-Term` and `X-Tenure-Index` name the node \
            that served it, and the term and log index of the state. With the request header `X-Tenure-No-Forward`, \
            a follower responds with 307 and the leader's address.",
        license(name = "MIT OR Apache-2.0")
    ),
    components(schemas(api::Code, api::StateFilter)),
    tags(
        (name = "claims", description = "Change the holders of leases"),
        (name = "reads", description = "Read leases and watch them"),
        (name = "members", description = "Change the members and the leader of the cluster"),
        (name = "access", description = "Roles, principals and access tokens"),
        (name = "status", description = "The node and its cluster"),
    )
)]
struct Document;

/// The document without its paths: each route adds its own.
pub(super) fn without_paths() -> utoipa::openapi::OpenApi {
    Document::openapi()
}

/// A lease name. All characters are ASCII, so `maxLength` in characters equals the limit in bytes.
const NAME_PATTERN: &str = "^[A-Za-z0-9][A-Za-z0-9._:/-]*$";
/// The cursor of a page.
const CURSOR_PATTERN: &str = "^[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}~[0-9]{1,19}$";
/// The name of a role or principal.
const ACCESS_PATTERN: &str = "^[A-Za-z0-9][A-Za-z0-9._:@-]*$";
/// The public id of an access token.
const TOKEN_ID_PATTERN: &str = "^[0-9A-Fa-f]{16}$";
/// A holder has no control characters.
const HOLDER_PATTERN: &str = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$";
/// States, separated by commas. The parser ignores empty ones.
const STATES_PATTERN: &str = "^((active|renewed|expired|released|revoked|handed_over|restored)?,)*(active|renewed|expired|released|revoked|handed_over|restored)?$";
/// A position in a watch.
const POSITION_PATTERN: &str = "^[0-9]{1,19}(\\.[0-9]{1,9})?$";

/// Patterns of query parameters, which utoipa cannot derive from the types.
const QUERY_PATTERNS: [(&str, &str); 4] =
    [("cursor", CURSOR_PATTERN), ("holder", HOLDER_PATTERN), ("state", STATES_PATTERN), ("after", POSITION_PATTERN)];

/// A response that is the same for several operations.
struct CommonResponse {
    status: &'static str,
    description: &'static str,
    applies: fn(&OperationTraits) -> bool,
}

/// The properties of an operation that select its common responses.
struct OperationTraits {
    /// The leader or this node's state machine answers the request.
    forwarded: bool,
    has_body: bool,
    has_parameters: bool,
    needs_node: bool,
    needs_principal: bool,
    /// A principal needs a right for it.
    needs_right: bool,
}

const COMMON: [CommonResponse; 11] = [
    CommonResponse {
        status: "307",
        description: "`not_leader`: only with `X-Tenure-No-Forward`",
        applies: |it| it.forwarded,
    },
    // Each operation below `/v1` refuses query parameters that it does not have.
    CommonResponse { status: "400", description: "`invalid`", applies: |it| it.needs_node || it.has_parameters },
    CommonResponse {
        status: "401",
        description: "`unauthenticated`: access control is on, and the request has no valid credential",
        applies: |it| it.needs_principal,
    },
    CommonResponse {
        status: "403",
        description: "`forbidden`: the principal may not do this",
        applies: |it| it.needs_right,
    },
    CommonResponse { status: "408", description: "`body_timeout`", applies: |it| it.has_body },
    CommonResponse { status: "413", description: "`too_large`", applies: |it| it.has_body },
    CommonResponse { status: "415", description: "`unsupported_media_type`", applies: |it| it.has_body },
    CommonResponse { status: "429", description: "`too_busy`", applies: |it| it.needs_principal },
    CommonResponse {
        status: "501",
        description: "`unsupported`: the leader's version does not support it",
        applies: |it| it.forwarded,
    },
    CommonResponse {
        status: "503",
        description: "`no_leader`, `not_ready`, `shutting_down`: certainly not applied",
        applies: |it| it.needs_node,
    },
    CommonResponse {
        status: "504",
        description: "`outcome_unknown`: the request may be applied, now or later; send it again",
        applies: |it| it.forwarded,
    },
];

/// The pattern of a decimal integer of at most 63 bits, with leading zeros. It matches a number with fewer digits than
/// the maximum, or with the same number of digits of which the first different one is smaller.
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
    let mut document = serde_json::to_value(routes::all_routes().into_openapi()).expect("the document has string keys");
    for (path, methods) in document["paths"].as_object_mut().expect("the document has paths") {
        for operation in methods.as_object_mut().expect("a path has methods").values_mut() {
            complete(path, operation);
        }
    }
    let token = json!(token_pattern());
    for schema in document["components"]["schemas"].as_object_mut().expect("the document has schemas").values_mut() {
        // Only tokens in request schemas have a pattern.
        if let Some(pattern) = schema.pointer_mut("/properties/token/pattern") {
            *pattern = token.clone();
        }
    }
    document.to_string()
}

/// Adds the patterns and the common responses to an operation.
fn complete(path: &str, operation: &mut Value) {
    // Indexing an absent key of a mutable `Value` would insert a null.
    let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
    let has_parameters = parameters.as_ref().is_some_and(|parameters| !parameters.is_empty());
    for parameter in parameters.into_iter().flatten() {
        if parameter["in"] == "path" && parameter["name"] == "name" {
            parameter["schema"] = json!({"type": "string", "pattern": NAME_PATTERN, "maxLength": MAX_NAME_BYTES});
        }
        if parameter["in"] == "path" && parameter["name"] == "access" {
            let is_token = path.starts_with("/v1/access/tokens/");
            parameter["schema"] = match is_token {
                true => json!({"type": "string", "pattern": TOKEN_ID_PATTERN}),
                false => json!({"type": "string", "pattern": ACCESS_PATTERN, "maxLength": MAX_ACCESS_NAME_BYTES}),
            };
        }
        let pattern = QUERY_PATTERNS.iter().find(|(name, _)| parameter["name"] == *name);
        if let Some((_, pattern)) = pattern {
            parameter["schema"]["pattern"] = json!(pattern);
            // An empty string is not the same as an absent parameter, so the type is not nullable.
            parameter["schema"]["type"] = json!("string");
        }
    }
    let needs_node = path.starts_with("/v1");
    let forwarded = needs_node && !["/v1/watch", "/v1/cluster"].contains(&path);
    let has_body = operation.get("requestBody").is_some();
    let needs_principal = needs_node || path == "/metrics";
    let needs_right = needs_node && path != "/v1/cluster";
    let traits = OperationTraits { forwarded, has_body, has_parameters, needs_node, needs_principal, needs_right };
    let responses = operation["responses"].as_object_mut().expect("an operation has responses");
    for CommonResponse { status, description, .. } in COMMON.iter().filter(|common| (common.applies)(&traits)) {
        let schema = json!({"schema": {"$ref": "#/components/schemas/Problem"}});
        let content = json!({"application/problem+json": schema});
        let common = || json!({"description": description, "content": content});
        responses.entry(*status).or_insert_with(common);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

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
    fn openapi_document_has_no_null() {
        let mut found = Vec::new();
        nulls("", &serde_json::from_str(&document()).expect("the document is JSON"), &mut found);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn token_pattern_accepts_exactly_63_bits() {
        let validator = jsonschema::validator_for(&json!({"pattern": token_pattern()})).expect("a schema");
        for text in ["0", "281474976710661", "9223372036854775807", "09223372036854775807", "8999999999999999999"] {
            assert!(validator.is_valid(&json!(text)) && text.parse::<crate::FencingToken>().is_ok(), "{text}");
        }
        for text in ["", "9223372036854775808", "9999999999999999999", "464964355482207795590547", "-1", "0x5"] {
            assert!(!validator.is_valid(&json!(text)) && text.parse::<crate::FencingToken>().is_err(), "{text}");
        }
    }

    #[test]
    fn cursor_pattern_accepts_only_cursors() {
        let document: Value = serde_json::from_str(&document()).expect("the document is JSON");
        let parameters =
            document["paths"]["/v1/leases"]["get"]["parameters"].as_array().expect("the list has parameters");
        let cursor = parameters.iter().find(|parameter| parameter["name"] == "cursor").expect("the list has a cursor");
        let validator = jsonschema::validator_for(&cursor["schema"]).expect("a schema");
        for good in ["a~1", "jobs:nightly.7~9223372036854775807"] {
            assert!(validator.is_valid(&json!(good)), "{good}");
        }
        for bad in ["", "~", "a~", "~1", "a", "a~-1", "a~1~2"] {
            assert!(!validator.is_valid(&json!(bad)), "{bad}");
        }
    }

    #[test]
    fn each_operation_has_its_statuses() {
        const CLAIM: &str = "200 307 400 401 403 408 409 413 415 429 501 503 504";
        const MEMBER: &str = "200 307 400 401 403 404 409 429 501 503 504";
        const MEMBER_BODY: &str = "200 307 400 401 403 404 408 409 413 415 429 501 503 504";
        const FREE: &str = "200 307 400 401 403 408 413 415 429 501 503 504";
        const READ: &str = "200 307 400 401 403 429 501 503 504";
        const ACCESS: &str = "200 307 400 401 403 404 409 429 501 503 504";
        const ACCESS_SWITCH: &str = "200 307 400 401 403 409 429 501 503 504";
        let expected = [
            ("delete /v1/access/principals/{access}", ACCESS),
            ("delete /v1/access/roles/{access}", ACCESS),
            ("delete /v1/access/tokens/{access}", ACCESS),
            ("get /v1/access", READ),
            ("post /v1/access/disable", ACCESS_SWITCH),
            ("post /v1/access/enable", ACCESS_SWITCH),
            ("post /v1/access/principals/{access}/tokens", ACCESS),
            ("put /v1/access/principals/{access}", MEMBER_BODY),
            ("put /v1/access/roles/{access}", CLAIM),
            ("delete /v1/cluster/members/{id}", MEMBER),
            ("delete /v1/leases/{name}", READ),
            ("get /livez", "200 503"),
            ("get /metrics", "200 401 429"),
            ("get /openapi.json", "200"),
            ("get /readyz", "200 503"),
            ("get /v1/cluster", "200 400 401 429 503"),
            ("get /v1/cluster/snapshot", READ),
            ("get /v1/leases", READ),
            ("get /v1/leases/{name}", "200 307 400 401 403 404 429 501 503 504"),
            ("get /v1/leases/{name}/explain", READ),
            ("get /v1/leases/{name}/history", READ),
            ("get /v1/leases/{name}/queue", READ),
            ("get /v1/watch", "200 400 401 403 410 429 503"),
            ("get /version", "200"),
            ("get /ui", "200"),
            ("get /ui/{file}", "200 400 404"),
            ("post /v1/cluster/members", CLAIM),
            ("post /v1/cluster/members/{id}/addresses", MEMBER_BODY),
            ("post /v1/cluster/members/{id}/promote", MEMBER),
            ("post /v1/cluster/members/{id}/replace", MEMBER_BODY),
            ("post /v1/cluster/transfer", MEMBER_BODY),
            ("post /v1/leases/{name}/acquire", CLAIM),
            ("post /v1/leases/{name}/handover", CLAIM),
            ("post /v1/leases/{name}/metadata", CLAIM),
            ("post /v1/leases/{name}/release", FREE),
            ("post /v1/leases/{name}/renew", CLAIM),
            ("post /v1/renew", FREE),
        ];
        let document: Value = serde_json::from_str(&document()).expect("the document is JSON");
        let mut statuses = BTreeMap::new();
        for (path, methods) in document["paths"].as_object().expect("the document has paths") {
            for (method, operation) in methods.as_object().expect("a path has methods") {
                let responses = operation["responses"].as_object().expect("an operation has responses");
                let codes: BTreeSet<&str> = responses.keys().map(String::as_str).collect();
                let codes = codes.into_iter().collect::<Vec<_>>().join(" ");
                statuses.insert(format!("{method} {path}"), codes);
            }
        }
        let expected = expected.map(|(operation, codes)| (operation.to_owned(), codes.to_owned()));
        assert_eq!(statuses, BTreeMap::from(expected));
    }

    #[test]
    fn query_parameters_accept_what_the_node_accepts() {
        let document: Value = serde_json::from_str(&document()).expect("the document is JSON");
        for (path, method, name, good, bad) in [
            ("/v1/leases", "get", "holder", vec![json!("a b"), json!("é")], vec![json!(""), json!("\u{85}")]),
            ("/v1/leases/{name}/explain", "get", "holder", vec![json!("h".repeat(200))], vec![json!("h".repeat(201))]),
            ("/v1/leases", "get", "state", vec![json!("active,,renewed"), json!("")], vec![json!("gone")]),
            ("/v1/leases", "get", "limit", vec![json!(1), json!(1_000)], vec![json!(0), json!(1_001)]),
            ("/v1/leases", "get", "consistency", vec![json!("stale"), json!("leader")], vec![json!("weak")]),
            ("/v1/watch", "get", "after", vec![json!("5"), json!("1.2")], vec![json!("1.2.3"), json!("x"), json!("")]),
            ("/v1/leases/{name}", "delete", "reason", vec![json!("r".repeat(500))], vec![json!("r".repeat(501))]),
            ("/v1/leases/{name}", "get", "name", vec![json!("n".repeat(200))], vec![json!("n".repeat(201)), json!("")]),
        ] {
            let parameters = document["paths"][path][method]["parameters"].as_array().expect("it has parameters");
            let parameter = parameters.iter().find(|parameter| parameter["name"] == name).expect("it has this one");
            let schema = inline(&document, &parameter["schema"]);
            let validator = jsonschema::validator_for(&schema).expect("a schema");
            for value in good {
                assert!(validator.is_valid(&value), "{path}: {name} {value} is refused");
            }
            for value in bad {
                assert!(!validator.is_valid(&value), "{path}: {name} {value} is accepted");
            }
        }
    }

    /// The schema with the components that it refers to.
    fn inline(document: &Value, schema: &Value) -> Value {
        let mut schema = schema.clone();
        schema["components"] = document["components"].clone();
        schema
    }
}
