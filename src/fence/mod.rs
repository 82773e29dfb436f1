//! The rule at the resource: a fencing token at or above the highest seen is accepted and remembered, a lower one is
//! refused.
//!
//! A lease tells its holder that it may write. It cannot stop a holder that was paused past the end of its lease from
//! writing late, with no idea that anything happened. The resource can: whoever held the lease later has a higher
//! [`FencingToken`](crate::token::FencingToken), so a resource that has seen the higher one refuses the lower one.
//! (Martin Kleppmann, [How to do distributed locking](https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html), 2016.)
//!
//! **Comparing, remembering and writing have to be one atomic step.** A resource that compares first and writes
//! afterwards lets this happen: token 7 is compared and found good; the process stalls; token 8 is compared, is good, and
//! writes; the process goes on and writes for 7, over what 8 wrote. So every form here does the write inside the check:
//!
//! | the resource is | use | what makes it one step |
//! |---|---|---|
//! | in this process: a file, a device, a map | [`Gate`] | the write runs inside the gate, and a newer token waits until it is done |
//! | an HTTP service | [`http::FenceLayer`] (feature `fence-http`) | the same, around the handler |
//! | in PostgreSQL | [`postgres`] | one statement, or a row lock until the transaction ends |
//! | anything else | the cookbook, `docs/fencing.md`, then [`conformance`] | |
//!
//! ```
//! use tenure::fence::{Gate, Refused};
//! use tenure::token::FencingToken;
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
//! # runtime.block_on(async {
//! let gate = Gate::in_memory();
//! let (old, new) = (FencingToken { term: 3, index: 40 }, FencingToken { term: 3, index: 52 });
//!
//! let written = gate.admit("report-7", new, || async { "written by the new holder" }).await;
//! assert_eq!(written.unwrap(), "written by the new holder");
//!
//! let late = gate.admit("report-7", old, || async { "never run" }).await;
//! assert!(matches!(late, Err(Refused::Stale(stale)) if stale.highest == new));
//! # });
//! ```
//!
//! What it does not do: tell who holds a lease, or say that an accepted token is current. A holder whose lease is over
//! is accepted until its successor's token arrives; nothing that the successor did can be overwritten by it.
//!
//! Tokens of one *name* rise. Let each resource see the tokens of one lease only, and that lease not be a counted one,
//! whose holders have different tokens at the same time.

pub mod conformance;
mod gate;
mod high_water;
#[cfg(feature = "fence-http")]
pub mod http;
pub(crate) mod journal;
pub mod postgres;
mod resources;
mod store;

pub use gate::{Admission, DEFAULT_PATIENCE, Gate, Refused};
pub use high_water::{HighWater, Stale};
pub use journal::{Journal, OpenError};
pub use resources::{MAX_RESOURCE_BYTES, MAX_RESOURCES, MAX_WAITING};
pub use store::{HighWaterStore, Volatile};
