//! A log entry that a replica applied.

use tenure::lease::{Batch, DroppedWaiter, Outcome, Transition};
use tenure::token::FencingToken;

#[derive(Clone, Copy)]
pub struct Entry<'a> {
    pub position: FencingToken,
    pub batch: &'a Batch,
    pub outcomes: &'a [Outcome],
    pub transitions: &'a [Transition],
    pub dropped: &'a [DroppedWaiter],
}
