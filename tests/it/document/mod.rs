//! The server against its own description: requests made from `/openapi.json`, valid ones, broken ones and nonsense, and
//! every answer held against what the document says of it. `TENURE_REQUESTS` changes how many there are of each operation.

mod generate;
mod operation;

use std::time::Duration;

use proptest::test_runner::{Config, TestRunner};
use reqwest::{Method, Response, StatusCode, Url};
use serde_json::Value;
use tenure::api::{Code, Problem};

use crate::cluster::Cluster;
use generate::Request;
use operation::{Document, Operation};

/// Requests of each operation, unless `TENURE_REQUESTS` says another number.
const REQUESTS: u32 = 60;
/// Every answer's head is there after this long.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// An answer, read.
struct Answer {
    status: StatusCode,
    content_type: String,
    retry_after: bool,
    body: Option<Value>,
}

#[test]
fn every_answer_is_one_that_the_document_promises() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let cluster = runtime.block_on(Cluster::start_with(|settings| {
        settings.metrics = Some(std::sync::Arc::new(|| "up 1\n".to_owned()));
    }));
    let document = runtime.block_on(async { Document::new(cluster.get("/openapi.json").await.1) });
    let cases = std::env::var("TENURE_REQUESTS").map_or(REQUESTS, |text| text.parse().expect("a number"));
    let mut seen = Seen::default();
    for operation in document.operations() {
        let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(cases) });
        let counted = std::cell::RefCell::new(&mut seen);
        let ran = runner.run(&generate::request(&document, &operation), |request| {
            let answer = runtime.block_on(send(&cluster, &operation, &request));
            check(&document, &operation, &request, &answer);
            counted.borrow_mut().count(&answer, &request);
            Ok(())
        });
        ran.unwrap_or_else(|error| panic!("{} {}: {error}", operation.method, operation.path));
    }
    seen.must_be_of_every_kind();
    runtime.block_on(cluster.end());
}

async fn send(cluster: &Cluster, operation: &Operation, request: &Request) -> Answer {
    let mut url = Url::parse(&cluster.url("/")).expect("a URL");
    url.set_path(&operation.path.replace("{name}", &request.name));
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
    // A watch has no end.
    let body = if content_type.contains("json") { Some(response.json().await.expect("JSON")) } else { None };
    Answer { status, content_type, retry_after, body }
}

fn check(document: &Document, operation: &Operation, request: &Request, answer: &Answer) {
    let said = || format!("{} {} for {request:?}: {:?}", answer.status, answer.content_type, answer.body);
    let status = answer.status.as_u16();
    assert_ne!(status, 500, "{}", said());
    let problem = answer.body.as_ref().filter(|_| status >= 300).map(|body| {
        assert_eq!(answer.content_type, "application/problem+json", "{}", said());
        serde_json::from_value::<Problem>(body.clone()).expect("a problem")
    });
    if let Some(problem) = &problem {
        assert_eq!((problem.status, problem.code.status()), (status, status), "{}", said());
        assert!(problem.code != Code::Other && !problem.detail.is_empty(), "{}", said());
    }
    assert_eq!(problem.is_some(), status >= 300, "{}", said());
    assert_eq!(answer.retry_after, matches!(status, 429 | 503), "{}", said());
    if request.is_for_another_operation(operation) {
        // Which has its own turn, or there is none.
        assert!(matches!(status, 200 | 400 | 404 | 405 | 415), "{}", said());
        return;
    }
    operation.check_answer(document, status, &answer.content_type, answer.body.as_ref()).unwrap_or_else(|why| {
        panic!("{why}: {}", said());
    });
    match request.is_valid(document, operation) {
        true if request.is_plain => {
            assert!(!matches!(status, 400 | 404 | 405 | 413 | 415) || is_no_lease(&problem), "{}", said());
        }
        true => {}
        false => assert!(matches!(status, 400 | 404 | 405 | 413 | 415), "refused by the document only: {}", said()),
    }
}

/// The path is there, and the lease is not.
fn is_no_lease(problem: &Option<Problem>) -> bool {
    problem.as_ref().is_some_and(|problem| problem.code == Code::NotFound && problem.detail.contains("lease"))
}

/// That the requests were worth something.
#[derive(Debug, Default)]
struct Seen {
    done: u32,
    refused: u32,
    conflicts: u32,
    wrong_methods: u32,
    wrong_types: u32,
}

impl Seen {
    fn count(&mut self, answer: &Answer, request: &Request) {
        match answer.status.as_u16() {
            200 if request.is_plain => self.done += 1,
            400 => self.refused += 1,
            405 => self.wrong_methods += 1,
            409 => self.conflicts += 1,
            415 => self.wrong_types += 1,
            _ => {}
        }
    }

    fn must_be_of_every_kind(&self) {
        eprintln!("{self:?}");
        let Seen { done, refused, conflicts, wrong_methods, wrong_types } = *self;
        assert!([done, refused, conflicts, wrong_methods, wrong_types].iter().all(|count| *count > 0), "{self:?}");
    }
}
