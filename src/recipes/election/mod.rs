//! Leader election by a lease.
//!
//! The holder of the election's lease is the leader. A leadership has four steps:
//!
//! 1. **Acquire**: [`Election::campaign`] waits in the queue of the lease. The fencing token of the [`Leadership`] is
//!    higher than the token of each earlier leader.
//! 2. **Revoke**: [`Leadership::establish`] calls a function that writes the token to every resource of the leader.
//!    From then on, the resources reject the writes of earlier leaders. Until then, observers see a leader that is not
//!    established.
//! 3. **Establish**: after a success, the same call publishes the leader as established to all observers.
//! 4. **Release**: [`Leadership::resign`] drains and releases the lease. [`Leadership::hand_over`] gives it to a
//!    waiting candidate; the lease is never free in between.
//!
//! At each position of the log there is at most one leader. However, a paused process can believe that it still is the
//! leader after its replacement. The second step protects the resources from its writes.
//!
//! ```no_run
//! use tenure::client::LeaseManager;
//! use tenure::election::{Election, ElectionOptions};
//!
//! # async fn fence_the_database(_: tenure::token::FencingToken) -> Result<(), std::io::Error> { Ok(()) }
//! # async fn lead() {}
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let manager = LeaseManager::connect_lazy("http://10.0.0.1:7101,http://10.0.0.2:7101,http://10.0.0.3:7101")?;
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
//! | `campaign` | the campaign of a candidate |
//! | `leadership` | the term of a leader |
//! | `observer`, `view` | the leader as other processes see it |
//! | `options`, `budget` | options of a candidate, and the limit on its elections |
//!
//! This module must not depend on a transport: it uses leases and the reads of the coordinator.

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
