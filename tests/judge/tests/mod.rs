//! Tests of the checks: each promise has a history that breaks it, and one that almost breaks it.

mod applied;
mod current_token_only;
mod each_transition_once;
mod expiry_happens;
mod fenced_register;
mod grants_survive;
mod holder_stops_first;
mod linearizable;
mod lock_delay;
mod metadata_is_kept;
mod no_early_expiry;
mod one_holder;
mod progress;
mod queue_order;
mod reads_are_current;
mod search;
mod tokens_rise;
mod unknown_is_said;
mod waiters_are_served;
mod waits_last;
