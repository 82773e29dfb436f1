//! Groups of processes: who is there, who is ready, and which of them should hold what.
//!
//! A member is a lease under the group's prefix: it is there as long as it renews, and everybody sees the same list.
//! Placement picks one ready member for each name, the same on every member that sees the same list. The list can
//! differ for a moment, and so can the pick: what keeps two members from doing the same thing is the lease of the name,
//! never the placement. Placement only says who should try.
//!
//! ```no_run
//! use tenure::client::{LeaseManager, LeaseOptions};
//! use tenure::group::{Group, MemberOptions};
//! use tenure::types::LeaseName;
//!
//! # async fn consume(_: tenure::group::Shard) {}
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let manager = LeaseManager::connect("http://10.0.0.1:7101")?;
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
//! | `view` | a group as one process sees it, kept up to date |
//! | `membership` | one's own place in it |
//! | `member` | what a member is, and how it is written into a lease |
//! | `roster` | the list that is shared between the task, the snapshots and the questions of leases |
//! | `change` | what became different |
//! | `placement`, `score` | which member a name belongs to |
//! | `shards`, `shard` | holding what belongs to oneself |
//!
//! This module must not know how a cluster is asked: it has leases, and the coordinator's reads.

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
pub use member::{MAX_MEMBERS, Member, MemberOptions, READY_KEY, WEIGHT_KEY};
pub use membership::{GroupError, Membership};
pub use placement::Placement;
pub use roster::GroupSnapshot;
pub use shard::Shard;
pub use shards::{MAX_SHARDS, Shards};
pub use view::Group;
