//! Handlers that change who holds a lease.

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;

use super::app::App;
use super::input::{Body, Hop, Name, Params};
use super::refusal::{self, Refused};
use super::{answer, wire};
use crate::api::{self, Code, MAX_RENEW_ITEMS, Problem, TtlMs};
use crate::config::TtlPolicy;
use crate::lease::{Acquire, Command, Lease, Lost, Outcome, Renewal};
use crate::node::{Answer, Request, Served};
use crate::types::{HolderId, LeaseName, MAX_LIMIT, MAX_LOCK_DELAY_MS, MAX_REASON_BYTES, MAX_WAIT_MS, Ttl};

/// Claim a lease.
///
/// The same holder acquiring again keeps its token and gets its time extended, so sending a claim again is safe.
/// With `wait_ms` the answer comes when the lease is granted or the wait ends; closing the connection gives up the
/// place in the queue.
#[utoipa::path(post, path = "/v1/leases/{name}/acquire", tag = "claims",
    params(("name" = String, Path, description = "The lease's name")), request_body = api::Acquire,
    responses(
        (status = 200, description = "Held, with this token", body = api::Lease),
        (status = 409, description = "`held`, `lock_delay`, `wait_timeout`, `wait_abandoned`, `limit_differs`", body = Problem, content_type = "application/problem+json"),
        (status = 429, description = "`queue_full`, `too_many_leases`, `too_busy`", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn acquire(
    State(app): State<App>,
    hop: Hop,
    Name(name): Name,
    Body(body): Body<api::Acquire>,
) -> Result<Response, Refused> {
    let claim = claim(&app.settings.ttl, name, body)?;
    let response = hop.ask(&app, Request::Acquire(claim)).await?;
    match response.answer {
        Answer::Outcome(Outcome::Held { lease, .. }) => Ok(held(lease, &response.served)),
        answer => Err(refused(answer, response.served)),
    }
}

/// Keep a lease for another ttl.
#[utoipa::path(post, path = "/v1/leases/{name}/renew", tag = "claims",
    params(("name" = String, Path, description = "The lease's name")), request_body = api::Renew,
    responses(
        (status = 200, description = "Held on, with the same token", body = api::Lease),
        (status = 409, description = "`lost`, with `why` and the present `holder`", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn renew(
    State(app): State<App>,
    hop: Hop,
    Name(name): Name,
    Body(body): Body<api::Renew>,
) -> Result<Response, Refused> {
    let ttl = new_ttl(&app.settings.ttl, body.ttl_ms)?;
    let leases = vec![Renewal { name, token: body.token, ttl }];
    let (results, served) = renewed(&app, hop, body.holder, leases).await?;
    match <[_; 1]>::try_from(results) {
        Ok([Ok(lease)]) => Ok(held(lease, &served)),
        Ok([Err(lost)]) => Err(Refused::from(refusal::lost(lost)).served(served)),
        Err(results) => Err(Refused::unexpected(&results)),
    }
}

/// Keep many leases of one holder for another ttl, in one request.
#[utoipa::path(post, path = "/v1/renew", tag = "claims", request_body = api::RenewBatch,
    responses((status = 200, description = "One result for each lease, in the order asked", body = api::Renewed)))]
pub(super) async fn renew_batch(
    State(app): State<App>,
    hop: Hop,
    Body(body): Body<api::RenewBatch>,
) -> Result<Response, Refused> {
    if body.leases.len() > MAX_RENEW_ITEMS {
        return Err(Refused::new(Code::TooLarge, format!("at most {MAX_RENEW_ITEMS} leases are renewed at once")));
    }
    let policy = &app.settings.ttl;
    let renewal = |item: api::RenewItem| -> Result<Renewal, Refused> {
        Ok(Renewal { name: item.name, token: item.token, ttl: new_ttl(policy, item.ttl_ms)? })
    };
    let leases = body.leases.into_iter().map(renewal).collect::<Result<Vec<Renewal>, Refused>>()?;
    let names: Vec<LeaseName> = leases.iter().map(|renewal| renewal.name.clone()).collect();
    let (results, served) = renewed(&app, hop, body.holder, leases).await?;
    if results.len() != names.len() {
        return Err(Refused::unexpected(&results));
    }
    let results = names.into_iter().zip(results).map(|(name, result)| match result {
        Ok(lease) => api::RenewResult { name: name.into(), lease: Some(wire::lease(lease, served.now)), problem: None },
        Err(lost) => api::RenewResult { name: name.into(), lease: None, problem: Some(refusal::lost(lost)) },
    });
    Ok(answer::ok(&served, &api::Renewed { results: results.collect() }))
}

/// Give a lease back. Releasing what is not held with this token changes nothing and says so.
#[utoipa::path(post, path = "/v1/leases/{name}/release", tag = "claims",
    params(("name" = String, Path, description = "The lease's name")), request_body = api::Release,
    responses((status = 200, description = "Whether it was held", body = api::Released)))]
pub(super) async fn release(
    State(app): State<App>,
    hop: Hop,
    Name(name): Name,
    Body(body): Body<api::Release>,
) -> Result<Response, Refused> {
    let command = Command::Release { name, holder: body.holder, token: body.token };
    let response = hop.ask(&app, Request::Change(command)).await?;
    match response.answer {
        Answer::Outcome(Outcome::Released(released)) => Ok(answer::ok(&response.served, &api::Released { released })),
        answer => Err(refused(answer, response.served)),
    }
}

/// Give a lease to a waiter, without a moment in which nobody has it.
#[utoipa::path(post, path = "/v1/leases/{name}/handover", tag = "claims",
    params(("name" = String, Path, description = "The lease's name")), request_body = api::HandOver,
    responses(
        (status = 200, description = "The new holder's lease, with a new token", body = api::Lease),
        (status = 409, description = "`lost`, `no_such_waiter`", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn hand_over(
    State(app): State<App>,
    hop: Hop,
    Name(name): Name,
    Body(body): Body<api::HandOver>,
) -> Result<Response, Refused> {
    let command = Command::HandOver { name, holder: body.holder, token: body.token, to: body.to };
    let response = hop.ask(&app, Request::Change(command)).await?;
    match response.answer {
        Answer::Outcome(Outcome::HandedOver(lease)) => Ok(held(lease, &response.served)),
        answer => Err(refused(answer, response.served)),
    }
}

/// The query of a revoke.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RevokeParams {
    /// Kept in the history, at most 500 bytes.
    #[serde(default)]
    #[param(required = false)]
    reason: String,
}

/// Take a lease from all its holders: an operator's release. Waiters keep their places.
#[utoipa::path(delete, path = "/v1/leases/{name}", tag = "claims",
    params(("name" = String, Path, description = "The lease's name"), RevokeParams),
    responses((status = 200, description = "How many holders lost it", body = api::Revoked)))]
pub(super) async fn revoke(
    State(app): State<App>,
    hop: Hop,
    Name(name): Name,
    Params(params): Params<RevokeParams>,
) -> Result<Response, Refused> {
    at_most("reason bytes", params.reason.len(), MAX_REASON_BYTES)?;
    let command = Command::Revoke { name, reason: params.reason };
    let response = hop.ask(&app, Request::Change(command)).await?;
    match response.answer {
        Answer::Outcome(Outcome::Revoked(revoked)) => Ok(answer::ok(&response.served, &api::Revoked { revoked })),
        answer => Err(refused(answer, response.served)),
    }
}

fn claim(policy: &TtlPolicy, name: LeaseName, body: api::Acquire) -> Result<Acquire, Refused> {
    let limit = body.limit.unwrap_or(1);
    let lock_delay_ms = body.lock_delay_ms.unwrap_or(0);
    at_most("limit", limit, MAX_LIMIT)?;
    at_most("lock_delay_ms", lock_delay_ms, MAX_LOCK_DELAY_MS)?;
    at_most("wait_ms", body.wait_ms.unwrap_or(0), MAX_WAIT_MS)?;
    if limit == 0 {
        return Err(Refused::invalid("limit 0 would let nobody hold the lease"));
    }
    let ttl = new_ttl(policy, body.ttl_ms)?.unwrap_or_else(|| policy.default_ttl());
    let wait_ms = body.wait_ms.filter(|wait| *wait > 0);
    Ok(Acquire { name, holder: body.holder, ttl, wait_ms, lock_delay_ms, limit, metadata: body.metadata })
}

fn at_most<T: PartialOrd + std::fmt::Display>(what: &str, value: T, max: T) -> Result<(), Refused> {
    if value > max { Err(Refused::invalid(format!("{what} {value} is above {max}"))) } else { Ok(()) }
}

fn new_ttl(policy: &TtlPolicy, ttl: Option<TtlMs>) -> Result<Option<Ttl>, Refused> {
    let ttl = match ttl {
        None => return Ok(None),
        Some(TtlMs::Millis(ms)) => Ttl::Finite(ms),
        Some(TtlMs::Infinite) => Ttl::Infinite,
    };
    policy.check(ttl).map(Some).map_err(|error| Refused::invalid(error.to_string()))
}

async fn renewed(
    app: &App,
    hop: Hop,
    holder: HolderId,
    leases: Vec<Renewal>,
) -> Result<(Vec<Result<Lease, Lost>>, Served), Refused> {
    let response = hop.ask(app, Request::Change(Command::Renew { holder, leases })).await?;
    match response.answer {
        Answer::Outcome(Outcome::Renewed(results)) => Ok((results, response.served)),
        answer => Err(refused(answer, response.served)),
    }
}

fn held(lease: Lease, served: &Served) -> Response {
    answer::ok(served, &wire::lease(lease, served.now))
}

/// Any answer other than the one that was hoped for.
fn refused(answer: Answer, served: Served) -> Refused {
    let problem = match answer {
        Answer::Outcome(Outcome::Refused(refusal)) => refusal::problem(refusal),
        Answer::WaitTimeout => Ok(Problem::new(Code::WaitTimeout, "the lease was not granted within wait_ms")),
        Answer::WaitAbandoned => {
            Ok(Problem::new(Code::WaitAbandoned, "the place in the queue was given up; acquire again for a new one"))
        }
        answer => Err(Refused::unexpected(&answer)),
    };
    match problem {
        Ok(problem) => Refused::from(problem).served(served),
        Err(unexpected) => unexpected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim_of(json: &str) -> Result<Acquire, Refused> {
        let policy = TtlPolicy { default_ms: 5_000, min_ms: 1_000, max_ms: 60_000, infinite: false };
        claim(&policy, LeaseName::new("a").expect("valid"), serde_json::from_str(json).expect("it has the form"))
    }

    #[test]
    fn what_a_claim_leaves_out_has_its_default() {
        let claim = claim_of(r#"{"holder":"h","wait_ms":0}"#).expect("it is fine");
        assert_eq!((claim.ttl, claim.wait_ms, claim.lock_delay_ms, claim.limit), (Ttl::Finite(5_000), None, 0, 1));
    }

    #[test]
    fn a_claim_outside_the_bounds_is_refused_and_told_them() {
        for (json, bounds) in [
            (r#"{"holder":"h","ttl_ms":999}"#, "ttl_ms 999 is outside 1000 to 60000"),
            (r#"{"holder":"h","ttl_ms":60001}"#, "ttl_ms 60001 is outside 1000 to 60000"),
            (r#"{"holder":"h","ttl_ms":"infinite"}"#, "the longest is 60000 ms"),
            (r#"{"holder":"h","limit":0}"#, "limit 0"),
            (r#"{"holder":"h","limit":10001}"#, "limit 10001 is above 10000"),
            (r#"{"holder":"h","wait_ms":86400001}"#, "wait_ms 86400001 is above 86400000"),
            (r#"{"holder":"h","lock_delay_ms":86400001}"#, "lock_delay_ms 86400001 is above 86400000"),
        ] {
            let refused = format!("{:?}", claim_of(json).expect_err(json));
            assert!(refused.contains(bounds) && refused.contains("code: Invalid"), "{json}: {refused}");
        }
    }
}
