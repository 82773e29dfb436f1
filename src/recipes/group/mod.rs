//! Groups of processes: membership, readiness and the placement of names on members.
//!
//! A member is a lease under the prefix of the group. It is in the list as long as it renews the lease. The placement
//! picks one ready member for each name; members with the same list make the same pick.
//!
//! The lists of two members can differ for a moment, and so can their picks. Only the lease of a name prevents two
//! members from working on it at the same time. The placement only decides which member tries to acquire the lease.
//!
//! ```no_run
//! use tenure::client::{LeaseManager, LeaseOptions};
//! use tenure::group::{Group, MemberOptions};
//! use tenure::types::LeaseName;
//!
//! # async fn consume(_: tenure::group::Shard) {}
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let manager = LeaseManager::connect_lazy("http://10.0.0.1:7101")?;
//! let member = Group::join(&manager, "consumers", MemberOptions::new("host-1")).await?;
//! let partitions: Vec<_> = (0..64).map(|n| LeaseName::new(format!("partition-{n}"))).collect::<Result<_, _>>()?;
//! let shards = member.keep_assigned(partitions, LeaseOptions::new(), consume)?;
//! // ... until the program should end:
//! shards.stop().await;
//! member.leave().await?;
//! # Ok(()) }
//! ```
//!
//! | file | noun |
//! |---|---|
//! | `view` | a group as one process sees it, refreshed by a task |
//! | `membership` | the membership of this process |
//! | `member` | a member, and its representation in a lease |
//! | `roster` | the list of members, shared by the task, the snapshots and the lease options |
//! | `change` | changes of the list |
//! | `placement`, `score` | the member to which a name belongs |
//! | `shards`, `shard` | leases on the names that belong to this process |
//!
//! This module must not depend on a transport: it uses leases and the reads of the coordinator.

mod change;
mod member;
mod membership;
mod placement;
mod roster;
mod score;
mod shard;
mod shards;
mod view;

pub use change::{Changes, GroupChange};
pub use member::{GROUP_KEY, MAX_MEMBERS, Member, MemberOptions, READY_KEY, WEIGHT_KEY};
pub use membership::{GroupError, Membership};
pub use placement::Placement;
pub use roster::GroupSnapshot;
pub use shard::Shard;
pub use shards::{MAX_SHARDS, Shards};
pub use view::Group;
