//! One real node that is a whole cluster, and ways to it that can fail.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::api::{
    Acquire, Code, Event, EventId, Explanation, HandOver, Lease, Problem, Release, Released, RenewBatch, Renewed,
    UpdateMetadata,
};
use tenure::client::{
    Answer, CallError, Coordinator, Endpoints, Events, LeaseManager, ManagerOptions, Remote, RetryBudget,
};
use tenure::http::Settings;
use tenure::types::{HolderId, LeaseName};
use tokio::sync::Notify;

use super::served::Served;

/// Long enough that only a hang exceeds it.
pub const SOON: Duration = Duration::from_secs(20);
/// A ttl that a test can wait for.
pub const TTL: Duration = Duration::from_secs(1);
/// A refresh that no test waits for: what is seen before it was seen by an event.
pub const NEVER: Duration = Duration::from_secs(3600);

pub struct Cluster {
    served: Served,
}

impl Cluster {
    pub async fn start() -> Cluster {
        Cluster { served: Served::start(Settings::new(1)).await }
    }

    pub fn remote(&self) -> Remote {
        Remote::new(format!("http://{}", self.served.address).parse::<Endpoints>().expect("a URL"))
    }

    /// A manager whose leases are held by `holder`.
    pub fn manager(&self, holder: &str) -> LeaseManager {
        let holder = HolderId::new(holder).expect("a holder");
        LeaseManager::with_options(self.remote(), ManagerOptions::new().holder(holder))
    }

    /// A manager whose process can die, and whose stream can break.
    pub fn mortal(&self, holder: &str) -> (LeaseManager, Arc<Faults>) {
        let faults = Arc::new(Faults::default());
        let way = Faulty { remote: self.remote(), faults: faults.clone() };
        let holder = HolderId::new(holder).expect("a holder");
        let options = ManagerOptions::new().holder(holder).operation_timeout(Duration::from_millis(500));
        (LeaseManager::with_options(way, options), faults)
    }
}

/// Fails the test if it takes long.
pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, what).await.expect("it happens soon")
}

/// Waits until a condition holds that nothing tells of.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, wait).await.unwrap_or_else(|_| panic!("never came to be: {what}"));
}

/// What is wrong with a way to the cluster.
#[derive(Default)]
pub struct Faults {
    /// Nothing arrives any more: to the others the process is dead.
    pub is_cut_off: AtomicBool,
    /// Events are not heard.
    pub stream_failed: AtomicBool,
    /// Wakes the streams to say that they miss events.
    pub compacted: Notify,
    /// The cluster refuses each claim with this code.
    pub refusal: Mutex<Option<Code>>,
    /// How many claims were refused so.
    pub refused: AtomicUsize,
}

impl Faults {
    pub fn cut_off(&self, is_cut_off: bool) {
        self.is_cut_off.store(is_cut_off, Ordering::SeqCst);
    }
}

struct Faulty {
    remote: Remote,
    faults: Arc<Faults>,
}

impl Faulty {
    fn through<'a, T>(&self, answer: Answer<'a, T>) -> Answer<'a, T> {
        match self.faults.is_cut_off.load(Ordering::SeqCst) {
            true => Box::pin(async { Err(CallError::Unavailable("cut off".to_owned())) }),
            false => answer,
        }
    }
}

impl Coordinator for Faulty {
    fn acquire(&self, name: LeaseName, claim: Acquire, patience: RetryBudget) -> Answer<'_, Lease> {
        let refusal = *self.faults.refusal.lock().expect("plain");
        if let Some(code) = refusal {
            self.faults.refused.fetch_add(1, Ordering::SeqCst);
            let problem = Problem::new(code, "the test refuses each claim");
            return Box::pin(async {
                tokio::task::yield_now().await;
                Err(CallError::Refused(Box::new(problem)))
            });
        }
        self.through(Coordinator::acquire(&self.remote, name, claim, patience))
    }

    fn renew(&self, batch: RenewBatch, patience: RetryBudget) -> Answer<'_, Renewed> {
        self.through(Coordinator::renew(&self.remote, batch, patience))
    }

    fn release(&self, name: LeaseName, release: Release, patience: RetryBudget) -> Answer<'_, Released> {
        self.through(Coordinator::release(&self.remote, name, release, patience))
    }

    fn hand_over(&self, name: LeaseName, hand_over: HandOver, patience: RetryBudget) -> Answer<'_, Lease> {
        self.through(Coordinator::hand_over(&self.remote, name, hand_over, patience))
    }

    fn update_metadata(&self, name: LeaseName, update: UpdateMetadata, patience: RetryBudget) -> Answer<'_, Lease> {
        self.through(Coordinator::update_metadata(&self.remote, name, update, patience))
    }

    fn explain(&self, name: LeaseName, holder: HolderId, patience: RetryBudget) -> Answer<'_, Explanation> {
        self.through(Coordinator::explain(&self.remote, name, holder, patience))
    }

    fn held(&self, prefix: String, patience: RetryBudget) -> Answer<'_, Vec<Lease>> {
        self.through(self.remote.held(prefix, patience))
    }

    fn watch(&self, prefix: String, after: Option<EventId>) -> Box<dyn Events> {
        let events = Coordinator::watch(&self.remote, prefix, after);
        Box::new(FaultyEvents { events, faults: self.faults.clone() })
    }
}

struct FaultyEvents {
    events: Box<dyn Events>,
    faults: Arc<Faults>,
}

impl Events for FaultyEvents {
    fn next(&mut self) -> Answer<'_, Event> {
        Box::pin(async {
            loop {
                tokio::select! {
                    () = self.faults.compacted.notified() => {
                        let problem = Problem::new(Code::Compacted, "events are missing");
                        return Err(CallError::Refused(Box::new(problem)));
                    }
                    event = self.events.next() => {
                        if !self.faults.stream_failed.load(Ordering::SeqCst) {
                            return event;
                        }
                        event?;
                    }
                }
            }
        })
    }

    fn place(&self) -> Option<EventId> {
        self.events.place()
    }
}
