//! A receiver of traces over OTLP/HTTP.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use parking_lot::Mutex;
use prost::Message;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use crate::cluster::SOON;

/// A received span.
#[derive(Clone, Debug)]
pub struct Span {
    pub trace: String,
    pub id: String,
    /// Empty in the first span of a trace.
    pub parent: String,
    /// The `tracestate`.
    pub state: String,
    pub name: String,
    pub kind: SpanKind,
    pub from: u64,
    pub to: u64,
    pub is_error: bool,
    pub attributes: BTreeMap<String, String>,
    /// The attributes of the process.
    pub resource: BTreeMap<String, String>,
}

impl Span {
    /// The id of the node that made the span; empty for a client.
    pub fn node(&self) -> &str {
        self.resource.get("service.instance.id").map_or("", String::as_str)
    }
}

/// Receives spans until drop.
pub struct Receiver {
    endpoint: String,
    spans: Arc<Mutex<Vec<Span>>>,
    _task: AbortOnDropHandle<()>,
}

impl Receiver {
    pub async fn start() -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
        let spans = Arc::new(Mutex::new(Vec::new()));
        let received = spans.clone();
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.expect("a connection");
                tokio::spawn(answer(stream, received.clone()));
            }
        });
        Receiver { endpoint, spans, _task: AbortOnDropHandle::new(task) }
    }

    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The environment variables of a process that exports its spans to this receiver soon after their end.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        vec![("OTEL_EXPORTER_OTLP_ENDPOINT", self.endpoint.clone()), ("OTEL_BSP_SCHEDULE_DELAY", "50".to_owned())]
    }

    pub fn spans(&self) -> Vec<Span> {
        self.spans.lock().clone()
    }

    /// Waits until `find` finds a value in the received spans.
    pub async fn wait<T>(&self, find: impl Fn(&[Span]) -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            let spans = self.spans();
            if let Some(found) = find(&spans) {
                return found;
            }
            assert!(began.elapsed() < SOON, "the spans have not arrived: {spans:#?}");
            tokio::time::sleep(SOON / 500).await;
        }
    }
}

/// Answers the requests of one connection.
async fn answer(stream: TcpStream, spans: Arc<Mutex<Vec<Span>>>) {
    let mut stream = BufStream::new(stream);
    while let Some(body) = body(&mut stream).await {
        let request = ExportTraceServiceRequest::decode(&body[..]).expect("a request of OTLP");
        spans.lock().extend(spans_of(request));
        let answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(answer).await.expect("the exporter reads");
        stream.flush().await.expect("the exporter reads");
    }
}

/// The body of the next request to the path of traces. `None`: the connection is closed.
async fn body(stream: &mut BufStream<TcpStream>) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            break;
        }
        head.push(line.trim_end().to_ascii_lowercase());
    }
    assert_eq!(head[0], "post /v1/traces http/1.1");
    let length = head.iter().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
    let mut body = vec![0; length.parse().expect("a number")];
    stream.read_exact(&mut body).await.ok()?;
    Some(body)
}

fn spans_of(request: ExportTraceServiceRequest) -> Vec<Span> {
    let mut received = Vec::new();
    for group in request.resource_spans {
        let resource = attributes(group.resource.unwrap_or_default().attributes);
        for span in group.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            received.push(Span {
                kind: span.kind(),
                trace: hex(&span.trace_id),
                id: hex(&span.span_id),
                parent: hex(&span.parent_span_id),
                state: span.trace_state.clone(),
                from: span.start_time_unix_nano,
                to: span.end_time_unix_nano,
                is_error: span.status.is_some_and(|status| status.code == 2),
                attributes: attributes(span.attributes),
                name: span.name,
                resource: resource.clone(),
            });
        }
    }
    received
}

fn attributes(pairs: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |value: Option<AnyValue>| match value.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    };
    pairs.into_iter().map(|pair| (pair.key, text(pair.value))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
