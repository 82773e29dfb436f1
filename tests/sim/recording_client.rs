//! A client's way to the cluster: through whichever node it is at, until that node is gone. Notes what is asked and answered.
//!
//! Requests and answers take their time, and now and then all of them are lost for a while. A request that its client gave up arrives all the same, and some arrive twice.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use rand::RngExt;
use rand::rngs::StdRng;
use tenure::api::{
    self, Code, EventId, Explanation, HandOver, Problem, Release, Released, RenewBatch, Renewed, TtlMs, UpdateMetadata,
};
use tenure::client::{Answer, CallError, Coordinator, Events, RetryBudget};
use tenure::node::Local;
use tenure::testing::TestNode;
use tenure::types::{HolderId, LeaseName, NodeId};

use super::history::{Ended, What};
use super::world::{World, lock};

/// Pause of a client that found nobody at its node.
const NOBODY: Duration = Duration::from_millis(20);
/// How often a request that may be repeated arrives twice.
const TWICE: f64 = 0.05;
/// Longest delay of the second one.
const LATER: Duration = Duration::from_millis(3_000);

#[derive(Clone)]
pub struct Door {
    world: Arc<World>,
    at: Arc<AtomicU64>,
    link: Arc<Link>,
    /// The client's process is gone: nothing more of it is asked or answered.
    closed: Arc<AtomicBool>,
}

/// The network between a client and its nodes.
struct Link {
    /// Longest time of a message.
    longest: Duration,
    /// From when on the link loses all messages, for how long, and how long until the next time.
    outage: Option<(Duration, Duration, Duration)>,
    rng: Mutex<StdRng>,
}

/// How a request is sent.
pub struct Sending {
    /// How long the client waits for the answer.
    pub patience: Duration,
    /// A second copy may arrive. It must do no harm, and its answer is lost.
    pub may_repeat: bool,
}

impl Link {
    /// Of slow links half are fast all the same, and some take about as long as a ttl. The others are perfect.
    fn new(mut rng: StdRng, slow: bool) -> Link {
        if !slow {
            return Link { longest: Duration::ZERO, outage: None, rng: Mutex::new(rng) };
        }
        let longest = [2, 2, 2, 2, 2, 50, 50, 200, 800, 3_000][rng.random_range(0..10)];
        let mut between = |low, high| Duration::from_millis(rng.random_range(low..high));
        let outage = Some((between(0, 10_000), between(100, 6_000), between(7_000, 20_000)));
        Link { longest: Duration::from_millis(longest), outage, rng: Mutex::new(rng) }
    }

    fn is_down(&self, now: Duration) -> bool {
        let Some((first, length, period)) = self.outage else { return false };
        let since = now.checked_sub(first).map(|since| since.as_nanos() % period.as_nanos());
        since.is_some_and(|since| since < length.as_nanos())
    }

    fn delay(&self) -> Duration {
        self.longest.mul_f64(lock(&self.rng).random())
    }

    /// After how long a second copy of a request follows, if one does.
    fn repeat(&self) -> Option<Duration> {
        let mut rng = lock(&self.rng);
        rng.random_bool(TWICE).then(|| LATER.mul_f64(rng.random()))
    }
}

impl Sending {
    pub fn once(patience: Duration) -> Sending {
        Sending { patience, may_repeat: false }
    }

    pub fn or_twice(patience: Duration) -> Sending {
        Sending { patience, may_repeat: true }
    }
}

impl Door {
    pub fn new(world: Arc<World>, at: NodeId, rng: StdRng) -> Door {
        let link = Arc::new(Link::new(rng, world.plan.slow_links));
        Door { world, at: Arc::new(AtomicU64::new(at)), link, closed: Arc::default() }
    }

    pub fn go_to(&self, node: NodeId) {
        self.at.store(node, Ordering::Relaxed);
    }

    pub fn at(&self) -> NodeId {
        self.at.load(Ordering::Relaxed)
    }

    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed) || self.world.no_clients.load(Ordering::Relaxed)
    }

    /// Asks at the node. A request whose node goes away, or whose answer comes too late, has an unknown outcome.
    pub async fn through<T, F>(&self, sending: Sending, ask: F) -> Result<T, CallError>
    where
        T: Send + 'static,
        F: FnOnce(TestNode) -> BoxFuture<'static, Result<T, CallError>> + Clone + Send + 'static,
    {
        let id = self.at();
        if self.world.node(id).is_none() {
            tokio::time::sleep(NOBODY).await;
            self.go_to(id % self.world.plan.nodes + 1);
            return Err(CallError::Unavailable(format!("node {id} is down")));
        }
        if self.is_closed() {
            return std::future::pending().await;
        }
        let door = self.clone();
        // A task, so that it goes on when the client gives the request up.
        let passage = tokio::spawn(async move { door.pass(id, sending.may_repeat, ask).await });
        let answer = match tokio::time::timeout(sending.patience, passage).await {
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

    /// The way of a request and its answer.
    async fn pass<T, F>(&self, id: NodeId, may_repeat: bool, ask: F) -> Result<T, CallError>
    where
        T: Send + 'static,
        F: FnOnce(TestNode) -> BoxFuture<'static, Result<T, CallError>> + Clone + Send + 'static,
    {
        let life = self.world.lives.borrow()[&id];
        self.travel().await;
        let again = self.link.repeat().filter(|_| may_repeat).map(|later| (later, ask.clone()));
        let answer = self.arrive(id, life, ask).await;
        if let Some((later, ask)) = again {
            let door = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(later).await;
                door.world.count_work("arrived twice");
                drop(door.arrive(id, life, ask).await);
            });
        }
        self.travel().await;
        answer
    }

    /// A message takes its time, or is lost.
    async fn travel(&self) {
        tokio::time::sleep(self.link.delay()).await;
        if self.link.is_down(self.world.now()) {
            self.world.count_work("lost on the way");
            std::future::pending().await
        }
    }

    /// A request is at its node, as long as that is in the life in which it was asked.
    async fn arrive<T, F>(&self, id: NodeId, life: u64, ask: F) -> Result<T, CallError>
    where
        F: FnOnce(TestNode) -> BoxFuture<'static, Result<T, CallError>>,
    {
        let gone = || Err(CallError::Unknown { why: format!("node {id} is gone"), last: None });
        self.world.board.running(id).await;
        let mut lives = self.world.lives.subscribe();
        let Some(node) = self.world.node(id).filter(|_| lives.borrow()[&id] == life) else { return gone() };
        if self.world.no_clients.load(Ordering::Relaxed) {
            return std::future::pending().await;
        }
        let answer = tokio::select! {
            biased;
            _ = lives.wait_for(|lives| lives[&id] != life) => gone(),
            answer = self.world.inside(id, ask(node)) => answer,
        };
        self.world.board.running(id).await;
        answer
    }

    fn begin(&self, by: &HolderId, name: &LeaseName, what: What) -> usize {
        self.world.note(|| format!("{by} at {} asks {name} {what:?}", self.at()));
        lock(&self.world.history).begin(by, name, what, self.world.now())
    }

    fn end(&self, operation: usize, ended: Ended) {
        self.world.note(|| format!("op {operation} {ended:?}"));
        lock(&self.world.history).end(operation, ended, self.world.now());
    }
}

/// What an answer that is no success says.
pub fn ended(error: &CallError) -> Ended {
    match error {
        CallError::Refused(problem) => Ended::Refused(problem.code.as_str().to_owned()),
        CallError::Unavailable(_) | CallError::ShutDown => Ended::Refused("unavailable".to_owned()),
        CallError::Unknown { .. } => Ended::Unknown,
    }
}

fn held(lease: &api::Lease) -> Ended {
    // The time that is left when it is answered is at least what is left of it when it was asked.
    Ended::Held(lease.token, lease.ttl_ms.map(|ttl| lease.expires_in_ms.map_or(ttl, |left| left.min(ttl))))
}

/// Asks a node as a client in its process does.
macro_rules! way {
    ($method:ident($($argument:ident),*)) => {
        move |node: TestNode| -> BoxFuture<'static, _> {
            Box::pin(async move { Local::new(node).$method($($argument),*).await })
        }
    };
}

impl Coordinator for Door {
    fn acquire(&self, name: LeaseName, claim: api::Acquire, patience: RetryBudget) -> Answer<'_, api::Lease> {
        Box::pin(async move {
            let ttl_ms = match claim.ttl_ms {
                Some(TtlMs::Millis(ttl_ms)) => Some(ttl_ms),
                _ => None,
            };
            let (limit, lock_delay_ms) = (claim.limit.unwrap_or(1), claim.lock_delay_ms.unwrap_or(0));
            let what = What::Acquire { ttl_ms, limit, wait: claim.wait_ms.is_some(), lock_delay_ms };
            let operation = self.begin(&claim.holder, &name, what);
            let wait = Duration::from_millis(claim.wait_ms.unwrap_or(0));
            let sending = Sending::once(patience.total + wait);
            let ask = way!(acquire(name, claim, patience));
            let answer = self.through(sending, ask).await;
            self.end(operation, answer.as_ref().map_or_else(ended, held));
            answer
        })
    }

    fn renew(&self, batch: RenewBatch, patience: RetryBudget) -> Answer<'_, Renewed> {
        Box::pin(async move {
            let begin =
                |item: &api::RenewItem| self.begin(&batch.holder, &item.name, What::Renew { token: item.token });
            let operations: Vec<usize> = batch.leases.iter().map(begin).collect();
            let asked = batch.clone();
            let ask = way!(renew(asked, patience));
            let answer = self.through(Sending::or_twice(patience.total), ask).await;
            for (place, operation) in operations.into_iter().enumerate() {
                let ended = match &answer {
                    Ok(renewed) => match &renewed.results[place] {
                        api::RenewResult { lease: Some(lease), .. } => held(lease),
                        _ => Ended::Refused("lost".to_owned()),
                    },
                    Err(error) => ended(error),
                };
                self.end(operation, ended);
            }
            let mut answer = answer;
            if let Ok(renewed) = &mut answer
                && self.world.plan.planted.deaf_to_loss
            {
                for (result, item) in renewed.results.iter_mut().zip(&batch.leases) {
                    forge(result, item, &batch.holder);
                }
            }
            answer
        })
    }

    fn release(&self, name: LeaseName, release: Release, patience: RetryBudget) -> Answer<'_, Released> {
        Box::pin(async move {
            let operation = self.begin(&release.holder, &name, What::Release { token: release.token });
            if self.world.plan.planted.false_release {
                self.end(operation, Ended::Changed(true));
                return Ok(Released { released: true });
            }
            let ask = way!(release(name, release, patience));
            let answer = self.through(Sending::or_twice(patience.total), ask).await;
            self.end(operation, answer.as_ref().map_or_else(ended, |released| Ended::Changed(released.released)));
            answer
        })
    }

    fn hand_over(&self, name: LeaseName, hand_over: HandOver, patience: RetryBudget) -> Answer<'_, api::Lease> {
        Box::pin(async move {
            let operation = self.begin(&hand_over.holder, &name, What::HandOver { token: hand_over.token });
            let ask = way!(hand_over(name, hand_over, patience));
            let answer = self.through(Sending::once(patience.total), ask).await;
            self.end(operation, answer.as_ref().map_or_else(ended, held));
            answer
        })
    }

    fn update_metadata(
        &self,
        name: LeaseName,
        update: UpdateMetadata,
        patience: RetryBudget,
    ) -> Answer<'_, api::Lease> {
        Box::pin(self.through(Sending::once(patience.total), way!(update_metadata(name, update, patience))))
    }

    fn explain(&self, name: LeaseName, holder: HolderId, patience: RetryBudget) -> Answer<'_, Explanation> {
        Box::pin(self.through(Sending::once(patience.total), way!(explain(name, holder, patience))))
    }

    fn held(&self, prefix: String, patience: RetryBudget) -> Answer<'_, Vec<api::Lease>> {
        Box::pin(self.through(Sending::once(patience.total), way!(held(prefix, patience))))
    }

    fn watch(&self, _: String, _: Option<EventId>) -> Box<dyn Events> {
        unreachable!("managers of the simulation watch nothing")
    }
}

/// Turns a renewal that was refused into one that worked.
fn forge(result: &mut api::RenewResult, item: &api::RenewItem, holder: &HolderId) {
    if result.lease.is_none() {
        let lease = serde_json::json!({
            "name": item.name.as_str(), "holder": holder.as_str(), "token": item.token.as_u64().to_string(),
            "term": item.token.term, "index": item.token.index, "ttl_ms": 2000, "expires_in_ms": 2000,
            "state": "active", "granted_at": "2026-01-01T00:00:00.000Z", "renewed_at": "2026-01-01T00:00:00.000Z",
            "renewals": 1, "metadata": {}, "limit": 1, "lock_delay_ms": 0, "waiters": 0,
        });
        result.lease = Some(serde_json::from_value(lease).expect("a lease"));
        result.problem = None;
    }
}
