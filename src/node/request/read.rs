//! Reads of the lease machine, truncated to the size of one answer.

use crate::lease::{Machine, SHOWN};
use crate::node::request::{Answer, Query};

pub(crate) fn look_up(machine: &Machine, query: Query) -> Answer {
    match query {
        Query::Lease(name) => match machine.holders(&name) {
            (leases, next @ Some(_)) => Answer::List { leases, next },
            (leases, None) if leases.is_empty() => Answer::Lease(machine.last_ended(&name).into_iter().collect()),
            (leases, None) => Answer::Lease(leases),
        },
        Query::History(name) => Answer::History(machine.history(&name)),
        Query::Queue(name) => match machine.next_waiters(&name, SHOWN) {
            (waiters, total) if waiters.len() < total as usize => Answer::QueuePart { waiters, total },
            (waiters, _) => Answer::Queue(waiters),
        },
        Query::Explain { name, holder } => {
            let explanation = machine.explain(&name, holder.as_ref());
            match machine.holder_count(&name) {
                holders if explanation.held.len() < holders as usize => Answer::ExplainPart { explanation, holders },
                _ => Answer::Explain(explanation),
            }
        }
        Query::List { filter, after, limit } => {
            let (leases, next) = machine.list(&filter, after.as_ref(), limit as usize);
            Answer::List { leases, next }
        }
    }
}
