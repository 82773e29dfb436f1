//! `/v1/watch`: transitions as server-sent events, resumable without a gap and without a repetition.
//!
//! The `id` of an event is a place in the stream: everything up to and with it has been seen. It is the log index for
//! the last transition of a log entry, and `index.part` for those before it. A filtered stream says its place from
//! time to time (an `id` without data, which an `EventSource` keeps and does not deliver), so that resuming it does
//! not ask for what is long forgotten. An event `lagged` ends a stream that fell behind.
//!
//! Relies on `Watch::next` to be cancel-safe.

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
use tokio::time::{Interval, MissedTickBehavior};
use utoipa::IntoParams;

use super::admission::Place;
use super::answer;
use super::app::App;
use super::input::Params;
use super::observe::Open;
use super::refusal::HttpProblem;
use crate::api::{self, Code, EventId, Problem};
use crate::lease::Transition;
use crate::node::{Watch, WatchEnd};
use crate::service;

/// A filtered stream says its place after at most this many transitions that it did not show.
const SILENT_AT_MOST: u32 = 1_000;
/// Most bytes of events that are put together before they are sent.
const CHUNK_BYTES: usize = 16 * 1024;

/// The query of a watch.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WatchParams {
    /// Only names that start with this.
    #[serde(default)]
    #[param(required = false)]
    prefix: String,
    /// Only what comes after the event with this `id`. Absent: from now on. The header `Last-Event-ID` says the same,
    /// and comes first.
    after: Option<String>,
}

/// Transitions of leases as they happen, as server-sent events.
///
/// `event` is `granted`, `expired`, `released`, `revoked` or `handed_over`, `data` one transition as JSON, and `id`
/// a place to resume after. `lagged`, with a problem as `data`, ends a stream that fell behind.
#[utoipa::path(get, path = "/v1/watch", tag = "reads", params(WatchParams),
    responses(
        (status = 200, description = "The stream", body = api::Event, content_type = "text/event-stream"),
        (status = 410, description = "`compacted`: what comes after that place is no longer kept", body = Problem, content_type = "application/problem+json"),
        (status = 429, description = "`too_busy`: the node has as many watches as it takes", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn watch(
    State(app): State<App>,
    Params(params): Params<WatchParams>,
    headers: HeaderMap,
) -> Result<Response, HttpProblem> {
    let node = app.node()?;
    let last_seen = headers.get("last-event-id").map(|id| id.to_str().unwrap_or("?"));
    let after = last_seen.or(params.after.as_deref()).map(str::parse::<EventId>).transpose();
    let after = after.map_err(|error| HttpProblem::invalid(format!("after: {error}")))?;
    let place = app.admission.watches.take()?;
    let watch = node.watch(after.map(EventId::into)).map_err(service::compacted)?;
    // A stream that begins now says where that is, so that it can be resumed before its first event.
    let after = watch.position().into();
    let stream = Stream::new(&app, watch, params.prefix, after, place);
    let chunks = futures_util::stream::unfold(stream, Stream::next_chunk);
    let mut response = answer::with_type(StatusCode::OK, "text/event-stream", Body::from_stream(chunks));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Some proxies hold a stream back until it ends, unless told.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// One client's stream.
struct Stream {
    app: App,
    watch: Watch,
    prefix: String,
    /// The place that was last told to the client.
    told: EventId,
    /// The place up to which transitions were handled.
    seen: EventId,
    silent: u32,
    keep_alive: Interval,
    is_first: bool,
    is_over: bool,
    _place: Place,
    _open: Open,
}

impl Stream {
    fn new(app: &App, watch: Watch, prefix: String, after: EventId, place: Place) -> Stream {
        let mut keep_alive = tokio::time::interval(app.settings.watch_keep_alive);
        keep_alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        keep_alive.reset();
        Stream {
            app: app.clone(),
            watch,
            prefix,
            told: after,
            seen: after,
            silent: 0,
            keep_alive,
            is_first: true,
            is_over: false,
            _place: place,
            _open: Open::new(gauge!("tenure_http_watches")),
        }
    }

    /// The next bytes for the client; `None` ends the stream.
    async fn next_chunk(mut self) -> Option<(Result<Bytes, Infallible>, Stream)> {
        let mut chunk = String::new();
        if self.is_first {
            self.is_first = false;
            let _ = write!(chunk, "id: {}\n\n", self.told);
            return Some((Ok(Bytes::from(chunk)), self));
        }
        while chunk.is_empty() && !self.is_over {
            self.wait(&mut chunk).await;
        }
        // What has happened meanwhile goes with it, in one write.
        while chunk.len() < CHUNK_BYTES
            && !self.is_over
            && let Some(next) = self.watch.next().now_or_never()
        {
            self.take(next, &mut chunk);
        }
        if chunk.is_empty() { None } else { Some((Ok(Bytes::from(chunk)), self)) }
    }

    async fn wait(&mut self, chunk: &mut String) {
        let shutdown = self.app.shutdown.clone();
        tokio::select! {
            () = shutdown.cancelled() => self.is_over = true,
            next = self.watch.next() => self.take(next, chunk),
            _ = self.keep_alive.tick() => self.say_place(chunk),
        }
    }

    fn take(&mut self, next: Result<Arc<Transition>, WatchEnd>, chunk: &mut String) {
        match next {
            Ok(transition) => self.show(&transition, chunk),
            Err(WatchEnd::Stopped) => self.is_over = true,
            Err(WatchEnd::Compacted(_)) => {
                self.is_over = true;
                let problem = Problem::new(Code::Lagged, format!("events are missing after {}", self.seen));
                write_event(chunk, None, "lagged", &problem);
            }
        }
    }

    fn show(&mut self, transition: &Transition, chunk: &mut String) {
        self.seen = self.watch.position().into();
        if transition.name.as_str().starts_with(&self.prefix) {
            let event = service::event(transition);
            write_event(chunk, Some(self.seen), event.event.as_str(), &event);
            self.told = self.seen;
            self.silent = 0;
            return;
        }
        self.silent += 1;
        if self.silent >= SILENT_AT_MOST {
            self.say_place(chunk);
        }
    }

    /// Says the place if it has changed, and that the stream is alive in any case.
    fn say_place(&mut self, chunk: &mut String) {
        self.silent = 0;
        if self.seen == self.told {
            chunk.push_str(": alive\n\n");
        } else {
            self.told = self.seen;
            let _ = write!(chunk, "id: {}\n\n", self.told);
        }
    }
}

fn write_event(chunk: &mut String, id: Option<EventId>, event: &str, data: &impl serde::Serialize) {
    let data = serde_json::to_string(data).expect("the API's own types have text keys and finite numbers");
    if let Some(id) = id {
        let _ = writeln!(chunk, "id: {id}");
    }
    let _ = write!(chunk, "event: {event}\ndata: {data}\n\n");
}
