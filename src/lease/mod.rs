//! The lease state machine: pure, in memory, deterministic.
//!
//! A [`Machine`] is driven by log entries alone. [`Machine::apply`] takes an entry's position and its [`Batch`] and
//! returns one [`Outcome`] for each command, and the [`Effects`] for those who listen. It reads no clock, no random
//! source and no hash order, does no I/O and logs nothing, so that all replicas stay alike.
//!
//! | file | noun |
//! |---|---|
//! | `command`, `outcome` | what can be asked, what is answered |
//! | `machine` | the state and the way in |
//! | `entry` | one log entry while it is applied: every change of state is here |
//! | `rules` | the commands: what each does and when it is refused |
//! | `turn` | whose turn it is when a place is free |
//! | `record`, `holders`, `queue`, `ended`, `history` | what is remembered of one name |
//! | `kept` | how many bytes the state may keep |
//! | `timers` | what is due when |
//! | `view`, `list` | reads |
//! | `snapshot` | what is stored, and a machine rebuilt from it |
//!
//! This module must not know Raft, storage, HTTP or tokio.

mod command;
mod ended;
mod entry;
mod history;
mod holders;
mod kept;
mod list;
mod machine;
mod outcome;
mod queue;
mod record;
mod rules;
pub(crate) mod snapshot;
mod timers;
mod turn;
mod view;

pub use command::{Acquire, Batch, Command, Limits, Renewal, Stamp, WaiterId};
pub use kept::{MAX_ENDED_BYTES_KEPT, MAX_NAME_BYTES_KEPT};
pub use list::{LIST_SCAN, ListCursor, ListFilter, ListState, PAGE_BYTES, SHOWN};
pub use machine::{Counts, Machine};
pub use outcome::{
    Change, DropCause, DroppedWaiter, Effects, GrantCause, Lease, LeaseState, Lost, LostCause, Outcome, Refusal,
    Transition, Waiter,
};
pub use snapshot::{BadSnapshot, PART_BYTES, Rebuild, SnapshotHeader, SnapshotHeaderV1, StoredRecord};
pub use turn::CONFIRM_WINDOW_MS;
pub use view::{Explanation, LeaseView, Standing};
