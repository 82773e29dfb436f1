//! One's own place in a group.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::sync::CancellationToken;

use super::{Group, MAX_MEMBERS, MemberOptions};
use crate::api::Code;
use crate::client::{CallError, Lease, LeaseGuard, LeaseManager, Loss, Wait};
use crate::types::InvalidValue;

/// A member's own side: its place, and the [`Group`] as it sees it.
///
/// The place is a lease and can be lost: then [`lost`](Membership::lost) fires, the others place nothing here any more,
/// and nor does this side. [`leave`](Membership::leave) it; dropping it only asks for that.
#[must_use = "dropping it leaves the group"]
pub struct Membership {
    group: Group,
    lease: Lease,
    guard: Option<LeaseGuard>,
    options: MemberOptions,
    is_ready: AtomicBool,
}

impl Group {
    /// Joins a group. A member with the same id that has died is waited for until its ttl is over.
    ///
    /// The place is the lease with the group's name, a colon and the member's id; weight and readiness are in its
    /// metadata, as [`WEIGHT_KEY`](super::WEIGHT_KEY) and [`READY_KEY`](super::READY_KEY).
    ///
    /// # Errors
    ///
    /// [`GroupError`] says which.
    pub async fn join(manager: &LeaseManager, name: &str, options: MemberOptions) -> Result<Membership, GroupError> {
        let lease_name = format!("{name}:{}", options.id);
        let lease = manager.lease_with(&lease_name, options.lease_options(options.is_ready)?)?;
        let group = Group::start(manager, name, Some((&options.id, &lease)), options.refresh)?;
        let is_ready = AtomicBool::new(options.is_ready);
        let mut membership = Membership { group, lease, guard: None, options, is_ready };
        membership.enter().await?;
        Ok(membership)
    }
}

impl Membership {
    /// One's own id.
    pub fn id(&self) -> &str {
        &self.options.id
    }

    /// The group, also by dereference.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Whether this process is a member, by its own knowledge. Never asks anybody.
    pub fn is_member(&self) -> bool {
        self.guard.as_ref().is_some_and(LeaseGuard::is_held)
    }

    /// Cancelled when the place is lost or left.
    pub fn lost(&self) -> CancellationToken {
        self.lease.gone()
    }

    /// Says whether this member is ready: only then is anything placed on it. The others see it when they look next,
    /// within their [`refresh`](MemberOptions::refresh).
    ///
    /// # Errors
    ///
    /// [`Lost`](GroupError::Lost): not a member any more. Otherwise it may not have been said: say it again.
    pub async fn set_ready(&self, is_ready: bool) -> Result<(), GroupError> {
        let own_metadata = self.options.own_metadata(is_ready)?;
        if !self.is_member() || !self.lease.update_metadata(own_metadata).await? {
            return Err(GroupError::Lost(self.guard.as_ref().map_or(Loss::Released, LeaseGuard::loss)));
        }
        self.is_ready.store(is_ready, Ordering::Relaxed);
        Ok(self.group.refresh().await?)
    }

    /// Joins again after a loss, as ready as before. Does nothing while it is a member.
    ///
    /// # Errors
    ///
    /// As [`Group::join`].
    pub async fn rejoin(&mut self) -> Result<(), GroupError> {
        if self.is_member() {
            return Ok(());
        }
        self.guard = None;
        self.enter().await
    }

    /// Leaves the group, so that the others know at once, and ends the task that kept the list. `false`: the place had
    /// been lost before.
    ///
    /// # Errors
    ///
    /// As [`Lease::release`]: the others may count it in until its ttl is over.
    pub async fn leave(mut self) -> Result<bool, CallError> {
        let left = match self.guard.take() {
            Some(guard) => guard.release().await,
            None => Ok(false),
        };
        self.group.end().await;
        left
    }

    async fn enter(&mut self) -> Result<(), GroupError> {
        self.group.refresh().await?;
        let present = self.group.snapshot().all.len();
        if present >= MAX_MEMBERS {
            return Err(GroupError::Full { members: present });
        }
        let lease_options = self.options.lease_options(self.is_ready.load(Ordering::Relaxed))?;
        self.lease = self.group.manager.lease_with(self.lease.name().as_str(), lease_options)?;
        match self.lease.guard(Wait::ForTtl).await {
            Ok(guard) => self.guard = Some(guard),
            Err(CallError::Refused(problem)) if matches!(problem.code, Code::WaitTimeout | Code::Held) => {
                return Err(GroupError::IdTaken { id: self.options.id.clone(), holder: problem.holder });
            }
            Err(error) => return Err(error.into()),
        }
        Ok(self.group.refresh().await?)
    }
}

impl Deref for Membership {
    type Target = Group;
    fn deref(&self) -> &Group {
        &self.group
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership").field("lease", &self.lease).finish_non_exhaustive()
    }
}

/// Why one is not a member, or does not see a group.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GroupError {
    #[error(transparent)]
    Invalid(#[from] InvalidValue),
    /// Somebody else, who lives, is the member of that id.
    #[error("there is a member {id:?} already{}", holder.as_ref().map(|holder| format!(", held by {holder}")).unwrap_or_default())]
    IdTaken { id: String, holder: Option<String> },
    /// There are as many members as there may be.
    #[error("the group has {members} members; at most {MAX_MEMBERS} are allowed")]
    Full { members: usize },
    /// There are more names to keep than there may be.
    #[error("{shards} shards are too many; at most {max} are kept together", max = super::MAX_SHARDS)]
    TooManyShards { shards: usize },
    /// The place in the group was lost.
    #[error("the membership is lost: {0}")]
    Lost(Loss),
    /// What became of the request.
    #[error(transparent)]
    Call(#[from] CallError),
}
