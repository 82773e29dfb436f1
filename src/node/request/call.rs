//! Calls between nodes: forwarded requests, and questions about a node.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::access::Caller;
use crate::node::NodeCore;
use crate::node::request::propose::ProposeError;
use crate::node::request::{Request, RequestError, Response};
use crate::peer::{Service, Transport};
use crate::raft::FeatureLevel;
use crate::storage::Storage;
use crate::storage::codec::{self, DecodeError};
use crate::trace::{self, Span, TraceParent};
use crate::types::{DiskState, NodeId};

/// Largest call that a node decodes, in bytes.
pub(crate) const MAX_CALL_BYTES: usize = 4 << 20;
/// Largest reply that a node decodes, in bytes.
pub(crate) const MAX_REPLY_BYTES: usize = 16 << 20;

/// A call to another node. `R` is a borrowed request at the calling node.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum NodeCall<R = Request> {
    /// A client's request. The receiver executes it only as the leader.
    Forward(R),
    /// Asks whether the store is empty.
    StoreState,
    /// Like `Forward`, with the caller that the forwarding node identified.
    ForwardAs { caller: Caller, request: R },
    /// Asks for the highest feature level that the node supports.
    FeatureLevel,
    /// Like `ForwardAs`, with the span of the forwarding node.
    ForwardTraced { trace: TraceParent, caller: Caller, request: R },
    /// A client's request for the leader of a term. TCP can deliver it long after the forwarding node has given up and
    /// another leader has answered. Then the receiver refuses it, although it may lead again in a later term.
    ForwardIn { term: u64, trace: Option<TraceParent>, caller: Caller, request: R },
    /// Asks for the state of the disk. A node of an older release cannot decode it.
    DiskState,
}

/// The reply to a [`NodeCall`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum NodeReply {
    Done(Box<Result<Response, RequestError>>),
    /// Certainly not applied: find the leader again.
    NotLeader,
    /// The waiter was in the queue and may still be there: find the leader again.
    StillWaits,
    StoreState {
        /// The store has no vote, no entry and no snapshot.
        is_empty: bool,
    },
    /// The calling node was removed from the cluster. Certainly not applied.
    Removed,
    FeatureLevel(FeatureLevel),
    DiskState(DiskState),
}

impl<'r> NodeCall<&'r Request> {
    /// The call that forwards a request at this level. A leader of an older release does not know all calls.
    pub(in crate::node) fn forward(
        request: &'r Request,
        term: u64,
        caller: &Caller,
        trace: Option<TraceParent>,
        level: FeatureLevel,
    ) -> NodeCall<&'r Request> {
        if level >= FeatureLevel::REQUEST_TERMS {
            return NodeCall::ForwardIn { term, trace, caller: caller.clone(), request };
        }
        match (trace.filter(|_| level >= FeatureLevel::TRACES), caller) {
            (Some(trace), caller) => NodeCall::ForwardTraced { trace, caller: caller.clone(), request },
            (None, Caller::Anonymous) => NodeCall::Forward(request),
            // Without access control a caller needs no name.
            (None, _) if level < FeatureLevel::ACCESS_CONTROL && !request.is_of_access_control() => {
                NodeCall::Forward(request)
            }
            (None, caller) => NodeCall::ForwardAs { caller: caller.clone(), request },
        }
    }
}

impl<R: Serialize> NodeCall<R> {
    pub(crate) fn encode(&self) -> Bytes {
        codec::encode(self).into()
    }
}

impl NodeCall {
    pub(crate) fn decode(bytes: &[u8]) -> Result<NodeCall, DecodeError> {
        codec::decode(bytes, MAX_CALL_BYTES)
    }
}

/// Answers the calls of other nodes.
pub(crate) struct NodeService<S: Storage, T: Transport>(pub Arc<NodeCore<S, T>>);

impl<S: Storage, T: Transport> Service for NodeService<S, T> {
    async fn serve(&self, from: NodeId, body: Bytes) -> Bytes {
        let reply = match NodeCall::decode(&body) {
            Ok(_) if self.0.raft.replica().is_removed(from) => NodeReply::Removed,
            Ok(NodeCall::Forward(request)) => self.0.execute_for_peer(from, None, &Caller::Anonymous, request).await,
            Ok(NodeCall::ForwardAs { caller, request }) => self.0.execute_for_peer(from, None, &caller, request).await,
            Ok(NodeCall::ForwardTraced { trace, caller, request }) => {
                self.0.execute_in_trace(from, None, Some(&trace), &caller, request).await
            }
            Ok(NodeCall::ForwardIn { term, trace, caller, request }) => {
                self.0.execute_in_trace(from, Some(term), trace.as_ref(), &caller, request).await
            }
            Ok(NodeCall::FeatureLevel) => NodeReply::FeatureLevel(self.0.settings.feature_level),
            Ok(NodeCall::DiskState) => NodeReply::DiskState(self.0.disk_state()),
            Ok(NodeCall::StoreState) => NodeReply::StoreState { is_empty: self.0.storage.is_empty() },
            Err(error) => {
                let reason = format!("the leader cannot decode it: {error}; run the same version on all nodes");
                NodeReply::Done(Box::new(Err(RequestError::Unreadable(reason))))
            }
        };
        codec::encode(&reply).into()
    }

    fn disconnected(&self, from: NodeId) {
        self.0.lifecycle.spawn(self.0.clone().replace_ended_leader(from));
    }
}

impl<S: Storage, T: Transport> NodeCore<S, T> {
    /// Like [`execute_for_peer`](Self::execute_for_peer), in the trace of the forwarding node.
    async fn execute_in_trace(
        self: &Arc<Self>,
        from: NodeId,
        term: Option<u64>,
        trace: Option<&TraceParent>,
        caller: &Caller,
        request: Request,
    ) -> NodeReply {
        let execute = self.execute_for_peer(from, term, caller, request);
        let Some(trace) = trace else { return execute.await };
        let span = Span::of_peer("serve", trace);
        span.set_number(trace::NODE, self.settings.id);
        span.instrument(execute).await
    }

    /// Executes a request that another node forwarded to the leader of `term`. A node of an older release names no term.
    /// A wait ends when the other node is silent, because the client waits there.
    pub(in crate::node) async fn execute_for_peer(
        self: &Arc<Self>,
        from: NodeId,
        term: Option<u64>,
        caller: &Caller,
        request: Request,
    ) -> NodeReply {
        let waits = !request.wait().is_zero();
        let leader_term = self.requests.clock.leader_term();
        let Some(leader_term) = leader_term.filter(|leads| term.is_none_or(|term| term == leads.term)) else {
            return NodeReply::NotLeader;
        };
        let executed = tokio::select! {
            executed = self.execute_in_term(&leader_term, from, caller, request) => executed,
            () = self.node_is_silent(from), if waits => Err(ProposeError::StillWaits),
        };
        match executed {
            Ok(response) => NodeReply::Done(Box::new(Ok(response))),
            Err(ProposeError::NotLeader) => NodeReply::NotLeader,
            Err(ProposeError::StillWaits) => NodeReply::StillWaits,
            Err(ProposeError::Refused(error)) => NodeReply::Done(Box::new(Err(error))),
            Err(ProposeError::Unknown(reason)) => NodeReply::Done(Box::new(Err(RequestError::Unknown(reason)))),
        }
    }

    /// Waits until `node` has not acknowledged this leader for the leaderless time. Its connection stays open while it
    /// is stopped or isolated.
    async fn node_is_silent(&self, node: NodeId) {
        let (began, leaderless) = (Instant::now(), self.settings.timeouts.leaderless);
        // Raft does not measure the contact with a node that is no member any more.
        while self.raft.heard_from(node).unwrap_or(began.elapsed()) <= leaderless {
            tokio::time::sleep(leaderless / 4).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::MAX_RENEW_ITEMS;
    use crate::lease::{Command, Renewal};
    use crate::token::FencingToken;
    use crate::types::{HolderId, LeaseName, MAX_TTL_MS, Ttl};

    #[cfg(feature = "testing")]
    #[tokio::test(start_paused = true)]
    async fn node_that_is_no_member_is_silent_after_the_leaderless_time() {
        use crate::config::{LeaseSettings, RaftTimings};
        let cluster = crate::testing::Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
        let leader = cluster.leader().await;
        let core = cluster.node(leader).inner.clone();
        let leaderless = core.settings.timeouts.leaderless;
        tokio::time::timeout(2 * leaderless, core.node_is_silent(9)).await.expect("no message of it arrives");
        let member = cluster.ids().find(|id| *id != leader).expect("three nodes");
        tokio::time::timeout(4 * leaderless, core.node_is_silent(member))
            .await
            .expect_err("it acknowledges heartbeats");
        cluster.shutdown().await;
    }

    #[test]
    fn forwarded_request_has_at_most_4_mib() {
        // At 100,000 bytes and more the length prefix takes five bytes.
        let revoke = |bytes: usize| {
            let (name, reason) = (LeaseName::new("n").expect("valid"), "r".repeat(bytes));
            NodeCall::Forward(&Request::Change(Command::Revoke { name, reason })).encode()
        };
        let around = revoke(100_000).len() - 100_000;
        let largest = revoke((4 << 20) - around);
        assert_eq!(largest.len(), 4_194_304);
        assert!(matches!(NodeCall::decode(&largest), Ok(NodeCall::Forward(_))), "the request is at the bound");
        let refused = NodeCall::decode(&revoke((4 << 20) + 1 - around)).expect_err("the request is above the bound");
        assert!(matches!(refused, DecodeError::TooLong { bytes: 4_194_305, limit: 4_194_304 }), "{refused}");
    }

    #[test]
    fn forwarded_request_is_encoded_once() {
        let request = Request::Members;
        assert_eq!(NodeCall::Forward(&request).encode()[..], [&[0], &codec::encode(&request)[..]].concat());
    }

    /// An older node cannot decode a newer call, so a trace must not change the call at an older level.
    #[test]
    fn trace_is_sent_only_at_its_level() {
        let trace = || Some(TraceParent { trace: [1; 16], span: [2; 8], flags: 1, state: String::new() });
        let sent = |caller, trace, level| NodeCall::forward(&Request::Members, 7, &caller, trace, level).encode()[0];
        for caller in [Caller::Anonymous, Caller::Program] {
            for level in [FeatureLevel::FIRST, FeatureLevel::ACCESS_CONTROL] {
                assert_eq!(
                    sent(caller.clone(), trace(), level),
                    sent(caller.clone(), None, level),
                    "{caller:?} {level}"
                );
            }
            assert_eq!(sent(caller.clone(), trace(), FeatureLevel::TRACES), 4, "{caller:?}");
            assert!(
                sent(caller.clone(), None, FeatureLevel::TRACES) < 4,
                "a request without a trace needs no new call"
            );
            for trace in [trace(), None] {
                assert_eq!(sent(caller.clone(), trace, FeatureLevel::REQUEST_TERMS), 5, "{caller:?}");
            }
        }
    }

    #[test]
    fn call_with_a_term_has_a_frozen_form() {
        let trace = TraceParent { trace: [1; 16], span: [2; 8], flags: 1, state: "a=1".to_owned() };
        let request = Request::Members;
        let body = codec::encode(&(Caller::Program, Request::Members));
        let traced = NodeCall::forward(&request, 9, &Caller::Program, Some(trace), FeatureLevel::REQUEST_TERMS);
        let context = [&[5, 9, 1][..], &[1; 16], &[2; 8], &[1, 3], b"a=1"].concat();
        assert_eq!(traced.encode()[..], [&context[..], &body].concat());
        let plain = NodeCall::forward(&request, 300, &Caller::Program, None, FeatureLevel::REQUEST_TERMS);
        assert_eq!(plain.encode()[..], [&[5, 251, 44, 1, 0][..], &body].concat());
    }

    #[test]
    fn traced_call_has_a_frozen_form() {
        let trace = TraceParent { trace: [1; 16], span: [2; 8], flags: 1, state: "a=1".to_owned() };
        let call = NodeCall::ForwardTraced { trace, caller: Caller::Program, request: &Request::Members };
        let context = [&[4][..], &[1; 16], &[2; 8], &[1, 3], b"a=1"].concat();
        assert_eq!(call.encode()[..], [&context[..], &codec::encode(&(Caller::Program, Request::Members))].concat());
    }

    #[test]
    fn largest_renewal_batch_can_be_forwarded() {
        let renewal = |number: usize| Renewal {
            name: LeaseName::new(format!("{number:0>200}")).expect("valid"),
            token: FencingToken { term: u64::MAX, index: u64::MAX },
            ttl: Some(Ttl::millis(MAX_TTL_MS).expect("the longest ttl")),
        };
        let holder = HolderId::new("h".repeat(200)).expect("valid");
        let leases = (0..MAX_RENEW_ITEMS).map(renewal).collect();
        let call = NodeCall::Forward(&Request::Change(Command::Renew { holder, leases })).encode();
        assert!(NodeCall::decode(&call).is_ok(), "{} bytes", call.len());
    }
}
