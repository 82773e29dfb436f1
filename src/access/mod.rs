//! Access control: principals, their credentials, and the roles that say what they may do.
//!
//! The state is replicated like leases, so all nodes agree on it, and snapshots and backups have it. The leader checks
//! each request before it executes it. A node that serves from its own memory checks its own state.
//!
//! While access control is off, each caller may do everything, and the roles and principals have no effect.

#[cfg(feature = "server")]
#[allow(missing_docs, reason = "public for tests only")]
mod state;
mod token;

#[cfg(all(feature = "server", not(feature = "testing")))]
pub(crate) use state::{
    Access, AccessChange, AccessState, AccessView, Caller, Denied, Need, PrefixRight, TokenHash, TokenId,
};
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use state::{Access, AccessChange, AccessState, AccessView, Caller, Denied, Need, PrefixRight, TokenHash, TokenId};
#[cfg(feature = "server")]
pub(crate) use state::{PrincipalView, TokenView};
pub use token::{AccessToken, InvalidToken};

pub use crate::types::{AccessName, Right};
