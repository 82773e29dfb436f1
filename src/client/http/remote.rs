//! The client of a remote cluster.

use std::time::Duration;

use reqwest::Method;

use super::call::{Body, Call, QueueWait, StaleAge};
use super::credential::Http;
use super::path::path;
use super::{Endpoints, Watch};
use crate::access::AccessToken;
use crate::api::{
    Acquire, AddMember, Addresses, Cluster, Event, EventId, Explanation, HandOver, History, LeaseInfo, LeasePage,
    Members, Queue, Release, Released, Renew, RenewBatch, Renewed, ReplaceMember, Revoked, Transfer, Transferred,
    TtlMs, UpdateMetadata,
};
use crate::client::coordinator::{Coordinator, Events, ResponseFuture};
use crate::client::retry::RetryPolicy;
use crate::client::{CallError, RetryBudget};
#[cfg(feature = "tls")]
use crate::tls::ClientTls;
use crate::types::{Consistency, HolderId, LeaseName, MemberChange, NodeId, ceil_ms};

/// Default limit of one request with its retries, without its wait for a lease.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// Page size of a read of all leases of a prefix.
const PAGE_SIZE: u32 = 1000;
/// Timeout of a connection attempt. A node that takes longer counts as unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The client closes idle connections before a node does (after 60 s): a request at that moment would fail.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);

const BUILDS: &str = "building a client fails only without a TLS backend";

/// Bounds of the interval between two probes of the node at which a claim waits.
const SHORTEST_PROBE_INTERVAL: Duration = Duration::from_millis(500);
const LONGEST_PROBE_INTERVAL: Duration = Duration::from_secs(10);

/// A client of a remote cluster over HTTP. Cheap to clone; clones share their connections.
///
/// All requests return the same errors:
///
/// - [`Refused`](CallError::Refused): the cluster refused the request.
/// - [`Unknown`](CallError::Unknown): an answer was lost or is invalid, and the cluster may have applied the request. A
///   read never returns it.
/// - [`Unavailable`](CallError::Unavailable): no node could serve the request in time. It was not applied.
///
/// # Cancel safety
///
/// Dropping the future of a request abandons it. The cluster may still apply a change.
#[derive(Clone, Debug)]
pub struct Remote {
    pub(super) http: Http,
    pub(super) endpoints: Endpoints,
    pub(super) budget: RetryBudget,
    consistency: Consistency,
    stale_age: StaleAge,
}

/// A filter of leases. The default lists all leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListQuery {
    /// Prefix of the names.
    pub prefix: String,
    /// The holder; `None`: any holder.
    pub holder: Option<HolderId>,
    /// States as in the HTTP API, separated by commas; empty: all states.
    pub states: String,
    /// Largest number of leases on a page; `None`: the server's default.
    pub limit: Option<u32>,
}

impl ListQuery {
    /// A query for all leases.
    pub fn new() -> ListQuery {
        ListQuery::default()
    }

    /// Sets the prefix of the names.
    pub fn prefix(self, prefix: impl Into<String>) -> ListQuery {
        ListQuery { prefix: prefix.into(), ..self }
    }

    /// Sets the holder.
    pub fn holder(self, holder: HolderId) -> ListQuery {
        ListQuery { holder: Some(holder), ..self }
    }

    /// Sets the states, separated by commas.
    pub fn states(self, states: impl Into<String>) -> ListQuery {
        ListQuery { states: states.into(), ..self }
    }

    /// Sets the largest number of leases on a page.
    pub fn limit(self, limit: u32) -> ListQuery {
        ListQuery { limit: Some(limit), ..self }
    }
}

impl Remote {
    /// Creates a client with its own HTTP client, without redirects and proxies. With the feature `tls`, `https` endpoints
    /// must have certificates of the CAs of the system; [`with_tls`](Self::with_tls) trusts other CAs.
    ///
    /// # Examples
    ///
    /// ```
    /// use tenure::client::{Endpoints, Remote};
    ///
    /// let endpoints: Endpoints = "http://10.0.0.1:7101,http://10.0.0.2:7101".parse()?;
    /// let remote = Remote::new(endpoints);
    /// # let _ = remote;
    /// # Ok::<(), tenure::client::InvalidEndpoints>(())
    /// ```
    pub fn new(endpoints: Endpoints) -> Remote {
        #[cfg(feature = "tls")]
        let http = {
            let has_https = endpoints.urls().iter().any(|url| url.scheme() == "https");
            with_tls(http_client(), has_https.then(ClientTls::system).as_ref())
        };
        #[cfg(not(feature = "tls"))]
        let http = http_client();
        Remote::with_http_client(endpoints, http.build().expect(BUILDS))
    }

    /// Uses these certificates for `https` endpoints. Replaces the HTTP client.
    #[cfg(feature = "tls")]
    pub fn with_tls(self, tls: &ClientTls) -> Remote {
        let client = with_tls(http_client(), Some(tls)).build().expect(BUILDS);
        Remote { http: self.http.with_client(client), ..self }
    }

    /// Sends this access token with each request. Without TLS, each machine on the way can read it.
    pub fn with_token(self, token: &AccessToken) -> Remote {
        Remote { http: self.http.with_token(token), ..self }
    }

    /// Creates a client with the program's HTTP client, for example one with TLS certificates. That client should not
    /// retry requests and should not follow redirects.
    pub fn with_http_client(endpoints: Endpoints, http: reqwest::Client) -> Remote {
        let (http, budget) = (Http::new(http), RetryBudget::within(DEFAULT_TIMEOUT));
        Remote { http, endpoints, budget, consistency: Consistency::default(), stale_age: StaleAge::default() }
    }

    /// Sets the time limit of one request with its retries, without its wait for a lease. Default: 5 s.
    pub fn with_timeout(self, timeout: Duration) -> Remote {
        Remote { budget: RetryBudget::within(timeout), ..self }
    }

    /// Sets the consistency of reads of leases. Default: [`Consistency::Leader`]. With [`Consistency::Stale`], a node
    /// without a leader answers, too. A lease manager, and what is built on it, ignores this setting.
    pub fn with_consistency(self, consistency: Consistency) -> Remote {
        Remote { consistency, ..self }
    }

    /// Returns the largest age of the states that the stale reads of this client and its clones returned: a state has all
    /// changes that were committed before. Zero before the first such read. `None` if a node stated no age, because it
    /// has not caught up with a leader since its start.
    pub fn stale_age(&self) -> Option<Duration> {
        self.stale_age.get()
    }

    /// Claims a lease. The request is retried after a lost answer: a claim of the same holder is idempotent.
    ///
    /// While the claim waits in the queue, the client probes the readiness of its node every third of the ttl (0.5 s to
    /// 10 s). If the node does not answer within the same time, the claim continues at the next node and keeps its
    /// position.
    ///
    /// # Errors
    ///
    /// Refused with the code `held` or `wait_timeout` if the lease was not free in time, and the errors of [`Remote`].
    pub async fn acquire(&self, name: &LeaseName, claim: &Acquire) -> Result<LeaseInfo, CallError> {
        let claim = claim.clone();
        let probe = probe_interval(claim.ttl_ms);
        let wait = Duration::from_millis(claim.wait_ms.unwrap_or(0));
        let call = Call {
            body: Some(Box::new(move |waited: Duration| claim_body(&claim, waited))),
            wait: Some(QueueWait { longest: wait, probe }).filter(|_| !wait.is_zero()),
            ..self.call(Method::POST, &["v1", "leases", name.as_str(), "acquire"], RetryPolicy::Claim)
        };
        self.send(call).await
    }

    /// Renews a lease. The request is retried after a lost answer.
    ///
    /// # Errors
    ///
    /// Refused with the code `lost` if the grant has ended, and the errors of [`Remote`].
    pub async fn renew(&self, name: &LeaseName, renew: &Renew) -> Result<LeaseInfo, CallError> {
        self.post(&["v1", "leases", name.as_str(), "renew"], renew, RetryPolicy::Renewal).await
    }

    /// Renews at most [`MAX_RENEW_ITEMS`](crate::api::MAX_RENEW_ITEMS) leases. The request is retried after a lost
    /// answer. Each item of the result has its own problem.
    ///
    /// # Errors
    ///
    /// The errors of [`Remote`].
    pub async fn renew_batch(&self, batch: &RenewBatch) -> Result<Renewed, CallError> {
        self.post(&["v1", "renew"], batch, RetryPolicy::Renewal).await
    }

    /// Releases a lease. The request is retried after a lost answer: its token names one grant, which ends once.
    ///
    /// # Errors
    ///
    /// The errors of [`Remote`]. The outcome is also unknown if an answer was lost and a later attempt finds no held
    /// lease. The first attempt may have released the lease, or the grant had ended before.
    pub async fn release(&self, name: &LeaseName, release: &Release) -> Result<Released, CallError> {
        let json = to_json(release);
        let path = ["v1", "leases", name.as_str(), "release"];
        let body = Some(Box::new(move |_| json.clone()) as Body);
        let call = Call { body, ..self.call(Method::POST, &path, RetryPolicy::Release) };
        call.send(&self.http, &self.endpoints).await?.released()
    }

    /// Hands a lease over to a waiter. The request is not retried after a lost answer.
    ///
    /// # Errors
    ///
    /// Refused with the code `lost` or `no_such_waiter`, and the errors of [`Remote`].
    pub async fn hand_over(&self, name: &LeaseName, hand_over: &HandOver) -> Result<LeaseInfo, CallError> {
        self.post(&["v1", "leases", name.as_str(), "handover"], hand_over, RetryPolicy::Never).await
    }

    /// Replaces the metadata of a held lease. The request is retried after a lost answer.
    ///
    /// # Errors
    ///
    /// The errors of [`Remote`].
    pub async fn update_metadata(&self, name: &LeaseName, update: &UpdateMetadata) -> Result<LeaseInfo, CallError> {
        self.post(&["v1", "leases", name.as_str(), "metadata"], update, RetryPolicy::Claim).await
    }

    /// Revokes a lease: ends the grants of all its holders. The request is not retried after a lost answer, because a
    /// second revoke could hit the next holder.
    ///
    /// # Errors
    ///
    /// The errors of [`Remote`].
    pub async fn revoke(&self, name: &LeaseName, reason: &str) -> Result<Revoked, CallError> {
        let query = vec![("reason", reason.to_owned())];
        let call = Call { query, ..self.call(Method::DELETE, &["v1", "leases", name.as_str()], RetryPolicy::Never) };
        self.send(call).await
    }

    /// Reads one lease. Its list of `holders` is complete: the client reads further pages if the first answer is cut.
    ///
    /// # Errors
    ///
    /// Refused with the code `not_found` if the cluster has no record of the lease, and the errors of [`Remote`].
    pub async fn get(&self, name: &LeaseName) -> Result<LeaseInfo, CallError> {
        let mut lease: LeaseInfo = self.read_leases(&["v1", "leases", name.as_str()], Vec::new()).await?;
        let query = ListQuery::new().prefix(name.as_str()).states("active").limit(PAGE_SIZE);
        while let Some(cursor) = lease.holders_cursor.take() {
            let page = self.list(&query, Some(&cursor)).await?;
            let longer_name = page.leases.iter().position(|held| held.name != lease.name);
            let more = page.leases.into_iter().take(longer_name.unwrap_or(usize::MAX));
            lease.holders.get_or_insert_default().extend(more);
            lease.holders_cursor = page.cursor.filter(|_| longer_name.is_none());
        }
        Ok(lease)
    }

    /// Reads the history of a lease.
    ///
    /// # Errors
    ///
    /// The errors of [`Remote`].
    pub async fn history(&self, name: &LeaseName) -> Result<History, CallError> {
        self.read_leases(&["v1", "leases", name.as_str(), "history"], Vec::new()).await
    }

    /// Reads the queue of a lease.
    ///
    /// # Errors
    ///
    /// The errors of [`Remote`].
    pub async fn queue(&self, name: &LeaseName) -> Result<Queue, CallError> {
        self.read_leases(&["v1", "leases", name.as_str(), "queue"], Vec::new()).await
    }

    /// Explains why a lease is held or free, and reads the standing of one holder with it.
    ///
    /// # Errors
    ///
    /// The errors of [`Remote`].
    pub async fn explain(&self, name: &LeaseName, holder: Option<&HolderId>) -> Result<Explanation, CallError> {
        let query = holder.map(|holder| ("holder", holder.to_string())).into_iter().collect();
        self.read_leases(&["v1", "leases", name.as_str(), "explain"], query).await
    }

    /// Reads one page of leases. Pass the page's cursor to get the next one.
    ///
    /// # Errors
    ///
    /// The errors of [`Remote`].
    pub async fn list(&self, list: &ListQuery, cursor: Option<&str>) -> Result<LeasePage, CallError> {
        let mut query = Vec::new();
        let mut add = |key, value: Option<String>| query.extend(value.map(|value| (key, value)));
        add("prefix", (!list.prefix.is_empty()).then(|| list.prefix.clone()));
        add("holder", list.holder.as_ref().map(ToString::to_string));
        add("state", (!list.states.is_empty()).then(|| list.states.clone()));
        add("limit", list.limit.map(|limit| limit.to_string()));
        add("cursor", cursor.map(str::to_owned));
        self.read_leases(&["v1", "leases"], query).await
    }

    /// Reads the status of the cluster from one node.
    ///
    /// # Errors
    ///
    /// The errors of [`Remote`].
    pub async fn cluster(&self) -> Result<Cluster, CallError> {
        self.read(&["v1", "cluster"], Vec::new()).await
    }

    /// Changes the members of the cluster. Returns the members after the change. The request is not retried after a lost
    /// answer.
    ///
    /// # Errors
    ///
    /// Refused with the code `member_refused` and the reason, `change_in_progress` or `not_found`, and the errors of
    /// [`Remote`].
    pub async fn change_members(&self, change: &MemberChange) -> Result<Members, CallError> {
        let id = change.id().to_string();
        let member = |action| ["v1", "cluster", "members", id.as_str(), action];
        match change {
            MemberChange::Add { id, http, peer } => {
                let body = AddMember { id: *id, http: http.clone(), peer: peer.clone() };
                self.post(&["v1", "cluster", "members"], &body, RetryPolicy::Never).await
            }
            MemberChange::Promote { .. } => {
                self.send(self.call(Method::POST, &member("promote"), RetryPolicy::Never)).await
            }
            MemberChange::Remove { force, .. } => {
                let query = Vec::from_iter(force.then(|| ("force", "true".to_owned())));
                let path = ["v1", "cluster", "members", id.as_str()];
                self.send(Call { query, ..self.call(Method::DELETE, &path, RetryPolicy::Never) }).await
            }
            MemberChange::Replace { new, .. } => {
                self.post(&member("replace"), &ReplaceMember { with: *new }, RetryPolicy::Never).await
            }
            MemberChange::Update { http, peer, .. } => {
                let body = Addresses { http: http.clone(), peer: peer.clone() };
                self.post(&member("addresses"), &body, RetryPolicy::Never).await
            }
        }
    }

    /// Transfers the leadership to the voter `to`, or to the voter that lacks the fewest log entries. The request is not
    /// retried after a lost answer.
    ///
    /// # Errors
    ///
    /// Refused with the code `member_refused` or `not_found`, and the errors of [`Remote`].
    pub async fn transfer_leadership(&self, to: Option<NodeId>) -> Result<Transferred, CallError> {
        self.post(&["v1", "cluster", "transfer"], &Transfer { to }, RetryPolicy::Never).await
    }

    /// Watches transitions of leases whose names start with `prefix`, from now on or after the event `after`.
    pub fn watch(&self, prefix: &str, after: Option<EventId>) -> Watch {
        Watch::new(self.clone(), prefix.to_owned(), after)
    }

    async fn post<T, A>(&self, path: &[&str], body: &T, policy: RetryPolicy) -> Result<A, CallError>
    where
        T: serde::Serialize,
        A: serde::de::DeserializeOwned,
    {
        let json = to_json(body);
        let call = Call { body: Some(Box::new(move |_| json.clone())), ..self.call(Method::POST, path, policy) };
        self.send(call).await
    }

    /// Reads leases with the consistency of this client.
    async fn read_leases<A>(&self, path: &[&str], mut query: Vec<(&'static str, String)>) -> Result<A, CallError>
    where
        A: serde::de::DeserializeOwned,
    {
        if self.consistency != Consistency::default() {
            query.push(("consistency", self.consistency.as_str().to_owned()));
        }
        let stale_age = (self.consistency == Consistency::Stale).then(|| self.stale_age.clone());
        self.send(Call { query, stale_age, ..self.call(Method::GET, path, RetryPolicy::Read) }).await
    }

    async fn read<A>(&self, path: &[&str], query: Vec<(&'static str, String)>) -> Result<A, CallError>
    where
        A: serde::de::DeserializeOwned,
    {
        let call = Call { query, ..self.call(Method::GET, path, RetryPolicy::Read) };
        self.send(call).await
    }

    pub(super) async fn send<A: serde::de::DeserializeOwned>(&self, call: Call) -> Result<A, CallError> {
        Ok(call.send(&self.http, &self.endpoints).await?.answer)
    }

    pub(super) fn call(&self, method: Method, segments: &[&str], policy: RetryPolicy) -> Call {
        let path = path(segments);
        Call { method, path, query: Vec::new(), body: None, policy, budget: self.budget, wait: None, stale_age: None }
    }

    /// A client of the same cluster with this budget, whose reads show the committed state.
    fn with_budget(&self, budget: RetryBudget) -> Remote {
        Remote { budget, consistency: Consistency::default(), ..self.clone() }
    }
}

impl Coordinator for Remote {
    fn acquire(&self, name: LeaseName, claim: Acquire, budget: RetryBudget) -> ResponseFuture<'_, LeaseInfo> {
        let remote = self.with_budget(budget);
        Box::pin(async move { remote.acquire(&name, &claim).await })
    }

    fn renew(&self, batch: RenewBatch, budget: RetryBudget) -> ResponseFuture<'_, Renewed> {
        let remote = self.with_budget(budget);
        Box::pin(async move { remote.renew_batch(&batch).await })
    }

    fn release(&self, name: LeaseName, release: Release, budget: RetryBudget) -> ResponseFuture<'_, Released> {
        let remote = self.with_budget(budget);
        Box::pin(async move { remote.release(&name, &release).await })
    }

    fn hand_over(&self, name: LeaseName, hand_over: HandOver, budget: RetryBudget) -> ResponseFuture<'_, LeaseInfo> {
        let remote = self.with_budget(budget);
        Box::pin(async move { remote.hand_over(&name, &hand_over).await })
    }

    fn update_metadata(
        &self,
        name: LeaseName,
        update: UpdateMetadata,
        budget: RetryBudget,
    ) -> ResponseFuture<'_, LeaseInfo> {
        let remote = self.with_budget(budget);
        Box::pin(async move { remote.update_metadata(&name, &update).await })
    }

    fn explain(&self, name: LeaseName, holder: HolderId, budget: RetryBudget) -> ResponseFuture<'_, Explanation> {
        let remote = self.with_budget(budget);
        Box::pin(async move { remote.explain(&name, Some(&holder)).await })
    }

    fn held(&self, prefix: String, budget: RetryBudget) -> ResponseFuture<'_, Vec<LeaseInfo>> {
        let remote = self.with_budget(budget);
        let query = ListQuery::new().prefix(prefix).states("active").limit(PAGE_SIZE);
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
    fn next(&mut self) -> ResponseFuture<'_, Event> {
        Box::pin(Watch::next(self))
    }

    fn position(&self) -> Option<EventId> {
        Watch::position(self)
    }
}

fn http_client() -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(IDLE_TIMEOUT)
        .tcp_nodelay(true)
        // `attempts` does the retries. A proxy from the environment is not meant for the nodes of a cluster.
        .retry(reqwest::retry::never())
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
}

/// Sets the certificates. Without any, no `https` endpoint can be reached.
#[cfg(feature = "tls")]
fn with_tls(builder: reqwest::ClientBuilder, tls: Option<&ClientTls>) -> reqwest::ClientBuilder {
    builder.tls_backend_preconfigured(tls.cloned().unwrap_or_default().config())
}

/// The body of a claim whose first attempt began `waited` ago. A later attempt keeps a wait of at least 1 ms: without one,
/// a refused claim would leave the waiter of an earlier attempt in the queue.
fn claim_body(claim: &Acquire, waited: Duration) -> Vec<u8> {
    let left = |wait: u64| ceil_ms(Duration::from_millis(wait).saturating_sub(waited)).max(wait.min(1));
    to_json(&Acquire { wait_ms: claim.wait_ms.map(left), ..claim.clone() })
}

/// The interval of readiness probes for a claim with this ttl.
fn probe_interval(ttl: Option<TtlMs>) -> Duration {
    let third = match ttl {
        Some(TtlMs::Millis(ttl)) => Duration::from_millis(ttl / 3),
        Some(TtlMs::Infinite) | None => LONGEST_PROBE_INTERVAL,
    };
    third.clamp(SHORTEST_PROBE_INTERVAL, LONGEST_PROBE_INTERVAL)
}

pub(super) fn to_json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("the API types have string keys and finite numbers")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_uses_the_given_retry_budget() {
        let (own, asked) = (Duration::from_secs(7), RetryBudget::within(Duration::from_secs(3)));
        let remote = Remote::new(Endpoints::default()).with_timeout(own);
        assert_eq!((remote.budget, remote.with_budget(asked).budget), (RetryBudget::within(own), asked));
    }

    /// A lease manager decides by what it reads whether it still holds a lease.
    #[test]
    fn lease_manager_reads_the_committed_state() {
        let remote = Remote::new(Endpoints::default()).with_consistency(Consistency::Stale);
        assert_eq!(remote.with_budget(RetryBudget::within(Duration::ZERO)).consistency, Consistency::Leader);
    }

    #[test]
    fn watch_begins_at_the_position_that_was_asked_for() {
        let position = Some(EventId { index: 7, part: None });
        let events = Coordinator::watch(&Remote::new(Endpoints::default()), "job".to_owned(), position);
        assert_eq!(events.position(), position);
    }

    #[test]
    fn later_attempt_of_a_waiting_claim_has_a_wait() {
        let holder = HolderId::new("a").expect("valid");
        let sent_after = |waited, wait_ms| {
            let claim = Acquire { wait_ms, ..Acquire::new(holder.clone()) };
            let body = claim_body(&claim, Duration::from_millis(waited));
            serde_json::from_slice::<Acquire>(&body).expect("a claim").wait_ms
        };
        assert_eq!((sent_after(0, Some(1)), sent_after(5, Some(1))), (Some(1), Some(1)));
        assert_eq!((sent_after(40, Some(100)), sent_after(200, Some(100))), (Some(60), Some(1)));
        assert_eq!((sent_after(5, Some(0)), sent_after(5, None)), (Some(0), None));
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
