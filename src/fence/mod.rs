//! The fencing check at the resource.
//!
//! The resource stores the highest fencing token that it has accepted. It accepts a token at or above this mark, and
//! refuses a lower one.
//!
//! A lease tells its holder that it may write. The lease cannot stop a holder that was paused beyond the end of the
//! lease and then continues to write. The resource can stop it: the next holder has a higher
//! [`FencingToken`](crate::token::FencingToken), so a resource that has seen the higher token refuses the lower one.
//! (Martin Kleppmann, [How to do distributed
//! locking](https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html), 2016.)
//!
//! **Compare, store and write must be one atomic step.** Otherwise an old write can overwrite a newer one:
//!
//! 1. The resource compares token 7 and accepts it. The process stalls.
//! 2. The resource compares token 8, accepts it and writes.
//! 3. The process continues and writes for token 7, over the write of token 8.
//!
//! Each implementation in this module therefore does the write inside the check:
//!
//! | the resource is | use | atomic because |
//! |---|---|---|
//! | in this process: a file, a device, a map | [`Gate`] | the write runs inside the gate, and a newer token waits for its end |
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
//! let (old, new): (FencingToken, FencingToken) = ("40".parse().unwrap(), "52".parse().unwrap());
//!
//! let written = gate.admit("report-7", new, || async { "written by the new holder" }).await;
//! assert_eq!(written.unwrap(), "written by the new holder");
//!
//! let late = gate.admit("report-7", old, || async { "never run" }).await;
//! assert!(matches!(late, Err(Refused::Stale(stale)) if stale.highest == new));
//! # });
//! ```
//!
//! The check does not tell which client holds a lease, and an accepted token may not be current. The resource accepts
//! an expired holder until the token of the next holder arrives. The expired holder can never overwrite a write of the
//! next holder.
//!
//! Only the tokens of one lease *name* are ordered. Use the tokens of a single lease for each resource. Do not use a
//! counted lease: its holders have different tokens at the same time.

pub mod conformance;
mod gate;
mod high_water;
#[cfg(feature = "fence-http")]
pub mod http;
pub(crate) mod journal;
pub mod postgres;
mod resources;
mod store;

pub use gate::{Admission, DEFAULT_MAX_WAIT, Gate, Refused};
pub use high_water::{HighWater, Stale};
pub use journal::{Journal, OpenError};
pub use resources::{MAX_RESOURCE_BYTES, MAX_RESOURCES, MAX_WAITING};
pub use store::{HighWaterStore, Volatile};
