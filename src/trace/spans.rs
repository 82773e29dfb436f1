//! Spans of OpenTelemetry.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use futures_util::future::Either;
use opentelemetry::trace::{
    FutureExt, Span as _, SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId,
    TraceState, WithContext,
};
use opentelemetry::{Context, KeyValue, global};

use super::{SpanRole, TRACEPARENT, TRACESTATE, TraceParent};

/// The name of the tracer.
const TRACER: &str = "tenure";
/// A longer `tracestate` is dropped.
const MAX_STATE_BYTES: usize = 512;
/// A longer text of an attribute is cut.
const MAX_TEXT_BYTES: usize = 512;

/// Whether a request without a parent starts a trace. Static, because the tracer provider of the process is, too.
static STARTS_TRACES: AtomicBool = AtomicBool::new(false);

/// From now on, requests without a parent start traces.
#[cfg(feature = "otlp")]
pub(crate) fn start_traces() {
    STARTS_TRACES.store(true, Ordering::Relaxed);
}

/// A span in progress, or none. It ends when its last clone is dropped.
#[derive(Clone)]
#[must_use]
pub(crate) struct Span(Option<Context>);

impl Span {
    /// The span of a client's operation.
    pub fn operation<N: Into<Cow<'static, str>>>(name: impl FnOnce() -> N) -> Span {
        Span::start_below(span_in_progress().or_else(new_trace), name, SpanRole::Internal)
    }

    /// A child of the span in progress, if that span is recorded.
    pub fn child<N: Into<Cow<'static, str>>>(name: impl FnOnce() -> N, kind: SpanRole) -> Span {
        let recorded = |context: &Context| context.span().span_context().is_sampled().then(|| context.clone());
        Span::start_below(Context::map_current(recorded), name, kind)
    }

    /// The span of a request from a client. `starts_trace`: it can start a trace. `header` returns the value of a header
    /// that the request has once.
    pub fn of_request<'h, N: Into<Cow<'static, str>>>(
        name: impl FnOnce() -> N,
        starts_trace: bool,
        header: impl Fn(&str) -> Option<&'h [u8]>,
    ) -> Span {
        // A program that mounts the router may have read the header already, and then its span is in progress.
        let sent = || Some(TraceParent::read(header(TRACEPARENT)?, header(TRACESTATE))?.remote());
        let parent = span_in_progress().or_else(sent).or_else(|| starts_trace.then(new_trace).flatten());
        Span::start_below(parent, name, SpanKind::Server)
    }

    /// The span of a request that another node forwarded.
    pub fn of_peer(name: &'static str, parent: &TraceParent) -> Span {
        Span::start_below(Some(parent.remote()), || name, SpanKind::Server)
    }

    fn start_below<N: Into<Cow<'static, str>>>(
        parent: Option<Context>,
        name: impl FnOnce() -> N,
        kind: impl Into<SpanKind>,
    ) -> Span {
        Span(parent.map(|parent| {
            let builder = SpanBuilder::from_name(name()).with_kind(kind.into());
            let span = builder.start_with_context(&global::tracer(TRACER), &parent);
            parent.with_span(span)
        }))
    }

    pub fn is_recording(&self) -> bool {
        self.0.as_ref().is_some_and(|context| context.span().is_recording())
    }

    /// The context for the receiver of a request.
    pub fn context(&self) -> Option<TraceParent> {
        TraceParent::of(self.0.as_ref()?)
    }

    pub fn set_text(&self, key: &'static str, text: &str) {
        if let Some(context) = self.0.as_ref().filter(|_| self.is_recording()) {
            let text = &text[..text.floor_char_boundary(MAX_TEXT_BYTES)];
            context.span().set_attribute(KeyValue::new(key, text.to_owned()));
        }
    }

    pub fn set_number(&self, key: &'static str, number: u64) {
        if let Some(context) = &self.0 {
            context.span().set_attribute(KeyValue::new(key, i64::try_from(number).unwrap_or(i64::MAX)));
        }
    }

    /// Marks the span as failed.
    pub fn fail(&self, why: &dyn fmt::Display) {
        if let Some(context) = self.0.as_ref().filter(|_| self.is_recording()) {
            let mut why = why.to_string();
            why.truncate(why.floor_char_boundary(MAX_TEXT_BYTES));
            context.span().set_status(Status::error(why));
        }
    }

    /// Adds a child for a stage that is over.
    pub fn stage(&self, name: &'static str, from: SystemTime, to: SystemTime) {
        if let Some(context) = self.0.as_ref().filter(|_| self.is_recording()) {
            let builder = SpanBuilder::from_name(name).with_start_time(from);
            builder.start_with_context(&global::tracer(TRACER), context).end_with_timestamp(to);
        }
    }

    /// The span is in progress while `work` runs.
    pub fn instrument<F: Future>(self, work: F) -> Either<F, WithContext<F>> {
        match self.0 {
            None => Either::Left(work),
            Some(context) => Either::Right(work.with_context(context)),
        }
    }
}

/// The context of the span in progress.
pub(crate) fn current() -> Option<TraceParent> {
    Context::map_current(TraceParent::of)
}

/// The span that is in progress here is also in progress in `work`, which may run in another task.
pub(crate) fn in_current<F: Future>(work: F) -> Either<F, WithContext<F>> {
    Span(span_in_progress()).instrument(work)
}

fn span_in_progress() -> Option<Context> {
    Context::map_current(|context| context.span().span_context().is_valid().then(|| context.clone()))
}

fn new_trace() -> Option<Context> {
    STARTS_TRACES.load(Ordering::Relaxed).then(Context::new)
}

impl From<SpanRole> for SpanKind {
    fn from(kind: SpanRole) -> SpanKind {
        match kind {
            SpanRole::Internal => SpanKind::Internal,
            SpanRole::Client => SpanKind::Client,
        }
    }
}

impl TraceParent {
    fn of(context: &Context) -> Option<TraceParent> {
        let span = context.span();
        let span = Some(span.span_context()).filter(|span| span.is_valid())?;
        let state = Some(span.trace_state().header()).filter(|state| state.len() <= MAX_STATE_BYTES);
        Some(TraceParent {
            trace: span.trace_id().to_bytes(),
            span: span.span_id().to_bytes(),
            flags: span.trace_flags().to_u8(),
            state: state.unwrap_or_default(),
        })
    }

    /// Reads the headers `traceparent` and `tracestate`. A malformed `traceparent` counts as missing, and so does a
    /// malformed or long `tracestate`.
    fn read(traceparent: &[u8], tracestate: Option<&[u8]>) -> Option<TraceParent> {
        let text = std::str::from_utf8(traceparent).ok()?;
        let is_hex = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let field = |from: usize, bytes: usize| {
            let field = text.get(from..from + 2 * bytes).filter(|field| field.as_bytes().iter().all(is_hex))?;
            let ends = text.as_bytes().get(from + 2 * bytes).is_none_or(|byte| *byte == b'-');
            u128::from_str_radix(field, 16).ok().filter(|_| ends)
        };
        let (version, trace, span, flags) = (field(0, 1)?, field(3, 16)?, field(36, 8)?, field(53, 1)?);
        // A later version may have more fields after these. Version 255 is invalid.
        let is_known = version == 0 && text.len() == 55 || (1..255).contains(&version);
        if !is_known || trace == 0 || span == 0 {
            return None;
        }
        let state = tracestate.filter(|state| state.len() <= MAX_STATE_BYTES);
        let state = state.and_then(|state| std::str::from_utf8(state).ok()).unwrap_or_default();
        Some(TraceParent {
            trace: trace.to_be_bytes(),
            span: u64::try_from(span).ok()?.to_be_bytes(),
            flags: u8::try_from(flags).ok()?,
            state: state.to_owned(),
        })
    }

    /// The context of a span in another process.
    fn remote(&self) -> Context {
        let state = Some(&*self.state).filter(|state| state.len() <= MAX_STATE_BYTES);
        let state = state.and_then(|state| TraceState::from_str(state).ok()).unwrap_or_default();
        let (trace, span) = (TraceId::from_bytes(self.trace), SpanId::from_bytes(self.span));
        // Of the flags, version 0 knows only this one.
        let flags = TraceFlags::new(self.flags) & TraceFlags::SAMPLED;
        Context::new().with_remote_span_context(SpanContext::new(trace, span, flags, true, state))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn read(traceparent: &str, tracestate: Option<&str>) -> Option<TraceParent> {
        TraceParent::read(traceparent.as_bytes(), tracestate.map(str::as_bytes))
    }

    #[test]
    fn traceparent_is_read_and_written() {
        let parent = read(HEADER, Some("a=1,b=2")).expect("valid");
        assert_eq!((parent.to_string(), &*parent.state), (HEADER.to_owned(), "a=1,b=2"));
        assert_eq!(TraceParent::of(&parent.remote()), Some(parent));
        let later = HEADER.replacen("00", "01", 1) + "-more";
        assert_eq!(read(&later, None).map(|parent| parent.to_string()), Some(HEADER.to_owned()));
    }

    #[test]
    fn malformed_traceparent_counts_as_missing() {
        let zero_trace = format!("00-{}-b7ad6b7169203331-01", "0".repeat(32));
        let zero_span = format!("00-0af7651916cd43dd8448eb211c80319c-{}-01", "0".repeat(16));
        let others = ["", "00", "00-", &HEADER[..54], &HEADER.to_uppercase(), &HEADER.replace('-', "_")];
        let long = [format!("{HEADER}-more"), format!("{HEADER}0"), HEADER.replacen("00", "ff", 1)];
        let cut = [zero_trace, zero_span, HEADER.replace("0af7", "+af7"), format!("é{}", &HEADER[2..])];
        for header in others.map(str::to_owned).into_iter().chain(long).chain(cut) {
            assert_eq!(read(&header, None), None, "{header:?}");
        }
    }

    #[test]
    fn long_or_malformed_tracestate_is_dropped() {
        let state = |state: &str| {
            read(HEADER, Some(state)).map(|parent| TraceParent::of(&parent.remote()).expect("valid").state)
        };
        let longest = format!("a={}", "b".repeat(254));
        assert_eq!(state(&longest), Some(longest));
        assert_eq!(state(&format!("a={},c=1", "b".repeat(MAX_STATE_BYTES))), Some(String::new()));
        assert_eq!(state("no key"), Some(String::new()));
    }

    /// A flag that a later version defines is not sent on.
    #[test]
    fn only_the_sampled_flag_is_kept() {
        let parent = read(&HEADER.replace("-01", "-ff"), None).expect("valid");
        assert_eq!(TraceParent::of(&parent.remote()).map(|parent| parent.flags), Some(1));
    }

    #[test]
    fn library_starts_no_trace() {
        let spans = [
            Span::operation(|| -> String { unreachable!("there is no parent") }),
            Span::child(|| "a", SpanRole::Internal),
            Span::of_request(|| -> String { unreachable!("the header is malformed") }, true, |_| Some(b"00-0-0-01")),
        ];
        assert!(spans.iter().all(|span| span.0.is_none()));
        assert_eq!(current(), None);
    }
}
