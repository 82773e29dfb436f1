//! Checks the server against `/openapi.json`: random valid and invalid requests, and the schema of each answer.
//!
//! `TENURE_REQUESTS` sets the number of requests per operation.

mod generate;
pub mod operation;

use std::time::Duration;

use proptest::test_runner::{Config, TestRunner};
use reqwest::{Method, Response, StatusCode, Url};
use serde_json::Value;
use tenure::api::{Code, Problem};

use crate::cluster::Cluster;
use generate::Request;
use operation::{Document, Operation};

/// Default number of requests per operation.
const DEFAULT_REQUESTS: u32 = 60;
/// Bound for the head of each answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A received answer.
struct Answer {
    status: StatusCode,
    content_type: String,
    retry_after: bool,
    body: Option<Value>,
}

#[test]
fn answers_match_the_openapi_document() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let cluster = runtime.block_on(Cluster::start_with(|settings| {
        settings.metrics = Some(std::sync::Arc::new(|| "up 1\n".to_owned()));
    }));
    let document = runtime.block_on(async { Document::new(cluster.get("/openapi.json").await.1) });
    let cases = std::env::var("TENURE_REQUESTS")
        .map_or(DEFAULT_REQUESTS, |text| text.parse().expect("TENURE_REQUESTS is a number"));
    let mut counts = AnswerCounts::default();
    for operation in document.operations() {
        let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(cases) });
        let shared_counts = std::cell::RefCell::new(&mut counts);
        let ran = runner.run(&generate::request(&document, &operation), |request| {
            let answer = runtime.block_on(send(&cluster, &operation, &request));
            check(&document, &operation, &request, &answer);
            shared_counts.borrow_mut().count(&answer, &request);
            Ok(())
        });
        ran.unwrap_or_else(|error| panic!("{} {}: {error}", operation.method, operation.path));
    }
    counts.assert_all_positive();
    runtime.block_on(cluster.end());
}

async fn send(cluster: &Cluster, operation: &Operation, request: &Request) -> Answer {
    let mut url = Url::parse(&cluster.url("/")).expect("a URL");
    // No member has this id. The files of the page are a fixed set.
    let path = operation.path.replace("{name}", &request.name).replace("{id}", "77").replace("{access}", &request.name);
    let path = path.replace("{file}", "main.js");
    url.set_path(&path);
    url.set_query(Some(&request.query).filter(|query| !query.is_empty()).map(String::as_str));
    let method = request.method.as_ref().unwrap_or(&operation.method);
    let mut builder = cluster.client.request(Method::from_bytes(method.as_bytes()).expect("a method"), url);
    if let Some((content_type, body)) = &request.body {
        builder = builder.header("content-type", content_type).body(body.clone());
    }
    let answered = async { read(builder.send().await.expect("an answer")).await };
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, answered).await;
    answer.unwrap_or_else(|_| panic!("no answer within {ANSWER_TIMEOUT:?} to {request:?}"))
}

async fn read(response: Response) -> Answer {
    assert_eq!(response.headers()["x-tenure-node"], "1");
    let (status, headers) = (response.status(), response.headers());
    let content_type = headers["content-type"].to_str().expect("text").to_owned();
    let retry_after = headers.contains_key("retry-after");
    // The body of a watch has no end.
    let body = if content_type.contains("json") { Some(response.json().await.expect("JSON")) } else { None };
    Answer { status, content_type, retry_after, body }
}

fn check(document: &Document, operation: &Operation, request: &Request, answer: &Answer) {
    let context = || format!("{} {} for {request:?}: {:?}", answer.status, answer.content_type, answer.body);
    let status = answer.status.as_u16();
    assert_ne!(status, 500, "{}", context());
    let problem = answer.body.as_ref().filter(|_| status >= 300).map(|body| {
        assert_eq!(answer.content_type, "application/problem+json", "{}", context());
        serde_json::from_value::<Problem>(body.clone()).expect("a problem")
    });
    if let Some(problem) = &problem {
        assert_eq!((problem.status, problem.code.status()), (status, status), "{}", context());
        assert!(problem.code != Code::Other && !problem.detail.is_empty(), "{}", context());
    }
    assert_eq!(problem.is_some(), status >= 300, "{}", context());
    assert_eq!(answer.retry_after, matches!(status, 429 | 503), "{}", context());
    if request.is_for_another_operation(operation) {
        // The test checks that operation separately, if it exists.
        assert!(matches!(status, 200 | 400 | 404 | 405 | 415), "{}", context());
        return;
    }
    operation.check_answer(document, status, &answer.content_type, answer.body.as_ref()).unwrap_or_else(|why| {
        panic!("{why}: {}", context());
    });
    match request.is_valid(document, operation) {
        true if request.is_plain => {
            assert!(!matches!(status, 400 | 404 | 405 | 413 | 415) || is_unknown(&problem), "{}", context());
        }
        true => {}
        false => assert!(
            matches!(status, 400 | 404 | 405 | 413 | 415),
            "the server accepts a request that the document forbids: {}",
            context()
        ),
    }
}

/// Whether the path exists, but not the lease, the member, the role, the principal or the token.
fn is_unknown(problem: &Option<Problem>) -> bool {
    let is_named = |detail: &str| {
        ["lease", "is not a member", "there is no principal", "there is no role", "there is no token"]
            .iter()
            .any(|part| detail.contains(part))
    };
    problem.as_ref().is_some_and(|problem| problem.code == Code::NotFound && is_named(&problem.detail))
}

/// Counts of answers by kind. Without one kind the requests prove too little.
#[derive(Debug, Default)]
struct AnswerCounts {
    succeeded: u32,
    refused: u32,
    conflicts: u32,
    wrong_methods: u32,
    wrong_types: u32,
}

impl AnswerCounts {
    fn count(&mut self, answer: &Answer, request: &Request) {
        match answer.status.as_u16() {
            200 if request.is_plain => self.succeeded += 1,
            400 => self.refused += 1,
            405 => self.wrong_methods += 1,
            409 => self.conflicts += 1,
            415 => self.wrong_types += 1,
            _ => {}
        }
    }

    fn assert_all_positive(&self) {
        eprintln!("{self:?}");
        let AnswerCounts { succeeded, refused, conflicts, wrong_methods, wrong_types } = *self;
        assert!([succeeded, refused, conflicts, wrong_methods, wrong_types].iter().all(|count| *count > 0), "{self:?}");
    }
}
