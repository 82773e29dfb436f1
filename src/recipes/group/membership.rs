//! The membership of this process in a group.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::sync::CancellationToken;

use super::{Group, MAX_MEMBERS, MemberOptions};
use crate::api::Code;
use crate::client::{CallError, Lease, LeaseGuard, LeaseManager, Loss, Wait};
use crate::types::InvalidValue;

/// The membership of this process, and its view of the [`Group`].
///
/// A membership is a lease and can be lost. Then [`lost`](Membership::lost) is cancelled, and no name belongs to this
/// process any more. Call [`leave`](Membership::leave) at the end; dropping the membership only requests that.
#[must_use = "dropping the membership leaves the group"]
pub struct Membership {
    group: Group,
    lease: Lease,
    guard: Option<LeaseGuard>,
    options: MemberOptions,
    is_ready: AtomicBool,
}

impl Group {
    /// Joins a group. If a dead member has the same id, the call waits until the ttl of that member is over.
    ///
    /// The name of the membership's lease is the name of the group, a colon and the id of the member. Its metadata
    /// holds the weight, the readiness and the group ([`WEIGHT_KEY`](super::WEIGHT_KEY),
    /// [`READY_KEY`](super::READY_KEY), [`GROUP_KEY`](super::GROUP_KEY)).
    ///
    /// # Errors
    ///
    /// [`GroupError::Invalid`], [`GroupError::IdTaken`], [`GroupError::Full`] or [`GroupError::Call`]. After
    /// [`Unknown`](CallError::Unknown), the manager tries to leave the group in the background.
    ///
    /// # Panics
    ///
    /// The call panics outside a Tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the join. The manager releases the lease if the cluster granted it.
    pub async fn join(manager: &LeaseManager, name: &str, options: MemberOptions) -> Result<Membership, GroupError> {
        let lease_name = format!("{name}:{}", options.id);
        let lease = manager.lease_with(&lease_name, options.lease_options(name, options.is_ready)?)?;
        let group = Group::start(manager, name, Some((&options.id, &lease)), options.refresh)?;
        let is_ready = AtomicBool::new(options.is_ready);
        let mut membership = Membership { group, lease, guard: None, options, is_ready };
        membership.acquire().await?;
        Ok(membership)
    }
}

impl Membership {
    /// The id of this member.
    pub fn id(&self) -> &str {
        &self.options.id
    }

    /// The view of the group. A `Membership` also dereferences to it.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Whether this process is a member, by local knowledge. Sends no request.
    pub fn is_member(&self) -> bool {
        self.guard.as_ref().is_some_and(LeaseGuard::is_held)
    }

    /// A token that is cancelled when the membership ends: lost or left.
    pub fn lost(&self) -> CancellationToken {
        self.guard.as_ref().map_or_else(|| self.lease.ended(), LeaseGuard::ended)
    }

    /// Sets the readiness of this member. Names belong only to ready members. Other members see the change within their
    /// [`refresh`](MemberOptions::refresh).
    ///
    /// # Errors
    ///
    /// - [`Lost`](GroupError::Lost): the membership was lost.
    /// - [`Call`](GroupError::Call): the change may not have been applied. Call `set_ready` again.
    ///
    /// # Cancel safety
    ///
    /// After dropping the future, the change may have been applied or not. Call `set_ready` again.
    pub async fn set_ready(&self, is_ready: bool) -> Result<(), GroupError> {
        let own_metadata = self.options.own_metadata(self.group.name(), is_ready)?;
        let Some(guard) = &self.guard else { return Err(GroupError::Lost(Loss::Released)) };
        for _ in 0..LeaseGuard::MAX_UPDATES {
            // This waits for the reason of a loss, and for the end of a hand-over.
            guard.while_held(async {}).await.map_err(GroupError::Lost)?;
            if guard.update_metadata(own_metadata.clone()).await? {
                self.is_ready.store(is_ready, Ordering::Relaxed);
                return Ok(self.group.refresh().await?);
            }
        }
        Err(LeaseGuard::not_updated().into())
    }

    /// Joins again after a loss, with the previous readiness. Does nothing while this process is a member.
    ///
    /// # Errors
    ///
    /// The same as [`Group::join`].
    ///
    /// # Panics
    ///
    /// The call panics outside a Tokio runtime after a loss.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the join. Call `rejoin` again.
    pub async fn rejoin(&mut self) -> Result<(), GroupError> {
        if self.is_member() {
            return Ok(());
        }
        self.guard = None;
        self.acquire().await
    }

    /// Leaves the group, so that the other members see it at once, and ends the task that refreshes the list. Returns
    /// `false` if the membership was lost before.
    ///
    /// # Errors
    ///
    /// The same as [`Lease::release`]. The other members may see this member until its ttl is over.
    ///
    /// # Panics
    ///
    /// The call panics outside a Tokio runtime while this process is a member.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lease in the background.
    pub async fn leave(mut self) -> Result<bool, CallError> {
        let left = match self.guard.take() {
            Some(guard) => guard.release().await,
            None => Ok(false),
        };
        self.group.end().await;
        left
    }

    async fn acquire(&mut self) -> Result<(), GroupError> {
        self.group.refresh().await?;
        let (own, others): (Vec<_>, Vec<_>) =
            self.group.snapshot().all.into_iter().partition(|member| member.id == self.options.id);
        if others.len() >= MAX_MEMBERS {
            return Err(GroupError::Full { members: others.len() });
        }
        let lease_options = self.options.lease_options(self.group.name(), self.is_ready.load(Ordering::Relaxed))?;
        // A dead member may have a longer ttl than this one.
        let present_ttl = own.iter().filter_map(|member| member.ttl).max().unwrap_or_default();
        let wait = lease_options.ttl_wait().max(present_ttl);
        match self.lease.guard_with(Some(lease_options), Wait::UpTo(wait).into()).await {
            Ok(guard) => self.guard = Some(guard),
            Err(CallError::Refused(problem)) if matches!(problem.code, Code::WaitTimeout | Code::Held) => {
                return Err(GroupError::IdTaken { id: self.options.id.clone(), holder: problem.holder });
            }
            Err(error) => {
                // The caller of a failed join has no handle that could release the lease.
                self.lease.resolve_lazily();
                return Err(error.into());
            }
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

/// The error of a group operation.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// A name or an option is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidValue),
    /// Another live member has the id.
    #[error(
        "the member id {id:?} is in use{}: choose another id",
        holder.as_ref().map(|holder| format!(", held by {holder}")).unwrap_or_default()
    )]
    IdTaken {
        /// The id.
        id: String,
        /// The holder of the membership, if the cluster named it.
        holder: Option<String>,
    },
    /// The group has [`MAX_MEMBERS`] members.
    #[error("the group has {members} members: expected at most {MAX_MEMBERS}")]
    Full {
        /// The number of members.
        members: usize,
    },
    /// There are more than [`MAX_SHARDS`](super::MAX_SHARDS) shards.
    #[error("{shards} shards are given: expected at most {max}", max = super::MAX_SHARDS)]
    TooManyShards {
        /// The number of shards.
        shards: usize,
    },
    /// The membership was lost.
    #[error("the membership is lost")]
    Lost(#[source] Loss),
    /// The error of the request.
    #[error(transparent)]
    Call(#[from] CallError),
}
