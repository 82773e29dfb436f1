//! Request routing: the leader executes a request, and any other node forwards it once to the leader.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::lease::{Command, Outcome};
use crate::node::Inner;
use crate::node::request::propose::ProposeError;
use crate::node::request::queue::Class;
use crate::node::request::{Answer, Request, RequestError, Response};
use crate::peer::{Lane, PeerError, Transport};
use crate::raft::{Call, Forwarded, PeerInfo, Reply};
use crate::storage::{Storage, codec};
use crate::types::{Consistency, NodeId};

/// Pause before the next attempt if no leader was reached. It doubles up to `LONGEST_PAUSE`, so that many requests
/// do not slow down an election.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(32);
/// Largest forwarded request, in bytes.
pub(crate) const MAX_REQUEST_BYTES: usize = 4 << 20;
/// Largest answer to a forwarded request, in bytes.
pub(crate) const MAX_RESPONSE_BYTES: usize = 16 << 20;

/// Whether a follower forwards a request to the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forward {
    /// Forward it. The receiver executes it only as the leader and never forwards it again.
    Once,
    /// Refuse it as [`RequestError::NotLeader`].
    Never,
}

/// The leader's reply to a forwarded request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ForwardReply {
    Done(Box<Result<Response, RequestError>>),
    /// Certainly not applied: find the leader again.
    NotLeader,
    /// The waiter was in the queue and may still be there: find the leader again.
    StillWaits,
}

impl<S: Storage, T: Transport> Inner<S, T> {
    pub(in crate::node) async fn route(
        self: &Arc<Self>,
        request: Request,
        forward: Forward,
    ) -> Result<Response, RequestError> {
        if self.draining.load(Ordering::Relaxed) {
            return Err(RequestError::ShuttingDown);
        }
        if let Request::Read { query, consistency: Consistency::Stale } = request {
            return Ok(self.read_memory(query, self.stale_ms()));
        }
        let arrived = Instant::now();
        let mut leaderless_since = arrived;
        // If an earlier attempt may have been applied, a later refusal does not prove the opposite.
        let mut ambiguous = None;
        let mut pause = FIRST_PAUSE;
        loop {
            // An attempt can wait for long at a leader. If that leader stops, the leaderless time begins only then.
            let had_leader = self.raft.leadership().leader.is_some();
            let refusal = match self.attempt(request.clone_with_remaining_wait(arrived), forward).await {
                Ok(response) => return unless_ambiguous(response, ambiguous),
                Err(ProposeError::NotLeader) => None,
                Err(ProposeError::StillWaits) => {
                    // The waiter may be granted or dropped before the next attempt reaches a leader.
                    ambiguous.get_or_insert_with(|| "it waited in the queue when the leader changed".to_owned());
                    None
                }
                Err(ProposeError::Refused(error)) => Some(error),
                Err(ProposeError::Unknown(reason)) => {
                    let again = request.is_idempotent() && arrived.elapsed() < self.timeouts.request + request.wait();
                    let error = (!again).then(|| RequestError::Unknown(reason.clone()));
                    ambiguous = Some(reason).filter(|_| request.is_change());
                    error
                }
            };
            // An isolated node never learns that its leader is gone, so a known leader extends only the wait.
            let has_leader = had_leader || self.raft.leadership().leader.is_some();
            if arrived.elapsed() < request.wait() && has_leader {
                leaderless_since = Instant::now();
            }
            let leaderless = leaderless_since.elapsed() >= self.timeouts.leaderless;
            if let Some(error) = refusal.or(leaderless.then_some(RequestError::NoLeader)) {
                return Err(ambiguous.map_or(error, RequestError::Unknown));
            }
            tokio::select! {
                () = self.stop.cancelled() => {
                    return Err(ambiguous.map_or(RequestError::ShuttingDown, RequestError::Unknown));
                }
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
            }
        }
    }

    /// Makes one attempt at the current leader.
    pub(in crate::node) async fn attempt(
        self: &Arc<Self>,
        request: Request,
        forward: Forward,
    ) -> Result<Response, ProposeError> {
        match self.raft.leadership().leader {
            Some(leader) if leader == self.id => self.execute_as_leader(request).await,
            Some(leader) => {
                let info = self.raft.member(leader).ok_or(ProposeError::NotLeader)?;
                match forward {
                    Forward::Once => self.forward(leader, &info, &request).await,
                    Forward::Never => Err(ProposeError::Refused(RequestError::NotLeader { leader, http: info.http })),
                }
            }
            None => Err(ProposeError::NotLeader),
        }
    }

    async fn forward(&self, leader: NodeId, info: &PeerInfo, request: &Request) -> Result<Response, ProposeError> {
        let call = codec::encode(&Call::Forward(codec::encode(request).into())).into();
        let timeout = self.timeouts.request + request.wait();
        let mut leadership = self.raft.watch_leadership();
        let called = tokio::select! {
            called = self.transport.call(leader, &info.peer, request.lane(), call, timeout) => called,
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
        match codec::decode(&reply, MAX_RESPONSE_BYTES) {
            Ok(Reply::Forward(passed)) => match codec::decode(&passed, MAX_RESPONSE_BYTES) {
                Ok(ForwardReply::Done(done)) => done.map_err(ProposeError::from),
                Ok(ForwardReply::NotLeader) => Err(ProposeError::NotLeader),
                Ok(ForwardReply::StillWaits) => Err(ProposeError::StillWaits),
                Err(error) => Err(unreadable(error.to_string())),
            },
            Ok(Reply::NotNow(_) | Reply::Failed(_)) => Err(ProposeError::NotLeader),
            Ok(other) => Err(unreadable(format!("{other:?}"))),
            Err(error) => Err(unreadable(error.to_string())),
        }
    }

    /// Waits until this node has not heard from a leader for the leaderless time.
    async fn leader_is_silent(&self) {
        loop {
            let heard = self.contact.elapsed_ms().map(Duration::from_millis).unwrap_or_default();
            let Some(left) = self.timeouts.leaderless.checked_sub(heard) else { return };
            tokio::time::sleep(left + FIRST_PAUSE).await;
        }
    }

    /// Waits until `node` has not acknowledged this leader for the leaderless time. Its connection stays open while it
    /// is stopped or isolated.
    async fn node_is_silent(&self, node: NodeId) {
        while self.raft.heard_from(node).is_none_or(|heard| heard <= self.timeouts.leaderless) {
            tokio::time::sleep(self.timeouts.leaderless / 4).await;
        }
    }

    /// Executes a request that another node forwarded. A wait ends when that node is silent, because the client waits
    /// there.
    pub(in crate::node) async fn execute_for_peer(
        self: &Arc<Self>,
        from: NodeId,
        request: Request,
    ) -> Result<Response, ProposeError> {
        let waits = !request.wait().is_zero();
        tokio::select! {
            done = self.execute_as_leader(request) => done,
            () = self.node_is_silent(from), if waits => Err(ProposeError::StillWaits),
        }
    }

    /// Upper bound of the age of this node's state. See [`Served::stale_ms`](crate::node::Served::stale_ms).
    pub(in crate::node) fn stale_ms(&self) -> Option<u64> {
        self.raft.quorum_age().map_or_else(|| self.contact.elapsed_ms(), |age| Some(age.as_millis() as u64))
    }
}

/// The handler of requests that other nodes forward to this one.
pub(crate) struct Forwarding<S: Storage, T: Transport>(pub Arc<Inner<S, T>>);

impl<S: Storage, T: Transport> Forwarded for Forwarding<S, T> {
    async fn forwarded(&self, from: NodeId, request: Bytes) -> Bytes {
        let passed = match codec::decode::<Request>(&request, MAX_REQUEST_BYTES) {
            Err(error) => {
                let reason = format!("the leader cannot decode it: {error}; run the same version on all nodes");
                ForwardReply::Done(Box::new(Err(RequestError::Unreadable(reason))))
            }
            Ok(request) => match self.0.execute_for_peer(from, request).await {
                Ok(response) => ForwardReply::Done(Box::new(Ok(response))),
                Err(ProposeError::NotLeader) => ForwardReply::NotLeader,
                Err(ProposeError::StillWaits) => ForwardReply::StillWaits,
                Err(ProposeError::Refused(error)) => ForwardReply::Done(Box::new(Err(error))),
                Err(ProposeError::Unknown(reason)) => ForwardReply::Done(Box::new(Err(RequestError::Unknown(reason)))),
            },
        };
        codec::encode(&passed).into()
    }

    fn heard(&self, _: NodeId) {
        self.0.contact.heard();
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

/// Returns the answer unless an earlier attempt makes it ambiguous: a claim that is refused now may have been granted
/// to an earlier attempt. Any other answer is certain.
fn unless_ambiguous(response: Response, ambiguous: Option<String>) -> Result<Response, RequestError> {
    let is_refused =
        matches!(response.answer, Answer::Outcome(Outcome::Refused(_)) | Answer::WaitTimeout | Answer::WaitAbandoned);
    match ambiguous.filter(|_| is_refused) {
        Some(reason) => Err(RequestError::Unknown(format!("{reason}; the next attempt was refused"))),
        None => Ok(response),
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

impl Request {
    /// Whether a repetition has the same effect and answer. Then an unknown outcome is retried. A repeated release or
    /// handover is answered as if the first one had not been applied.
    fn is_idempotent(&self) -> bool {
        match self {
            Request::Acquire(_) | Request::Read { .. } | Request::Members => true,
            Request::Change(command) => matches!(command, Command::Renew { .. } | Command::UpdateMetadata { .. }),
        }
    }

    fn lane(&self) -> Lane {
        match self {
            Request::Change(command) if Class::of(command) == Class::Urgent => Lane::Urgent,
            _ => Lane::Request,
        }
    }

    fn is_change(&self) -> bool {
        matches!(self, Request::Acquire(_) | Request::Change(_))
    }

    fn wait(&self) -> Duration {
        match self {
            Request::Acquire(acquire) => Duration::from_millis(acquire.wait_ms.unwrap_or_default()),
            _ => Duration::ZERO,
        }
    }

    /// Clones the request for an attempt that starts now, with the remaining wait.
    fn clone_with_remaining_wait(&self, arrived: Instant) -> Request {
        let mut request = self.clone();
        if let Request::Acquire(acquire) = &mut request
            && let Some(wait_ms) = &mut acquire.wait_ms
        {
            *wait_ms = wait_ms.saturating_sub(arrived.elapsed().as_millis() as u64);
        }
        request
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::MAX_RENEW_ITEMS;
    use crate::lease::{Command, Refusal, Renewal};
    use crate::node::request::Served;
    use crate::storage::codec::DecodeError;
    use crate::token::FencingToken;
    use crate::types::{HolderId, LeaseName, MAX_TTL_MS, Ttl};

    #[test]
    fn refusal_after_a_lost_answer_stays_unknown() {
        let response =
            |answer| Response { answer, served: Served { node: 1, term: 1, applied: 1, now: 1, stale_ms: None } };
        let refusals = [
            Answer::Outcome(Outcome::Refused(Refusal::QueueFull { max_waiters: 1 })),
            Answer::WaitTimeout,
            Answer::WaitAbandoned,
        ];
        for answer in refusals {
            assert!(
                unless_ambiguous(response(answer.clone()), None).is_ok(),
                "{answer:?} after no other attempt is certain"
            );
            let answered = unless_ambiguous(response(answer.clone()), Some("lost".to_owned()));
            assert!(matches!(answered, Err(RequestError::Unknown(_))), "{answer:?}: {answered:?}");
        }
        let released = response(Answer::Outcome(Outcome::Released(true)));
        assert!(unless_ambiguous(released, Some("lost".to_owned())).is_ok());
    }

    #[test]
    fn only_idempotent_changes_are_repeated() {
        let name = || LeaseName::new("n").expect("valid");
        let holder = || HolderId::new("h").expect("valid");
        let token = FencingToken { term: 1, index: 5 };
        let changes = [
            (Command::Renew { holder: holder(), leases: Vec::new() }, true),
            (Command::Release { name: name(), holder: holder(), token }, false),
            (Command::HandOver { name: name(), holder: holder(), token, to: None }, false),
            (Command::Revoke { name: name(), reason: String::new() }, false),
        ];
        for (command, repeats) in changes {
            assert_eq!(Request::Change(command.clone()).is_idempotent(), repeats, "{command:?}");
        }
    }

    #[test]
    fn forwarded_request_above_4_mib_is_not_decoded() {
        // At 100,000 bytes and more the length prefix takes five bytes.
        let revoke = |bytes: usize| {
            let (name, reason) = (LeaseName::new("n").expect("valid"), "r".repeat(bytes));
            codec::encode(&Request::Change(Command::Revoke { name, reason }))
        };
        let around = revoke(100_000).len() - 100_000;
        let request = |bytes: usize| codec::decode::<Request>(&revoke(bytes - around), MAX_REQUEST_BYTES);
        assert!(request(4_190_000).is_ok());
        let refused = request((4 << 20) + 1).expect_err("the request is above the bound");
        assert!(matches!(refused, DecodeError::TooLong { bytes: 4_194_305, limit: 4_194_304 }), "{refused}");
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
        let bytes = codec::encode(&Request::Change(Command::Renew { holder, leases }));
        assert!(codec::decode::<Request>(&bytes, MAX_REQUEST_BYTES).is_ok(), "{} bytes", bytes.len());
    }
}
