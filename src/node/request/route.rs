//! Requests: the leader executes them, and any other node forwards them once to the leader.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;

use crate::access::{Access, AccessChange, Caller, Denied, Need};
use crate::lease::{Acquire, Command, DropCause, Outcome, Refusal, WaiterId};
use crate::node::leader::LeaderTerm;
use crate::node::request::call::{MAX_REPLY_BYTES, NodeCall, NodeReply};
use crate::node::request::propose::{AppliedOutcome, ProposeError};
use crate::node::request::wait::{WaitHandle, WaitOver, Wake};
use crate::node::request::{Answer, Answered, Request, RequestError, Response, Served, waited};
use crate::node::{Node, NodeCore, NodeFailure};
use crate::peer::{self, Payload, PeerError, Transport};
use crate::raft::{CurrentLeader, FeatureLevel, PeerInfo, Proposal, State, run_to_completion};
use crate::storage::codec;
use crate::storage::{Position, Storage};
use crate::trace::{Span, SpanRole};
use crate::types::{AccessName, Consistency, MAX_WAIT_MS, NodeId, ceil_ms};

/// Pause before the next attempt if no leader was reached. It doubles up to `LONGEST_PAUSE`, so that many requests
/// do not slow down an election.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(32);
/// Time after the end of a wait for the leader to commit that end. After it the request has an unknown outcome.
const WAIT_SLACK: Duration = Duration::from_secs(5);
/// How long after the leaderless time a node checks again whether its leader is silent.
const SILENCE_SLACK: Duration = Duration::from_millis(2);
/// How often the leader looks for expired access tokens.
const TOKEN_EXPIRY_INTERVAL: Duration = Duration::from_secs(1);

/// Whether a follower forwards a request to the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forward {
    /// Forward it. The receiver executes it only as the leader and never forwards it again.
    Once,
    /// Refuse it as [`RequestError::NotLeader`].
    Never,
}

impl<S: Storage, T: Transport> Node<S, T> {
    /// Executes a request, on this node or on the leader. Programs use [`leases`](Node::leases) instead.
    ///
    /// # Errors
    ///
    /// See `RequestError`: each variant documents whether the request may have been applied.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future of a waiting acquire removes its waiter from the queue. Any other change may still be
    /// applied.
    #[doc(hidden)]
    pub async fn request(&self, request: Request, forward: Forward) -> Result<Response, RequestError> {
        self.request_of(&Caller::Program, request, forward).await
    }

    /// Executes a request of a caller, if access control allows it.
    pub(crate) async fn request_of(
        &self,
        caller: &Caller,
        request: Request,
        forward: Forward,
    ) -> Result<Response, RequestError> {
        // Boxed: the futures of callers would otherwise nest too deeply for the compiler.
        let mut response = self.inner.route(caller, request, forward).boxed().await?;
        if let Answer::Members(members) = &mut response.answer {
            // The leader sends the facts, and each node judges them in the same way.
            let judged = self.inner.judged_by_leader(std::mem::take(members));
            *members = self.inner.with_certificates(judged);
        }
        Ok(response)
    }
}

impl<S: Storage, T: Transport> NodeCore<S, T> {
    pub(in crate::node) async fn route(
        self: &Arc<Self>,
        caller: &Caller,
        request: Request,
        forward: Forward,
    ) -> Result<Response, RequestError> {
        if self.lifecycle.draining.load(Ordering::Relaxed) {
            return Err(RequestError::ShuttingDown);
        }
        if let Request::Read { query, consistency: Consistency::Stale } = request {
            self.authorize(caller, &query.need())?;
            return Ok(self.read_memory(query, self.stale_ms()));
        }
        let arrived = Instant::now();
        let mut leaderless_since = arrived;
        // If an earlier attempt may have been applied, a later refusal does not prove the opposite.
        let mut ambiguous = None;
        let mut pause = FIRST_PAUSE;
        let mut changes = None;
        loop {
            // An attempt can wait for long at a leader. If that leader stops, the leaderless time begins only then.
            let had_leader = self.raft.leadership().leader.is_some();
            let next = request.clone_with_remaining_wait(arrived, ambiguous.is_some());
            let refusal = match self.attempt(caller, next, forward).await {
                Ok(response) => return unless_ambiguous(response, ambiguous),
                Err(ProposeError::NotLeader) => None,
                Err(ProposeError::StillWaits) => {
                    // The waiter may be granted or dropped before the next attempt reaches a leader.
                    ambiguous.get_or_insert_with(|| "it waited in the queue when the leader changed".to_owned());
                    None
                }
                Err(ProposeError::Refused(error)) => Some(error),
                Err(ProposeError::Unknown(reason)) => {
                    let again =
                        request.is_idempotent() && arrived.elapsed() < self.settings.timeouts.request + request.wait();
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
            // A failed node reaches no leader later.
            let has_failed = self.lifecycle.failure.borrow().is_some();
            let leaderless = has_failed || leaderless_since.elapsed() >= self.settings.timeouts.leaderless;
            if let Some(error) = refusal.or(leaderless.then_some(RequestError::NoLeader)) {
                return Err(ambiguous.map_or(error, RequestError::Unknown));
            }
            let (leadership, leads) =
                changes.get_or_insert_with(|| (self.raft.watch_leadership(), self.requests.clock.changes()));
            loop {
                tokio::select! {
                    () = self.lifecycle.stop.cancelled() => {
                        return Err(ambiguous.map_or(RequestError::ShuttingDown, RequestError::Unknown));
                    }
                    () = tokio::time::sleep(pause) => {
                        pause = (pause * 2).min(LONGEST_PAUSE);
                        break;
                    }
                    // Another node accepts requests shortly after it is known as the leader.
                    () = leadership.changed() => {
                        leadership.now();
                        pause = FIRST_PAUSE;
                    }
                    // This node begins to accept them, or stops.
                    _ = leads.changed() => {
                        pause = FIRST_PAUSE;
                        break;
                    }
                }
            }
        }
    }

    /// Makes one attempt at the current leader.
    pub(in crate::node) async fn attempt(
        self: &Arc<Self>,
        caller: &Caller,
        request: Request,
        forward: Forward,
    ) -> Result<Response, ProposeError> {
        let CurrentLeader { leader, term } = self.raft.leadership();
        let leader = leader.ok_or(ProposeError::NotLeader)?;
        if leader == self.settings.id {
            return self.execute_as_leader(caller, request).await;
        }
        let info = self.raft.member(leader).ok_or(ProposeError::NotLeader)?;
        match forward {
            Forward::Once => self.forward(KnownLeader { node: leader, term, info }, caller, &request).await,
            Forward::Never => Err(ProposeError::Refused(RequestError::NotLeader { leader, http: info.http })),
        }
    }

    /// Forwards a request to the leader.
    async fn forward(&self, leader: KnownLeader, caller: &Caller, request: &Request) -> Result<Response, ProposeError> {
        let span = Span::child(|| "forward", SpanRole::Client);
        span.set_number("tenure.leader", leader.node);
        let forwarded = self.forward_with(&span, leader, caller, request).await;
        if let Err(error) = &forwarded {
            span.fail(&format_args!("{error:?}"));
        }
        forwarded
    }

    async fn forward_with(
        &self,
        span: &Span,
        leader: KnownLeader,
        caller: &Caller,
        request: &Request,
    ) -> Result<Response, ProposeError> {
        let KnownLeader { node: leader, term, info } = leader;
        let level = self.forward_level(leader, term, &info.peer).await?;
        let call = NodeCall::forward(request, term, caller, span.context(), level);
        let names_caller = !matches!(call, NodeCall::Forward(_));
        let payload = Payload::Node(call.encode());
        let timeout = self.settings.timeouts.request + request.wait();
        let called = tokio::select! {
            called = self.transport.call(leader, &info.peer, request.lane(), payload, timeout) => called,
            // A frozen or isolated leader never answers, so the attempt ends when another node leads.
            () = self.raft.other_leader(leader), if !request.may_transfer() => {
                return Err(ProposeError::Unknown(format!("node {leader} stopped being the leader")));
            }
            // This node may be isolated: it requests the lease again after it reconnects.
            () = self.leader_is_silent(), if !request.wait().is_zero() => {
                return Err(ProposeError::Unknown(format!("no message from the leader, node {leader}")));
            }
        };
        let reply = match called {
            Err(PeerError::Refused { reason: peer::PeerRefusal::Removed { node }, .. }) if node == self.settings.id => {
                return Err(self.was_removed());
            }
            called => called.map_err(|error| propose_error(error, request))?,
        };
        let unreadable =
            |error: String| ProposeError::Unknown(format!("cannot decode the answer of node {leader}: {error}"));
        match codec::decode(&reply, MAX_REPLY_BYTES) {
            // This node has not applied the entry that turned access control on: the next attempt names the caller.
            Ok(NodeReply::Done(done)) if !names_caller && *caller != Caller::Anonymous && is_unauthenticated(&done) => {
                Err(ProposeError::NotLeader)
            }
            Ok(NodeReply::Done(done)) => done.map_err(ProposeError::from),
            Ok(NodeReply::NotLeader) => Err(ProposeError::NotLeader),
            Ok(NodeReply::StillWaits) => Err(ProposeError::StillWaits),
            Ok(NodeReply::Removed) => Err(self.was_removed()),
            Ok(other @ (NodeReply::StoreState { .. } | NodeReply::FeatureLevel(_) | NodeReply::DiskState(_))) => {
                Err(unreadable(format!("{other:?}")))
            }
            Err(error) => Err(unreadable(error.to_string())),
        }
    }

    /// The cluster removed this node, so the request is not applied. The node fails at once: the check of its membership
    /// may come much later, and meanwhile its clients would wait here.
    pub(in crate::node) fn was_removed(&self) -> ProposeError {
        self.lifecycle.fail(NodeFailure::Refused(peer::PeerRefusal::Removed { node: self.settings.id }));
        ProposeError::NotLeader
    }

    /// Waits until this node has not heard from a leader for the leaderless time.
    async fn leader_is_silent(&self) {
        loop {
            let heard = self.raft.last_contact().unwrap_or_default();
            let Some(left) = self.settings.timeouts.leaderless.checked_sub(heard) else { return };
            tokio::time::sleep(left + SILENCE_SLACK).await;
        }
    }

    /// Upper bound of the age of this node's state. See [`Served::stale_ms`](crate::node::Served::stale_ms).
    pub(in crate::node) fn stale_ms(&self) -> Option<u64> {
        self.raft.state_age().map(|age| age.as_millis() as u64)
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

/// The leader that a node knows.
struct KnownLeader {
    node: NodeId,
    term: u64,
    info: PeerInfo,
}

impl<S: Storage, T: Transport> NodeCore<S, T> {
    /// Executes a request if this node leads. `NotLeader` means that the request was certainly not applied.
    pub(in crate::node) async fn execute_as_leader(
        self: &Arc<Self>,
        caller: &Caller,
        request: Request,
    ) -> Result<Response, ProposeError> {
        let leader_term = self.requests.clock.leader_term().ok_or(ProposeError::NotLeader)?;
        self.execute_in_term(&leader_term, self.settings.id, caller, request).await
    }

    /// Executes a request of a client of the node `from` as the leader of a term.
    pub(in crate::node) async fn execute_in_term(
        self: &Arc<Self>,
        leader_term: &LeaderTerm,
        from: NodeId,
        caller: &Caller,
        request: Request,
    ) -> Result<Response, ProposeError> {
        let principal = self.authorize(caller, &request.need()).map_err(ProposeError::Refused)?;
        let (answer, entry) = match request {
            Request::Acquire(acquire) => self.acquire(leader_term, from, principal, acquire).await?,
            Request::Change(Command::LeaveQueue { waiter }) => {
                let leave = |waiter| self.requests.proposer.propose(leader_term.term, Command::LeaveQueue { waiter });
                match self.requests.waits.leave_from(from, waiter, leave) {
                    Some(left) => self.propose_with(|| ((), left)).await.1?.answered(),
                    None => (Answer::Outcome(Outcome::Waiting(0)), None),
                }
            }
            Request::Change(Command::Renew { holder, leases }) => {
                self.renew(leader_term, principal, holder, leases).await?
            }
            Request::Change(command) => self.propose(leader_term, owned(principal, command)).await?.answered(),
            Request::Read { query, consistency } => return self.read_as_leader(leader_term, query, consistency).await,
            Request::Members => (Answer::Members(self.members()), None),
            Request::ChangeMembers(change) => (self.change_members(leader_term, change).await?, None),
            Request::Transfer(to) => (self.transfer(leader_term, to).await?, None),
            Request::Access => {
                self.confirm_leadership(leader_term).boxed().await?;
                (access_answer(&self.access()), None)
            }
            Request::ChangeAccess(change) => (self.change_access(leader_term, caller, change).boxed().await?, None),
        };
        Ok(Response { answer, served: self.served(entry) })
    }

    /// Decides by the state of this node. See [`Access::authorize`]. A node that hears no leader may lack the newest
    /// principals and access tokens, so it refuses no identified caller.
    pub(in crate::node) fn authorize(
        &self,
        caller: &Caller,
        need: &Need<'_>,
    ) -> Result<Option<AccessName>, RequestError> {
        self.access().authorize(caller, need).map_err(|denied| match denied {
            Denied::Unauthenticated(_) | Denied::Forbidden(_)
                if *caller != Caller::Anonymous && !self.hears_leader() =>
            {
                RequestError::NoLeader
            }
            denied => RequestError::Denied(denied),
        })
    }

    pub(in crate::node) fn access(&self) -> Access {
        self.raft.replica().read(|state| state.access.clone())
    }

    /// While this node leads, removes the access tokens that have expired by its wall clock.
    pub(in crate::node) async fn expire_tokens(self: Arc<Self>) {
        loop {
            tokio::time::sleep(TOKEN_EXPIRY_INTERVAL).await;
            let Some(leader_term) = self.requests.clock.leader_term() else { continue };
            let (_, wall_ms) = self.requests.clock.reading();
            for id in self.access().expired(wall_ms) {
                let removed = self.change_access(&leader_term, &Caller::Program, AccessChange::RemoveToken(id)).await;
                match removed {
                    Ok(_) => tracing::info!(%id, "the access token has expired: the leader removed it"),
                    Err(error) => tracing::debug!(%id, ?error, "the expired access token is not removed yet"),
                }
            }
        }
    }

    /// Changes access control as the leader of a term. One change is made at a time, so each is checked against the
    /// state that it changes.
    async fn change_access(
        &self,
        leader_term: &LeaderTerm,
        caller: &Caller,
        mut change: AccessChange,
    ) -> Result<Answer, ProposeError> {
        change.begin_at(self.requests.clock.reading().1);
        let timeout = self.settings.timeouts.request;
        let made = tokio::time::timeout(timeout, async {
            let one_at_a_time = self.requests.access_changes.clone().lock_owned().await;
            let refused = |denied| ProposeError::Refused(RequestError::Denied(denied));
            let has_expiry = change.has_expiry();
            let level = if has_expiry { FeatureLevel::TOKEN_EXPIRY } else { FeatureLevel::ACCESS_CONTROL };
            let required = self.require_level(leader_term.term, level).await;
            required.map_err(|reason| refused(Denied::Refused(reason)))?;
            let check = || self.access().check(caller, &change, self.tls.is_some());
            if check().is_err() {
                // A node that no longer leads has an old state. It must not refuse a change because of it.
                self.confirm_leadership(leader_term).boxed().await?;
                check().map_err(refused)?;
            }
            let (raft, term, proposal) = (self.raft.clone(), leader_term.term, Proposal::access(&change));
            // The entry can be applied after its client has left, so the next change waits for it, too.
            let propose = async move {
                let _one_at_a_time = one_at_a_time;
                raft.propose(term, proposal).await
            };
            run_to_completion(propose).await.map_err(ProposeError::from)
        });
        let unknown = |_| Err(ProposeError::Unknown(format!("not committed within {timeout:?}")));
        made.await.unwrap_or_else(unknown).map(|_| access_answer(&self.access()))
    }

    async fn acquire(
        self: &Arc<Self>,
        leader_term: &LeaderTerm,
        from: NodeId,
        principal: Option<AccessName>,
        acquire: Acquire,
    ) -> Result<Answered, ProposeError> {
        // The registered wait of a claim has no principal. So a claim with the holder id of another one registers none.
        let is_foreign = |principal| self.raft.replica().read(|state| state.machine.is_foreign(&acquire, principal));
        if principal.as_ref().is_some_and(is_foreign) {
            // A node that no longer leads has an old state. It must not refuse a claim because of it.
            self.confirm_leadership(leader_term).boxed().await?;
            if principal.as_ref().is_some_and(is_foreign) {
                return Ok((Answer::Outcome(Outcome::Refused(Refusal::HolderInUse)), None));
            }
        }
        if let Some(refused) = self.refuse_from_memory(leader_term, &acquire) {
            return Ok(refused);
        }
        let Some(wait_ms) = acquire.wait_ms else {
            return Ok(self.propose(leader_term, owned(principal, Command::Acquire(acquire))).await?.answered());
        };
        let id = WaiterId { name: acquire.name.clone(), holder: acquire.holder.clone() };
        let registered = Instant::now();
        let until = registered + Duration::from_millis(wait_ms.min(MAX_WAIT_MS));
        let queue = || {
            self.requests.waits.register(id, from, until, |longer| {
                let wait_ms = Some(wait_ms.saturating_add(ceil_ms(longer)));
                let claim = Command::Acquire(Acquire { wait_ms, ..acquire });
                self.requests.proposer.propose(leader_term.term, owned(principal, claim))
            })
        };
        let (mut handle, proposed) = self.propose_with(queue).await;
        match proposed {
            Ok(AppliedOutcome { outcome: Outcome::Queued { .. }, position }) => {
                handle.queued_at(position.index);
                // In the queue, the wait began only with the entry of the claim.
                let slack = registered.elapsed() + WAIT_SLACK;
                self.wait(leader_term, handle, until, slack).await.map(waited)
            }
            answered => {
                // Either the waiter is not in the queue, or an earlier attempt queued it and the next leader keeps it.
                handle.keep_position();
                Ok(answered?.answered())
            }
        }
    }

    /// Refuses a claim of a held lease without a log entry, if this node's state is certain to be current.
    fn refuse_from_memory(&self, leader_term: &LeaderTerm, acquire: &Acquire) -> Option<Answered> {
        let now = self.requests.clock.now(leader_term);
        let refuse = |state: &State| Some((state.machine.held_by_other(acquire, now)?, state.position()));
        // This check comes first because it is cheap and most names are free.
        self.raft.replica().read(refuse)?;
        if !self.raft.may_read_locally() {
            return None;
        }
        let (refusal, seen) = self.raft.replica().read(refuse)?;
        Some((Answer::Outcome(Outcome::Refused(refusal)), Some(seen)))
    }

    pub(in crate::node) async fn propose(
        &self,
        leader_term: &LeaderTerm,
        command: Command,
    ) -> Result<AppliedOutcome, ProposeError> {
        self.propose_with(|| ((), self.requests.proposer.propose(leader_term.term, command))).await.1
    }

    /// Waits for the command that `queue` queues. Returns its outcome with the first result of `queue`.
    async fn propose_with<H, P>(&self, queue: impl FnOnce() -> (H, P)) -> (H, Result<AppliedOutcome, ProposeError>)
    where
        P: Future<Output = Result<AppliedOutcome, ProposeError>>,
    {
        let span = Span::child(|| "propose", SpanRole::Internal);
        let times = span.is_recording().then(|| self.raft.record_times());
        let (handle, queued) = queue();
        let proposed = tokio::time::timeout(self.settings.timeouts.request, queued).await;
        let proposed = proposed.unwrap_or_else(|_| {
            Err(ProposeError::Unknown(format!("not committed within {:?}", self.settings.timeouts.request)))
        });
        match &proposed {
            Ok(applied) => {
                let stages = times.map(|times| times.stages(applied.position.index));
                stages.into_iter().flatten().for_each(|(name, from, to)| span.stage(name, from, to));
            }
            Err(error) => span.fail(&format_args!("{error:?}")),
        }
        (handle, proposed)
    }

    async fn wait(
        self: &Arc<Self>,
        leader_term: &LeaderTerm,
        mut handle: WaitHandle,
        until: Instant,
        slack: Duration,
    ) -> Result<Answer, ProposeError> {
        let _span = Span::child(|| "wait", SpanRole::Internal);
        let request = handle.request();
        let over = async {
            tokio::time::sleep_until(until).await;
            let leave = |waiter| self.requests.proposer.propose(leader_term.term, Command::LeaveQueue { waiter });
            loop {
                let changed = self.requests.waits.changed.notified();
                match self.requests.waits.over(request.clone(), until, leave) {
                    WaitOver::Ends => break,
                    WaitOver::OtherWaits => return Ok(Answer::WaitTimeout),
                    WaitOver::OtherMayWait => changed.await,
                    // It ends by the wake of its waiter.
                    WaitOver::Leaves(left) => break drop(left.await),
                }
            }
            tokio::time::sleep(slack).await;
            Err(ProposeError::Unknown("the wait is over, but its end is not committed".into()))
        };
        tokio::select! {
            biased;
            wake = handle.woken() => match wake {
                Some(Wake::Granted(lease)) => Ok(Answer::Outcome(Outcome::Held { lease: *lease, fresh: true })),
                Some(Wake::Ended(lost)) => Ok(Answer::Outcome(Outcome::Refused(Refusal::Lost(lost)))),
                Some(Wake::Dropped(DropCause::WaitTimeout)) => Ok(Answer::WaitTimeout),
                Some(Wake::Dropped(DropCause::Left)) if Instant::now() >= until => Ok(Answer::WaitTimeout),
                Some(Wake::Dropped(DropCause::Abandoned | DropCause::Left)) => Ok(Answer::WaitAbandoned),
                None => Err(ProposeError::StillWaits),
            },
            // The queue is replicated, so the request keeps its position and continues at the next leader.
            () = self.requests.clock.ended(leader_term.term) => {
                handle.keep_position();
                Err(ProposeError::StillWaits)
            }
            answer = over => answer,
        }
    }

    /// Names the entry that the answer reflects. Without one, it reflects the state of this node.
    fn served(&self, entry: Option<Position>) -> Served {
        let served = self.raft.replica().read(|state| self.served_by(state));
        entry.map_or(served, |Position { term, index }| Served { term, applied: index, ..served })
    }

    pub(in crate::node) fn served_by(&self, state: &State) -> Served {
        let now = self
            .requests
            .clock
            .leader_term()
            .map_or(state.machine.now(), |leader_term| self.requests.clock.now(&leader_term));
        Served {
            node: self.settings.id,
            term: state.applied.map_or(0, |applied| applied.leader_id.term),
            applied: state.applied.map_or(0, |applied| applied.index),
            now: now.max(state.machine.now()),
            stale_ms: None,
        }
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

/// The command, with the principal whose leases it may change.
pub(in crate::node) fn owned(principal: Option<AccessName>, command: Command) -> Command {
    match principal {
        Some(principal) => command.owned_by(principal),
        None => command,
    }
}

fn is_unauthenticated(done: &Result<Response, RequestError>) -> bool {
    matches!(done, Err(RequestError::Denied(Denied::Unauthenticated(_))))
}

/// Without expiring tokens, members of all releases can read the answer.
fn access_answer(access: &Access) -> Answer {
    let (view, expiries) = (access.view(), access.state().expiries());
    if expiries.is_empty() {
        return Answer::Access(view);
    }
    Answer::AccessWithExpiries { view, expiries: expiries.clone() }
}
