//! Spans of embedded nodes go to the traces of the program.

use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry::trace::{FutureExt, TraceContextExt, TraceId, Tracer, TracerProvider};
use opentelemetry::{Context, global};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, Span, SpanData, SpanProcessor};
use tenure::Wait;
use tenure::node::Node;

use crate::steady::strict;
use crate::trio::Plan;

strict!(spans_go_to_the_traces_of_the_program);

/// The level at which nodes send each other the spans of their callers.
const LEVEL_OF_TRACES: u32 = 3;

/// All spans of this process that have ended.
static ENDED: Mutex<Vec<(TraceId, String)>> = Mutex::new(Vec::new());

/// The provider of this program. The tests of a process share it.
static PROVIDER: LazyLock<SdkTracerProvider> = LazyLock::new(|| {
    let provider = SdkTracerProvider::builder().with_span_processor(Collector).build();
    global::set_tracer_provider(provider.clone());
    provider
});

#[derive(Debug)]
struct Collector;

impl SpanProcessor for Collector {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        let mut ended = ENDED.lock().unwrap_or_else(PoisonError::into_inner);
        ended.push((span.span_context.trace_id(), span.name.into_owned()));
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// The names of the spans of a trace.
fn names(trace: TraceId) -> Vec<String> {
    let ended = ENDED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut names: Vec<String> = ended.iter().filter(|(of, _)| *of == trace).map(|(_, name)| name.clone()).collect();
    names.sort();
    names
}

async fn acquire(node: &Node, name: &str) {
    let leases = node.leases();
    leases.lease(name).expect("valid").acquire(Wait::No).await.expect("the lease is free");
    leases.shutdown().await;
}

/// Acquires a lease in a span of the program, and returns its trace.
async fn acquire_in_span(node: &Node, name: &str) -> TraceId {
    let context = Context::new().with_span(PROVIDER.tracer("program").start("work"));
    let trace = context.span().span_context().trace_id();
    acquire(node, name).with_context(context).await;
    trace
}

async fn spans_go_to_the_traces_of_the_program() {
    LazyLock::force(&PROVIDER);
    let trio = Plan::new(&[]).start().await;
    let (leader, follower) = trio.leader_and_follower().await;
    trio.reached(LEVEL_OF_TRACES).await;
    acquire(leader, "untraced").await;
    acquire(follower, "untraced-at-follower").await;
    let at_leader = acquire_in_span(leader, "at-leader").await;
    let at_follower = acquire_in_span(follower, "at-follower").await;
    // The manager releases the lease at its end, in the span of its caller.
    let changes = ["apply", "apply", "disk", "disk"];
    assert_eq!(names(at_leader), [&changes[..], &["propose", "propose", "work"]].concat());
    let forwarded = ["forward", "forward", "propose", "propose", "serve", "serve", "work"];
    assert_eq!(names(at_follower), [&changes[..], &forwarded].concat());
    let others =
        ENDED.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|(trace, _)| *trace).collect::<Vec<_>>();
    assert!(others.iter().all(|trace| [at_leader, at_follower].contains(trace)), "a node starts no trace");
    trio.shutdown().await;
}
