//! What a manager asks of a cluster, whatever way there is to it.

use std::pin::Pin;

use super::{CallError, RetryBudget};
use crate::api::{
    Acquire, Event, EventId, Explanation, HandOver, Lease, Release, Released, RenewBatch, Renewed, UpdateMetadata,
};
use crate::types::{HolderId, LeaseName};

/// The answer to a request: done, refused or unknown.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, CallError>> + Send + 'a>>;

/// A way to a cluster: over the network ([`Remote`](super::Remote)), to a node in the same process
/// (`node.leases()`), or a test's fake.
///
/// Requests are sent again by themselves where that is the same as sending them once, within the patience given; what
/// comes back is what is known after that. Dropping a future gives the request up, and leaves its outcome unknown.
pub trait Coordinator: Send + Sync + 'static {
    /// Claims a lease. Unknown if any attempt's answer was lost and no later one was a grant.
    fn acquire(&self, name: LeaseName, claim: Acquire, budget: RetryBudget) -> Answer<'_, Lease>;

    /// Keeps many leases of one holder. One result each, in the order asked.
    fn renew(&self, batch: RenewBatch, budget: RetryBudget) -> Answer<'_, Renewed>;

    /// Gives a lease back. Unknown if any attempt's answer was lost and no later one says that it released.
    fn release(&self, name: LeaseName, release: Release, budget: RetryBudget) -> Answer<'_, Released>;

    /// Gives a lease to a waiter. Sent once.
    fn hand_over(&self, name: LeaseName, hand_over: HandOver, budget: RetryBudget) -> Answer<'_, Lease>;

    /// Replaces the metadata of a held lease. Sent again when the answer is lost.
    fn update_metadata(&self, name: LeaseName, update: UpdateMetadata, budget: RetryBudget) -> Answer<'_, Lease>;

    /// How a holder stands with a lease, by the committed state.
    fn explain(&self, name: LeaseName, holder: HolderId, budget: RetryBudget) -> Answer<'_, Explanation>;

    /// Every lease that is held and whose name starts with `prefix`, in the order of names, one for each holder.
    fn held(&self, prefix: String, budget: RetryBudget) -> Answer<'_, Vec<Lease>>;

    /// Transitions of leases whose names start with `prefix`, from now on or after a place in the stream.
    fn watch(&self, prefix: String, after: Option<EventId>) -> Box<dyn Events>;
}

/// Transitions, each once and in order.
pub trait Events: Send {
    /// Waits for the next transition. Dropping the future loses nothing.
    ///
    /// # Errors
    ///
    /// Refused as `compacted`: events are missing; look at the leases and watch from now. Anything else: the next call
    /// goes on trying.
    fn next(&mut self) -> Answer<'_, Event>;

    /// Up to here everything has been returned.
    fn place(&self) -> Option<EventId>;
}
