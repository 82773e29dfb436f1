//! The operations of the OpenAPI document, with the schemas of their requests and answers.

use std::collections::BTreeMap;

use jsonschema::Validator;
use serde_json::{Value, json};

/// The OpenAPI document.
pub struct Document {
    json: Value,
}

pub struct Operation {
    pub method: String,
    pub path: String,
    /// Name and schema of each query parameter, and whether it is required.
    pub query: Vec<(String, Value, bool)>,
    pub name: Option<Value>,
    pub body: Option<Value>,
    validators: BTreeMap<String, Validator>,
    responses: Value,
}

impl Document {
    pub fn new(json: Value) -> Document {
        assert_eq!(json["openapi"], "3.1.0");
        Document { json }
    }

    pub fn operations(&self) -> Vec<Operation> {
        let paths = self.json["paths"].as_object().expect("the document has paths");
        let of_path = |(path, methods): (&String, &Value)| {
            let methods = methods.as_object().expect("a path has methods").clone();
            let path = path.clone();
            methods.into_iter().map(move |(method, described)| Operation::new(self, &method, &path, &described))
        };
        paths.iter().flat_map(of_path).collect()
    }

    /// Resolves a reference.
    pub fn resolve<'a>(&'a self, schema: &'a Value) -> &'a Value {
        match schema["$ref"].as_str() {
            None => schema,
            Some(reference) => {
                let pointer = reference.strip_prefix('#').expect("a reference into the document");
                self.json.pointer(pointer).unwrap_or_else(|| panic!("the document has no {reference}"))
            }
        }
    }

    fn validator(&self, schema: &Value) -> Validator {
        let mut whole = schema.clone();
        whole["components"] = self.json["components"].clone();
        jsonschema::options().with_draft(jsonschema::Draft::Draft202012).build(&whole).expect("a schema")
    }
}

impl Operation {
    fn new(document: &Document, method: &str, path: &str, described: &Value) -> Operation {
        let parameters: Vec<&Value> = described["parameters"].as_array().into_iter().flatten().collect();
        let of_kind = |kind: &'static str| parameters.iter().filter(move |parameter| parameter["in"] == kind);
        let query = of_kind("query").map(|parameter| {
            let name = parameter["name"].as_str().expect("a name").to_owned();
            (name, parameter["schema"].clone(), parameter["required"] == true)
        });
        let name = of_kind("path").map(|parameter| parameter["schema"].clone()).next();
        let body = described.pointer("/requestBody/content/application~1json/schema").cloned();
        let query: Vec<(String, Value, bool)> = query.collect();
        let mut validators = BTreeMap::new();
        for (at, schema) in [("body", &body), ("name", &name)] {
            validators.extend(schema.as_ref().map(|schema| (at.to_owned(), document.validator(schema))));
        }
        validators.extend(query.iter().map(|(name, schema, _)| (format!("query {name}"), document.validator(schema))));
        for (status, response) in described["responses"].as_object().expect("an operation has responses") {
            for (kind, content) in response["content"].as_object().into_iter().flatten() {
                validators.insert(format!("{status} {kind}"), document.validator(&content["schema"]));
            }
        }
        let (method, path, responses) = (method.to_uppercase(), path.to_owned(), described["responses"].clone());
        Operation { method, path, query, name, body, validators, responses }
    }

    /// Whether the document allows this value at a place: `name`, `body` or `query <key>`.
    pub fn allows(&self, at: &str, value: &Value) -> bool {
        self.validators.get(at).is_some_and(|validator| validator.is_valid(value))
    }

    /// Checks an answer against the document.
    ///
    /// # Errors
    ///
    /// The document has no such status or content type, or the body does not match its schema.
    pub fn check_answer(
        &self,
        document: &Document,
        status: u16,
        content_type: &str,
        body: Option<&Value>,
    ) -> Result<(), String> {
        let response =
            self.responses.get(status.to_string()).ok_or_else(|| format!("the document has no status {status}"))?;
        let response = document.resolve(response);
        let kind = content_type.split(';').next().unwrap_or_default();
        if response["content"].get(kind).is_none() {
            return Err(format!("the document has no content type {kind:?} for status {status}"));
        }
        let Some(body) = body else { return Ok(()) };
        let validator = &self.validators[&format!("{status} {kind}")];
        validator
            .validate(body)
            .map_err(|error| format!("the body does not match the schema: {error} at {}", error.instance_path()))
    }
}

/// Guards against a schema that allows each value.
#[test]
fn validator_rejects_a_wrong_answer() {
    let schema = json!({"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#/components/schemas/A"}}});
    let answer = json!({"content": {"application/json": {"schema": schema}}});
    let document = Document::new(json!({
        "openapi": "3.1.0",
        "paths": {"/p": {"get": {"responses": {"200": answer}}}},
        "components": {"schemas": {"A": {"type": "integer", "minimum": 1}}},
    }));
    let operation = &document.operations()[0];
    let wrong = |status, kind, body: Value| operation.check_answer(&document, status, kind, Some(&body)).is_err();
    assert!(!wrong(200, "application/json", json!({"a": 1})));
    assert!(wrong(200, "application/json", json!({"a": 0})));
    assert!(wrong(200, "application/json", json!({})));
    assert!(wrong(200, "text/plain", json!({"a": 1})));
    assert!(wrong(201, "application/json", json!({"a": 1})));
}
