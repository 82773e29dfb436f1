//! How much a node has in hand for its clients at once. What is above a bound is refused before its body is parsed: that
//! costs a small part of what serving it would, and memory and answer times stay bounded. A request is counted from the
//! moment its body is complete: a client that sends slowly takes no place from the others.
//!
//! Of the requests in hand only some are carried out at a time; the others wait for their turn, for a short time.
//! More at a time would not be done sooner, and whoever comes later would wait behind all of them for the processor.
//!
//! What keeps or frees a lease takes no place here, so those who hold leases get in when others do not. Their number is
//! bounded by that of connections: each has one request in hand. Their bodies are bounded by the budget in `body`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use metrics::{Counter, counter};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::app::App;
use super::body::BodyBudget;
use super::refusal::HttpProblem;
use crate::api::Code;
use crate::config::HttpLimits;

/// One in so many of the requests in hand is carried out at a time.
const IN_HAND_FOR_ONE_TURN: usize = 4;
/// A request that has not had its turn after this long is refused.
const MAX_WAIT_FOR_TURN: Duration = Duration::from_millis(250);

/// All bounds of a listener.
pub(super) struct Admission {
    /// Requests in hand.
    requests: PermitPool,
    /// Requests that are carried out.
    turns: Arc<Semaphore>,
    late: Counter,
    /// Claims that wait in a queue.
    pub waits: PermitPool,
    pub watches: PermitPool,
    /// Memory for bodies.
    pub bodies: BodyBudget,
}

/// So many places of one kind.
pub(super) struct PermitPool {
    free: Arc<Semaphore>,
    /// What a client is told when there is none.
    full: String,
    refused: Counter,
}

/// A place, given back when it is dropped.
pub(super) struct Place {
    _permit: OwnedSemaphorePermit,
}

/// The place of a request whose turn it is. Handlers of requests without a body extract it; the others take it once the
/// body is complete.
pub(super) struct Permit {
    _place: Place,
    _permit: OwnedSemaphorePermit,
}

/// Refuses a request with a body while the node has no place for it, before the body is read. It takes no place: only
/// [`Admission::turn`] does, once the body is complete.
pub(super) struct MayEnter;

impl Admission {
    pub fn new(limits: HttpLimits) -> Admission {
        Admission {
            requests: PermitPool::new("requests", limits.max_requests),
            turns: Arc::new(Semaphore::new(limits.max_requests.div_ceil(IN_HAND_FOR_ONE_TURN))),
            late: refused("turn_late"),
            waits: PermitPool::new("waits", limits.max_waits),
            watches: PermitPool::new("watches", limits.max_watches),
            bodies: BodyBudget::new(limits.body_budget_mib),
        }
    }

    /// Waits for a request's turn, first come, first served.
    pub async fn turn(&self) -> Result<Permit, HttpProblem> {
        let place = self.requests.take()?;
        let turn = tokio::time::timeout(MAX_WAIT_FOR_TURN, self.turns.clone().acquire_owned());
        match turn.await {
            Ok(permit) => Ok(Permit { _place: place, _permit: permit.expect("the semaphore is never closed") }),
            Err(_) => {
                self.late.increment(1);
                Err(HttpProblem::new(
                    Code::TooBusy,
                    format!("it was not this request's turn within {MAX_WAIT_FOR_TURN:?}"),
                ))
            }
        }
    }
}

impl PermitPool {
    fn new(kind: &'static str, count: usize) -> PermitPool {
        PermitPool {
            free: Arc::new(Semaphore::new(count)),
            full: format!("the node has {count} {kind} in hand, which is as many as it takes"),
            refused: refused(kind),
        }
    }

    pub fn take(&self) -> Result<Place, HttpProblem> {
        let permit = self.free.clone().try_acquire_owned().map_err(|_| self.refuse())?;
        Ok(Place { _permit: permit })
    }

    fn refuse(&self) -> HttpProblem {
        self.refused.increment(1);
        HttpProblem::new(Code::TooBusy, self.full.as_str())
    }
}

impl FromRequestParts<App> for MayEnter {
    type Rejection = HttpProblem;

    async fn from_request_parts(_: &mut Parts, app: &App) -> Result<MayEnter, HttpProblem> {
        let requests = &app.admission.requests;
        if requests.free.available_permits() > 0 { Ok(MayEnter) } else { Err(requests.refuse()) }
    }
}

impl FromRequestParts<App> for Permit {
    type Rejection = HttpProblem;

    async fn from_request_parts(_: &mut Parts, app: &App) -> Result<Permit, HttpProblem> {
        app.admission.turn().await
    }
}

fn refused(reason: &'static str) -> Counter {
    counter!("tenure_refused_total", "reason" => reason)
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn some_are_carried_out_some_wait_for_a_short_time_and_the_rest_is_refused_at_once() {
        let admission = Arc::new(Admission::new(HttpLimits { max_requests: 16, ..HttpLimits::default() }));
        let mut turns = Vec::new();
        for _ in 0..4 {
            turns.push(admission.turn().await.expect("it is its turn at once"));
        }
        let waiting: Vec<_> = (4..16)
            .map(|_| {
                let admission = admission.clone();
                tokio::spawn(async move { admission.turn().await })
            })
            .collect();
        tokio::task::yield_now().await;
        let began = tokio::time::Instant::now();
        let refused = admission.turn().await.err().expect("the seventeenth");
        assert_eq!(refused.code(), Code::TooBusy);
        assert_eq!(began.elapsed(), Duration::ZERO);
        for waiting in waiting {
            let refused = waiting.await.expect("it does not panic").err().expect("no turn became free");
            assert_eq!(refused.code(), Code::TooBusy);
        }
        assert_eq!(began.elapsed(), MAX_WAIT_FOR_TURN);
        let next = tokio::spawn(async move { admission.turn().await });
        tokio::task::yield_now().await;
        drop(turns.pop());
        assert!(next.await.expect("it does not panic").is_ok(), "its turn, and the places of the others are free");
    }
}
