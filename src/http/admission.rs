//! How much a node has in hand for its clients at once. What is above a bound is refused at once, before its body is
//! read: that costs a small part of what serving it would, and memory and answer times stay bounded.
//!
//! What keeps or frees a lease takes no place here, so those who hold leases get in when others do not. Their number is
//! bounded by that of connections: each has one request in hand.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use metrics::{Counter, counter};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::app::App;
use super::refusal::Refused;
use crate::api::Code;
use crate::config::HttpLimits;

/// The places of one kind.
pub(super) struct Places {
    free: Arc<Semaphore>,
    /// What a client is told.
    full: String,
    refused: Counter,
}

/// A place, given back when it is dropped.
pub(super) struct Place {
    _permit: OwnedSemaphorePermit,
}

/// All places of a listener.
pub(super) struct Admission {
    /// Requests that are being carried out.
    pub requests: Places,
    /// Claims that wait in a queue.
    pub waits: Places,
    pub watches: Places,
}

impl Admission {
    pub fn new(limits: HttpLimits) -> Admission {
        Admission {
            requests: Places::new("requests", limits.max_requests),
            waits: Places::new("waits", limits.max_waits),
            watches: Places::new("watches", limits.max_watches),
        }
    }
}

impl Places {
    fn new(kind: &'static str, count: usize) -> Places {
        Places {
            free: Arc::new(Semaphore::new(count)),
            full: format!("the node has {count} {kind} in hand, which is as many as it takes"),
            refused: counter!("tenure_refused_total", "reason" => kind),
        }
    }

    pub fn take(&self) -> Result<Place, Refused> {
        match self.free.clone().try_acquire_owned() {
            Ok(permit) => Ok(Place { _permit: permit }),
            Err(_) => {
                self.refused.increment(1);
                Err(Refused::new(Code::TooBusy, self.full.as_str()))
            }
        }
    }
}

/// The place of a request. Handlers name it before the body.
impl FromRequestParts<App> for Place {
    type Rejection = Refused;

    async fn from_request_parts(_: &mut Parts, app: &App) -> Result<Place, Refused> {
        app.admission.requests.take()
    }
}
