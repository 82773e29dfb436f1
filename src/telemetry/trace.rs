//! The exporter of traces. The standard environment variables of OpenTelemetry configure it.

use std::env;
use std::time::Duration;

use opentelemetry::{Key, KeyValue, global};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;

use crate::tls::ClientTls;
use crate::trace;
use crate::types::NodeId;

/// Variables with the URL of the receiver. Without one of them, there are no traces.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
/// Variables with the timeout of one export, in milliseconds.
const TIMEOUTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"];
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// At the end, the process waits at most this long for the export of the last spans.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

const SERVICE: &str = "service.name";
const INSTANCE: &str = "service.instance.id";
const CLUSTER: &str = "tenure.cluster";

/// The exporter. Drop it outside the runtime, after the last request: it exports the last spans then.
pub struct Traces(SdkTracerProvider);

impl Traces {
    /// Exports the spans of this process from now on, if the environment names a receiver. `node` is the cluster and
    /// the id of the node in this process.
    ///
    /// # Errors
    ///
    /// The configuration of the exporter is invalid.
    pub fn install(node: Option<(&str, NodeId)>) -> Result<Option<Traces>, String> {
        let is_off = variable(["OTEL_SDK_DISABLED"]).is_some_and(|value| value.eq_ignore_ascii_case("true"))
            || variable(["OTEL_TRACES_EXPORTER"]).is_some_and(|value| value == "none");
        let Some(endpoint) = variable(ENDPOINTS).filter(|_| !is_off) else { return Ok(None) };
        let receiver = without_secrets(&endpoint);
        // The error of an invalid URL has the URL.
        let described = |error: String| error.replace(&endpoint, &receiver);
        let exporter =
            exporter(&endpoint).map_err(|error| format!("cannot export traces to {receiver}: {}", described(error)))?;
        let provider = SdkTracerProvider::builder().with_resource(resource(node)).with_batch_exporter(exporter).build();
        global::set_tracer_provider(provider.clone());
        trace::start_traces();
        tracing::info!(receiver, "exporting traces");
        Ok(Some(Traces(provider)))
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        // The provider logs the error. Lost spans do not change the result of the process.
        let _ = self.0.shutdown_with_timeout(FLUSH_TIMEOUT);
    }
}

/// The first of these variables that is set and not empty.
fn variable<const N: usize>(names: [&str; N]) -> Option<String> {
    names.into_iter().find_map(|name| env::var(name).ok().filter(|value| !value.is_empty()))
}

/// The scheme, host and port of a URL. The rest can have a password or a key.
fn without_secrets(url: &str) -> String {
    match url.parse::<reqwest::Url>() {
        Ok(url) => url.origin().ascii_serialization(),
        Err(_) => "an invalid URL".to_owned(),
    }
}

fn exporter(endpoint: &str) -> Result<SpanExporter, String> {
    // The CAs of the system are read only for https.
    let tls = if endpoint.starts_with("https:") { ClientTls::system() } else { ClientTls::default() };
    let timeout = variable(TIMEOUTS).and_then(|text| text.parse().ok()).map_or(DEFAULT_TIMEOUT, Duration::from_millis);
    let client = reqwest::blocking::Client::builder().timeout(timeout).tls_backend_preconfigured(tls.config()).build();
    let client = client.map_err(|error| error.to_string())?;
    SpanExporter::builder().with_http().with_http_client(client).build().map_err(|error| error.to_string())
}

/// The attributes of this process. Those from the environment take precedence.
fn resource(node: Option<(&str, NodeId)>) -> Resource {
    let environment = Resource::builder().build();
    let name = environment.get(&Key::new(SERVICE)).map(|name| name.to_string());
    // The SDK invents a name if there is none.
    let has_name = name.is_some_and(|name| !name.starts_with("unknown_service"));
    let mut own = Vec::from_iter((!has_name).then(|| KeyValue::new(SERVICE, "tenure")));
    if let Some((cluster, id)) = node {
        own.push(KeyValue::new(INSTANCE, id.to_string()));
        own.push(KeyValue::new(CLUSTER, cluster.to_owned()));
        own.retain(|own| own.key.as_str() == SERVICE || environment.get(&own.key).is_none());
    }
    Resource::builder().with_attributes(own).build()
}
