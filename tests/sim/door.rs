//! A client's way to the cluster: through whichever node it is at, until that node is gone. Notes what is asked and answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tenure::api::{self, Code, EventId, Explanation, HandOver, Problem, Release, Released, RenewBatch, Renewed, TtlMs};
use tenure::client::{Answer, CallError, Coordinator, Events, Patience};
use tenure::node::Local;
use tenure::peer::memory::MemoryTransport;
use tenure::testing::MemoryStorage;
use tenure::types::{HolderId, LeaseName, NodeId};

use super::history::{Ended, What};
use super::world::{World, lock};

type Way = Local<MemoryStorage, MemoryTransport>;

/// Pause of a client that found nobody at its node.
const NOBODY: Duration = Duration::from_millis(20);

#[derive(Clone)]
pub struct Door {
    world: Arc<World>,
    at: Arc<AtomicU64>,
    /// The client's process is gone: nothing of it is asked or answered any more.
    closed: Arc<AtomicBool>,
}

impl Door {
    pub fn new(world: Arc<World>, at: NodeId) -> Door {
        Door { world, at: Arc::new(AtomicU64::new(at)), closed: Arc::default() }
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

    /// Asks through the node. A request whose node goes away has an unknown outcome.
    pub async fn through<T, F>(&self, ask: F) -> Result<T, CallError>
    where
        F: FnOnce(Way) -> BoxFuture<'static, Result<T, CallError>>,
    {
        let id = self.at();
        let Some(node) = self.world.node(id) else {
            tokio::time::sleep(NOBODY).await;
            self.go_to(id % self.world.plan.nodes + 1);
            return Err(CallError::Unavailable(format!("node {id} is down")));
        };
        if self.is_closed() {
            return std::future::pending().await;
        }
        self.world.board.running(id).await;
        let mut lives = self.world.lives.subscribe();
        let life = lives.borrow()[&id];
        let answer = tokio::select! {
            biased;
            _ = lives.wait_for(|lives| lives[&id] != life) => {
                Err(CallError::Unknown { why: format!("node {id} is gone"), last: None })
            }
            answer = self.world.inside(id, ask(Local::new(node))) => answer,
        };
        self.world.board.running(id).await;
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
        CallError::Unavailable(_) => Ended::Refused("unavailable".to_owned()),
        CallError::Unknown { .. } => Ended::Unknown,
    }
}

fn held(lease: &api::Lease) -> Ended {
    // The time that is left when it is answered is at least what is left of it when it was asked.
    Ended::Held(lease.token, lease.ttl_ms.map(|ttl| lease.expires_in_ms.map_or(ttl, |left| left.min(ttl))))
}

impl Coordinator for Door {
    fn acquire(&self, name: LeaseName, claim: api::Acquire, patience: Patience) -> Answer<'_, api::Lease> {
        Box::pin(async move {
            let ttl_ms = match claim.ttl_ms {
                Some(TtlMs::Millis(ttl_ms)) => ttl_ms,
                _ => u64::MAX,
            };
            let what = What::Acquire { ttl_ms, limit: claim.limit.unwrap_or(1), wait: claim.wait_ms.is_some() };
            let operation = self.begin(&claim.holder, &name, what);
            let answer = self.through(|way| Box::pin(async move { way.acquire(name, claim, patience).await })).await;
            self.end(operation, answer.as_ref().map_or_else(ended, held));
            answer
        })
    }

    fn renew(&self, batch: RenewBatch, patience: Patience) -> Answer<'_, Renewed> {
        Box::pin(async move {
            let begin =
                |item: &api::RenewItem| self.begin(&batch.holder, &item.name, What::Renew { token: item.token });
            let operations: Vec<usize> = batch.leases.iter().map(begin).collect();
            let asked = batch.clone();
            let answer = self.through(|way| Box::pin(async move { way.renew(asked, patience).await })).await;
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

    fn release(&self, name: LeaseName, release: Release, patience: Patience) -> Answer<'_, Released> {
        Box::pin(async move {
            let operation = self.begin(&release.holder, &name, What::Release { token: release.token });
            if self.world.plan.planted.false_release {
                self.end(operation, Ended::Changed(true));
                return Ok(Released { released: true });
            }
            let answer = self.through(|way| Box::pin(async move { way.release(name, release, patience).await })).await;
            self.end(operation, answer.as_ref().map_or_else(ended, |released| Ended::Changed(released.released)));
            answer
        })
    }

    fn hand_over(&self, name: LeaseName, hand_over: HandOver, patience: Patience) -> Answer<'_, api::Lease> {
        Box::pin(async move {
            let operation = self.begin(&hand_over.holder, &name, What::HandOver { token: hand_over.token });
            let answer =
                self.through(|way| Box::pin(async move { way.hand_over(name, hand_over, patience).await })).await;
            self.end(operation, answer.as_ref().map_or_else(ended, held));
            answer
        })
    }

    fn explain(&self, name: LeaseName, holder: HolderId, patience: Patience) -> Answer<'_, Explanation> {
        Box::pin(self.through(move |way| Box::pin(async move { way.explain(name, holder, patience).await })))
    }

    fn held(&self, prefix: String, patience: Patience) -> Answer<'_, Vec<api::Lease>> {
        Box::pin(self.through(move |way| Box::pin(async move { way.held(prefix, patience).await })))
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
