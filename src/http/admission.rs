//! Concurrency limits of the listener.
//!
//! Above a limit, the node rejects a request before it parses the body. A rejection costs a small part of the work of
//! a request, so memory and response times stay bounded. A request counts from the moment when its body is complete,
//! so a slow sender takes no permit.
//!
//! Only a part of the admitted requests runs at a time. The others wait for a short time. More running requests would
//! not complete sooner, and each later request would wait behind all of them for the CPU.
//!
//! Renewals, releases and handovers need no permit: overload must not cost a holder its lease. The connection limit
//! bounds them, because each connection has one request at a time. The budget in `input` bounds their bodies.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use metrics::{Counter, counter};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::app::App;
use super::input::BodyBudget;
use super::response::ProblemResponse;
use crate::api::Code;
use crate::config::HttpLimits;

/// One in this many admitted requests runs at a time.
const ADMITTED_PER_RUNNING: usize = 4;
/// An admitted request that cannot run within this time is rejected.
const MAX_RUN_DELAY: Duration = Duration::from_millis(250);

/// All limits of a listener.
pub(super) struct AdmissionControl {
    /// Admitted requests, running or not.
    requests: PermitPool,
    /// Running requests.
    running: Arc<Semaphore>,
    /// Requests that did not run within [`MAX_RUN_DELAY`].
    start_timeouts: Counter,
    /// Claims that wait in a queue.
    pub waits: PermitPool,
    pub watches: PermitPool,
    /// Memory for bodies.
    pub bodies: BodyBudget,
}

/// The permits of one kind.
pub(super) struct PermitPool {
    free: Arc<Semaphore>,
    /// The error detail when no permit is free.
    full: String,
    refused: Counter,
}

/// One permit of a [`PermitPool`], released on drop.
pub(super) struct PoolPermit {
    _permit: OwnedSemaphorePermit,
}

/// The permit of a running request. Handlers without a body extract it. With a body it comes with
/// [`Admitted`](super::input::Admitted).
pub(super) struct RequestPermit {
    _admitted: PoolPermit,
    _running: OwnedSemaphorePermit,
}

impl AdmissionControl {
    pub fn new(limits: HttpLimits) -> AdmissionControl {
        AdmissionControl {
            requests: PermitPool::new("requests", limits.max_requests),
            running: Arc::new(Semaphore::new(limits.max_requests.div_ceil(ADMITTED_PER_RUNNING))),
            start_timeouts: refused("start_timeout"),
            waits: PermitPool::new("waits", limits.max_waits),
            watches: PermitPool::new("watches", limits.max_watches),
            bodies: BodyBudget::new(limits.body_budget_mib),
        }
    }

    /// Rejects a request before its body is read if no permit is free. It takes no permit.
    pub fn check_capacity(&self) -> Result<(), ProblemResponse> {
        if self.requests.free.available_permits() > 0 { Ok(()) } else { Err(self.requests.reject()) }
    }

    /// Waits until a request may run, in FIFO order. Fails with `too_busy` at once if no permit is free.
    pub async fn admit(&self) -> Result<RequestPermit, ProblemResponse> {
        let admitted = self.requests.try_acquire()?;
        let running = tokio::time::timeout(MAX_RUN_DELAY, self.running.clone().acquire_owned());
        match running.await {
            Ok(running) => {
                Ok(RequestPermit { _admitted: admitted, _running: running.expect("the semaphore is never closed") })
            }
            Err(_) => {
                self.start_timeouts.increment(1);
                Err(ProblemResponse::new(
                    Code::TooBusy,
                    format!("the request could not start within {MAX_RUN_DELAY:?}; retry later"),
                ))
            }
        }
    }
}

impl PermitPool {
    fn new(kind: &'static str, count: usize) -> PermitPool {
        PermitPool {
            free: Arc::new(Semaphore::new(count)),
            full: format!("the node has reached its limit of {count} {kind}; retry later"),
            refused: refused(kind),
        }
    }

    pub fn try_acquire(&self) -> Result<PoolPermit, ProblemResponse> {
        let permit = self.free.clone().try_acquire_owned().map_err(|_| self.reject())?;
        Ok(PoolPermit { _permit: permit })
    }

    fn reject(&self) -> ProblemResponse {
        self.refused.increment(1);
        ProblemResponse::new(Code::TooBusy, self.full.as_str())
    }
}

impl FromRequestParts<App> for RequestPermit {
    type Rejection = ProblemResponse;

    async fn from_request_parts(_: &mut Parts, app: &App) -> Result<RequestPermit, ProblemResponse> {
        app.admission.admit().await
    }
}

fn refused(reason: &'static str) -> Counter {
    counter!("tenure_refused_total", "reason" => reason)
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn admission_runs_a_quarter_and_rejects_above_the_limit() {
        let admission = Arc::new(AdmissionControl::new(HttpLimits { max_requests: 16, ..HttpLimits::default() }));
        let mut running = Vec::new();
        for _ in 0..4 {
            running.push(admission.admit().await.expect("a quarter runs at once"));
        }
        let waiting: Vec<_> = (4..16)
            .map(|_| {
                let admission = admission.clone();
                tokio::spawn(async move { admission.admit().await })
            })
            .collect();
        tokio::task::yield_now().await;
        let began = tokio::time::Instant::now();
        let refused = admission.admit().await.err().expect("16 requests are admitted already");
        assert_eq!(refused.code(), Code::TooBusy);
        assert_eq!(began.elapsed(), Duration::ZERO);
        for waiting in waiting {
            let refused = waiting.await.expect("the task does not panic").err().expect("no request has completed");
            assert_eq!(refused.code(), Code::TooBusy);
        }
        assert_eq!(began.elapsed(), Duration::from_millis(250), "the documented delay");
        let next = tokio::spawn(async move { admission.admit().await });
        tokio::task::yield_now().await;
        drop(running.pop());
        let admitted = next.await.expect("the task does not panic");
        assert!(admitted.is_ok(), "a running request has completed and the late requests have returned their permits");
    }
}
