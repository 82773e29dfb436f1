//! A cluster of one real node, and connections to it that can fail.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::api::{
    Acquire, Code, Event, EventId, Explanation, HandOver, LeaseInfo, Problem, Release, Released, RenewBatch, Renewed,
    UpdateMetadata,
};
use tenure::client::{
    CallError, Coordinator, Endpoints, Events, LeaseManager, ManagerOptions, Remote, ResponseFuture, RetryBudget,
};
use tenure::http::Settings;
use tenure::types::{HolderId, LeaseName};
use tokio::sync::{Notify, oneshot};

use super::served::Served;

/// An upper bound for waits. Only a hang exceeds it.
pub const SOON: Duration = Duration::from_secs(20);
/// A ttl that a test can wait for.
pub const TTL: Duration = Duration::from_secs(1);
/// The ttl of leases that must not expire in their test.
pub const LONG_TTL: Duration = Duration::from_secs(60);
/// A refresh time that no test reaches: a change that is seen earlier was triggered by an event.
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

    /// A manager with this holder.
    pub fn manager(&self, holder: &str) -> LeaseManager {
        let holder = HolderId::new(holder).expect("a valid holder");
        LeaseManager::with_options(self.remote(), ManagerOptions::new().holder(holder)).expect("valid options")
    }

    /// A manager that a test can disconnect, as if its process had died, and whose event stream can fail.
    pub fn mortal(&self, holder: &str) -> (LeaseManager, Arc<Faults>) {
        self.faulty(holder, Duration::from_secs(2))
    }

    /// Like [`mortal`](Self::mortal), with requests that do not time out.
    pub fn patient(&self, holder: &str) -> (LeaseManager, Arc<Faults>) {
        self.faulty(holder, SOON)
    }

    fn faulty(&self, holder: &str, timeout: Duration) -> (LeaseManager, Arc<Faults>) {
        let faults = Arc::new(Faults::default());
        let coordinator = Faulty { remote: self.remote(), faults: faults.clone() };
        let options = ManagerOptions::new().holder(HolderId::new(holder).expect("a valid holder"));
        let options = options.operation_timeout(timeout);
        (LeaseManager::with_options(coordinator, options).expect("valid options"), faults)
    }
}

/// Awaits a future, and fails the test if that takes longer than [`SOON`].
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.expect("the future completes in time")
}

/// Polls until the condition holds.
pub async fn until(condition: &str, mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, wait).await.unwrap_or_else(|_| panic!("not within {SOON:?}: {condition}"));
}

/// The faults of a connection to the cluster.
#[derive(Default)]
pub struct Faults {
    /// No request arrives: other processes see this one as dead.
    pub is_cut_off: AtomicBool,
    /// Events are dropped.
    pub stream_failed: AtomicBool,
    /// Lets a stream report that events are missing.
    pub compacted: Notify,
    /// The cluster refuses each claim with this code.
    pub refusal: Mutex<Option<Code>>,
    /// How many claims were refused so.
    pub refused: AtomicUsize,
    /// The ends of the connection of the next read, if the test withholds its answer.
    withheld: Mutex<Option<(oneshot::Sender<()>, oneshot::Receiver<()>)>>,
}

/// The answer of one read. The connection keeps it until the test releases it.
pub struct WithheldRead {
    answered: oneshot::Receiver<()>,
    release: oneshot::Sender<()>,
}

impl WithheldRead {
    /// Waits until the cluster has answered the read.
    pub async fn answered(&mut self) {
        (&mut self.answered).await.expect("the reader waits for the answer");
    }

    /// Passes the answer on.
    pub fn release(self) {
        self.release.send(()).expect("the reader waits for the answer");
    }
}

impl Faults {
    pub fn cut_off(&self, is_cut_off: bool) {
        self.is_cut_off.store(is_cut_off, Ordering::SeqCst);
    }

    /// Withholds the answer of the next read. Later reads are answered.
    pub fn withhold_next_read(&self) -> WithheldRead {
        let ((tell, answered), (release, released)) = (oneshot::channel(), oneshot::channel());
        *self.withheld.lock().expect("plain") = Some((tell, released));
        WithheldRead { answered, release }
    }
}

struct Faulty {
    remote: Remote,
    faults: Arc<Faults>,
}

impl Faulty {
    fn through<'a, T>(&self, answer: ResponseFuture<'a, T>) -> ResponseFuture<'a, T> {
        match self.faults.is_cut_off.load(Ordering::SeqCst) {
            true => Box::pin(async { Err(CallError::Unavailable("cut off".to_owned())) }),
            false => answer,
        }
    }

    fn read<'a, T: Send + 'a>(&self, answer: ResponseFuture<'a, T>) -> ResponseFuture<'a, T> {
        let answer = self.through(answer);
        let Some((tell, released)) = self.faults.withheld.lock().expect("plain").take() else { return answer };
        Box::pin(async move {
            let answer = answer.await;
            assert!(answer.is_ok(), "the cluster answers the read that the test withholds");
            tell.send(()).expect("the test waits for the answer");
            released.await.expect("the test releases the answer");
            answer
        })
    }
}

impl Coordinator for Faulty {
    fn acquire(&self, name: LeaseName, claim: Acquire, budget: RetryBudget) -> ResponseFuture<'_, LeaseInfo> {
        let refusal = *self.faults.refusal.lock().expect("plain");
        if let Some(code) = refusal {
            self.faults.refused.fetch_add(1, Ordering::SeqCst);
            let problem = Problem::new(code, "the test refuses each claim");
            return Box::pin(async {
                tokio::task::yield_now().await;
                Err(CallError::Refused(Box::new(problem)))
            });
        }
        self.through(Coordinator::acquire(&self.remote, name, claim, budget))
    }

    fn renew(&self, batch: RenewBatch, budget: RetryBudget) -> ResponseFuture<'_, Renewed> {
        self.through(Coordinator::renew(&self.remote, batch, budget))
    }

    fn release(&self, name: LeaseName, release: Release, budget: RetryBudget) -> ResponseFuture<'_, Released> {
        self.through(Coordinator::release(&self.remote, name, release, budget))
    }

    fn hand_over(&self, name: LeaseName, hand_over: HandOver, budget: RetryBudget) -> ResponseFuture<'_, LeaseInfo> {
        self.through(Coordinator::hand_over(&self.remote, name, hand_over, budget))
    }

    fn update_metadata(
        &self,
        name: LeaseName,
        update: UpdateMetadata,
        budget: RetryBudget,
    ) -> ResponseFuture<'_, LeaseInfo> {
        self.through(Coordinator::update_metadata(&self.remote, name, update, budget))
    }

    fn explain(&self, name: LeaseName, holder: HolderId, budget: RetryBudget) -> ResponseFuture<'_, Explanation> {
        self.read(Coordinator::explain(&self.remote, name, holder, budget))
    }

    fn held(&self, prefix: String, budget: RetryBudget) -> ResponseFuture<'_, Vec<LeaseInfo>> {
        self.read(self.remote.held(prefix, budget))
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
    fn next(&mut self) -> ResponseFuture<'_, Event> {
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

    fn position(&self) -> Option<EventId> {
        self.events.position()
    }
}
