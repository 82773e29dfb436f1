//! The task of one shard: it holds the shard's lease while the shard belongs to this process, and runs the work
//! meanwhile.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use tokio_util::sync::CancellationToken;

use super::roster::Roster;
use crate::client::{Lease, LeaseGuard, LeaseOptions, Wait};
use crate::token::FencingToken;
use crate::types::LeaseName;

/// Longest wait of one claim in the queue of a shard's lease.
const QUEUE_WAIT: Duration = Duration::from_secs(30);
/// Pause before another acquire, after the work ended or an acquire failed.
const RESTART_DELAY: Duration = Duration::from_millis(500);

/// A held shard. The work on it receives this value.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Shard {
    /// The lease. It is held when the work starts.
    pub lease: Lease,
    /// The fencing token. Send it with every write.
    pub token: FencingToken,
    /// Cancelled when the work must end, because the shard belongs to another process or the program stops. After
    /// [`LeaseOptions::drain`](crate::client::LeaseOptions::drain) the work is dropped.
    pub leaving: CancellationToken,
}

/// The task of one shard.
pub(super) struct ShardTask<W> {
    pub roster: Arc<Roster>,
    pub lease: Lease,
    /// The manager shares the options of a lease among its handles. So each claim has those of its task.
    pub options: Arc<LeaseOptions>,
    pub held: Arc<Mutex<BTreeSet<LeaseName>>>,
    pub work: Arc<W>,
}

impl<W, F> ShardTask<W>
where
    W: Fn(Shard) -> F,
    F: Future<Output = ()>,
{
    /// Runs until `stop`. Then it releases the shard.
    pub async fn run(self, stop: CancellationToken) {
        loop {
            let name = self.lease.name().as_str();
            let guard = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                guard = self.acquire(name) => guard,
            };
            if let Some(guard) = guard {
                self.hold(guard, &stop).await;
            }
            // At once if the shard has moved: the next acquire waits until it belongs to this process again.
            let delay = if self.roster.is_owned(name) { RESTART_DELAY } else { Duration::ZERO };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(delay) => {}
            }
        }
    }

    /// Waits until the shard belongs to this process, and then for its lease. Returns `None` if the shard moved again
    /// or the acquire failed.
    async fn acquire(&self, name: &str) -> Option<LeaseGuard> {
        self.roster.wait_for_ownership(name, true).await;
        let options = self.roster.assign(name, LeaseOptions::clone(&self.options));
        let acquired = tokio::select! {
            biased;
            acquired = self.lease.guard_with(Some(options), Wait::UpTo(QUEUE_WAIT).into()) => acquired,
            () = self.roster.wait_for_ownership(name, false) => return None,
        };
        acquired
            .inspect_err(|error| {
                tracing::debug!(shard = name, %error, "the acquire of a shard failed");
                // The shard may move before the next acquire.
                self.lease.resolve_lazily();
            })
            .ok()
    }

    /// Runs the work until it ends, the lease is lost, or the shard belongs to another process. Then it releases the
    /// lease.
    async fn hold(&self, guard: LeaseGuard, stop: &CancellationToken) {
        let name = guard.name().clone();
        let held = HeldEntry::new(&self.held, name.clone());
        let leaving = CancellationToken::new();
        let shard = Shard { lease: self.lease.clone(), token: guard.token(), leaving: leaving.clone() };
        {
            // The call itself can panic, too.
            let work = AssertUnwindSafe(async { (self.work)(shard).await }).catch_unwind();
            let mut work = std::pin::pin!(guard.while_held(work));
            let ended = tokio::select! {
                ended = &mut work => Some(ended),
                () = stop.cancelled() => None,
                () = self.roster.wait_for_ownership(name.as_str(), false) => None,
            };
            leaving.cancel();
            let ended = match ended {
                Some(ended) => Some(ended),
                None => tokio::time::timeout(guard.drain(), work).await.ok(),
            };
            match ended {
                Some(Ok(Ok(()))) => {}
                Some(Ok(Err(_))) => tracing::error!(shard = %name, "the work on a shard panicked"),
                Some(Err(why)) => tracing::warn!(shard = %name, %why, "a shard was lost"),
                None => {
                    tracing::warn!(shard = %name, "the work on a shard exceeded its drain time and was dropped")
                }
            }
        }
        drop(held);
        if let Err(error) = guard.release().await {
            tracing::warn!(shard = %name, %error, "the release of a shard failed; its lease expires by its ttl");
        }
    }
}

/// The entry of a shard in the list of held shards. Dropping it removes the entry.
struct HeldEntry<'a> {
    list: &'a Mutex<BTreeSet<LeaseName>>,
    name: LeaseName,
}

impl<'a> HeldEntry<'a> {
    fn new(list: &'a Mutex<BTreeSet<LeaseName>>, name: LeaseName) -> HeldEntry<'a> {
        list.lock().expect(UNPOISONED).insert(name.clone());
        HeldEntry { list, name }
    }
}

impl Drop for HeldEntry<'_> {
    fn drop(&mut self) {
        self.list.lock().expect(UNPOISONED).remove(&self.name);
    }
}

pub(super) const UNPOISONED: &str = "no code panics while it holds this lock";
