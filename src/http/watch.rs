//! `/v1/watch`: transitions as server-sent events. A client can resume the stream without gaps and duplicates.
//!
//! The `id` of an event is a position in the stream: the client has seen all transitions up to and including it. It is
//! the log index for the last transition of a log entry, and `index.part` for the earlier ones.
//!
//! A stream may show no event for a long time, for example if it has a prefix or if all holders only renew. It then sends
//! its position as an `id` without data, which an `EventSource` stores and does not deliver. Otherwise the client would
//! resume from a compacted position.
//! An event `lagged` ends a stream that fell behind.
//!
//! This module relies on `Watch::next` being cancel-safe.

use std::convert::Infallible;
use std::fmt::Write;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use futures_util::FutureExt;
use metrics::gauge;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior};
use utoipa::IntoParams;

use super::admission::PoolPermit;
use super::app::App;
use super::auth::{Audited, Credentials};
use super::input::Params;
use super::observe::GaugeGuard;
use super::response;
use super::response::ProblemResponse;
use crate::access::{Access, Need};
use crate::api::{self, Code, EventId, Problem};
use crate::lease::Transition;
use crate::node::{Watch, WatchEnd};
use crate::service;

/// A stream with a prefix sends its position after this many filtered transitions.
const MAX_FILTERED: u32 = 1_000;
/// A chunk of events is sent when it reaches this size, in bytes.
const CHUNK_BYTES: usize = 16 * 1024;

/// The query of a watch.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WatchParams {
    /// Only names with this prefix.
    #[serde(default)]
    #[param(required = false)]
    prefix: String,
    /// Only transitions after the event with this `id`. Default: from now on. The header `Last-Event-ID` has the same
    /// meaning and takes precedence.
    after: Option<String>,
}

/// Watch the transitions of leases as server-sent events.
///
/// `event` is `granted`, `expired`, `released`, `revoked` or `handed_over`; `data` is one transition as JSON; `id` is
/// the position to resume after. The event `lagged`, with a problem as `data`, ends a stream that fell behind.
#[utoipa::path(get, path = "/v1/watch", tag = "reads", params(WatchParams),
    responses(
        (status = 200, description = "The stream", body = api::Event, content_type = "text/event-stream"),
        (status = 410, description = "`compacted`: the node no longer keeps the transitions after that position", body = Problem, content_type = "application/problem+json"),
        (status = 429, description = "`too_busy`: the node has reached its limit of watches", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn watch(
    State(app): State<App>,
    credentials: Credentials,
    Params(params): Params<WatchParams>,
    headers: HeaderMap,
) -> Result<Response, ProblemResponse> {
    let node = app.node()?;
    // Subscribed before the check, so that no later change is missed.
    let access = node.access_changes();
    credentials.authorize(&app, &node, &Need::Prefix(&params.prefix), &Audited::read("watch", &params.prefix))?;
    let last_seen = headers.get("last-event-id").map(|id| id.to_str().unwrap_or("?"));
    let after = last_seen.or(params.after.as_deref()).map(str::parse::<EventId>).transpose();
    let after = after.map_err(|error| ProblemResponse::invalid(format!("after: {error}")))?;
    let permit = app.admission.watches.try_acquire()?;
    let watch = node.transitions(after.map(EventId::into)).map_err(service::compacted)?;
    // A new stream starts with its position, so that the client can resume before the first event.
    let after = watch.position().into();
    let guard = Guard::new(access, credentials);
    let stream = EventStream::new(&app, watch, guard, params.prefix, after, permit);
    let chunks = futures_util::stream::unfold(stream, EventStream::next_chunk);
    let mut response = response::with_type(StatusCode::OK, "text/event-stream", Body::from_stream(chunks));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // nginx buffers a response until its end unless this header disables it.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// One client's stream.
struct EventStream {
    app: App,
    watch: Watch,
    guard: Guard,
    prefix: String,
    /// The last position that was sent to the client.
    sent: EventId,
    /// Filtered transitions since the last position was sent.
    filtered: u32,
    keep_alive: Interval,
    is_first: bool,
    has_ended: bool,
    _permit: PoolPermit,
    _open: GaugeGuard,
}

/// The caller of a watch. A watch ends when its caller loses the right to read.
struct Guard {
    access: watch::Receiver<Access>,
    credentials: Credentials,
}

impl Guard {
    fn new(mut access: watch::Receiver<Access>, credentials: Credentials) -> Guard {
        // The listener identified the caller before this receiver existed, so look at the present state once more.
        access.mark_changed();
        Guard { access, credentials }
    }

    fn allows(&mut self, prefix: &str) -> bool {
        let access = self.access.borrow_and_update();
        let is_allowed = || access.authorize(&self.credentials.caller, &Need::Prefix(prefix)).is_ok();
        self.credentials.is_identified(&access) && is_allowed()
    }

    /// Like [`allows`](Guard::allows), and cheap while access control does not change.
    fn still_allows(&mut self, prefix: &str) -> bool {
        !self.access.has_changed().unwrap_or(true) || self.allows(prefix)
    }
}

impl EventStream {
    fn new(app: &App, watch: Watch, guard: Guard, prefix: String, after: EventId, permit: PoolPermit) -> EventStream {
        let mut keep_alive = tokio::time::interval(app.settings.watch_keep_alive);
        keep_alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        keep_alive.reset();
        EventStream {
            app: app.clone(),
            watch,
            guard,
            prefix,
            sent: after,
            filtered: 0,
            keep_alive,
            is_first: true,
            has_ended: false,
            _permit: permit,
            _open: GaugeGuard::new(gauge!("tenure_http_watches")),
        }
    }

    /// The next bytes for the client, or `None` at the end of the stream.
    async fn next_chunk(mut self) -> Option<(Result<Bytes, Infallible>, EventStream)> {
        let mut chunk = String::new();
        if self.is_first {
            self.is_first = false;
            let _ = write!(chunk, "id: {}\n\n", self.sent);
            return Some((Ok(Bytes::from(chunk)), self));
        }
        while chunk.is_empty() && !self.has_ended {
            self.wait(&mut chunk).await;
        }
        // Transitions that are already available go into the same write.
        while chunk.len() < CHUNK_BYTES
            && !self.has_ended
            && let Some(next) = self.watch.next().now_or_never()
        {
            self.take(next, &mut chunk);
        }
        // A node publishes a change of access control before all later events. So no event of the chunk is later than a
        // change that takes the caller's right.
        if chunk.is_empty() || !self.guard.still_allows(&self.prefix) {
            return None;
        }
        Some((Ok(Bytes::from(chunk)), self))
    }

    async fn wait(&mut self, chunk: &mut String) {
        let shutdown = self.app.shutdown.clone();
        tokio::select! {
            () = shutdown.cancelled() => self.has_ended = true,
            changed = self.guard.access.changed() => {
                // The stream ends without a message: its next request gets the reason.
                self.has_ended |= changed.is_err() || !self.guard.allows(&self.prefix);
            }
            next = self.watch.next() => self.take(next, chunk),
            _ = self.keep_alive.tick() => self.write_position(chunk),
        }
    }

    fn take(&mut self, next: Result<Arc<Transition>, WatchEnd>, chunk: &mut String) {
        match next {
            Ok(transition) => self.show(&transition, chunk),
            Err(WatchEnd::Stopped) => self.has_ended = true,
            Err(WatchEnd::Compacted(_)) => {
                self.has_ended = true;
                let problem = Problem::new(Code::Lagged, format!("events are missing after {}", self.position()));
                write_event(chunk, None, "lagged", &problem);
            }
        }
    }

    fn show(&mut self, transition: &Transition, chunk: &mut String) {
        if transition.name.as_str().starts_with(&self.prefix) {
            let event = service::event(transition);
            self.sent = self.position();
            write_event(chunk, Some(self.sent), event.event.as_str(), &event);
            self.filtered = 0;
            return;
        }
        self.filtered += 1;
        if self.filtered >= MAX_FILTERED {
            self.write_position(chunk);
        }
    }

    /// Writes the position if it has changed, and a keep-alive comment otherwise.
    fn write_position(&mut self, chunk: &mut String) {
        self.filtered = 0;
        let position = self.position();
        if position == self.sent {
            chunk.push_str(": alive\n\n");
        } else {
            self.sent = position;
            let _ = write!(chunk, "id: {position}\n\n");
        }
    }

    /// The client has every event up to this position, except those that the prefix hides.
    fn position(&self) -> EventId {
        self.watch.position().into()
    }
}

fn write_event(chunk: &mut String, id: Option<EventId>, event: &str, data: &impl serde::Serialize) {
    let data = serde_json::to_string(data).expect("API types have string keys and finite numbers");
    if let Some(id) = id {
        let _ = writeln!(chunk, "id: {id}");
    }
    let _ = write!(chunk, "event: {event}\ndata: {data}\n\n");
}
