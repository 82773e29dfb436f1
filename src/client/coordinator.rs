//! The requests that a manager sends to a cluster, independent of the transport.

use std::pin::Pin;
use std::time::Duration;

use super::CallError;
use crate::api::{
    Acquire, Event, EventId, Explanation, HandOver, LeaseInfo, Release, Released, RenewBatch, Renewed, UpdateMetadata,
};
use crate::types::{HolderId, LeaseName};

/// The result of a request: done, refused or unknown.
pub type ResponseFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, CallError>> + Send + 'a>>;

/// A transport to a cluster: over the network ([`Remote`](super::Remote)), to a node in the same process
/// (`node.leases()`), or a test's fake.
///
/// An implementation retries idempotent requests within the given [`RetryBudget`]. The result covers all attempts.
///
/// # Cancel safety
///
/// Dropping a future abandons the request. Its outcome is then unknown: the cluster may still apply it.
pub trait Coordinator: Send + Sync + 'static {
    /// Claims a lease. The outcome is unknown if an answer was lost and no later attempt got a grant.
    fn acquire(&self, name: LeaseName, claim: Acquire, budget: RetryBudget) -> ResponseFuture<'_, LeaseInfo>;

    /// Renews many leases of one holder. The results have the order of the request.
    fn renew(&self, batch: RenewBatch, budget: RetryBudget) -> ResponseFuture<'_, Renewed>;

    /// Releases a lease. The outcome is unknown if an answer was lost and no later attempt confirms the release.
    fn release(&self, name: LeaseName, release: Release, budget: RetryBudget) -> ResponseFuture<'_, Released>;

    /// Hands a lease over to a waiter. The request is sent once.
    fn hand_over(&self, name: LeaseName, hand_over: HandOver, budget: RetryBudget) -> ResponseFuture<'_, LeaseInfo>;

    /// Replaces the metadata of a held lease. The request is retried if an answer is lost.
    fn update_metadata(
        &self,
        name: LeaseName,
        update: UpdateMetadata,
        budget: RetryBudget,
    ) -> ResponseFuture<'_, LeaseInfo>;

    /// Reads the standing of a holder with a lease from the committed state.
    fn explain(&self, name: LeaseName, holder: HolderId, budget: RetryBudget) -> ResponseFuture<'_, Explanation>;

    /// Lists the held leases whose names start with `prefix`, ordered by name, one entry per holder.
    fn held(&self, prefix: String, budget: RetryBudget) -> ResponseFuture<'_, Vec<LeaseInfo>>;

    /// Watches transitions of leases whose names start with `prefix`, from now on or after the event `after`.
    fn watch(&self, prefix: String, after: Option<EventId>) -> Box<dyn Events>;
}

/// A stream of transitions. It returns each transition once and in order.
pub trait Events: Send {
    /// Waits for the next transition.
    ///
    /// # Errors
    ///
    /// Refused as `compacted`: the cluster no longer keeps the next events. Read the leases and start a new watch.
    /// After any other error, the next call tries again.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no transition.
    fn next(&mut self) -> ResponseFuture<'_, Event>;

    /// The last event that was returned. A new watch can continue after it.
    fn position(&self) -> Option<EventId>;
}

/// The time limits of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryBudget {
    /// The limit of one attempt, so that one silent node cannot use up the total.
    pub attempt: Duration,
    /// The limit of all attempts together, without the wait for a lease. No attempt starts with less than its full
    /// time, so that the end of the budget does not cut off an answer.
    pub total: Duration,
}

impl RetryBudget {
    /// Longest single attempt, without its wait for a lease.
    const ATTEMPT: Duration = Duration::from_secs(2);

    /// A budget with these limits.
    pub const fn new(attempt: Duration, total: Duration) -> RetryBudget {
        RetryBudget { attempt, total }
    }

    /// A budget with this total. One attempt has two fifths of it, at most 2 s.
    pub fn within(total: Duration) -> RetryBudget {
        RetryBudget { attempt: (total.saturating_mul(2) / 5).min(RetryBudget::ATTEMPT), total }
    }
}
