//! The gate as a tower layer. Requests carry their token in the [`Fencing-Token`](HEADER) header.
//!
//! The layer admits a request *before* the handler runs. The request is inside the gate until the handler returns its
//! response. A request with a newer token waits for this, at most for the gate's maximum wait. The check and the
//! handler are therefore one step: no handler of an older holder still writes when a newer one starts.
//!
//! The layer checks all requests of all methods. Add it only to the routes that write (`route_layer`).
//!
//! # Examples
//!
//! ```
//! use axum::{Extension, Router, routing::put};
//! use tenure::fence::{Gate, http::{FenceLayer, Fenced}};
//!
//! async fn write(Extension(fenced): Extension<Fenced>) -> String {
//!     // Inside the gate. If the store can check tokens, pass it on: `fenced.token().as_i64()`.
//!     format!("written under {}\n", fenced.token())
//! }
//!
//! let gate = Gate::in_memory();
//! let app: Router = Router::new()
//!     .route("/reports/{id}", put(write))
//!     .route_layer(FenceLayer::by(gate, |request| request.uri.path().to_owned()));
//! ```
//!
//! # Limits
//!
//! - Work that outlives the handler's future is outside the gate: a spawned task, a blocking thread, a response body
//!   that writes while it is sent. Such work must keep a clone of [`Fenced`] until its last write.
//! - A server drops the handler's future when the client disconnects. A write that continues after this drop must keep
//!   a clone, too.
//! - A gate covers one process. If two processes write to one store, each knows only its own tokens: pass the token on
//!   to the store.
//! - The layer does not authenticate clients. A client that sends a very high token locks out all other clients.
//!   Authenticate requests before this layer.

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
use refusal::FenceProblem;

/// The header of the token. Its value is a decimal integer; leading zeros are valid.
pub const HEADER: &str = "fencing-token";

type Key = dyn Fn(&Parts) -> String + Send + Sync;

/// A tower layer that passes requests through a [`Gate`].
#[derive(Clone)]
pub struct FenceLayer {
    gate: Gate,
    key: Arc<Key>,
}

/// The service that [`FenceLayer`] produces.
#[derive(Clone, Debug)]
pub struct Fence<S> {
    inner: S,
    layer: FenceLayer,
}

/// The admission of a request, in the extensions of the request.
///
/// While a clone exists, the gate admits no newer token to the resource. Keep a clone until the last write.
#[derive(Clone, Debug)]
pub struct Fenced(Arc<Admission>);

impl FenceLayer {
    /// Creates a layer for requests to a single resource.
    pub fn new(gate: Gate, resource: impl Into<String>) -> FenceLayer {
        let resource = resource.into();
        FenceLayer::by(gate, move |_| resource.clone())
    }

    /// Creates a layer for requests to several resources. `key` returns the resource name of a request.
    ///
    /// A name has 1 to [`MAX_RESOURCE_BYTES`](super::MAX_RESOURCE_BYTES) bytes. `key` must map all spellings of a
    /// resource to one name. It must not use arbitrary names from clients, because the gate refuses new resources above
    /// [`MAX_RESOURCES`](super::MAX_RESOURCES).
    pub fn by(gate: Gate, key: impl Fn(&Parts) -> String + Send + Sync + 'static) -> FenceLayer {
        FenceLayer { gate, key: Arc::new(key) }
    }

    async fn admit(&self, parts: &Parts) -> Result<Fenced, FenceProblem> {
        let token = token(&parts.headers)?;
        let admission = self.gate.enter(&(self.key)(parts), token).await?;
        Ok(Fenced(Arc::new(admission)))
    }
}

impl Fenced {
    /// The admitted token.
    pub fn token(&self) -> FencingToken {
        self.0.token()
    }

    /// The resource name, from the layer's `key`.
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
        // `poll_ready` has reserved capacity in `self.inner`, not in its clone, so the call must use `self.inner`.
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

/// The token of a request, which must have exactly one.
pub(crate) fn token(headers: &HeaderMap) -> Result<FencingToken, FenceProblem> {
    let mut values = headers.get_all(HEADER).iter();
    let value = values.next().ok_or_else(FenceProblem::missing)?;
    if values.next().is_some() {
        return Err(FenceProblem::malformed("the request has more than one Fencing-Token header"));
    }
    let text = value.to_str().map_err(|_| FenceProblem::malformed("the Fencing-Token header is not text"))?;
    text.parse().map_err(|error| FenceProblem::malformed(format!("{error}")))
}

impl fmt::Debug for FenceLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceLayer").field("gate", &self.gate).finish_non_exhaustive()
    }
}
