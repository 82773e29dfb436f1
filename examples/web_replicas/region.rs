//! The region of this replica, and its membership in the group of all replicas.
//!
//! The weight of a member is above 0 if and only if its region is active.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::client::LeaseManager;
use tenure::group::{Group, GroupError, GroupSnapshot, MemberOptions, Membership};
use tokio::sync::Mutex;

use crate::Failure;

const GROUP: &str = "web-replicas";
/// A member that sends no heartbeat for this time is not in the group.
const STALE: Duration = Duration::from_secs(3);

/// Whether the region is active. It can be read without waiting.
#[derive(Clone, Default)]
pub struct Active(Arc<AtomicBool>);

impl Active {
    pub fn get(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

pub struct Region {
    id: String,
    region: String,
    active: Active,
    /// `None` after a failed change.
    membership: Mutex<Option<Membership>>,
    group: Group,
}

impl Region {
    pub async fn join(leases: &LeaseManager, id: String, region: String, active: &str) -> Result<Region, Failure> {
        let group = Group::watch(leases, GROUP, Duration::from_secs(1)).await?;
        let joined = Region { id, region, active: Active::default(), membership: Mutex::default(), group };
        joined.activate(leases, active).await?;
        Ok(joined)
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn is_active(&self) -> Active {
        self.active.clone()
    }

    /// Makes a region the active one for this replica, and joins the group with the new weight.
    pub async fn activate(&self, leases: &LeaseManager, active: &str) -> Result<(), GroupError> {
        let is_active = self.region == active;
        let mut membership = self.membership.lock().await;
        // The gate closes before the weight changes, and opens after it.
        self.active.0.fetch_and(is_active, Ordering::SeqCst);
        if let Some(earlier) = membership.take() {
            // A membership without an answer ends by its ttl.
            let _ = earlier.leave().await;
        }
        let options = MemberOptions::new(&self.id).weight(is_active.into()).ttl(STALE);
        *membership = Some(Group::join(leases, GROUP, options).await?);
        self.active.0.store(is_active, Ordering::SeqCst);
        Ok(())
    }

    pub async fn snapshot(&self) -> GroupSnapshot {
        match &*self.membership.lock().await {
            Some(membership) => membership.snapshot(),
            None => self.group.snapshot(),
        }
    }

    pub async fn leave(&self) {
        if let Some(membership) = self.membership.lock().await.take() {
            let _ = membership.leave().await;
        }
    }
}
