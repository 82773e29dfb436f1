//! Random requests from the OpenAPI document: valid ones, and valid ones with one change.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};

use super::operation::{Document, Operation};

/// Bound for `wait_ms`, so that a request for a held lease returns soon.
const MAX_WAIT_MS: u64 = 20;

/// One request of an operation.
#[derive(Clone, Debug)]
pub struct Request {
    /// The lease name in the path.
    pub name: String,
    pub query: String,
    /// Content type and body.
    pub body: Option<(String, String)>,
    /// A method that replaces the operation's.
    pub method: Option<String>,
    /// The request is unchanged, and no rule outside the schemas forbids it.
    pub is_plain: bool,
}

impl Request {
    /// Whether the request has another method or path than the operation.
    pub fn is_for_another_operation(&self, operation: &Operation) -> bool {
        let other_method = self.method.as_ref().is_some_and(|method| *method != operation.method);
        other_method || (operation.name.is_some() && (self.name.contains('/') || self.name.is_empty()))
    }

    /// Whether the document allows the request.
    pub fn is_valid(&self, document: &Document, operation: &Operation) -> bool {
        let name = operation.name.is_none() || operation.allows("name", &json!(self.name));
        let body = match (&operation.body, &self.body) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(_), Some((kind, text))) => {
                let value = serde_json::from_str(text);
                kind == "application/json" && value.is_ok_and(|value| operation.allows("body", &value))
            }
        };
        let query = !operation.path.starts_with("/v1") || self.query_is_valid(document, operation);
        name && body && query
    }

    fn query_is_valid(&self, document: &Document, operation: &Operation) -> bool {
        self.query.split('&').filter(|pair| !pair.is_empty()).all(|pair| {
            let (key, text) = pair.split_once('=').unwrap_or((pair, ""));
            let Some((_, schema, _)) = operation.query.iter().find(|(name, ..)| name == key) else { return false };
            let is_integer = types(document.resolve(schema)).contains(&"integer");
            let value =
                if is_integer { text.parse::<u64>().map_or(json!(text), |number| json!(number)) } else { json!(text) };
            operation.allows(&format!("query {key}"), &value)
        })
    }
}

pub fn request(document: &Document, operation: &Operation) -> BoxedStrategy<Request> {
    let plain = plain(document, operation);
    let changed = (plain.clone(), change()).prop_map(|(request, change)| change.apply(request));
    prop_oneof![1 => plain, 2 => changed].boxed()
}

fn plain(document: &Document, operation: &Operation) -> BoxedStrategy<Request> {
    // Few names and holders, so that requests conflict.
    let name = select(vec!["a", "b", "job:1"]).prop_map(str::to_owned);
    let body = match &operation.body {
        None => Just(None).boxed(),
        Some(schema) => valid(document, schema, "").prop_map(|body| Some((JSON.to_owned(), body.to_string()))).boxed(),
    };
    let pairs: Vec<BoxedStrategy<Option<String>>> =
        operation.query.iter().map(|(name, schema, _)| pair(document, name, schema)).collect();
    let query = pairs.prop_map(|pairs| pairs.into_iter().flatten().collect::<Vec<String>>().join("&"));
    (name, query, body)
        .prop_map(|(name, query, body)| Request { name, query, body, method: None, is_plain: true })
        .boxed()
}

const JSON: &str = "application/json";

fn pair(document: &Document, name: &str, schema: &Value) -> BoxedStrategy<Option<String>> {
    let key = name.to_owned();
    // The schemas do not describe the form of these parameters.
    let value = match name {
        "cursor" => Just(json!("a~7")).boxed(),
        "after" => select(vec![json!("0"), json!("1.0"), json!("99999")]).boxed(),
        "state" => select(vec![json!("active,renewed"), json!("released"), json!("")]).boxed(),
        _ => valid(document, schema, name),
    };
    let text = value.prop_map(move |value| match value {
        Value::String(text) => format!("{key}={text}"),
        Value::Null => key.clone() + "=",
        other => format!("{key}={other}"),
    });
    prop::option::of(text).boxed()
}

fn types(schema: &Value) -> Vec<&str> {
    match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(many) => many.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

/// A value that the schema allows.
fn valid(document: &Document, schema: &Value, key: &str) -> BoxedStrategy<Value> {
    let schema = document.resolve(schema);
    if let Some(values) = schema["enum"].as_array() {
        return select(values.clone()).boxed();
    }
    if let Some(ways) = schema["oneOf"].as_array() {
        let ways: Vec<BoxedStrategy<Value>> = ways.iter().map(|way| valid(document, way, key)).collect();
        return proptest::strategy::Union::new(ways).boxed();
    }
    let mut kinds = types(schema).into_iter().filter(|kind| *kind != "null");
    match kinds.next_back().unwrap_or_else(|| panic!("the schema of {key} has no type: {schema}")) {
        "string" => text(schema, key),
        "integer" => {
            let least = schema["minimum"].as_f64().unwrap_or(0.0) as u64;
            let most = schema["maximum"].as_f64().map_or(1_000, |most| most as u64);
            let most = if key == "wait_ms" { MAX_WAIT_MS } else { most };
            (least..=most).prop_map(Value::from).boxed()
        }
        "boolean" => any::<bool>().prop_map(Value::from).boxed(),
        "array" => {
            let items = prop::collection::vec(valid(document, &schema["items"], key), 0..4);
            items.prop_map(Value::from).boxed()
        }
        "object" => object(document, schema),
        other => panic!("the type {other} of {key} is not supported here"),
    }
}

fn text(schema: &Value, key: &str) -> BoxedStrategy<Value> {
    let words = match key {
        "token" => vec!["1", "281474976710657", "00000000000000000007", "9223372036854775807"],
        _ if schema.get("pattern").is_some() || schema.get("minLength").is_some() => vec!["a", "b", "x-1"],
        _ => vec!["", "a", "b", "it.hangs"],
    };
    select(words).prop_map(Value::from).boxed()
}

fn object(document: &Document, schema: &Value) -> BoxedStrategy<Value> {
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = schema["properties"].as_object().cloned().unwrap_or_default();
    let properties: Vec<BoxedStrategy<Option<(String, Value)>>> = properties
        .iter()
        .map(|(key, schema)| {
            let (name, is_required) = (key.clone(), required.contains(&key.as_str()));
            let value = valid(document, schema, key).prop_map(move |value| (name.clone(), value));
            if is_required { value.prop_map(Some).boxed() } else { prop::option::of(value).boxed() }
        })
        .collect();
    let others = match schema["additionalProperties"].is_object() {
        true => prop::collection::btree_map("[a-z]{1,4}", "[a-z]{0,4}", 0..3).boxed(),
        false => Just(Default::default()).boxed(),
    };
    let object = (properties, others).prop_map(|(properties, others)| {
        let others = others.into_iter().map(|(key, value)| (key, Value::from(value)));
        Value::Object(properties.into_iter().flatten().chain(others).collect::<Map<String, Value>>())
    });
    object.boxed()
}

/// A change of a valid request.
#[derive(Clone, Debug)]
enum Change {
    Name(String),
    Method(&'static str),
    ContentType(&'static str),
    /// Replaces the whole body.
    Body(String),
    /// Replaces one field of the body, by its index.
    Field(usize, Value),
    NoField(usize),
    NewField(Value),
    Query(String),
}

fn change() -> impl Strategy<Value = Change> {
    let names = ["", "-", "a b", "a/b", "ä", "%00", "~", "%2e%2e%2f", "{name}", "a%20"].map(str::to_owned);
    let names = select(names.to_vec()).with_long_names();
    let queries = ["colour=red", "limit=0", "limit=1001", "limit=-1", "limit=99999999999999999999", "limit=1&limit=2"];
    let more =
        ["consistency=maybe", "cursor=%00", "after=1.2.3", "after=-1", "state=gone", "holder=", "prefix=%ff", "=&="];
    prop_oneof![
        names.prop_map(Change::Name),
        select(vec!["PUT", "PATCH", "POST", "GET", "DELETE", "OPTIONS"]).prop_map(Change::Method),
        select(vec!["text/plain", "", "application/jsonx", "multipart/form-data"]).prop_map(Change::ContentType),
        select(vec![
            "",
            "{",
            "[]",
            "null",
            "{\"holder\":\"a\"} {}",
            "{\"holder\":\"a\",\"holder\":\"b\"}",
            "\u{feff}{}"
        ])
        .prop_map(|text| Change::Body(text.to_owned())),
        (0usize..6, wrong_value()).prop_map(|(at, value)| Change::Field(at, value)),
        (0usize..6).prop_map(Change::NoField),
        wrong_value().prop_map(Change::NewField),
        select([queries.as_slice(), more.as_slice()].concat()).prop_map(|query| Change::Query(query.to_owned())),
    ]
}

/// Adds names above the length bound to a strategy.
trait WithLongNames: Strategy<Value = String> + Sized + 'static {
    fn with_long_names(self) -> BoxedStrategy<String> {
        prop_oneof![8 => self, 1 => Just("x".repeat(201)), 1 => Just("x".repeat(5_000))].boxed()
    }
}

impl<S: Strategy<Value = String> + 'static> WithLongNames for S {}

fn wrong_value() -> impl Strategy<Value = Value> {
    let deep = (0..100).fold(json!(0), |inner, _| json!([inner]));
    let large: Map<String, Value> = (0..40).map(|key| (key.to_string(), json!("v"))).collect();
    select(vec![
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(1.5),
        json!(1e300),
        json!(u64::MAX),
        json!(86_400_001),
        json!(""),
        json!("\u{0}"),
        json!("Ünïcödé \u{1f600}"),
        json!("x".repeat(201)),
        json!("99999999999999999999"),
        json!([]),
        json!({}),
        json!({"a": 1}),
        Value::Object(large),
        deep,
    ])
}

impl Change {
    fn apply(self, mut request: Request) -> Request {
        request.is_plain = false;
        match self {
            Change::Name(name) => request.name = name,
            Change::Method(method) => request.method = Some(method.to_owned()),
            Change::ContentType(kind) => request.body = request.body.map(|(_, text)| (kind.to_owned(), text)),
            Change::Body(text) => request.body = request.body.map(|(kind, _)| (kind, text)),
            Change::Query(query) => request.query = query,
            Change::Field(at, value) => change_field(&mut request, at, Some(value)),
            Change::NoField(at) => change_field(&mut request, at, None),
            Change::NewField(value) => {
                if let Some((_, text)) = &mut request.body {
                    let mut body: Value = serde_json::from_str(text).expect("the body is JSON");
                    body["of_no_meaning"] = value;
                    *text = body.to_string();
                }
            }
        }
        request
    }
}

fn change_field(request: &mut Request, at: usize, value: Option<Value>) {
    let Some((_, text)) = &mut request.body else { return };
    let mut body: Value = serde_json::from_str(text).expect("the body is JSON");
    let fields = body.as_object_mut().expect("every body is an object");
    let Some(key) = fields.keys().nth(at % fields.len().max(1)).cloned() else { return };
    match value {
        Some(value) => drop(fields.insert(key, value)),
        None => drop(fields.remove(&key)),
    }
    *text = body.to_string();
}
