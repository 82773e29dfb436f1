//! The lease state machine: pure, in memory, deterministic.
//!
//! Log entries alone drive a [`Machine`]. [`Machine::apply`] takes an entry's position and its [`Batch`]. It returns
//! one [`Outcome`] for each command, and the [`Effects`] for watches and waiting requests. It reads no clock, no random
//! source and no hash order, does no I/O and logs nothing. So all replicas hold the same state.
//!
//! | file | noun |
//! |---|---|
//! | `command`, `outcome` | requests and their results |
//! | `machine` | the state and `apply`: every change of state is here |
//! | `rules` | the effect of each command, its refusals, and the waiter that gets a free slot |
//! | `record`, `holders`, `owners`, `queue`, `ended`, `history` | the state of one name |
//! | `retained` | bounds on retained bytes |
//! | `restore` | a machine that continues from a backup |
//! | `timers` | the timer queue |
//! | `view`, `list` | reads |
//! | `inspect` | reads and constructors that only tests use |
//! | `snapshot` | the stored form, and a machine rebuilt from it |
//!
//! This module must not know Raft, storage, HTTP or tokio.

mod command;
mod ended;
mod history;
mod holders;
#[cfg(any(test, feature = "testing"))]
mod inspect;
mod list;
mod machine;
mod outcome;
mod owners;
mod queue;
mod record;
mod restore;
mod retained;
mod rules;
pub(crate) mod snapshot;
mod timers;
mod view;

pub use command::{Acquire, Batch, Command, HolderCommand, Limits, Renewal, Stamp, WaiterId};
pub use list::{ListCursor, ListFilter, SHOWN};
pub use machine::Machine;
pub use outcome::{Change, DropCause, DroppedWaiter, Effects, HolderLease, Lost, Outcome, Refusal, Transition, Waiter};
pub use retained::{MAX_RETAINED_ENDED_BYTES, MAX_RETAINED_NAME_BYTES};
pub use snapshot::{BadSnapshot, Rebuild, SnapshotHeader, SnapshotHeaderV1, SnapshotHeaderV2, StoredRecord};
pub use view::{Explanation, Standing};

pub use crate::types::{GrantCause, LeaseState, LostReason, StateFilter};

#[cfg(any(test, feature = "testing"))]
pub use {
    inspect::LeaseView,
    list::{LIST_SCAN, PAGE_BYTES},
    machine::Counts,
    rules::CONFIRM_WINDOW_MS,
    snapshot::PART_BYTES,
};
