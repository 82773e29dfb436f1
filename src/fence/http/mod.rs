//! The gate as a tower layer: requests carry their token in the [`Fencing-Token`](HEADER) header.
//!
//! The layer admits a request *before* it reaches the handler, and the request stays inside the gate until the handler's
//! response is there. A request with a newer token waits for that (at most the gate's patience), so checking and handling
//! are one step, and no handler of an older holder is still writing when a newer one begins.
//!
//! Every request that is routed through the layer is checked, whatever its method: put it on the routes that write
//! (`route_layer`), and leave reads outside.
//!
//! ```
//! use axum::{Extension, Router, routing::put};
//! use tenure::fence::{Gate, http::{FenceLayer, Fenced}};
//!
//! async fn write(Extension(fenced): Extension<Fenced>) -> String {
//!     // Inside the gate. Stores that can check take the token along: `fenced.token().as_i64()`.
//!     format!("written under {}\n", fenced.token())
//! }
//!
//! let gate = Gate::in_memory();
//! let app: Router = Router::new()
//!     .route("/reports/{id}", put(write))
//!     .route_layer(FenceLayer::by(gate, |request| request.uri.path().to_owned()));
//! ```
//!
//! Where it ends:
//!
//! - Work that outlives the handler's future is outside the gate, unless it keeps a clone of [`Fenced`] for as long as it
//!   writes: a spawned task, a blocking thread, a response body that writes while it is sent. Servers drop the handler's
//!   future when the client hangs up: a write that would go on after that has to keep a clone, too.
//! - One gate is one process. Two processes before one store each know only the tokens that they saw: pass the token on
//!   to the store.
//! - It compares tokens and knows nobody: whoever can send requests can send a high token, and shut everybody out.
//!   Authenticate outside of this layer.

mod refusal;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::request::Parts;
use http::{HeaderMap, Request, Response};
use tower::{Layer, Service};

pub use self::refusal::{BUSY, FAILED, FULL, MALFORMED, MISSING, RESOURCE, STALE};
use super::{Admission, Gate};
use crate::token::FencingToken;
use refusal::Problem;

/// The header with the token in its decimal integer form, leading zeros allowed.
pub const HEADER: &str = "fencing-token";

type Key = dyn Fn(&Parts) -> String + Send + Sync;

/// Lets requests through a [`Gate`] to whatever service it is put on.
#[derive(Clone)]
pub struct FenceLayer {
    gate: Gate,
    key: Arc<Key>,
}

/// The service that [`FenceLayer`] makes.
#[derive(Clone, Debug)]
pub struct Fence<S> {
    inner: S,
    layer: FenceLayer,
}

/// In the extensions of every request that was let through. While a clone of it lives, no newer token is admitted to the
/// resource: keep one for as long as something is being written.
#[derive(Clone, Debug)]
pub struct Fenced(Arc<Admission>);

impl FenceLayer {
    /// All requests are about one resource.
    pub fn new(gate: Gate, resource: impl Into<String>) -> FenceLayer {
        let resource = resource.into();
        FenceLayer::by(gate, move |_| resource.clone())
    }

    /// `key` names the resource that a request is about, 1 to [`MAX_RESOURCE_BYTES`](super::MAX_RESOURCE_BYTES) bytes.
    ///
    /// Give all spellings of a resource one name. Names that callers can make up at will fill the gate, which keeps
    /// [`MAX_RESOURCES`](super::MAX_RESOURCES) and then refuses new ones.
    pub fn by(gate: Gate, key: impl Fn(&Parts) -> String + Send + Sync + 'static) -> FenceLayer {
        FenceLayer { gate, key: Arc::new(key) }
    }

    async fn admit(&self, parts: &Parts) -> Result<Fenced, Problem> {
        let token = token(&parts.headers)?;
        let admission = self.gate.enter(&(self.key)(parts), token).await?;
        Ok(Fenced(Arc::new(admission)))
    }
}

impl Fenced {
    /// The token that was admitted.
    pub fn token(&self) -> FencingToken {
        self.0.token()
    }

    /// The name that the layer's key gave the resource.
    pub fn resource(&self) -> &str {
        self.0.resource()
    }
}

impl<S> Layer<S> for FenceLayer {
    type Service = Fence<S>;

    fn layer(&self, inner: S) -> Fence<S> {
        Fence { inner, layer: self.clone() }
    }
}

impl<S, In, Out> Service<Request<In>> for Fence<S>
where
    S: Service<Request<In>, Response = Response<Out>> + Clone + Send + 'static,
    S::Future: Send,
    In: Send + 'static,
    Out: From<String>,
{
    type Response = Response<Out>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Out>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<In>) -> Self::Future {
        // The one that was found ready goes along; its clone has to be found ready first.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let layer = self.layer.clone();
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            let fenced = match layer.admit(&parts).await {
                Ok(fenced) => fenced,
                Err(problem) => return Ok(problem.into_response()),
            };
            parts.extensions.insert(fenced.clone());
            let response = inner.call(Request::from_parts(parts, body)).await;
            drop(fenced);
            response
        })
    }
}

/// The request's one token.
pub(crate) fn token(headers: &HeaderMap) -> Result<FencingToken, Problem> {
    let mut values = headers.get_all(HEADER).iter();
    let value = values.next().ok_or_else(Problem::missing)?;
    if values.next().is_some() {
        return Err(Problem::malformed("the request has more than one Fencing-Token header"));
    }
    let text = value.to_str().map_err(|_| Problem::malformed("the Fencing-Token header is not text"))?;
    text.parse().map_err(|error| Problem::malformed(format!("{error}")))
}

impl fmt::Debug for FenceLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceLayer").field("gate", &self.gate).finish_non_exhaustive()
    }
}
