//! A client's connection to one node at a time. It records all requests and answers in the history.
//!
//! Messages have delays, and a link has outages that lose all messages. A request still arrives after its client gave
//! up, and some requests arrive twice.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use rand::RngExt;
use rand::rngs::StdRng;
use tenure::api::{
    self, Code, EventId, Explanation, HandOver, Problem, Release, Released, RenewBatch, Renewed, TtlMs, UpdateMetadata,
};
use tenure::client::{CallError, Coordinator, Events, ResponseFuture, RetryBudget};
use tenure::node::Local;
use tenure::testing::TestNode;
use tenure::types::{HolderId, LeaseName, NodeId};
use tokio::sync::oneshot;

use super::judge::history::{Ended, RequestKind};
use super::world::{World, lock};

/// Pause after a request to a node that is down.
const NODE_DOWN_PAUSE: Duration = Duration::from_millis(20);
/// Probability of a duplicate of a request that may arrive twice.
const DUPLICATE_PROBABILITY: f64 = 0.05;
/// Maximum delay of a duplicate.
const MAX_DUPLICATE_DELAY: Duration = Duration::from_millis(3_000);

/// A coordinator that sends requests to one node and records them in the history.
#[derive(Clone)]
pub struct RecordingClient {
    world: Arc<World>,
    node: Arc<AtomicU64>,
    link: Arc<Link>,
    /// The client process is dead: no request or response is delivered.
    closed: Arc<AtomicBool>,
}

/// The network between a client and its nodes.
struct Link {
    /// Maximum delay of a message.
    max_delay: Duration,
    /// Periods in which the link loses all messages.
    outages: Option<Outages>,
    rng: Mutex<StdRng>,
}

/// Periodic outages of a link.
struct Outages {
    /// Time since the start of the run.
    first: Duration,
    length: Duration,
    /// Time between the starts of two outages.
    period: Duration,
}

/// The timeout of a request, and whether a duplicate may arrive.
pub struct SendOptions<T> {
    timeout: Duration,
    /// A duplicate may arrive. Its answer is lost, but it is in the history: a late renewal extends a lease.
    duplicate: Option<Duplicate<T>>,
}

/// Records the arrival of a duplicate. The returned function records its answer.
type Duplicate<T> = Box<dyn FnOnce() -> Box<dyn FnOnce(&Result<T, CallError>) + Send> + Send>;

impl Link {
    /// Half of the slow links still have short delays, and some have delays near a ttl. Other links are perfect.
    fn new(mut rng: StdRng, slow: bool) -> Link {
        if !slow {
            return Link { max_delay: Duration::ZERO, outages: None, rng: Mutex::new(rng) };
        }
        let max_delay_ms = [2, 2, 2, 2, 2, 50, 50, 200, 800, 3_000][rng.random_range(0..10)];
        let mut between = |low, high| Duration::from_millis(rng.random_range(low..high));
        let outages =
            Outages { first: between(0, 10_000), length: between(100, 6_000), period: between(7_000, 20_000) };
        Link { max_delay: Duration::from_millis(max_delay_ms), outages: Some(outages), rng: Mutex::new(rng) }
    }

    fn is_down(&self, now: Duration) -> bool {
        let Some(Outages { first, length, period }) = &self.outages else { return false };
        let since = now.checked_sub(*first).map(|since| since.as_nanos() % period.as_nanos());
        since.is_some_and(|since| since < length.as_nanos())
    }

    fn delay(&self) -> Duration {
        self.max_delay.mul_f64(lock(&self.rng).random())
    }

    /// The delay of a duplicate, if there is one.
    fn duplicate_delay(&self) -> Option<Duration> {
        let mut rng = lock(&self.rng);
        rng.random_bool(DUPLICATE_PROBABILITY).then(|| MAX_DUPLICATE_DELAY.mul_f64(rng.random()))
    }
}

impl<T> SendOptions<T> {
    /// Sends the request once.
    pub fn once(timeout: Duration) -> SendOptions<T> {
        SendOptions { timeout, duplicate: None }
    }

    /// Sends the request, and sometimes a duplicate.
    fn with_duplicates(timeout: Duration, duplicate: Duplicate<T>) -> SendOptions<T> {
        SendOptions { timeout, duplicate: Some(duplicate) }
    }
}

impl RecordingClient {
    pub fn new(world: Arc<World>, node: NodeId, rng: StdRng) -> RecordingClient {
        let link = Arc::new(Link::new(rng, world.plan.slow_links));
        RecordingClient { world, node: Arc::new(AtomicU64::new(node)), link, closed: Arc::default() }
    }

    pub fn set_node(&self, node: NodeId) {
        self.node.store(node, Ordering::Relaxed);
    }

    pub fn node(&self) -> NodeId {
        self.node.load(Ordering::Relaxed)
    }

    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed) || self.world.no_clients.load(Ordering::Relaxed)
    }

    /// Sends a request to the current node.
    ///
    /// The outcome is unknown if the node stops, or if the answer arrives after the timeout.
    pub async fn send<T, F>(&self, options: SendOptions<T>, request: F) -> Result<T, CallError>
    where
        T: Send + 'static,
        F: FnOnce(TestNode) -> BoxFuture<'static, Result<T, CallError>> + Clone + Send + 'static,
    {
        let id = self.node();
        if self.world.node(id).is_none() {
            tokio::time::sleep(NODE_DOWN_PAUSE).await;
            self.set_node(self.world.next_node(id));
            return Err(CallError::Unavailable(format!("node {id} is down")));
        }
        if self.is_closed() {
            return std::future::pending().await;
        }
        let client = self.clone();
        // Dropped when the client has its answer, gives up, or dies.
        let (_waits, given_up) = oneshot::channel();
        let given_up = Some(given_up).filter(|_| self.world.is_cancelled_at_the_node());
        // In its own task, the request can continue after its client gives up.
        let delivery = tokio::spawn(async move { client.deliver(id, options.duplicate, request, given_up).await });
        let answer = match tokio::time::timeout(options.timeout, delivery).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => Err(CallError::Unknown { why: error.to_string(), last: None }),
            Err(_) => {
                self.world.count_work("answered too late");
                Err(CallError::Unknown { why: format!("no answer from node {id}"), last: None })
            }
        };
        if self.is_closed() {
            return std::future::pending().await;
        }
        match answer {
            Err(CallError::Unknown { why, .. }) if self.world.plan.planted.unknown_is_refused => {
                Err(CallError::Refused(Box::new(Problem::new(Code::Held, why))))
            }
            answer => answer,
        }
    }

    /// Delivers a request to the node, and its answer to the client.
    async fn deliver<T, F>(
        &self,
        id: NodeId,
        duplicate: Option<Duplicate<T>>,
        request: F,
        given_up: Option<oneshot::Receiver<()>>,
    ) -> Result<T, CallError>
    where
        T: Send + 'static,
        F: FnOnce(TestNode) -> BoxFuture<'static, Result<T, CallError>> + Clone + Send + 'static,
    {
        let incarnation = self.world.incarnations.borrow()[&id];
        self.delay_or_lose().await;
        let duplicate =
            self.link.duplicate_delay().zip(duplicate).map(|(delay, record)| (delay, record, request.clone()));
        let answer = self.execute(id, incarnation, request, given_up).await;
        if let Some((delay, record, request)) = duplicate {
            let client = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                client.world.count_work("arrived twice");
                let record = record();
                record(&client.execute(id, incarnation, request, None).await);
            });
        }
        self.delay_or_lose().await;
        answer
    }

    /// Delays a message, or loses it: then the future stays pending.
    async fn delay_or_lose(&self) {
        tokio::time::sleep(self.link.delay()).await;
        if self.link.is_down(self.world.now()) {
            self.world.count_work("lost on the way");
            std::future::pending().await
        }
    }

    /// Executes a request on the node, if this is still the incarnation that it was sent to. The node drops it when its
    /// client has given up, as after the end of the connection.
    async fn execute<T, F>(
        &self,
        id: NodeId,
        incarnation: u64,
        request: F,
        given_up: Option<oneshot::Receiver<()>>,
    ) -> Result<T, CallError>
    where
        F: FnOnce(TestNode) -> BoxFuture<'static, Result<T, CallError>>,
    {
        let stopped = || Err(CallError::Unknown { why: format!("node {id} stopped"), last: None });
        self.world.network.running(id).await;
        let mut incarnations = self.world.incarnations.subscribe();
        let Some(node) = self.world.node(id).filter(|_| incarnations.borrow()[&id] == incarnation) else {
            return stopped();
        };
        if self.world.no_clients.load(Ordering::Relaxed) {
            return std::future::pending().await;
        }
        let served = async {
            let request = request(node);
            let Some(given_up) = given_up else { return request.await };
            tokio::select! {
                biased;
                _ = given_up => {
                    self.world.count_work("cancelled at the node");
                    Err(CallError::Unknown { why: "the client has closed the connection".to_owned(), last: None })
                }
                answer = request => answer,
            }
        };
        let answer = tokio::select! {
            biased;
            _ = incarnations.wait_for(|incarnations| incarnations[&id] != incarnation) => stopped(),
            answer = self.world.on_node(id, served) => answer,
        };
        self.world.network.running(id).await;
        answer
    }

    fn begin(&self, by: &HolderId, name: &LeaseName, what: RequestKind) -> usize {
        self.world.trace(|| format!("{by} at {} asks {name} {what:?}", self.node()));
        lock(&self.world.history).begin(by, name, what, self.world.now())
    }

    fn begin_renewals(&self, batch: &RenewBatch) -> Vec<usize> {
        let begin =
            |item: &api::RenewItem| self.begin(&batch.holder, &item.name, RequestKind::Renew { token: item.token });
        batch.leases.iter().map(begin).collect()
    }

    fn end_renewals(&self, operations: &[usize], answer: &Result<Renewed, CallError>) {
        for (index, operation) in operations.iter().enumerate() {
            let ended = match answer {
                Ok(renewed) => match &renewed.results[index] {
                    api::RenewResult { lease: Some(lease), .. } => held(lease),
                    _ => Ended::Refused("lost".to_owned()),
                },
                Err(error) => failure(error),
            };
            self.end(*operation, ended);
        }
    }

    fn end(&self, operation: usize, ended: Ended) {
        self.world.trace(|| format!("op {operation} {ended:?}"));
        lock(&self.world.history).end(operation, ended, self.world.now());
    }
}

/// The recorded end of a failed request.
pub fn failure(error: &CallError) -> Ended {
    match error {
        CallError::Refused(problem) => Ended::Refused(problem.code.as_str().to_owned()),
        CallError::Unavailable(_) | CallError::ShutDown => Ended::Refused("unavailable".to_owned()),
        _ => Ended::Unknown,
    }
}

fn released(answer: &Result<Released, CallError>) -> Ended {
    answer.as_ref().map_or_else(failure, |released| Ended::Changed(released.released))
}

fn held(lease: &api::LeaseInfo) -> Ended {
    // The node computes the time left after the client sent the request, so it is a lower bound from that time on.
    Ended::Held(lease.token, lease.ttl_ms.as_millis().map(|ttl| lease.expires_in_ms.map_or(ttl, |left| left.min(ttl))))
}

/// Calls a node as a client in the same process does.
macro_rules! local_call {
    ($method:ident($($argument:ident),*)) => {
        move |node: TestNode| -> BoxFuture<'static, _> {
            Box::pin(async move { Local::new(node).$method($($argument),*).await })
        }
    };
}

impl Coordinator for RecordingClient {
    fn acquire(&self, name: LeaseName, claim: api::Acquire, budget: RetryBudget) -> ResponseFuture<'_, api::LeaseInfo> {
        Box::pin(async move {
            let ttl_ms = match claim.ttl_ms {
                Some(TtlMs::Millis(ttl_ms)) => Some(ttl_ms),
                _ => None,
            };
            let (limit, lock_delay_ms) = (claim.limit.unwrap_or(1), claim.lock_delay_ms.unwrap_or(0));
            let what = RequestKind::Acquire { ttl_ms, limit, wait_ms: claim.wait_ms, lock_delay_ms };
            let operation = self.begin(&claim.holder, &name, what);
            let wait = Duration::from_millis(claim.wait_ms.unwrap_or(0));
            let options = SendOptions::once(budget.total + wait);
            let call = local_call!(acquire(name, claim, budget));
            let answer = self.send(options, call).await;
            self.end(operation, answer.as_ref().map_or_else(failure, held));
            answer
        })
    }

    fn renew(&self, batch: RenewBatch, budget: RetryBudget) -> ResponseFuture<'_, Renewed> {
        Box::pin(async move {
            let operations = self.begin_renewals(&batch);
            let request = batch.clone();
            let call = local_call!(renew(request, budget));
            let (client, again) = (self.clone(), batch.clone());
            let duplicate: Duplicate<Renewed> = Box::new(move || {
                let operations = client.begin_renewals(&again);
                Box::new(move |answer| client.end_renewals(&operations, answer))
            });
            let answer = self.send(SendOptions::with_duplicates(budget.total, duplicate), call).await;
            self.end_renewals(&operations, &answer);
            let mut answer = answer;
            if let Ok(renewed) = &mut answer
                && self.world.plan.planted.ignores_loss
            {
                for (result, item) in renewed.results.iter_mut().zip(&batch.leases) {
                    forge_renewal(result, item, &batch.holder);
                }
            }
            answer
        })
    }

    fn release(&self, name: LeaseName, release: Release, budget: RetryBudget) -> ResponseFuture<'_, Released> {
        Box::pin(async move {
            let operation = self.begin(&release.holder, &name, RequestKind::Release { token: release.token });
            if self.world.plan.planted.unsent_release {
                self.end(operation, Ended::Changed(true));
                return Ok(serde_json::from_value(serde_json::json!({"released": true})).expect("a response"));
            }
            let (client, again, of) = (self.clone(), release.clone(), name.clone());
            let duplicate: Duplicate<Released> = Box::new(move || {
                let operation = client.begin(&again.holder, &of, RequestKind::Release { token: again.token });
                Box::new(move |answer| client.end(operation, released(answer)))
            });
            let call = local_call!(release(name, release, budget));
            let answer = self.send(SendOptions::with_duplicates(budget.total, duplicate), call).await;
            self.end(operation, released(&answer));
            answer
        })
    }

    fn hand_over(
        &self,
        name: LeaseName,
        hand_over: HandOver,
        budget: RetryBudget,
    ) -> ResponseFuture<'_, api::LeaseInfo> {
        Box::pin(async move {
            let what = RequestKind::HandOver { token: hand_over.token, to: hand_over.to.clone() };
            let operation = self.begin(&hand_over.holder, &name, what);
            let call = local_call!(hand_over(name, hand_over, budget));
            let answer = self.send(SendOptions::once(budget.total), call).await;
            self.end(operation, answer.as_ref().map_or_else(failure, held));
            answer
        })
    }

    fn update_metadata(
        &self,
        name: LeaseName,
        update: UpdateMetadata,
        budget: RetryBudget,
    ) -> ResponseFuture<'_, api::LeaseInfo> {
        Box::pin(self.send(SendOptions::once(budget.total), local_call!(update_metadata(name, update, budget))))
    }

    fn explain(&self, name: LeaseName, holder: HolderId, budget: RetryBudget) -> ResponseFuture<'_, Explanation> {
        Box::pin(self.send(SendOptions::once(budget.total), local_call!(explain(name, holder, budget))))
    }

    fn held(&self, prefix: String, budget: RetryBudget) -> ResponseFuture<'_, Vec<api::LeaseInfo>> {
        Box::pin(self.send(SendOptions::once(budget.total), local_call!(held(prefix, budget))))
    }

    fn watch(&self, _: String, _: Option<EventId>) -> Box<dyn Events> {
        unreachable!("the managers of the simulation open no watch")
    }
}

/// A planted bug: turns a refused renewal into a successful one.
fn forge_renewal(result: &mut api::RenewResult, item: &api::RenewItem, holder: &HolderId) {
    if result.lease.is_none() {
        let lease = serde_json::json!({
            "name": item.name.as_str(), "holder": holder.as_str(), "token": item.token.as_u64().to_string(),
            "term": item.token.term(), "index": item.token.index(), "ttl_ms": 2000, "expires_in_ms": 2000,
            "state": "active", "granted_at": "2026-01-01T00:00:00.000Z", "renewed_at": "2026-01-01T00:00:00.000Z",
            "renewals": 1, "metadata": {}, "limit": 1, "lock_delay_ms": 0, "waiters": 0,
        });
        result.lease = Some(serde_json::from_value(lease).expect("the JSON is a valid lease"));
        result.problem = None;
    }
}
