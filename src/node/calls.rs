//! Calls between nodes: a follower forwards a client's request to the leader. The node that forms the cluster asks the
//! others about their stores.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::Inner;
use crate::node::request::propose::ProposeError;
use crate::node::request::{Request, RequestError, Response};
use crate::peer::{Payload, PeerError, Service, Transport};
use crate::raft::PeerInfo;
use crate::storage::Storage;
use crate::storage::codec::{self, DecodeError};
use crate::types::NodeId;

/// Largest call that a node decodes, in bytes.
pub(crate) const MAX_CALL_BYTES: usize = 4 << 20;
/// Largest reply that a node decodes, in bytes.
pub(crate) const MAX_REPLY_BYTES: usize = 16 << 20;
/// How long after the leaderless time a node checks again whether its leader is silent.
const SILENCE_SLACK: Duration = Duration::from_millis(2);

/// A call to another node. `R` is a borrowed request at the calling node.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum NodeCall<R = Request> {
    /// A client's request. The receiver executes it only as the leader.
    Forward(R),
    /// Asks whether the store is empty.
    StoreState,
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
pub(crate) struct NodeService<S: Storage, T: Transport>(pub Arc<Inner<S, T>>);

impl<S: Storage, T: Transport> Service for NodeService<S, T> {
    async fn serve(&self, from: NodeId, body: Bytes) -> Bytes {
        let reply = match NodeCall::decode(&body) {
            Ok(NodeCall::Forward(request)) => self.0.execute_for_peer(from, request).await,
            Ok(NodeCall::StoreState) => NodeReply::StoreState { is_empty: self.0.storage.is_empty() },
            Err(error) => {
                let reason = format!("the leader cannot decode it: {error}; run the same version on all nodes");
                NodeReply::Done(Box::new(Err(RequestError::Unreadable(reason))))
            }
        };
        codec::encode(&reply).into()
    }
}

impl<S: Storage, T: Transport> Inner<S, T> {
    /// Executes a request that another node forwarded. A wait ends when that node is silent, because the client waits
    /// there.
    pub(super) async fn execute_for_peer(self: &Arc<Self>, from: NodeId, request: Request) -> NodeReply {
        let waits = !request.wait().is_zero();
        let executed = tokio::select! {
            executed = self.execute_as_leader(request) => executed,
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
        while self.raft.heard_from(node).is_none_or(|heard| heard <= self.settings.timeouts.leaderless) {
            tokio::time::sleep(self.settings.timeouts.leaderless / 4).await;
        }
    }

    /// Forwards a request to the leader.
    pub(super) async fn forward(
        &self,
        leader: NodeId,
        info: &PeerInfo,
        request: &Request,
    ) -> Result<Response, ProposeError> {
        let payload = Payload::Node(NodeCall::Forward(request).encode());
        let timeout = self.settings.timeouts.request + request.wait();
        let mut leadership = self.raft.watch_leadership();
        let called = tokio::select! {
            called = self.transport.call(leader, &info.peer, request.lane(), payload, timeout) => called,
            // A frozen or isolated leader never answers, so the attempt ends when another node leads.
            () = async {
                while leadership.now().leader.is_none_or(|now| now == leader) {
                    leadership.changed().await;
                }
            } => return Err(ProposeError::Unknown(format!("node {leader} stopped being the leader"))),
            // This node may be isolated: it requests the lease again after it reconnects.
            () = self.leader_is_silent(), if !request.wait().is_zero() => {
                return Err(ProposeError::Unknown(format!("no message from the leader, node {leader}")));
            }
        };
        let reply = called.map_err(|error| propose_error(error, request))?;
        let unreadable =
            |error: String| ProposeError::Unknown(format!("cannot decode the answer of node {leader}: {error}"));
        match codec::decode(&reply, MAX_REPLY_BYTES) {
            Ok(NodeReply::Done(done)) => done.map_err(ProposeError::from),
            Ok(NodeReply::NotLeader) => Err(ProposeError::NotLeader),
            Ok(NodeReply::StillWaits) => Err(ProposeError::StillWaits),
            Ok(other @ NodeReply::StoreState { .. }) => Err(unreadable(format!("{other:?}"))),
            Err(error) => Err(unreadable(error.to_string())),
        }
    }

    /// Waits until this node has not heard from a leader for the leaderless time.
    async fn leader_is_silent(&self) {
        loop {
            let heard = self.raft.last_contact().unwrap_or_default();
            let Some(left) = self.settings.timeouts.leaderless.checked_sub(heard) else { return };
            tokio::time::sleep(left + SILENCE_SLACK).await;
        }
    }
}

/// Maps a failed call to the error of its request.
fn propose_error(error: PeerError, request: &Request) -> ProposeError {
    match error {
        PeerError::TooLarge { .. } => ProposeError::Refused(RequestError::TooLarge),
        // A read changes nothing, and the next answer would be as large.
        PeerError::NoAnswer { .. } if !request.is_change() => {
            ProposeError::Refused(RequestError::AnswerTooLarge(error.to_string()))
        }
        error if error.certainly_not_done() => ProposeError::NotLeader,
        error => ProposeError::Unknown(error.to_string()),
    }
}

impl From<RequestError> for ProposeError {
    fn from(error: RequestError) -> ProposeError {
        match error {
            RequestError::Unknown(reason) => ProposeError::Unknown(reason),
            // The leader is shutting down: the next attempt finds another one.
            RequestError::ShuttingDown | RequestError::NoLeader => ProposeError::NotLeader,
            error => ProposeError::Refused(error),
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
