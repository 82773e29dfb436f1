//! Routes of a lease service that names resources and holders instead of tokens: `/api/leases`.
//!
//! The leases are ordinary leases of the cluster below [`names::PREFIX`]. A handler finds the token of the holder with a
//! read at the leader, and sends the same requests as the routes below `/v1`. So the rights, the audit log, the
//! forwarding and the limits are the same.

mod names;
mod record;

use axum::extract::{Path, State};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::admission::RequestPermit;
use super::app::App;
use super::input::{Admitted, Body, JsonBody, NoParams, Params, Routing};
use super::reads::read_cursor;
use super::response::{self, ProblemResponse};
use crate::api::{self, Code, MAX_PAGE, TtlMs};
use crate::lease::{HolderLease, LeaseState, ListFilter, Outcome, StateFilter, Transition};
use crate::node::{Answer, Query, Request, Served};
use crate::service;
use crate::types::{Consistency, HolderId};
use record::ResourceRecord;

/// Reads of histories at the same time for one list.
const HISTORIES: usize = 16;
/// Bytes of resources and holders after which a page of a list ends.
const PAGE_BYTES: usize = 1 << 20;
/// Reads of up to 1,000 leases for one list.
const MAX_LIST_READS: usize = 32;
/// Leases after which a search of an id ends.
const MAX_SEARCHED: usize = 256_000;
/// The cursor of the next page of a list.
const CURSOR_HEADER: HeaderName = HeaderName::from_static("x-tenure-cursor");

/// The routes, without documentation in the OpenAPI document of the node.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(all, acquire))
        .routes(routes!(active))
        .routes(routes!(expired))
        .routes(routes!(renewed))
        .routes(routes!(released))
        .routes(routes!(renew))
        .routes(routes!(release))
        .routes(routes!(by_id, release_by_id))
}

/// The body of each change.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Claim {
    resource: String,
    holder: HolderId,
}

/// The body of an acquire, which has the limits of a claim.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
struct NewClaim(Claim);

impl JsonBody for Claim {}

impl JsonBody for NewClaim {
    const IS_CLAIM: bool = true;
}

/// The query of a list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PageParams {
    limit: Option<u32>,
    cursor: Option<String>,
}

/// The response of `GET /api/leases`.
#[derive(Debug, Serialize)]
struct ResourceStatus {
    /// `ready`: the node answers only while it reaches a leader.
    status: &'static str,
    leases: Vec<ResourceRecord>,
}

/// One request to the node at a time, with the state that its last answer reflects.
struct Calls<'a> {
    app: &'a App,
    routing: &'a Routing,
}

/// A lease, its transitions, and the state that they reflect.
struct FoundLease {
    record: ResourceRecord,
    /// Whether it is the last grant of its resource. The history may not have the transitions of earlier ones.
    is_last: bool,
    served: Served,
}

impl Calls<'_> {
    async fn read(&self, query: Query) -> Result<(Answer, Served), ProblemResponse> {
        let request = Request::Read { query, consistency: Consistency::Leader };
        let response = self.routing.send(self.app, request).await?;
        Ok((response.answer, response.served))
    }

    async fn record(&self, lease: HolderLease) -> Result<FoundLease, ProblemResponse> {
        self.record_at(lease, u64::MAX).await
    }

    /// The record at this log index, at which the lease was read.
    async fn record_at(&self, lease: HolderLease, index: u64) -> Result<FoundLease, ProblemResponse> {
        let (answer, served) = self.read(Query::History(lease.name.clone())).await?;
        let transitions: Vec<Transition> = match answer {
            Answer::History(transitions) => record::up_to(index, &lease, transitions),
            answer => return Err(ProblemResponse::from(service::unexpected(&answer)).served(served)),
        };
        let is_last = record::is_last(&lease, &transitions);
        Ok(FoundLease { record: ResourceRecord::of(&lease, &transitions), is_last, served })
    }

    /// The lease that the holder has now.
    async fn held(&self, claim: &Claim) -> Result<HolderLease, ProblemResponse> {
        let names::Mapped { name, .. } = names::of(&claim.resource)?;
        let (answer, served) = self.read(Query::Lease(name)).await?;
        let leases = match answer {
            Answer::Lease(leases) | Answer::List { leases, .. } => leases,
            answer => return Err(ProblemResponse::from(service::unexpected(&answer)).served(served)),
        };
        let is_held = |lease: &HolderLease| lease.state == LeaseState::Active && lease.holder == claim.holder;
        leases.into_iter().find(is_held).ok_or_else(|| not_held(claim).served(served))
    }

    async fn renew(&self, claim: &Claim) -> Result<Response, ProblemResponse> {
        let lease = self.held(claim).await?;
        let ttl = self.app.node()?.ttl();
        let body = api::Renew::new(lease.holder, lease.token).ttl(TtlMs::Millis(ttl.default_ms));
        let response = self.routing.send(self.app, service::renew(&ttl, lease.name, body)?).await?;
        let renewed = match response.answer {
            Answer::Outcome(Outcome::Renewed(results)) => results.into_iter().next(),
            answer => return Err(ProblemResponse::from(service::unexpected(&answer)).served(response.served)),
        };
        match renewed {
            Some(Ok(lease)) => self.answer(StatusCode::OK, lease).await,
            _ => Err(not_held(claim).served(response.served)),
        }
    }

    async fn release(&self, claim: &Claim, id: Option<u64>) -> Result<Response, ProblemResponse> {
        let lease = self.held(claim).await?;
        if let Some(id) = id {
            let FoundLease { record, served, .. } = self.record(lease.clone()).await?;
            if record.id != id {
                return Err(not_held(claim).served(served));
            }
        }
        let body = api::Release::new(lease.holder.clone(), lease.token);
        let response = self.routing.send(self.app, service::release(lease.name.clone(), body)).await?;
        if !service::released(response.answer)?.released {
            return Err(not_held(claim).served(response.served));
        }
        self.answer(StatusCode::OK, lease).await
    }

    /// The response to a change that was made.
    async fn answer(&self, status: StatusCode, lease: HolderLease) -> Result<Response, ProblemResponse> {
        let FoundLease { record, served, .. } = self.record(lease).await.map_err(after_the_change)?;
        Ok(stamped(status, &served, &record))
    }

    /// One page of leases in these states.
    async fn list(&self, params: PageParams, states: Vec<StateFilter>) -> Result<RecordPage, ProblemResponse> {
        let limit = params.limit.unwrap_or(MAX_PAGE);
        if !(1..=MAX_PAGE).contains(&limit) {
            return Err(ProblemResponse::invalid(format!("limit: {limit} is outside 1 to {MAX_PAGE}")));
        }
        let mut after = params.cursor.as_deref().map(read_cursor).transpose()?;
        let filter = ListFilter { prefix: names::PREFIX.to_owned(), holder: None, states };
        let mut leases: Vec<(HolderLease, u64)> = Vec::new();
        let mut bytes = 0;
        let mut reads = 0;
        let served = loop {
            let left = limit - leases.len() as u32;
            let (answer, served) = self.read(Query::List { filter: filter.clone(), after, limit: left }).await?;
            let Answer::List { leases: more, next } = answer else {
                return Err(ProblemResponse::from(service::unexpected(&answer)).served(served));
            };
            bytes += more.iter().map(|lease| names::resource(lease).len() + lease.holder.as_str().len()).sum::<usize>();
            leases.extend(more.into_iter().map(|lease| (lease, served.applied)));
            after = next;
            reads += 1;
            let is_full = leases.len() >= limit as usize || bytes >= PAGE_BYTES || reads == MAX_LIST_READS;
            if after.is_none() || is_full {
                break served;
            }
        };
        // Leases come in the order of their names and tokens. Only the last grant of a name has a record, so each history
        // is read once.
        leases.dedup_by(|later, earlier| {
            let is_same = later.0.name == earlier.0.name;
            if is_same {
                std::mem::swap(later, earlier);
            }
            is_same
        });
        let records = stream::iter(leases).map(|(lease, index)| self.record_at(lease, index)).buffered(HISTORIES);
        let records = records.try_collect::<Vec<FoundLease>>().await?;
        let records = records.into_iter().filter(|found| found.is_last).map(|found| found.record).collect();
        Ok(RecordPage { records, next: after.as_ref().map(service::write_cursor), served })
    }
}

/// A page of records.
struct RecordPage {
    records: Vec<ResourceRecord>,
    next: Option<String>,
    served: Served,
}

impl RecordPage {
    fn respond<T: Serialize>(self, body: impl FnOnce(Vec<ResourceRecord>) -> T) -> Response {
        let mut response = stamped(StatusCode::OK, &self.served, &body(self.records));
        if let Some(next) = self.next.and_then(|next| HeaderValue::try_from(next).ok()) {
            response.headers_mut().insert(CURSOR_HEADER, next);
        }
        response
    }
}

fn stamped(status: StatusCode, served: &Served, value: &impl Serialize) -> Response {
    let mut response = response::json(status, "application/json", value);
    response::stamp(response.headers_mut(), served);
    response
}

/// A read that fails after a change does not mean that the change was not made.
fn after_the_change(problem: ProblemResponse) -> ProblemResponse {
    let detail =
        format!("the change was made, but its record cannot be read: {}; repeat the request", problem.detail());
    ProblemResponse::new(Code::OutcomeUnknown, detail)
}

fn not_held(claim: &Claim) -> ProblemResponse {
    let detail =
        format!("{} does not hold the resource: it expired, was released, or has another holder", claim.holder);
    ProblemResponse::new(Code::NotFound, detail)
}

#[utoipa::path(post, path = "/api/leases", request_body = Object, responses((status = 201), (status = 200)))]
async fn acquire(
    State(app): State<App>,
    routing: Routing,
    Admitted { body: NewClaim(claim), permit: _permit, budget }: Admitted<NewClaim>,
) -> Result<Response, ProblemResponse> {
    drop(budget);
    let names::Mapped { name, metadata } = names::of(&claim.resource)?;
    let body = api::Acquire::new(claim.holder).metadata(metadata);
    let request = Request::Acquire(service::claim(&app.node()?.ttl(), name, body)?);
    let response = routing.send(&app, request).await?;
    let Answer::Outcome(Outcome::Held { lease, fresh }) = response.answer else {
        return Err(ProblemResponse::from(service::refused(response.answer)).served(response.served));
    };
    let status = if fresh { StatusCode::CREATED } else { StatusCode::OK };
    Calls { app: &app, routing: &routing }.answer(status, lease).await
}

#[utoipa::path(put, path = "/api/leases/renew", request_body = Object, responses((status = 200)))]
async fn renew(
    State(app): State<App>,
    routing: Routing,
    Body(claim, _budget): Body<Claim>,
) -> Result<Response, ProblemResponse> {
    Calls { app: &app, routing: &routing }.renew(&claim).await
}

#[utoipa::path(delete, path = "/api/leases/release", request_body = Object, responses((status = 200)))]
async fn release(
    State(app): State<App>,
    routing: Routing,
    Body(claim, _budget): Body<Claim>,
) -> Result<Response, ProblemResponse> {
    Calls { app: &app, routing: &routing }.release(&claim, None).await
}

#[utoipa::path(delete, path = "/api/leases/{id}", request_body = Object, responses((status = 200)))]
async fn release_by_id(
    State(app): State<App>,
    routing: Routing,
    ResourceId(id): ResourceId,
    Body(claim, _budget): Body<Claim>,
) -> Result<Response, ProblemResponse> {
    Calls { app: &app, routing: &routing }.release(&claim, Some(id)).await
}

#[utoipa::path(get, path = "/api/leases/{id}", responses((status = 200)))]
async fn by_id(
    State(app): State<App>,
    _permit: RequestPermit,
    routing: Routing,
    ResourceId(id): ResourceId,
    _no_params: NoParams,
) -> Result<Response, ProblemResponse> {
    let calls = Calls { app: &app, routing: &routing };
    let filter = ListFilter { prefix: names::PREFIX.to_owned(), holder: None, states: Vec::new() };
    let mut after = None;
    let mut searched = 0;
    while searched < MAX_SEARCHED {
        let (answer, served) = calls.read(Query::List { filter: filter.clone(), after, limit: MAX_PAGE }).await?;
        let (leases, next) = match answer {
            Answer::List { leases, next } => (leases, next),
            answer => return Err(ProblemResponse::from(service::unexpected(&answer)).served(served)),
        };
        searched += leases.len();
        for lease in leases.into_iter().filter(|lease| record::may_have(lease, id)) {
            let FoundLease { record, is_last, served } = calls.record(lease).await?;
            if is_last && record.id == id {
                return Ok(stamped(StatusCode::OK, &served, &record));
            }
        }
        if next.is_none() {
            let detail = format!("no lease has the id {id}, and no ended one with it is kept");
            return Err(ProblemResponse::new(Code::NotFound, detail).served(served));
        }
        after = next;
    }
    let detail = format!("the first {searched} leases do not have the id {id}");
    Err(ProblemResponse::new(Code::TooBusy, detail))
}

#[utoipa::path(get, path = "/api/leases", responses((status = 200)))]
async fn all(
    State(app): State<App>,
    _permit: RequestPermit,
    routing: Routing,
    Params(params): Params<PageParams>,
) -> Result<Response, ProblemResponse> {
    let page = Calls { app: &app, routing: &routing }.list(params, Vec::new()).await?;
    Ok(page.respond(|leases| ResourceStatus { status: "ready", leases }))
}

macro_rules! list {
    ($name:ident, $path:literal, $states:expr) => {
        #[utoipa::path(get, path = $path, responses((status = 200)))]
        async fn $name(
            State(app): State<App>,
            _permit: RequestPermit,
            routing: Routing,
            Params(params): Params<PageParams>,
        ) -> Result<Response, ProblemResponse> {
            let page = Calls { app: &app, routing: &routing }.list(params, $states.to_vec()).await?;
            Ok(page.respond(|leases| leases))
        }
    };
}

list!(active, "/api/leases/active", [StateFilter::Active]);
list!(expired, "/api/leases/expired", [StateFilter::Expired]);
list!(renewed, "/api/leases/renewed", [StateFilter::Renewed]);
list!(
    released,
    "/api/leases/released",
    [StateFilter::Released, StateFilter::Revoked, StateFilter::HandedOver, StateFilter::Restored]
);

/// The `{id}` of a path.
struct ResourceId(u64);

/// Deserialized by field name, as the name of a lease.
#[derive(Deserialize)]
struct IdParam {
    id: String,
}

impl axum::extract::FromRequestParts<App> for ResourceId {
    type Rejection = ProblemResponse;

    async fn from_request_parts(
        parts: &mut axum::http::request::Parts,
        app: &App,
    ) -> Result<ResourceId, ProblemResponse> {
        let path = Path::<IdParam>::from_request_parts(parts, app).await;
        let Path(IdParam { id }) = path.map_err(|error| ProblemResponse::invalid(format!("path: {error}")))?;
        let invalid = || ProblemResponse::invalid(format!("id {id:?}: expected an integer"));
        id.parse().map(ResourceId).map_err(|_| invalid())
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use axum::extract::FromRequestParts;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::http::{NodeRef, Settings};

    /// The node is gone when the handler reads the record.
    #[tokio::test]
    async fn change_without_a_readable_record_has_an_unknown_outcome() {
        let app = App::new(NodeRef::empty(), Settings::new(1), CancellationToken::new());
        let (mut parts, ()) = axum::http::Request::new(()).into_parts();
        let routing = Routing::from_request_parts(&mut parts, &app).await;
        let Ok(routing) = routing else { panic!("the request needs no credential") };
        let calls = Calls { app: &app, routing: &routing };
        let Err(before) = calls.record(record::tests::lease(5)).await else { panic!("there is no node") };
        assert_eq!(before.code(), Code::NotReady, "certainly not done");
        let after = calls.answer(StatusCode::OK, record::tests::lease(5)).await.expect_err("there is no node");
        assert_eq!(after.code(), Code::OutcomeUnknown);
        assert!(after.detail().starts_with("the change was made"), "{}", after.detail());
    }
}
