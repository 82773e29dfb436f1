//! Extractors for the path, the query, the body and the headers of a request. A parse error names the invalid part.
//!
//! Each body has a limit in bytes and in time; all bodies together share the node's memory budget. A body takes memory
//! from the budget when bytes arrive, not when `Content-Length` announces them. Claims have their own share of the
//! budget, so they cannot take memory from renewals and releases.

use std::sync::Arc;

use axum::body::{Body as HttpBody, Bytes, HttpBody as _};
use axum::extract::{FromRequest, FromRequestParts, OriginalUri, Path, Query, Request};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use axum::http::request::Parts;
use axum::http::{HeaderName, Uri};
use http_body_util::BodyExt;
use metrics::{Counter, counter};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Duration, timeout};

use super::admission::RequestPermit;
use super::app::App;
use super::auth::{Credentials, Peer};
use super::response::ProblemResponse;
use super::socket::Client;
use crate::api::{self, Code, MAX_BODY_BYTES, MAX_LEASE_BODY_BYTES, NO_FORWARD_HEADER, Object};
use crate::node::{self, Forward};
use crate::types::LeaseName;

/// The first bytes of each body are not counted against the budget; the connection limit bounds them. Ordinary
/// renewals, releases and claims need no more bytes, so large bodies cannot block them.
const UNCOUNTED_BYTES: usize = 1024;
/// Claims get one part in this many of the budget. Renewals, releases and handovers get the rest.
const CLAIM_BUDGET_DIVISOR: usize = 4;
/// Longest body of a request without fields.
const MAX_EMPTY_OBJECT_BYTES: usize = 64;
/// How long the node reads the rest of a rejected body before it responds.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

/// The `{name}` of a path.
pub(super) struct Name(pub LeaseName);

/// Deserialized by field name: a path prefix of the mounting application may have parameters, too.
#[derive(Deserialize)]
struct NameParam {
    name: String,
}

impl FromRequestParts<App> for Name {
    type Rejection = ProblemResponse;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Name, ProblemResponse> {
        let path = Path::<NameParam>::from_request_parts(parts, app).await;
        let Path(NameParam { name }) = path.map_err(|error| ProblemResponse::invalid(format!("path: {error}")))?;
        LeaseName::new(name).map(Name).map_err(|error| ProblemResponse::invalid(error.to_string()))
    }
}

/// The parsed query. Types with `deny_unknown_fields` reject unknown parameters.
pub(super) struct Params<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<App> for Params<T> {
    type Rejection = ProblemResponse;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Params<T>, ProblemResponse> {
        let Query(params) =
            Query::try_from_uri(&parts.uri).map_err(|error| ProblemResponse::invalid(format!("query: {error}")))?;
        Ok(Params(params))
    }
}

/// Rejects each query parameter. Handlers without parameters extract it; with a body, [`receive`] does the same.
pub(super) struct NoParams;

impl FromRequestParts<App> for NoParams {
    type Rejection = ProblemResponse;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<NoParams, ProblemResponse> {
        reject_params(&parts.uri).map(|()| NoParams)
    }
}

fn reject_params(uri: &Uri) -> Result<(), ProblemResponse> {
    let first = uri.query().and_then(|query| query.split('&').find(|pair| !pair.is_empty()));
    let name = first.map(|pair| pair.split_once('=').map_or(pair, |(name, _)| name));
    name.map_or(Ok(()), |name| {
        Err(ProblemResponse::invalid(format!("query: unknown parameter {name:?}; this request has no parameters")))
    })
}

/// A type that a request may send as its body.
pub(super) trait JsonBody: DeserializeOwned {
    const MAX_BYTES: usize = MAX_LEASE_BODY_BYTES;
    const IS_CLAIM: bool = false;
}

impl JsonBody for api::Acquire {
    const IS_CLAIM: bool = true;
}

impl JsonBody for api::UpdateMetadata {
    const IS_CLAIM: bool = true;
}

impl JsonBody for api::Renew {}
impl JsonBody for api::Release {}
impl JsonBody for api::HandOver {}

impl JsonBody for api::RenewBatch {
    const MAX_BYTES: usize = MAX_BODY_BYTES;
}

/// The memory budget for all request bodies, in bytes.
pub(super) struct BodyBudget {
    claims: Arc<Semaphore>,
    urgent: Arc<Semaphore>,
    refused: Counter,
}

/// The share of the budget that a body holds until drop.
#[derive(Debug, Default)]
pub(super) struct BudgetPermit(Option<OwnedSemaphorePermit>);

/// A parsed JSON body, and its share of the budget.
pub(super) struct Body<T>(pub T, pub BudgetPermit);

/// A parsed JSON body, and the permit of its request.
///
/// If no permit is free, the node rejects the request, and drops its body. It takes the permit when the body is
/// complete, so a slow sender holds none, and parses the body only then, because parsing costs CPU time.
pub(super) struct Admitted<T> {
    pub body: T,
    pub permit: RequestPermit,
    pub budget: BudgetPermit,
}

/// The bytes of a body so far.
#[derive(Debug, Default)]
struct Received {
    bytes: Vec<u8>,
    permit: BudgetPermit,
}

/// Why a body was not received completely.
#[derive(Debug)]
enum ReceiveError {
    TooLarge,
    NoBudget,
    Broken(axum::Error),
}

impl BodyBudget {
    pub fn new(mebibytes: usize) -> BodyBudget {
        let bytes = mebibytes << 20;
        let claims = bytes / CLAIM_BUDGET_DIVISOR;
        BodyBudget {
            claims: Arc::new(Semaphore::new(claims)),
            urgent: Arc::new(Semaphore::new(bytes - claims)),
            refused: counter!("tenure_refused_total", "reason" => "bodies"),
        }
    }

    fn share<T: JsonBody>(&self) -> &Arc<Semaphore> {
        if T::IS_CLAIM { &self.claims } else { &self.urgent }
    }

    fn reject(&self) -> ProblemResponse {
        self.refused.increment(1);
        ProblemResponse::new(
            Code::TooBusy,
            "other request bodies use the node's whole memory budget for bodies; retry later",
        )
    }
}

impl Received {
    /// Appends a chunk, and takes its memory from `share`.
    fn add(&mut self, chunk: &[u8], max: usize, share: &Arc<Semaphore>) -> Result<(), ReceiveError> {
        let needed = self.bytes.len() + chunk.len();
        if needed > max {
            return Err(ReceiveError::TooLarge);
        }
        if needed > self.bytes.capacity() {
            let capacity = needed.max(2 * self.bytes.capacity()).clamp(UNCOUNTED_BYTES, max);
            let more = capacity - self.bytes.capacity().max(UNCOUNTED_BYTES);
            self.permit.add(share.clone().try_acquire_many_owned(more as u32).map_err(|_| ReceiveError::NoBudget)?);
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        self.bytes.extend_from_slice(chunk);
        Ok(())
    }

    fn parse<T: JsonBody>(self) -> Result<Body<T>, ProblemResponse> {
        let Received { bytes, permit } = self;
        match serde_json::from_slice(&bytes) {
            Ok(Object(value)) => Ok(Body(value, permit)),
            Err(error) => Err(ProblemResponse::invalid(format!("body: {}", explain::<T>(&bytes, &error)))),
        }
    }
}

impl BudgetPermit {
    fn add(&mut self, permit: OwnedSemaphorePermit) {
        match &mut self.0 {
            Some(earlier) => earlier.merge(permit),
            None => self.0 = Some(permit),
        }
    }
}

impl<T: JsonBody> FromRequest<App> for Body<T> {
    type Rejection = ProblemResponse;

    async fn from_request(request: Request, app: &App) -> Result<Body<T>, ProblemResponse> {
        receive::<T>(request, app).await?.parse()
    }
}

impl<T: JsonBody> FromRequest<App> for Admitted<T> {
    type Rejection = ProblemResponse;

    async fn from_request(request: Request, app: &App) -> Result<Admitted<T>, ProblemResponse> {
        if let Err(problem) = app.admission.check_capacity() {
            let (head, body) = request.into_parts();
            return Err(refuse(&head, body, problem).await);
        }
        let received = receive::<T>(request, app).await?;
        let permit = app.admission.admit().await?;
        let Body(body, budget) = received.parse()?;
        Ok(Admitted { body, permit, budget })
    }
}

/// The parse error with the path of its field. A second parse finds the path; the first one does not track it.
fn explain<T: JsonBody>(bytes: &[u8], error: &serde_json::Error) -> String {
    let read: Result<Object<T>, _> = serde_path_to_error::deserialize(&mut serde_json::Deserializer::from_slice(bytes));
    let path = read.err().map(|error| error.path().to_string()).filter(|path| path != ".");
    let message = in_json_terms(&error.to_string());
    path.map_or(message.clone(), |path| format!("{path}: {message}"))
}

/// Replaces the type names of serde by those of JSON.
fn in_json_terms(text: &str) -> String {
    const WORDS: [(&str, &str); 5] = [
        ("invalid type: sequence,", "invalid type: array,"),
        ("invalid type: map,", "invalid type: object,"),
        ("expected a sequence", "expected an array"),
        ("expected a map", "expected an object"),
        (": floating point `", ": number `"),
    ];
    WORDS.iter().fold(text.to_owned(), |text, (word, json)| text.replacen(word, json, 1))
}

fn is_json(content_type: &[u8]) -> bool {
    let essence = content_type.split(|byte| *byte == b';').next().unwrap_or_default();
    essence.trim_ascii().eq_ignore_ascii_case(b"application/json")
}

async fn receive<T: JsonBody>(request: Request, app: &App) -> Result<Received, ProblemResponse> {
    let (head, mut body) = request.into_parts();
    if let Err(problem) = reject_params(&head.uri) {
        return Err(refuse(&head, body, problem).await);
    }
    let is_json = head.headers.get(CONTENT_TYPE).is_some_and(|kind| is_json(kind.as_bytes()));
    if !is_json {
        // Browsers send other content types across origins without a CORS preflight, so a web page could reach a local
        // node.
        let problem =
            ProblemResponse::new(Code::UnsupportedMediaType, "send the header content-type: application/json");
        return Err(refuse(&head, body, problem).await);
    }
    let announced = head.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > T::MAX_BYTES as u64) {
        return Err(refuse(&head, body, too_large(T::MAX_BYTES)).await);
    }
    let (limit, budget) = (app.settings.body_timeout, &app.admission.bodies);
    match timeout(limit, read(&mut body, T::MAX_BYTES, budget.share::<T>())).await {
        Ok(Ok(received)) => Ok(received),
        Ok(Err(ReceiveError::TooLarge)) => Err(discard(body, too_large(T::MAX_BYTES)).await),
        Ok(Err(ReceiveError::NoBudget)) => Err(discard(body, budget.reject()).await),
        Ok(Err(ReceiveError::Broken(error))) => Err(broken(&error)),
        Err(_) => Err(incomplete(limit)),
    }
}

async fn read(body: &mut HttpBody, max: usize, share: &Arc<Semaphore>) -> Result<Received, ReceiveError> {
    let mut received = Received::default();
    while let Some(frame) = body.frame().await {
        let chunk: Option<Bytes> = frame.map_err(ReceiveError::Broken)?.into_data().ok();
        received.add(&chunk.unwrap_or_default(), max, share)?;
    }
    Ok(received)
}

/// Rejects a request with fields in a body that its handler does not read. Clients may send `{}`.
pub(super) async fn without_fields(request: Request, limit: Duration) -> Result<Request, ProblemResponse> {
    let unread = || ProblemResponse::invalid("body: this request has no fields; its parameters belong in the query");
    let (head, mut body) = request.into_parts();
    if body.size_hint().lower() > MAX_EMPTY_OBJECT_BYTES as u64 {
        return Err(refuse(&head, body, unread()).await);
    }
    match timeout(limit, has_fields(&mut body)).await {
        Ok(Ok(false)) => Ok(Request::from_parts(head, HttpBody::empty())),
        Ok(Ok(true)) => Err(discard(body, unread()).await),
        Ok(Err(error)) => Err(broken(&error)),
        Err(_) => Err(incomplete(limit)),
    }
}

async fn has_fields(body: &mut HttpBody) -> Result<bool, axum::Error> {
    let mut text: Vec<u8> = Vec::new();
    while let Some(frame) = body.frame().await {
        text.extend_from_slice(&frame?.into_data().unwrap_or_default());
        if text.len() > MAX_EMPTY_OBJECT_BYTES {
            return Ok(true);
        }
    }
    let text = text.trim_ascii();
    let inner = text.strip_prefix(b"{").and_then(|rest| rest.strip_suffix(b"}"));
    Ok(!inner.unwrap_or(text).trim_ascii().is_empty())
}

fn broken(error: &axum::Error) -> ProblemResponse {
    ProblemResponse::invalid(format!("body: {error}"))
}

fn incomplete(limit: Duration) -> ProblemResponse {
    ProblemResponse::new(Code::BodyTimeout, format!("the body was not complete after {limit:?}"))
}

/// Rejects a request whose body is unread. With `Expect: 100-continue`, an answer at once prevents the upload.
async fn refuse(head: &Parts, body: HttpBody, problem: ProblemResponse) -> ProblemResponse {
    if head.headers.contains_key(EXPECT) { problem } else { discard(body, problem).await }
}

/// Reads and drops the rest of a rejected body before the response. After an earlier response, a client that still
/// sends may see a connection reset instead of the response.
async fn discard(mut body: HttpBody, problem: ProblemResponse) -> ProblemResponse {
    let sent = async { while let Some(Ok(_)) = body.frame().await {} };
    let _ = timeout(DISCARD_TIMEOUT, sent).await;
    problem
}

fn too_large(max: usize) -> ProblemResponse {
    ProblemResponse::new(Code::TooLarge, format!("the body is too large: this request allows at most {max} bytes"))
}

/// Whether this node may forward the request to the leader.
pub(super) struct Routing {
    forward: Forward,
    /// The path and query of the redirect to the leader. Empty if this node may forward.
    path_and_query: String,
    credentials: Credentials,
    client: Client,
}

impl FromRequestParts<App> for Routing {
    type Rejection = ProblemResponse;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Routing, ProblemResponse> {
        const NO_FORWARD: HeaderName = HeaderName::from_static(NO_FORWARD_HEADER);
        let credentials = Credentials::from_request_parts(parts, app).await?;
        let client = parts.extensions.get::<Arc<Peer>>().map(|peer| peer.client.clone()).unwrap_or_default();
        if !parts.headers.contains_key(NO_FORWARD) {
            return Ok(Routing { forward: Forward::Once, path_and_query: String::new(), credentials, client });
        }
        // `OriginalUri` includes the prefix that this router is mounted under. The leader uses the same prefix.
        let uri = parts.extensions.get::<OriginalUri>().map_or(&parts.uri, |OriginalUri(uri)| uri);
        let path_and_query = uri.path_and_query().map(ToString::to_string).unwrap_or_default();
        Ok(Routing { forward: Forward::Never, path_and_query, credentials, client })
    }
}

impl Routing {
    /// Waits until the client has left.
    pub async fn client_left(&self) {
        self.client.left().await;
    }

    /// Sends a request to the node, and adds the leader's address to a `not_leader` problem.
    pub async fn send(&self, app: &App, request: node::Request) -> Result<node::Response, ProblemResponse> {
        let node = app.node()?;
        let audited = self.credentials.audited(&node, &request);
        let unanswered = self.credentials.audit_if_dropped(app, &node, &audited);
        let response = node.request_of(&self.credentials.caller, request, self.forward).await;
        let response = response.map_err(|error| self.credentials.hide_leader(&node, error));
        unanswered.answered();
        self.credentials.audit(app, &node, &audited, response.as_ref().map(Some));
        response.map_err(|error| {
            self.credentials.count_failure(app, &error);
            ProblemResponse::from(error).redirect_to(&self.path_and_query)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_json_accepts_only_application_json() {
        for good in ["application/json", "Application/JSON; charset=utf-8", " application/json ;x=y"] {
            assert!(is_json(good.as_bytes()), "{good}");
        }
        for bad in ["", "text/plain", "application/jsonx", "application/x-www-form-urlencoded"] {
            assert!(!is_json(bad.as_bytes()), "{bad}");
        }
    }

    #[test]
    fn parse_error_names_the_field_in_json_terms() {
        fn message<T: JsonBody>(json: &str) -> String {
            let error = serde_json::from_str::<Object<T>>(json).err().expect("the JSON is invalid");
            explain::<T>(json.as_bytes(), &error)
        }
        for (json, expected) in [
            (r#"["x",5000,0,0,1,{}]"#, "invalid type: array, expected an object"),
            (r#"7"#, "invalid type: integer `7`, expected an object"),
            (r#"{"holder":["x"]}"#, "holder: invalid type: array, expected a string"),
            (r#"{"holder":"h","ttl":1}"#, "ttl: unknown field `ttl`"),
            (r#"{"holder":"h","limit":1.5}"#, "limit: invalid value: number `1.5`, expected an integer from 0 to"),
            (r#"{"holder":"h","metadata":{"a":1}}"#, "metadata.a: invalid type: integer `1`, expected a string"),
            (r#"{"holder":"h","metadata":[]}"#, "metadata: invalid type: array, expected an object"),
        ] {
            let message = message::<api::Acquire>(json);
            assert!(message.starts_with(expected) && !message.contains("struct"), "{json}: {message}");
        }
        let item = message::<api::RenewBatch>(r#"{"holder":"h","leases":[{"name":"a","token":"1"},["b","2"]]}"#);
        assert!(item.starts_with("leases[1]: invalid type: array, expected an object"), "{item}");
    }

    #[test]
    fn body_holds_budget_for_received_bytes() {
        let budget = BodyBudget::new(4);
        let share = budget.share::<api::RenewBatch>();
        assert_eq!(share.available_permits(), 3 << 20);
        let mut received = Received::default();
        received.add(&[b' '; UNCOUNTED_BYTES], MAX_BODY_BYTES, share).expect("the first bytes are not counted");
        assert_eq!(share.available_permits(), 3 << 20);
        for _ in 0..1024 {
            received.add(&[b' '; 1024], MAX_BODY_BYTES, share).expect("the budget is sufficient");
            let taken = (3 << 20) - share.available_permits();
            assert_eq!(taken, received.bytes.capacity() - UNCOUNTED_BYTES);
        }
        assert!(matches!(received.add(&[b' '; MAX_BODY_BYTES], MAX_BODY_BYTES, share), Err(ReceiveError::TooLarge)));
        let mut second = Received::default();
        assert!(matches!(second.add(&[b' '; MAX_BODY_BYTES], MAX_BODY_BYTES, share), Err(ReceiveError::NoBudget)));
        second.add(&[b' '; UNCOUNTED_BYTES], MAX_BODY_BYTES, share).expect("a small body gets in");
        assert_eq!(budget.share::<api::Acquire>().available_permits(), 1 << 20, "claims have a separate share");
        drop(received);
        assert_eq!(share.available_permits(), 3 << 20);
    }

    #[test]
    fn budget_is_exact_to_the_byte() {
        let budget = BodyBudget::new(4);
        let taken = |share: &Arc<Semaphore>, bytes: usize, max: usize| {
            let mut received = Received::default();
            received.add(&vec![b' '; bytes], max, share).map(|()| received)
        };
        let share = budget.share::<api::RenewBatch>();
        let large = taken(share, MAX_BODY_BYTES, MAX_BODY_BYTES).expect("the budget is sufficient");
        let left = (3 << 20) - (MAX_BODY_BYTES - UNCOUNTED_BYTES);
        assert_eq!(share.available_permits(), left);
        let above = taken(share, UNCOUNTED_BYTES + left + 1, MAX_BODY_BYTES);
        assert!(matches!(above, Err(ReceiveError::NoBudget)), "one byte more");
        let rest = taken(share, UNCOUNTED_BYTES + left, MAX_BODY_BYTES).expect("the rest is exactly enough");
        assert_eq!(share.available_permits(), 0);
        assert!(matches!(taken(share, UNCOUNTED_BYTES + 1, MAX_BODY_BYTES), Err(ReceiveError::NoBudget)));
        drop((large, rest));

        let share = budget.share::<api::Acquire>();
        let claims: Vec<Received> =
            std::iter::from_fn(|| taken(share, MAX_LEASE_BODY_BYTES, MAX_LEASE_BODY_BYTES).ok()).collect();
        let left = (1 << 20) - claims.len() * (MAX_LEASE_BODY_BYTES - UNCOUNTED_BYTES);
        assert_eq!((claims.len(), share.available_permits()), (33, left));
        let above = taken(share, UNCOUNTED_BYTES + left + 1, MAX_LEASE_BODY_BYTES);
        assert!(matches!(above, Err(ReceiveError::NoBudget)), "one byte more");
        assert!(taken(share, UNCOUNTED_BYTES + left, MAX_LEASE_BODY_BYTES).is_ok(), "the rest is exactly enough");
    }

    /// The client sends a part of its body, and then nothing more.
    #[cfg(feature = "testing")]
    #[tokio::test(start_paused = true)]
    async fn client_that_stops_sending_is_answered_in_time() {
        use futures_util::{StreamExt, stream};
        use tokio::time::Instant;
        use tokio_util::sync::CancellationToken;
        use tower::Service;

        use crate::http::{NodeRef, Settings, routes};

        const NOT_ANNOUNCED: &str = "";
        const LARGE: &str = "2097153";
        let mut settings = Settings::new(1);
        settings.limits.body_budget_mib = 4;
        let body_timeout = settings.body_timeout;
        let mut router = routes::standalone_router(App::new(NodeRef::empty(), settings, CancellationToken::new()));
        let mut send = |announced: &str, expects: bool, bytes: usize| {
            let part = stream::iter([Ok::<Bytes, std::io::Error>(vec![b' '; bytes].into())]);
            let body = HttpBody::from_stream(part.chain(stream::pending()));
            let mut request = axum::http::Request::post("/v1/renew").header(CONTENT_TYPE, "application/json");
            if announced != NOT_ANNOUNCED {
                request = request.header(CONTENT_LENGTH, announced);
            }
            if expects {
                request = request.header(EXPECT, "100-continue");
            }
            router.call(request.body(body).expect("a valid request"))
        };
        assert_eq!(LARGE, (MAX_BODY_BYTES + 1).to_string());
        for (announced, expects, bytes, status, after) in [
            (LARGE, false, 0, 413, DISCARD_TIMEOUT),
            (LARGE, true, 0, 413, Duration::ZERO),
            (NOT_ANNOUNCED, false, MAX_BODY_BYTES + 1, 413, DISCARD_TIMEOUT),
            ("2", false, 1, 408, body_timeout),
        ] {
            let began = Instant::now();
            let answer = timeout(2 * body_timeout, send(announced, expects, bytes)).await;
            let Ok(answer) = answer.unwrap_or_else(|_| panic!("{announced:?}, {bytes} sent: there is no answer"));
            assert_eq!((answer.status().as_u16(), began.elapsed()), (status, after), "{announced:?}, {bytes} sent");
        }
        let first = tokio::spawn(send(NOT_ANNOUNCED, false, MAX_BODY_BYTES));
        tokio::task::yield_now().await;
        let began = Instant::now();
        let Ok(answer) = send(NOT_ANNOUNCED, false, MAX_BODY_BYTES).await;
        assert_eq!((answer.status().as_u16(), began.elapsed()), (429, DISCARD_TIMEOUT), "the budget has no room");
        first.abort();
    }

    #[test]
    fn largest_claim_fits_with_every_character_escaped() {
        let escaped = |text: &str| text.chars().map(|c| format!("\\u{:04x}", c as u32)).collect::<String>();
        let keys = (0..32).map(|key| format!("{key:02}{}", "k".repeat(62)));
        let entries = keys.map(|key| format!("\"{}\": \"{}\"", escaped(&key), escaped(&"v".repeat(64))));
        let metadata = entries.collect::<Vec<String>>().join(", ");
        let numbers = r#""ttl_ms": 86400000, "wait_ms": 86400000, "lock_delay_ms": 86400000, "limit": 10000"#;
        let body = format!(r#"{{"holder": "{}", {numbers}, "metadata": {{{metadata}}}}}"#, escaped(&"h".repeat(200)));
        assert!(serde_json::from_str::<api::Acquire>(&body).is_ok());
        assert!(body.len() <= MAX_LEASE_BODY_BYTES, "{}", body.len());
    }
}
