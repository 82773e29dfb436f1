//! The client transport to a node in the same process.

use std::time::Duration;

use crate::api::{
    self, Event, EventId, Explanation, HandOver, LeaseInfo, MAX_PAGE, Problem, Release, Released, RenewBatch, Renewed,
    UpdateMetadata,
};
use crate::client::retry::{Attempt, AttemptContext, ResolvedAnswer, RetryPolicy, attempts, classify_problem};
use crate::client::{self, CallError, Coordinator, Events, LeaseManager, RetryBudget};
use crate::lease::{Acquire, ListFilter, StateFilter, WaiterId};
use crate::node::{self, Compacted, Consistency, Forward, Node, Query, Request, RequestError, Watch, WatchEnd};
use crate::peer::{TcpTransport, Transport};
use crate::storage::{DiskStorage, Storage};
use crate::types::{ClusterMs, HolderId, LeaseName, MemberChange, NodeId, ceil_ms};

/// Pause before a watch reports again that its node has stopped, so that a caller that retries does not spin.
const STOPPED_PAUSE: Duration = Duration::from_millis(200);

impl<S: Storage, T: Transport> Node<S, T> {
    /// Returns a lease manager with the default options that uses this node in process.
    ///
    /// The manager keeps the node alive. Shut it down before the node, so that it releases its leases.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(node: tenure::node::Node) -> Result<(), Box<dyn std::error::Error>> {
    /// let leases = node.leases();
    /// let sum = leases.with("nightly-report", |lease| async move { /* while it is held */ 1 + 1 }).await?;
    /// leases.shutdown().await;
    /// node.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// For other options use `LeaseManager::with_options(Local::new(node.clone()), options)?`.
    pub fn leases(&self) -> LeaseManager {
        LeaseManager::new(Local::new(self.clone()))
    }

    /// Changes the members of the cluster. Any node forwards it to the leader. Returns the members after the change.
    ///
    /// # Errors
    ///
    /// - [`Refused`](CallError::Refused) with the code `member_refused` and the reason, `change_in_progress`, or
    ///   `not_found`.
    /// - [`Unknown`](CallError::Unknown): the change may be made. If it began, the next leader completes it.
    /// - [`Unavailable`](CallError::Unavailable): there is no leader. The change is not made.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the change may still be made.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(node: tenure::node::Node) -> Result<(), tenure::CallError> {
    /// use tenure::types::MemberChange;
    ///
    /// let (http, peer) = ("10.0.0.4:7101".to_owned(), "10.0.0.4:7201".to_owned());
    /// node.change_members(MemberChange::Add { id: 4, http, peer }).await?;
    /// // When node 4 has started with `join` and has caught up, it is a voter.
    /// node.change_members(MemberChange::Remove { id: 1, force: false }).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn change_members(&self, change: MemberChange) -> Result<api::Members, CallError> {
        let asked = self.request(Request::ChangeMembers(change), Forward::Once).await;
        answered(self, asked, super::members)
    }

    /// Transfers the leadership to the voter `to`, or to the voter that lacks the fewest log entries.
    ///
    /// # Errors
    ///
    /// As [`change_members`](Self::change_members). After [`Unknown`](CallError::Unknown), the voters elect a leader
    /// when the leadership lease has expired.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the transfer may still happen.
    pub async fn transfer_leadership(&self, to: Option<NodeId>) -> Result<api::Transferred, CallError> {
        let asked = self.request(Request::Transfer(to), Forward::Once).await;
        answered(self, asked, super::transferred)
    }

    /// Watches the transitions that this node applies, of leases whose names start with `prefix`: those after the event
    /// `after`, or new ones without it.
    ///
    /// The watch does not keep the node alive. After a shutdown, [`Events::next`] returns the remaining events and then
    /// fails as unavailable.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(node: tenure::node::Node) -> Result<(), tenure::CallError> {
    /// let mut events = node.watch("jobs:", None);
    /// loop {
    ///     let event = events.next().await?;
    ///     println!("{} {} {}", event.event.as_str(), event.name, event.holder);
    /// }
    /// # }
    /// ```
    pub fn watch(&self, prefix: impl Into<String>, after: Option<EventId>) -> Box<dyn Events> {
        let watch = self.transitions(after.map(EventId::into));
        let node_name = node_name(self);
        Box::new(LocalWatch { watch, prefix: prefix.into(), after, node_name })
    }
}

/// Converts the answer to a request that is not repeated.
pub(super) fn answered<S: Storage, T: Transport, A>(
    node: &Node<S, T>,
    answer: Result<node::Response, RequestError>,
    read: impl Fn(node::Answer) -> Result<A, Box<Problem>>,
) -> Result<A, CallError> {
    let problem = match answer {
        Ok(response) => match read(response.answer) {
            Ok(done) => return Ok(done),
            Err(problem) => *problem,
        },
        Err(RequestError::ShuttingDown) => return Err(CallError::ShutDown),
        Err(error) => super::request_error(error),
    };
    match classify_problem::<A>(problem, &node_name(node)) {
        Attempt::Refused(problem) => Err(CallError::Refused(problem)),
        Attempt::Unknown(why) => Err(CallError::Unknown { why, last: None }),
        Attempt::NotDone(why) => Err(CallError::Unavailable(why)),
        Attempt::Done(_) | Attempt::ShutDown => unreachable!("a problem is neither"),
    }
}

/// The name of a node in error messages.
fn node_name<S: Storage, T: Transport>(node: &Node<S, T>) -> String {
    format!("node {}", node.id())
}

/// A [`Coordinator`] over a node in the same process, as [`Remote`](crate::client::Remote) is over HTTP.
///
/// It works the same on the leader and on a follower. It keeps the node alive. After a shutdown the node refuses its
/// requests, so shut down its users first.
pub struct Local<S: Storage = DiskStorage, T: Transport = TcpTransport> {
    node: Node<S, T>,
    /// The name of the node in error messages.
    node_name: String,
}

impl<S: Storage, T: Transport> Local<S, T> {
    /// Returns a coordinator that uses `node`.
    pub fn new(node: Node<S, T>) -> Local<S, T> {
        Local { node_name: node_name(&node), node }
    }

    /// Repeats a request until it is applied, refused, of unknown outcome or out of time.
    ///
    /// `request` builds the request of an attempt from the time since the first attempt. `read` converts the answer.
    async fn ask<A>(
        &self,
        policy: RetryPolicy,
        budget: RetryBudget,
        wait: Duration,
        request: impl Fn(Duration) -> Request,
        read: impl Fn(node::Answer, ClusterMs) -> Result<A, Box<Problem>>,
    ) -> Result<ResolvedAnswer<A>, CallError> {
        let (request, read) = (&request, &read);
        let attempt = |AttemptContext { elapsed, limit, .. }| async move {
            let asked = self.node.request(request(elapsed), Forward::Once);
            match tokio::time::timeout(limit, asked).await {
                Ok(Ok(response)) => match read(response.answer, response.served.now) {
                    Ok(done) => Attempt::Done(done),
                    Err(problem) => classify_problem(*problem, &self.node_name),
                },
                // This node is shutting down. If only the leader is, the node waits for the next leader instead.
                Ok(Err(RequestError::ShuttingDown)) => Attempt::ShutDown,
                Ok(Err(error)) => classify_problem(super::request_error(error), &self.node_name),
                Err(_) => Attempt::Unknown(format!("{} did not answer within {limit:?}", self.node_name)),
            }
        };
        attempts(policy, budget, wait, 1, attempt).await
    }

    async fn read<A>(
        &self,
        budget: RetryBudget,
        query: Query,
        read: impl Fn(node::Answer, ClusterMs) -> Result<A, Box<Problem>>,
    ) -> Result<A, CallError> {
        let request = Request::Read { query, consistency: Consistency::Leader };
        Ok(self.ask(RetryPolicy::Read, budget, Duration::ZERO, |_| request.clone(), read).await?.answer)
    }
}

impl<S: Storage, T: Transport> Coordinator for Local<S, T> {
    fn acquire(
        &self,
        name: LeaseName,
        claim: api::Acquire,
        budget: RetryBudget,
    ) -> client::ResponseFuture<'_, LeaseInfo> {
        let claim = super::claim(&self.node.ttl(), name, claim);
        Box::pin(async move {
            let claim = claim.map_err(CallError::Refused)?;
            let wait = Duration::from_millis(claim.wait_ms.unwrap_or(0));
            let waiter = WaiterId { name: claim.name.clone(), holder: claim.holder.clone() };
            let _wait = claim.wait_ms.map(|_| self.node.inner.requests.local_waits.register(waiter));
            // A later attempt has less time left to wait. It keeps a wait even of 0 ms: a refused claim without a wait
            // would leave the waiter of an earlier attempt in the queue.
            let request = |waited| {
                let left = ceil_ms(wait.saturating_sub(waited));
                Request::Acquire(Acquire { wait_ms: claim.wait_ms.map(|_| left), ..claim.clone() })
            };
            Ok(self.ask(RetryPolicy::Claim, budget, wait, request, super::granted).await?.answer)
        })
    }

    fn renew(&self, batch: RenewBatch, budget: RetryBudget) -> client::ResponseFuture<'_, Renewed> {
        let names: Vec<LeaseName> = batch.leases.iter().map(|item| item.name.clone()).collect();
        let request = super::renew_batch(&self.node.ttl(), batch);
        Box::pin(async move {
            let request = request.map_err(CallError::Refused)?;
            let read = |answer, now| super::renewed(names.clone(), answer, now);
            Ok(self.ask(RetryPolicy::Renewal, budget, Duration::ZERO, |_| request.clone(), read).await?.answer)
        })
    }

    fn release(&self, name: LeaseName, release: Release, budget: RetryBudget) -> client::ResponseFuture<'_, Released> {
        let request = super::release(name, release);
        let read = |answer, _| super::released(answer);
        Box::pin(async move {
            self.ask(RetryPolicy::Release, budget, Duration::ZERO, |_| request.clone(), read).await?.released()
        })
    }

    fn hand_over(
        &self,
        name: LeaseName,
        hand_over: HandOver,
        budget: RetryBudget,
    ) -> client::ResponseFuture<'_, LeaseInfo> {
        let request = super::hand_over(name, hand_over);
        Box::pin(async move {
            let handed = self.ask(RetryPolicy::Never, budget, Duration::ZERO, |_| request.clone(), super::handed_over);
            Ok(handed.await?.answer)
        })
    }

    fn update_metadata(
        &self,
        name: LeaseName,
        update: UpdateMetadata,
        budget: RetryBudget,
    ) -> client::ResponseFuture<'_, LeaseInfo> {
        let request = super::update_metadata(name, update);
        Box::pin(async move {
            let request = request.map_err(CallError::Refused)?;
            let updated = self.ask(RetryPolicy::Claim, budget, Duration::ZERO, |_| request.clone(), super::granted);
            Ok(updated.await?.answer)
        })
    }

    fn explain(
        &self,
        name: LeaseName,
        holder: HolderId,
        budget: RetryBudget,
    ) -> client::ResponseFuture<'_, Explanation> {
        let query = Query::Explain { name: name.clone(), holder: Some(holder) };
        let read = move |answer, now| super::explained(name.clone(), answer, now);
        Box::pin(async move { self.read(budget, query, read).await })
    }

    fn held(&self, prefix: String, budget: RetryBudget) -> client::ResponseFuture<'_, Vec<LeaseInfo>> {
        let filter = ListFilter { prefix, holder: None, states: vec![StateFilter::Active] };
        Box::pin(async move {
            let mut leases = Vec::new();
            let mut after = None;
            loop {
                let query = Query::List { filter: filter.clone(), after, limit: MAX_PAGE };
                let (page, next) = self.read(budget, query, super::listed).await?;
                leases.extend(page);
                if next.is_none() {
                    return Ok(leases);
                }
                after = next;
            }
        })
    }

    fn watch(&self, prefix: String, after: Option<EventId>) -> Box<dyn Events> {
        self.node.watch(prefix, after)
    }
}

/// A watch of the node's event log. It does not keep the node alive. It has no connection, so it never resumes: it
/// delivers every event or ends with `compacted`.
struct LocalWatch {
    watch: Result<Watch, Compacted>,
    prefix: String,
    after: Option<EventId>,
    node_name: String,
}

impl Events for LocalWatch {
    fn next(&mut self) -> client::ResponseFuture<'_, Event> {
        Box::pin(async move {
            let compacted = |compacted| CallError::Refused(Box::new(super::compacted(compacted)));
            let watch = self.watch.as_mut().map_err(|missing| compacted(*missing))?;
            loop {
                match watch.next().await {
                    Ok(transition) if transition.name.as_str().starts_with(&self.prefix) => {
                        return Ok(super::event(&transition));
                    }
                    Ok(_) => {}
                    Err(WatchEnd::Compacted(missing)) => return Err(compacted(missing)),
                    Err(WatchEnd::Stopped) => {
                        tokio::time::sleep(STOPPED_PAUSE).await;
                        return Err(CallError::Unavailable(format!("{} has stopped", self.node_name)));
                    }
                }
            }
        })
    }

    fn position(&self) -> Option<EventId> {
        self.watch.as_ref().map_or(self.after, |watch| Some(watch.position().into()))
    }
}
