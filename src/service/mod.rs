//! The mapping between the types of a node and the types of the API. The HTTP listener and the [`Local`](Local)
//! coordinator share it.
//!
//! | module | converts |
//! |---|---|
//! | `ask` | API requests to checked requests of the node |
//! | `reply` | answers, events and the status of the node to API types, or to problems |
//! | `problem` | refusals and errors to problems |

mod ask;
mod local;
mod problem;
mod reply;

pub use local::Local;

pub(crate) use ask::{claim, hand_over, release, renew, renew_batch, revoke, update_metadata};
pub(crate) use problem::{RETRY_MS, compacted, problem, request_error};
pub(crate) use reply::{
    cluster, event, explained, found, granted, handed_over, history, listed, queue, released, renewed, renewed_one,
    revoked, write_cursor,
};

use crate::api::EventId;
use crate::node::WatchPosition;

impl From<EventId> for WatchPosition {
    fn from(EventId { index, part }: EventId) -> WatchPosition {
        WatchPosition { index, part }
    }
}

impl From<WatchPosition> for EventId {
    fn from(WatchPosition { index, part }: WatchPosition) -> EventId {
        EventId { index, part }
    }
}
