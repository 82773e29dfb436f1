//! A gate in this process: it makes the check and the write one atomic step.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::resources::{MAX_RESOURCE_BYTES, MAX_RESOURCES, MAX_WAITING, ResourceTable, TryEnter};
use super::{HighWater, HighWaterStore, Journal, OpenError, Stale, Volatile};
use crate::token::FencingToken;

/// The default time that a newer token waits for older ones to leave. See [`Gate::with_max_wait`].
pub const DEFAULT_MAX_WAIT: Duration = Duration::from_secs(10);
const LONGEST_MAX_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Checks tokens for resources in this process. Each resource has its own mark. A clone is the same gate.
///
/// - The gate admits a token at or above the resource's mark. It stores the new mark *before* the write starts. It
///   refuses a lower token at once.
/// - Callers with the **same** token can be inside together: they belong to one holder, which orders its own requests.
/// - A **newer** token makes older ones stale as soon as it arrives. It then waits until the admitted callers have
///   left. No older write is in progress when the newer one starts.
/// - The gate's maximum wait bounds this wait. After it, the call fails with [`Refused::Busy`] and has written nothing.
///   A write that never ends blocks all newer tokens: safety has priority over availability.
///
/// The gate covers only writes in this process. A write must be complete when its caller leaves: see [`Gate::admit`].
#[derive(Clone)]
pub struct Gate {
    shared: Arc<GateState>,
    max_wait: Duration,
}

struct GateState {
    /// Locked while a mark is written, but never during a wait for a change of `resources`.
    store: Mutex<Box<dyn HighWaterStore>>,
    /// Never locked during I/O.
    resources: Mutex<ResourceTable>,
    /// Notified when a caller leaves or a mark rises, for async waiters and for blocking ones.
    left: Notify,
    left_blocking: Condvar,
}

/// A caller inside the gate. Until drop, the gate admits no newer token to the resource.
#[must_use = "dropping the admission leaves the gate"]
pub struct Admission {
    shared: Arc<GateState>,
    resource: Arc<str>,
    token: FencingToken,
}

impl Gate {
    /// Creates a gate whose marks end with the process. Use it only if the resource's data does, too.
    pub fn in_memory() -> Gate {
        Gate::of(ResourceTable::default(), Box::new(Volatile))
    }

    /// Opens a gate that stores its marks in the file `path`. The marks survive crashes and power failures: see
    /// [`Journal`].
    ///
    /// # Errors
    ///
    /// The file is in use or damaged, or an I/O operation has failed.
    pub fn open(path: impl AsRef<Path>) -> Result<Gate, OpenError> {
        let mut journal = Journal::open(path.as_ref())?;
        let resources = ResourceTable::new(journal.take_recalled());
        Ok(Gate::of(resources, Box::new(journal)))
    }

    /// Creates a gate with a custom store for its marks.
    ///
    /// # Errors
    ///
    /// The store cannot load its marks.
    pub fn keeping(mut store: impl HighWaterStore) -> io::Result<Gate> {
        Ok(Gate::of(ResourceTable::new(store.recall()?), Box::new(store)))
    }

    fn of(resources: ResourceTable, store: Box<dyn HighWaterStore>) -> Gate {
        let (left, left_blocking) = (Notify::new(), Condvar::new());
        let shared = GateState { store: Mutex::new(store), resources: Mutex::new(resources), left, left_blocking };
        Gate { shared: Arc::new(shared), max_wait: DEFAULT_MAX_WAIT }
    }

    /// Sets the time that a newer token waits for older ones to leave. Default: [`DEFAULT_MAX_WAIT`]. More than a year
    /// counts as a year.
    pub fn with_max_wait(self, max_wait: Duration) -> Gate {
        Gate { max_wait: max_wait.min(LONGEST_MAX_WAIT), ..self }
    }

    /// The highest token of the resource that the gate has accepted. Its caller may still wait.
    pub fn highest(&self, resource: &str) -> HighWater {
        self.shared.resources().mark(resource)
    }

    /// Runs `write` inside the gate, or refuses the token without running it.
    ///
    /// The write must be complete when the future of `write` is complete. Work that continues elsewhere (a spawned
    /// task, a request without a response yet) may take effect after the gate has admitted a newer token. For work on
    /// other threads, call [`Gate::enter`] and move the admission there.
    ///
    /// # Errors
    ///
    /// The gate has refused the token, and `write` has not run.
    ///
    /// # Panics
    ///
    /// It panics outside a tokio runtime, or if the runtime has no timer.
    ///
    /// # Cancel safety
    ///
    /// Not cancel-safe, unless the write stops when its future is dropped. The gate counts the caller as gone at the
    /// drop.
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

    /// Like [`Gate::admit`], for blocking code. Do not call it from an async task.
    ///
    /// # Errors
    ///
    /// The gate has refused the token, and `write` has not run.
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

    /// Enters the gate. The caller is inside until it drops the admission.
    ///
    /// # Errors
    ///
    /// The gate has refused the token.
    ///
    /// # Panics
    ///
    /// The same as [`Gate::admit`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the caller is not inside. The mark may have risen to its token.
    pub async fn enter(&self, resource: &str, token: FencingToken) -> Result<Admission, Refused> {
        let deadline = Instant::now() + self.max_wait;
        let mut permit = None;
        loop {
            let left = self.shared.left.notified();
            tokio::pin!(left);
            // Registers for notifications before `try_enter`, so that no leave between the two is lost.
            left.as_mut().enable();
            let entered = self.shared.resources().try_enter(resource, token)?;
            match entered {
                TryEnter::Entered(resource) => return Ok(self.admission(resource, token)),
                TryEnter::RaiseMark => {
                    let (shared, resource) = (Arc::clone(&self.shared), resource.to_owned());
                    let raised = tokio::task::spawn_blocking(move || shared.raise(&resource, token)).await;
                    raised.unwrap_or_else(|panic| Err(Refused::Failed(panic.to_string().into())))?;
                }
                TryEnter::Wait { older } => {
                    self.shared.acquire_wait_permit(&mut permit)?;
                    if tokio::time::timeout_at(deadline.into(), left).await.is_err() {
                        return Err(Refused::Busy { offered: token, older, waited: self.max_wait });
                    }
                }
            }
        }
    }

    /// Like [`Gate::enter`], for blocking code. Do not call it from an async task.
    ///
    /// # Errors
    ///
    /// The gate has refused the token.
    pub fn enter_blocking(&self, resource: &str, token: FencingToken) -> Result<Admission, Refused> {
        let deadline = Instant::now() + self.max_wait;
        let mut permit = None;
        loop {
            let mut resources = self.shared.resources();
            match resources.try_enter(resource, token)? {
                TryEnter::Entered(resource) => {
                    drop(resources);
                    return Ok(self.admission(resource, token));
                }
                TryEnter::RaiseMark => {
                    drop(resources);
                    self.shared.raise(resource, token)?;
                }
                TryEnter::Wait { older } => {
                    if permit.is_none() {
                        resources.begin_waiting()?;
                        permit = Some(WaitPermit(&self.shared));
                    }
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        drop(resources);
                        return Err(Refused::Busy { offered: token, older, waited: self.max_wait });
                    }
                    drop(
                        self.shared.left_blocking.wait_timeout(resources, left).unwrap_or_else(PoisonError::into_inner),
                    );
                }
            }
        }
    }

    fn admission(&self, resource: Arc<str>, token: FencingToken) -> Admission {
        Admission { shared: Arc::clone(&self.shared), resource, token }
    }
}

impl GateState {
    /// Ignores poisoning: each method of the table leaves it consistent, even if it panics.
    fn resources(&self) -> MutexGuard<'_, ResourceTable> {
        self.resources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the mark, then applies it. In the other order, a crash could lose a mark after a write under it.
    fn raise(&self, resource: &str, token: FencingToken) -> Result<(), Refused> {
        let Ok(mut store) = self.store.lock() else {
            return Err(self.fail("the store panicked while it wrote a mark"));
        };
        let Some(mark) = self.resources().mark_to_store(resource, token)? else { return Ok(()) };
        if let Err(error) = store.remember(resource, mark) {
            return Err(self.fail(&error.to_string()));
        }
        self.resources().raise(resource, mark);
        // Waiters with an older token are stale now.
        self.wake();
        Ok(())
    }

    /// Fails the gate permanently: it is unknown whether the store has kept the last mark.
    fn fail(&self, why: &str) -> Refused {
        let why: Arc<str> = why.into();
        self.resources().fail(Arc::clone(&why));
        self.wake();
        Refused::Failed(why)
    }

    fn acquire_wait_permit<'a>(&'a self, permit: &mut Option<WaitPermit<'a>>) -> Result<(), Refused> {
        if permit.is_none() {
            self.resources().begin_waiting()?;
            *permit = Some(WaitPermit(self));
        }
        Ok(())
    }

    fn wake(&self) {
        self.left.notify_waiters();
        self.left_blocking.notify_all();
    }
}

/// One of the [`MAX_WAITING`] permits to wait.
struct WaitPermit<'a>(&'a GateState);

impl Drop for WaitPermit<'_> {
    fn drop(&mut self) {
        self.0.resources().end_waiting();
    }
}

impl Admission {
    /// The admitted token.
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// The resource's name.
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
        f.debug_struct("Gate").field("max_wait", &self.max_wait).finish_non_exhaustive()
    }
}

/// The gate has not admitted the caller, and the caller has written nothing.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The resource has seen a higher token. A retry cannot succeed.
    #[error(transparent)]
    Stale(#[from] Stale),
    /// Callers with an older token were still inside after the gate's maximum wait. A retry can succeed.
    #[error(
        "token {offered} waited {waited:?} for writes under token {older}, which are still in progress; retry later"
    )]
    Busy {
        /// The refused token.
        offered: FencingToken,
        /// The token of the callers inside.
        older: FencingToken,
        /// The maximum wait of the gate.
        waited: Duration,
    },
    /// Too many callers wait at this gate. A retry can succeed.
    #[error("{MAX_WAITING} callers already wait at this gate; retry later")]
    TooManyWaiting,
    /// The gate has reached [`MAX_RESOURCES`].
    #[error(
        "the gate has reached its limit of {MAX_RESOURCES} resources and never evicts a mark: use another gate for new ones"
    )]
    TooManyResources,
    /// The resource's name is empty or too long.
    #[error("the resource name has {bytes} bytes: expected 1 to {MAX_RESOURCE_BYTES}")]
    ResourceName {
        /// The length of the name.
        bytes: usize,
    },
    /// The store has failed. The failure is permanent: open a new gate.
    #[error("the gate has failed to store a mark and admits no token; fix the cause and open it again: {0}")]
    Failed(Arc<str>),
}
