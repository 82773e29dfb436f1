//! A gate in this process: what runs inside it is checked and written in one step.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::resources::{MAX_RESOURCE_BYTES, MAX_RESOURCES, MAX_WAITING, ResourceTable, Step};
use super::{HighWater, HighWaterStore, Journal, OpenError, Stale, Volatile};
use crate::token::FencingToken;

/// How long a newer token waits for older ones to leave, unless [`Gate::with_patience`] says otherwise.
pub const DEFAULT_PATIENCE: Duration = Duration::from_secs(10);

/// Admits tokens to resources, each resource by its own rule. Clones are the same gate.
///
/// - A token at or above the highest seen for the resource is admitted, and the mark is kept *before* anything is
///   written under it. A lower one is refused at once.
/// - Callers with the **same** token are inside together: they are one holder, whose requests are its own to order.
/// - A **newer** token makes every older one stale as soon as it arrives, and then waits until those inside have left. So
///   nothing older is still being written when the newer one begins.
/// - That wait is bounded by the gate's patience: [`Refused::Busy`], with nothing written. A write that never ends keeps
///   everybody newer out; safety goes first.
///
/// The gate guards what happens in this process. The write must be over when it leaves: see [`Gate::admit`].
#[derive(Clone)]
pub struct Gate {
    shared: Arc<Shared>,
    patience: Duration,
}

struct Shared {
    /// Locked while a mark is written, never together with a wait for `rooms` to change.
    store: Mutex<Box<dyn HighWaterStore>>,
    /// Locked for moments only.
    resources: Mutex<ResourceTable>,
    left: Notify,
    left_blocking: Condvar,
}

/// A stay inside the gate: until it is dropped, no newer token is admitted to the resource.
#[must_use = "the stay inside the gate ends when this is dropped"]
pub struct Admission {
    shared: Arc<Shared>,
    resource: Arc<str>,
    token: FencingToken,
}

impl Gate {
    /// A gate that forgets everything with the process: right if the resource does, too.
    pub fn in_memory() -> Gate {
        Gate::of(ResourceTable::default(), Box::new(Volatile))
    }

    /// A gate whose marks survive crashes and power cuts, in a file of its own: see [`Journal`].
    pub fn open(path: impl AsRef<Path>) -> Result<Gate, OpenError> {
        let mut journal = Journal::open(path.as_ref())?;
        let resources = ResourceTable::new(journal.take_recalled());
        Ok(Gate::of(resources, Box::new(journal)))
    }

    /// A gate with marks that are kept elsewhere.
    pub fn keeping(mut store: impl HighWaterStore) -> io::Result<Gate> {
        Ok(Gate::of(ResourceTable::new(store.recall()?), Box::new(store)))
    }

    fn of(resources: ResourceTable, store: Box<dyn HighWaterStore>) -> Gate {
        let (left, left_blocking) = (Notify::new(), Condvar::new());
        let shared = Shared { store: Mutex::new(store), resources: Mutex::new(resources), left, left_blocking };
        Gate { shared: Arc::new(shared), patience: DEFAULT_PATIENCE }
    }

    /// How long a newer token waits for older ones to leave.
    pub fn with_patience(self, patience: Duration) -> Gate {
        Gate { patience, ..self }
    }

    /// The highest token that was accepted, or is just being accepted, for the resource.
    pub fn highest(&self, resource: &str) -> HighWater {
        self.shared.resources().mark(resource)
    }

    /// Runs `write` inside the gate, or refuses the token without running it.
    ///
    /// `write` must be over when its future is: what it left running elsewhere (a spawned task, a request whose answer it
    /// did not wait for) may still land after a newer token was admitted. For the same reason do not drop the returned
    /// future half way unless the write stops with it; for work on other threads, [`Gate::enter`] and move the admission
    /// there. Call it within a tokio runtime with its timer on.
    pub async fn admit<T, F>(
        &self,
        resource: &str,
        token: FencingToken,
        write: impl FnOnce() -> F,
    ) -> Result<T, Refused>
    where
        F: Future<Output = T>,
    {
        let admission = self.enter(resource, token).await?;
        let written = write().await;
        drop(admission);
        Ok(written)
    }

    /// [`Gate::admit`] for code that blocks. Not to be called from an async task.
    pub fn admit_blocking<T>(
        &self,
        resource: &str,
        token: FencingToken,
        write: impl FnOnce() -> T,
    ) -> Result<T, Refused> {
        let admission = self.enter_blocking(resource, token)?;
        let written = write();
        drop(admission);
        Ok(written)
    }

    /// Enters, and stays until the admission is dropped. Safe to cancel: the mark may have risen then, and nobody is inside.
    pub async fn enter(&self, resource: &str, token: FencingToken) -> Result<Admission, Refused> {
        let deadline = Instant::now() + self.patience;
        let mut place = None;
        loop {
            let left = self.shared.left.notified();
            tokio::pin!(left);
            // From here on a leave is noticed, so that none is missed between looking and waiting.
            left.as_mut().enable();
            let step = self.shared.resources().step(resource, token)?;
            match step {
                Step::Inside(resource) => return Ok(self.inside(resource, token)),
                Step::Raise => {
                    let (shared, resource) = (Arc::clone(&self.shared), resource.to_owned());
                    let raised = tokio::task::spawn_blocking(move || shared.raise(&resource, token)).await;
                    raised.unwrap_or_else(|panic| Err(Refused::Failed(panic.to_string().into())))?;
                }
                Step::Wait { older } => {
                    self.shared.take_place(&mut place)?;
                    if tokio::time::timeout_at(deadline.into(), left).await.is_err() {
                        return Err(Refused::Busy { offered: token, older, waited: self.patience });
                    }
                }
            }
        }
    }

    /// [`Gate::enter`] for code that blocks. Not to be called from an async task.
    pub fn enter_blocking(&self, resource: &str, token: FencingToken) -> Result<Admission, Refused> {
        let deadline = Instant::now() + self.patience;
        let mut place = None;
        loop {
            let mut resources = self.shared.resources();
            match resources.step(resource, token)? {
                Step::Inside(resource) => {
                    drop(resources);
                    return Ok(self.inside(resource, token));
                }
                Step::Raise => {
                    drop(resources);
                    self.shared.raise(resource, token)?;
                }
                Step::Wait { older } => {
                    if place.is_none() {
                        resources.begin_waiting()?;
                        place = Some(Place(&self.shared));
                    }
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        drop(resources);
                        return Err(Refused::Busy { offered: token, older, waited: self.patience });
                    }
                    drop(
                        self.shared.left_blocking.wait_timeout(resources, left).unwrap_or_else(PoisonError::into_inner),
                    );
                }
            }
        }
    }

    fn inside(&self, resource: Arc<str>, token: FencingToken) -> Admission {
        Admission { shared: Arc::clone(&self.shared), resource, token }
    }
}

impl Shared {
    /// A panic while it is locked leaves nothing half done: every change of it is one step.
    fn resources(&self) -> MutexGuard<'_, ResourceTable> {
        self.resources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the mark, then lets it count. In this order: a mark that counted first could be lost in a crash after
    /// something was written under it.
    fn raise(&self, resource: &str, token: FencingToken) -> Result<(), Refused> {
        let Ok(mut store) = self.store.lock() else { return Err(self.fail("a panic while a mark was written")) };
        let Some(mark) = self.resources().mark_to_keep(resource, token)? else { return Ok(()) };
        if let Err(error) = store.remember(resource, mark) {
            return Err(self.fail(&error.to_string()));
        }
        self.resources().raise(resource, mark);
        // Those who wait with an older token are stale now.
        self.wake();
        Ok(())
    }

    /// Shuts the gate for good: whether the last mark is kept is unknown.
    fn fail(&self, why: &str) -> Refused {
        let why: Arc<str> = why.into();
        self.resources().fail(Arc::clone(&why));
        self.wake();
        Refused::Failed(why)
    }

    fn take_place<'a>(&'a self, place: &mut Option<Place<'a>>) -> Result<(), Refused> {
        if place.is_none() {
            self.resources().begin_waiting()?;
            *place = Some(Place(self));
        }
        Ok(())
    }

    fn wake(&self) {
        self.left.notify_waiters();
        self.left_blocking.notify_all();
    }
}

/// One of the [`MAX_WAITING`] places.
struct Place<'a>(&'a Shared);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.resources().end_waiting();
    }
}

impl Admission {
    /// The token that was admitted.
    pub fn token(&self) -> FencingToken {
        self.token
    }

    pub fn resource(&self) -> &str {
        &self.resource
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let empty = self.shared.resources().leave(&self.resource);
        if empty {
            self.shared.wake();
        }
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission").field("resource", &self.resource).field("token", &self.token).finish()
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("patience", &self.patience).finish_non_exhaustive()
    }
}

/// Not admitted: nothing was written.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Refused {
    #[error(transparent)]
    Stale(#[from] Stale),
    /// Trying again is worth it: those inside may have left.
    #[error("token {offered} waited {waited:?} for writes under {older} to end, which are not over yet")]
    Busy { offered: FencingToken, older: FencingToken, waited: Duration },
    /// Trying again later is worth it.
    #[error("{MAX_WAITING} callers wait at this gate already")]
    Crowded,
    #[error("the gate knows {MAX_RESOURCES} resources and takes no more: a mark that is forgotten lets old holders in")]
    TooManyResources,
    #[error("a resource's name must have 1 to {MAX_RESOURCE_BYTES} bytes, and this one has {bytes}")]
    ResourceName { bytes: usize },
    /// For good: the gate has to be opened anew.
    #[error("the gate cannot keep its marks any more and admits nobody: {0}")]
    Failed(Arc<str>),
}
