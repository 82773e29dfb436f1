//! The surroundings of one case for one client: its drivers, its leases and its evidence.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tenure::clock::{Clock, SystemClock};
use tenure::token::FencingToken;

use crate::client::Call;
use crate::cluster::Cluster;
use crate::evidence::{Evidence, Observed};
use crate::language::Language;
use crate::link::Link;
use crate::session::Session;

/// The drift of the drivers, unless a case sets another one: the default of the clients.
pub const DRIFT_PERMILLE: u64 = 10;

pub struct Case {
    pub language: Language,
    pub cluster: Arc<Cluster>,
    /// The beginning of all names of the case.
    prefix: String,
    observed: Mutex<Vec<Observed>>,
    touched: Mutex<Vec<FencingToken>>,
}

/// A driver with its own link to the nodes.
pub struct Driver {
    pub session: Session,
    pub link: Link,
    pub holder: String,
}

impl Case {
    pub fn new(language: &Language, cluster: &Arc<Cluster>, prefix: String) -> Case {
        let (observed, touched) = (Mutex::default(), Mutex::default());
        Case { language: language.clone(), cluster: cluster.clone(), prefix, observed, touched }
    }

    /// The name of a lease of this case.
    pub fn name(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    /// Starts a driver and opens its manager.
    pub async fn driver(&self, name: &str) -> Driver {
        self.driver_with(name, json!({}), &[]).await
    }

    /// Starts a driver with further fields of its `open` command, and with environment variables.
    pub async fn driver_with(&self, name: &str, fields: Value, environment: &[(String, String)]) -> Driver {
        let link = Link::open(&self.cluster.addresses).await;
        let (session, holder) = (Session::start(&self.language, environment), self.name(name));
        let mut open = json!({"op": "open", "endpoints": link.urls(), "holder": holder});
        open.as_object_mut().expect("an object").extend(fields.as_object().cloned().unwrap_or_default());
        self.observed.lock().expect("plain").push(Observed {
            holder: holder.clone(),
            drift_permille: open["drift_permille"].as_u64().unwrap_or(DRIFT_PERMILLE) as u32,
            record: session.record(),
            traffic: link.traffic(),
        });
        session.ask(open).await;
        Driver { session, link, holder }
    }

    /// Acquires a lease for another holder, which is no client under test. Returns its token.
    pub async fn other_acquires(&self, lease: &str, ttl_ms: u64) -> u64 {
        self.cluster.client.acquire(lease, &self.other(), ttl_ms).await
    }

    pub async fn other_releases(&self, lease: &str, token: u64) {
        let released = self.cluster.client.done(0, &Call::release(lease, &self.other(), token)).await;
        assert_eq!(released["released"], true);
    }

    /// The holder of [`other_acquires`](Self::other_acquires).
    pub fn other(&self) -> String {
        self.name("other")
    }

    /// Revokes a lease, as an operator does.
    pub async fn revoke(&self, lease: &str, token: FencingToken) {
        self.touches(token);
        let revoke = Call { method: reqwest::Method::DELETE, ..Call::get(format!("/v1/leases/{lease}")) };
        assert_eq!(self.cluster.client.done(0, &revoke).await["revoked"], 1);
    }

    /// A request of the suite, and not of a client under test, begins or ends the grant with this token. Its holder learns
    /// of that later.
    pub fn touches(&self, token: FencingToken) {
        self.touched.lock().expect("plain").push(token);
    }

    /// All evidence so far.
    pub async fn evidence(&self) -> Evidence {
        self.cluster.observe_all(&self.name("observed")).await;
        let observed = self.observed.lock().expect("plain").clone();
        let touched = self.touched.lock().expect("plain").clone();
        Evidence { observed, touched, progress: self.cluster.progress(), now: SystemClock.elapsed() }
    }
}

impl Driver {
    /// Sends a command for a lease, with further fields, and waits for the response.
    pub async fn ask(&self, op: &str, lease: &str, fields: Value) -> Value {
        self.session.ask(command(op, lease, fields)).await
    }

    /// Sends a command for a lease and does not wait for the response.
    pub fn send(&self, op: &str, lease: &str, fields: Value) -> usize {
        self.session.send(command(op, lease, fields))
    }

    /// Acquires a free lease. Returns its token.
    pub async fn acquire(&self, lease: &str, fields: Value) -> FencingToken {
        let response = self.ask("acquire", lease, fields).await;
        assert_eq!(response["outcome"], "held", "{response}");
        crate::session::token(&response)
    }

    /// Acquires a free lease and works under it. Returns its token.
    pub async fn work(&self, lease: &str, fields: Value) -> FencingToken {
        let response = self.ask("work", lease, fields).await;
        assert_eq!(response["outcome"], "held", "{response}");
        self.session.works(lease).await;
        crate::session::token(&response)
    }

    /// Waits until the lease is lost and its work has ended. Returns the event of the loss.
    pub async fn loses(&self, lease: &str) -> Value {
        self.session.event("work_ended", lease, |event| event["why"] != "stopped").await;
        self.session.state(lease, "lost").await
    }

    /// Waits until the driver has worked for this time.
    pub async fn works_for(&self, lease: &str, time: Duration) {
        let works = || self.session.events("work", lease).last().map(crate::session::at);
        let begun = works().unwrap_or_default();
        crate::wait::eventually("work", || works().filter(|at| *at >= begun + time)).await;
    }
}

fn command(op: &str, lease: &str, fields: Value) -> Value {
    let mut command = json!({"op": op, "lease": lease});
    command.as_object_mut().expect("an object").extend(fields.as_object().cloned().unwrap_or_default());
    command
}
