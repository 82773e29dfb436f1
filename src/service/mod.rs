//! One mapping between what a node says and the API's types, for all who let others ask a node: the HTTP listener and
//! the [`Local`](Local) coordinator.
//!
//! | file | noun |
//! |---|---|
//! | `ask` | the API's requests, checked and put as the node's own |
//! | `reply` | the node's answers, as what the request hoped for or a problem |
//! | `problem` | refusals and failures, as problems |
//! | `show` | leases, events, queues: the parts of answers |

mod ask;
mod local;
mod problem;
mod reply;
mod show;

pub use local::Local;

pub(crate) use ask::{claim, hand_over, release, renew, renew_batch, revoke, update_metadata};
pub(crate) use problem::{RETRY_MS, compacted, problem, request_error};
pub(crate) use reply::{
    explained, found, granted, handed_over, history, listed, queue, released, renewed, renewed_one, revoked,
};
pub(crate) use show::{cluster, event, list_state, write_cursor};

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
