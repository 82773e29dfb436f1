//! Spans of requests, and the context that connects the spans of several processes.
//!
//! The library continues the traces of its program and of its callers. It starts no trace: without a parent there is no
//! span. Only the binary starts traces. Spans go to the global tracer provider of OpenTelemetry, which the program sets.
//!
//! Only this module and `telemetry` name opentelemetry. Without the feature `otel`, the functions here do nothing.

#[cfg(not(feature = "otel"))]
mod disabled;
#[cfg(feature = "otel")]
mod spans;

use std::fmt;

use serde::{Deserialize, Serialize};

#[cfg(not(feature = "otel"))]
pub(crate) use disabled::{Span, current, in_current};
#[cfg(feature = "otlp")]
pub(crate) use spans::start_traces;
#[cfg(feature = "otel")]
pub(crate) use spans::{Span, current, in_current};

/// The headers of W3C Trace Context.
pub(crate) const TRACEPARENT: &str = "traceparent";
pub(crate) const TRACESTATE: &str = "tracestate";

/// The attribute with the id of the node that made the span: several nodes can run in one process.
pub(crate) const NODE: &str = "tenure.node";

/// The role of a span.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SpanRole {
    /// Work in this process.
    Internal,
    /// A request to another process.
    Client,
}

/// The span of a caller. Nodes send it to each other, so its form is frozen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TraceParent {
    pub trace: [u8; 16],
    pub span: [u8; 8],
    pub flags: u8,
    /// The header `tracestate`; empty without one.
    pub state: String,
}

/// The header `traceparent`.
impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace, span) = (u128::from_be_bytes(self.trace), u64::from_be_bytes(self.span));
        write!(f, "00-{trace:032x}-{span:016x}-{:02x}", self.flags)
    }
}
