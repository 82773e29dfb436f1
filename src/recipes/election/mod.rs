//! Electing one leader among candidates, by a lease.
//!
//! A leader is whoever holds the lease of the election's name. Four steps lead through its time, and each is a call:
//!
//! 1. **Acquire**: [`Election::campaign`] waits in the lease's queue until it is granted. The [`Leadership`] has a
//!    fencing token above that of every leader before.
//! 2. **Revoke**: [`Leadership::establish`] has the caller write that token to every resource that the leader will
//!    change, so that nothing an earlier leader sends is accepted any more. Until then observers see a leader that was
//!    elected and is not established.
//! 3. **Establish**: when that has succeeded, the same call publishes it to all observers.
//! 4. **Release**: [`Leadership::resign`] drains and gives the lease back; [`Leadership::hand_over`] gives it to a
//!    candidate that waits, without a moment in which nobody leads.
//!
//! At any place in the log there is one leader at most. In somebody's own mind there can be two: a paused process does
//! not know that it was replaced. That is what the second step is for.
//!
//! ```no_run
//! use tenure::client::LeaseManager;
//! use tenure::election::{Election, ElectionOptions};
//!
//! # async fn fence_the_database(_: tenure::token::FencingToken) -> Result<(), std::io::Error> { Ok(()) }
//! # async fn lead() {}
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let manager = LeaseManager::connect("http://10.0.0.1:7101,http://10.0.0.2:7101,http://10.0.0.3:7101")?;
//! let election = Election::new(&manager, "billing", ElectionOptions::new())?;
//! let leadership = election.campaign().await?;
//! leadership.establish(fence_the_database).await?;
//! let _ended_or_lost = leadership.while_leading(lead()).await;
//! leadership.resign().await?;
//! # Ok(()) }
//! ```
//!
//! | file | noun |
//! |---|---|
//! | `campaign` | becoming the leader |
//! | `leadership` | being it |
//! | `observer`, `view` | seeing who it is |
//! | `options`, `budget` | how a candidate behaves, and how often it may be elected |
//!
//! This module must not know how a cluster is asked: it has leases, and the coordinator's reads.

mod budget;
mod campaign;
mod leadership;
mod observer;
mod options;
mod view;

pub use campaign::{Candidacy, Election};
pub use leadership::{EstablishError, Leadership, ResignError};
pub use observer::Observer;
pub use options::ElectionOptions;
pub use view::{ESTABLISHED_KEY, Leader, LeaderView};
