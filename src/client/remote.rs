//! A remote cluster, and what can be asked of it.

use std::time::Duration;

use reqwest::Method;

use super::attempts::Repeat;
use super::call::{Body, Call, WaitFor};
use super::coordinator::{Answer, Coordinator, Events};
use super::{CallError, Endpoints, Patience, Watch};
use crate::api::{
    Acquire, Cluster, Event, EventId, Explanation, HandOver, History, Lease, LeasePage, Queue, Release, Released,
    Renew, RenewBatch, Renewed, Revoked, TtlMs, UpdateMetadata,
};
use crate::types::{HolderId, LeaseName, wait_ms};

/// Time for one request, all attempts together, beside what it waits for a lease.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// Leases on one page while all of a prefix are read.
const PAGE: u32 = 1000;
/// Time for a connection: what takes longer is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// A node closes an idle connection after 60 s; one that is used in that very moment would break.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);

/// Bounds of the time between two probes of the node at which a claim waits.
const SHORTEST_PROBE_INTERVAL: Duration = Duration::from_millis(500);
const LONGEST_PROBE_INTERVAL: Duration = Duration::from_secs(10);

/// A client of a remote cluster. Cheap to clone; clones share their connections.
#[derive(Clone, Debug)]
pub struct Remote {
    pub(super) http: reqwest::Client,
    pub(super) endpoints: Endpoints,
    pub(super) patience: Patience,
}

/// Which leases to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// Names that start with this.
    pub prefix: String,
    pub holder: Option<HolderId>,
    /// States as on the wire, commas between them; empty: all.
    pub states: String,
    /// Most leases on a page; `None`: the server's own choice.
    pub limit: Option<u32>,
}

impl Remote {
    pub fn new(endpoints: Endpoints) -> Remote {
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .tcp_nodelay(true)
            // Attempts are counted here, and a proxy that the environment names is not meant for a cluster's nodes.
            .retry(reqwest::retry::never())
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .expect("a client without TLS has nothing that can fail to load");
        Remote::with_http_client(endpoints, http)
    }

    /// A cluster that is asked with the program's own HTTP client: one with TLS and its certificates, for instance. It
    /// should send nothing again by itself and follow no redirects.
    pub fn with_http_client(endpoints: Endpoints, http: reqwest::Client) -> Remote {
        Remote { http, endpoints, patience: Patience::within(DEFAULT_TIMEOUT) }
    }

    /// Time for one request, all attempts together, beside what it waits for a lease. 5 s if nothing is said.
    pub fn with_timeout(self, timeout: Duration) -> Remote {
        Remote { patience: Patience::within(timeout), ..self }
    }

    /// Claims a lease. Sent again when the answer is lost: the same holder claims again without harm.
    ///
    /// While it waits in the queue, the node that has the request is asked every third of the ttl (0.5 to 10 s) whether
    /// it is ready. If it does not say so within as long again, the wait goes on at the next node, and keeps its place.
    pub async fn acquire(&self, name: &LeaseName, claim: &Acquire) -> Result<Lease, CallError> {
        let claim = claim.clone();
        let probe = probe_interval(claim.ttl_ms);
        let wait = Duration::from_millis(claim.wait_ms.unwrap_or(0));
        let body = move |waited: Duration| {
            let left = wait_ms(wait.saturating_sub(waited));
            to_json(&Acquire { wait_ms: claim.wait_ms.map(|_| left), ..claim.clone() })
        };
        let call = Call {
            body: Some(Box::new(body)),
            wait: Some(WaitFor { longest: wait, probe }).filter(|_| !wait.is_zero()),
            ..self.call(Method::POST, format!("v1/leases/{name}/acquire"), Repeat::Claim)
        };
        self.send(call).await
    }

    /// Keeps a lease. Sent again when the answer is lost.
    pub async fn renew(&self, name: &LeaseName, renew: &Renew) -> Result<Lease, CallError> {
        self.post(format!("v1/leases/{name}/renew"), renew, Repeat::Renewal).await
    }

    /// Keeps many leases, at most [`MAX_RENEW_ITEMS`](crate::api::MAX_RENEW_ITEMS). Sent again when the answer is
    /// lost.
    pub async fn renew_batch(&self, batch: &RenewBatch) -> Result<Renewed, CallError> {
        self.post("v1/renew".to_owned(), batch, Repeat::Renewal).await
    }

    /// Gives a lease back. Sent again when the answer is lost: the token names one grant, which ends once. If a later
    /// attempt finds nothing held, the outcome is unknown: an earlier attempt may have released the lease, or it had
    /// ended before.
    pub async fn release(&self, name: &LeaseName, release: &Release) -> Result<Released, CallError> {
        let json = to_json(release);
        let path = format!("v1/leases/{name}/release");
        let body = Some(Box::new(move |_| json.clone()) as Body);
        let call = Call { body, ..self.call(Method::POST, path, Repeat::Release) };
        call.send(&self.http, &self.endpoints).await?.released()
    }

    /// Gives a lease to a waiter. Not sent again.
    pub async fn hand_over(&self, name: &LeaseName, hand_over: &HandOver) -> Result<Lease, CallError> {
        self.post(format!("v1/leases/{name}/handover"), hand_over, Repeat::Never).await
    }

    /// Replaces the metadata of a held lease. Sent again when the answer is lost.
    pub async fn update_metadata(&self, name: &LeaseName, update: &UpdateMetadata) -> Result<Lease, CallError> {
        self.post(format!("v1/leases/{name}/metadata"), update, Repeat::Claim).await
    }

    /// Takes a lease from all its holders. Not sent again: a second revoke could hit the next holder.
    pub async fn revoke(&self, name: &LeaseName, reason: &str) -> Result<Revoked, CallError> {
        let query = vec![("reason", reason.to_owned())];
        let call = Call { query, ..self.call(Method::DELETE, format!("v1/leases/{name}"), Repeat::Never) };
        self.send(call).await
    }

    /// One lease; refused as `not_found` when nothing is remembered of it. Its `holders` are complete: those that do not
    /// fit into the first answer are read page by page.
    pub async fn get(&self, name: &LeaseName) -> Result<Lease, CallError> {
        let mut lease: Lease = self.read(format!("v1/leases/{name}"), Vec::new()).await?;
        let query = ListQuery {
            prefix: name.to_string(),
            states: "active".to_owned(),
            limit: Some(PAGE),
            ..ListQuery::default()
        };
        while let Some(cursor) = lease.holders_cursor.take() {
            let page = self.list(&query, Some(&cursor)).await?;
            let longer_name = page.leases.iter().position(|held| held.name != lease.name);
            let more = page.leases.into_iter().take(longer_name.unwrap_or(usize::MAX));
            lease.holders.get_or_insert_default().extend(more);
            lease.holders_cursor = page.cursor.filter(|_| longer_name.is_none());
        }
        Ok(lease)
    }

    pub async fn history(&self, name: &LeaseName) -> Result<History, CallError> {
        self.read(format!("v1/leases/{name}/history"), Vec::new()).await
    }

    pub async fn queue(&self, name: &LeaseName) -> Result<Queue, CallError> {
        self.read(format!("v1/leases/{name}/queue"), Vec::new()).await
    }

    /// Why a lease is held or not, and how one holder stands with it.
    pub async fn explain(&self, name: &LeaseName, holder: Option<&HolderId>) -> Result<Explanation, CallError> {
        let query = holder.map(|holder| ("holder", holder.to_string())).into_iter().collect();
        self.read(format!("v1/leases/{name}/explain"), query).await
    }

    /// One page of leases; the page's own cursor asks for the next.
    pub async fn list(&self, list: &ListQuery, cursor: Option<&str>) -> Result<LeasePage, CallError> {
        let mut query = Vec::new();
        let mut add = |key, value: Option<String>| query.extend(value.map(|value| (key, value)));
        add("prefix", (!list.prefix.is_empty()).then(|| list.prefix.clone()));
        add("holder", list.holder.as_ref().map(ToString::to_string));
        add("state", (!list.states.is_empty()).then(|| list.states.clone()));
        add("limit", list.limit.map(|limit| limit.to_string()));
        add("cursor", cursor.map(str::to_owned));
        self.read("v1/leases".to_owned(), query).await
    }

    /// What one node knows of the cluster.
    pub async fn cluster(&self) -> Result<Cluster, CallError> {
        self.read("v1/cluster".to_owned(), Vec::new()).await
    }

    /// Transitions of leases whose names start with `prefix`, from now on or after a place in the stream.
    pub fn watch(&self, prefix: &str, after: Option<EventId>) -> Watch {
        Watch::new(self.clone(), prefix.to_owned(), after)
    }

    async fn post<T, A>(&self, path: String, body: &T, repeat: Repeat) -> Result<A, CallError>
    where
        T: serde::Serialize,
        A: serde::de::DeserializeOwned,
    {
        let json = to_json(body);
        let call = Call { body: Some(Box::new(move |_| json.clone())), ..self.call(Method::POST, path, repeat) };
        self.send(call).await
    }

    async fn read<A>(&self, path: String, query: Vec<(&'static str, String)>) -> Result<A, CallError>
    where
        A: serde::de::DeserializeOwned,
    {
        let call = Call { query, ..self.call(Method::GET, path, Repeat::Read) };
        self.send(call).await
    }

    async fn send<A: serde::de::DeserializeOwned>(&self, call: Call) -> Result<A, CallError> {
        Ok(call.send(&self.http, &self.endpoints).await?.answer)
    }

    fn call(&self, method: Method, path: String, repeat: Repeat) -> Call {
        Call { method, path, query: Vec::new(), body: None, repeat, patience: self.patience, wait: None }
    }

    /// The same cluster, asked with another patience.
    fn patient(&self, patience: Patience) -> Remote {
        Remote { patience, ..self.clone() }
    }
}

impl Coordinator for Remote {
    fn acquire(&self, name: LeaseName, claim: Acquire, patience: Patience) -> Answer<'_, Lease> {
        let remote = self.patient(patience);
        Box::pin(async move { remote.acquire(&name, &claim).await })
    }

    fn renew(&self, batch: RenewBatch, patience: Patience) -> Answer<'_, Renewed> {
        let remote = self.patient(patience);
        Box::pin(async move { remote.renew_batch(&batch).await })
    }

    fn release(&self, name: LeaseName, release: Release, patience: Patience) -> Answer<'_, Released> {
        let remote = self.patient(patience);
        Box::pin(async move { remote.release(&name, &release).await })
    }

    fn hand_over(&self, name: LeaseName, hand_over: HandOver, patience: Patience) -> Answer<'_, Lease> {
        let remote = self.patient(patience);
        Box::pin(async move { remote.hand_over(&name, &hand_over).await })
    }

    fn update_metadata(&self, name: LeaseName, update: UpdateMetadata, patience: Patience) -> Answer<'_, Lease> {
        let remote = self.patient(patience);
        Box::pin(async move { remote.update_metadata(&name, &update).await })
    }

    fn explain(&self, name: LeaseName, holder: HolderId, patience: Patience) -> Answer<'_, Explanation> {
        let remote = self.patient(patience);
        Box::pin(async move { remote.explain(&name, Some(&holder)).await })
    }

    fn held(&self, prefix: String, patience: Patience) -> Answer<'_, Vec<Lease>> {
        let remote = self.patient(patience);
        let query = ListQuery { prefix, states: "active".to_owned(), limit: Some(PAGE), ..ListQuery::default() };
        Box::pin(async move {
            let mut leases = Vec::new();
            let mut cursor = None;
            loop {
                let page = remote.list(&query, cursor.as_deref()).await?;
                leases.extend(page.leases);
                cursor = page.cursor;
                if cursor.is_none() {
                    return Ok(leases);
                }
            }
        })
    }

    fn watch(&self, prefix: String, after: Option<EventId>) -> Box<dyn Events> {
        Box::new(Remote::watch(self, &prefix, after))
    }
}

impl Events for Watch {
    fn next(&mut self) -> Answer<'_, Event> {
        Box::pin(Watch::next(self))
    }

    fn place(&self) -> Option<EventId> {
        Watch::place(self)
    }
}

/// How often a node is asked whether it is ready while a claim waits at it.
fn probe_interval(ttl: Option<TtlMs>) -> Duration {
    let third = match ttl {
        Some(TtlMs::Millis(ttl)) => Duration::from_millis(ttl / 3),
        Some(TtlMs::Infinite) | None => LONGEST_PROBE_INTERVAL,
    };
    third.clamp(SHORTEST_PROBE_INTERVAL, LONGEST_PROBE_INTERVAL)
}

fn to_json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("the API's own types have text keys and finite numbers")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_the_one_that_was_asked_for() {
        let (own, asked) = (Duration::from_secs(7), Patience::within(Duration::from_secs(3)));
        let remote = Remote::new(Endpoints::default()).with_timeout(own);
        assert_eq!((remote.patience, remote.patient(asked).patience), (Patience::within(own), asked));
    }

    #[test]
    fn watch_begins_at_the_place_that_was_asked_for() {
        let place = Some(EventId { index: 7, part: None });
        let events = Coordinator::watch(&Remote::new(Endpoints::default()), "job".to_owned(), place);
        assert_eq!(events.place(), place);
    }

    #[test]
    fn waiting_claim_probes_every_third_of_its_ttl() {
        let probe = |ttl| probe_interval(Some(TtlMs::Millis(ttl)));
        assert_eq!((probe(100), probe(1_500)), (SHORTEST_PROBE_INTERVAL, Duration::from_millis(500)));
        assert_eq!((probe(15_000), probe(29_999)), (Duration::from_secs(5), Duration::from_millis(9_999)));
        assert_eq!((probe(60_000), probe_interval(None)), (LONGEST_PROBE_INTERVAL, LONGEST_PROBE_INTERVAL));
        assert_eq!(probe_interval(Some(TtlMs::Infinite)), LONGEST_PROBE_INTERVAL);
    }
}
