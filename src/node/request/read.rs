//! Reads of the replicated state: by the leader, or from the memory of any node.

use crate::access::{Caller, Denied};
use crate::lease::{Machine, SHOWN};
use crate::node::leader::LeaderTerm;
use crate::node::request::propose::ProposeError;
use crate::node::request::{Answer, Query, Request, RequestError, Response};
use crate::node::{Forward, Node, NodeCore};
use crate::peer::Transport;
use crate::storage::Storage;
use crate::types::Consistency;

impl<S: Storage, T: Transport> Node<S, T> {
    /// Whether the leader knows the caller as a principal, or gives no answer.
    pub(crate) async fn may_know(&self, caller: &Caller) -> bool {
        let asked = self.request_of(caller, Request::Members, Forward::Once).await;
        !matches!(asked, Err(RequestError::Denied(Denied::Unauthenticated(_))))
    }
}

impl<S: Storage, T: Transport> NodeCore<S, T> {
    pub(in crate::node) async fn read_as_leader(
        &self,
        leader_term: &LeaderTerm,
        query: Query,
        consistency: Consistency,
    ) -> Result<Response, ProposeError> {
        let from_memory = consistency != Consistency::Linearizable && self.raft.may_read_locally();
        if !from_memory {
            self.confirm_leadership(leader_term).await?;
        }
        Ok(self.read_memory(query, None))
    }

    /// Waits until a majority has confirmed that this node still leads the term, and its state is current.
    pub(in crate::node) async fn confirm_leadership(&self, leader_term: &LeaderTerm) -> Result<(), ProposeError> {
        let readable = tokio::select! {
            readable = self.raft.await_readable(self.settings.timeouts.request) => readable,
            () = self.requests.clock.ended(leader_term.term) => return Err(ProposeError::NotLeader),
        };
        readable.map_err(ProposeError::from)
    }

    pub(in crate::node) fn read_memory(&self, query: Query, stale_ms: Option<u64>) -> Response {
        let (answer, mut served) =
            self.raft.replica().read(|state| (look_up(&state.machine, query), self.served_by(state)));
        served.stale_ms = stale_ms;
        Response { answer, served }
    }
}

/// Reads the lease machine, truncated to the size of one answer.
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
