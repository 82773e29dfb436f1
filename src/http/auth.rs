//! The caller of a request: its credential, the limit of failed attempts, and the audit log.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::FromRequestParts;
use axum::http::HeaderValue;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use metrics::{Counter, counter};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::app::App;
use super::response::ProblemResponse;
use super::socket::Client;
use crate::access::{Access, AccessToken, Caller, Denied, Need, TokenHash};
use crate::api::{Code, Problem};
use crate::node::{Node, Request, RequestError, Response};
use crate::service;
use crate::types::{AccessName, Consistency, ceil_ms};

/// Failed attempts with an access token that an address may make in each [`WINDOW`].
const MAX_FAILURES: u32 = 10;
/// Lines of the audit log for refused requests of unknown callers that an address can cause in each [`WINDOW`]. The
/// metrics count all.
const MAX_UNKNOWN_LINES: u32 = 20;
/// The time over which the node counts failed attempts.
const WINDOW: Duration = Duration::from_secs(10);
/// Addresses of refused unknown callers that the node remembers. Above it, all other addresses share one count.
const MAX_ADDRESSES: usize = 4_096;
/// Requests with an unknown token above [`MAX_FAILURES`] for which the node asks the leader at a time.
const MAX_QUESTIONS: usize = 4;
/// The pause before each question. With [`MAX_QUESTIONS`], it bounds the questions of a flood to 200 a second.
const QUESTION_PAUSE: Duration = Duration::from_millis(20);
/// The refusal of a client that neither a certificate nor access control identifies.
const NO_IDENTITY: &str = "other machines reach this node, so each client needs a client certificate, or an access token \
                           while access control is on";

/// The other end of a connection. The listener adds it to each request.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub address: IpAddr,
    /// Whether the client has a certificate of the CA.
    pub has_certificate: bool,
    /// The name of the client in its certificate.
    pub certificate: Option<AccessName>,
    pub client: Client,
}

/// The caller of a request, and its address if the node's own listener serves the request.
#[derive(Clone, Debug)]
pub(super) struct Credentials {
    pub caller: Caller,
    address: Option<IpAddr>,
    /// The listener serves this client only while access control knows its token.
    needs_token: bool,
}

impl FromRequestParts<App> for Credentials {
    type Rejection = ProblemResponse;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Credentials, ProblemResponse> {
        let peer = parts.extensions.get::<Arc<Peer>>();
        let address = peer.map(|peer| peer.address);
        let needs_token = app.settings.require_identity == Some(true) && !peer.is_some_and(|peer| peer.has_certificate);
        let credentials = |caller| Credentials { caller, address, needs_token };
        let refuse_other_sites = || {
            // A program with a router of its own decides itself which sites it serves.
            if peer.is_none() || !is_change_by_another_site(parts) {
                return Ok(());
            }
            let detail = "a web page of another site sent this request without an access token";
            Err(ProblemResponse::new(Code::Forbidden, detail))
        };
        let Some(header) = parts.headers.get(AUTHORIZATION) else {
            refuse_other_sites()?;
            if needs_token {
                credentials(Caller::Anonymous).identify(app)?;
            }
            let certificate = peer.and_then(|peer| peer.certificate.clone());
            let caller = certificate.map_or(Caller::Anonymous, Caller::Certificate);
            return Ok(credentials(caller));
        };
        let token = header.to_str().ok().and_then(|header| header.split_once(' '));
        let token = token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, token)| token.trim());
        let token = token.and_then(|token| token.parse::<AccessToken>().ok()).map(|token| TokenHash::of(&token));
        match token {
            Some(hash) => {
                let credentials = credentials(Caller::Token(hash));
                credentials.check_attempts(app).await?;
                if needs_token {
                    credentials.identify(app)?;
                }
                Ok(credentials)
            }
            None => {
                refuse_other_sites()?;
                if needs_token {
                    credentials(Caller::Anonymous).identify(app)?;
                }
                // Without access control, a program may send a header of its own.
                let is_enabled = app.node.get().is_some_and(|node| node.access_state().is_enabled());
                if !is_enabled {
                    return Ok(credentials(Caller::Anonymous));
                }
                let credentials = credentials(Caller::Anonymous);
                app.failures.count(address, Instant::now());
                app.failures.unauthenticated.increment(1);
                let detail = "the header Authorization has no access token: expected \"Bearer tenure_…\"";
                let refused = ProblemResponse::new(Code::Unauthenticated, detail);
                credentials.list_unknown(app, "request", "", Code::Unauthenticated);
                Err(refused)
            }
        }
    }
}

/// Whether a page of another site asked the browser for a change. The browser adds the user's certificate to it. It asks the
/// node for permission first only before PUT and DELETE, and if the request has a body in JSON. Browsers send this header
/// over https and to the own machine.
fn is_change_by_another_site(parts: &Parts) -> bool {
    let site = parts.headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    !parts.method.is_safe() && site.is_some_and(|site| site != b"same-origin" && site != b"none")
}

impl Credentials {
    /// Refuses a token that this node does not know after too many failed attempts from the same address. A known token
    /// always passes. This node may not know a new one yet, so it asks the leader, unless it asks too much already.
    async fn check_attempts(&self, app: &App) -> Result<(), ProblemResponse> {
        let Some(node) = app.node.get() else { return Ok(()) };
        let access = node.access_state();
        if !access.is_enabled() || access.principal(&self.caller).is_some() {
            return Ok(());
        }
        if let Some(left) = app.failures.refused_for(self.address, Instant::now()) {
            if let Ok(_question) = app.failures.questions.try_acquire() {
                // The pause comes first: a request that its client drops meanwhile does not reach the leader.
                tokio::time::sleep(QUESTION_PAUSE).await;
                if node.may_know(&self.caller).await {
                    return Ok(());
                }
            }
            app.failures.limited.increment(1);
            if app.failures.begins_to_refuse(self.address) {
                self.write("-", "request", "", Err(Code::TooBusy));
            }
            let detail = format!(
                "too many requests with an unknown access token from this address: at most {MAX_FAILURES} in {} s",
                WINDOW.as_secs()
            );
            let retry_after_ms = Some(ceil_ms(left));
            return Err(ProblemResponse::from(Problem { retry_after_ms, ..Problem::new(Code::TooBusy, detail) }));
        }
        Ok(())
    }

    /// Whether the listener serves the client at all, with this state of access control.
    pub fn is_identified(&self, access: &Access) -> bool {
        !self.needs_token || access.is_enabled() && access.principal(&self.caller).is_some()
    }

    /// Refuses a caller without a certificate that access control does not know. The leader may have turned access control
    /// off already, and then it executes the requests of all callers. So this node must know the caller, too.
    fn identify(&self, app: &App) -> Result<(), ProblemResponse> {
        let node = app.node()?;
        let access = node.access_state();
        if self.is_identified(&access) {
            return Ok(());
        }
        if matches!(self.caller, Caller::Token(_)) {
            // The node may not know the token yet.
            if let Some(why) = node.health().not_ready {
                return Err(ProblemResponse::new(Code::NotReady, why));
            }
            app.failures.count(self.address, Instant::now());
        }
        app.failures.unauthenticated.increment(1);
        let refused = ProblemResponse::new(Code::Unauthenticated, NO_IDENTITY);
        self.list_unknown(app, "request", "", Code::Unauthenticated);
        Err(refused)
    }

    /// Fails if the state of this node does not allow the caller to do this. The audit log has the refusal.
    pub fn authorize(&self, app: &App, node: &Node, need: &Need<'_>, request: &Audited) -> Result<(), ProblemResponse> {
        node.authorize(&self.caller, need).map_err(|error| {
            self.count_failure(app, &error);
            self.audit(app, node, request, Err(&error));
            ProblemResponse::from(error)
        })
    }

    /// Counts a refusal by access control.
    pub fn count_failure(&self, app: &App, error: &RequestError) {
        match error {
            RequestError::Denied(Denied::Unauthenticated(_)) => {
                if matches!(self.caller, Caller::Token(_)) {
                    app.failures.count(self.address, Instant::now());
                }
                app.failures.unauthenticated.increment(1);
            }
            RequestError::Denied(Denied::Forbidden(_)) => app.failures.forbidden.increment(1),
            _ => {}
        }
    }

    /// The error of a request as its caller may see it: a caller without a credential learns nothing about the leader.
    /// This node may not know a new credential yet. A request with an unknown outcome may be done, so it is not refused.
    pub fn hide_leader(&self, node: &Node, error: RequestError) -> RequestError {
        let is_of_leader =
            matches!(error, RequestError::NotLeader { .. } | RequestError::NoLeader | RequestError::ShuttingDown);
        if !is_of_leader || self.caller != Caller::Anonymous {
            return error;
        }
        match node.authorize(&self.caller, &Need::Principal) {
            Err(denied @ RequestError::Denied(_)) => denied,
            _ => error,
        }
    }

    /// The request of this caller for the audit log. The credential may be gone before the answer.
    pub fn audited(&self, node: &Node, request: &Request) -> Audited {
        let mut audited = Audited::new(request);
        if audited.is_listed && self.caller != Caller::Anonymous {
            let access = node.access_state();
            audited.principal = access.principal(&self.caller).filter(|_| access.is_enabled()).cloned();
        }
        audited
    }

    /// Writes a line of the audit log for a change or a backup, and for any request that access control refuses.
    /// A request that this node serves itself has no response.
    pub fn audit(&self, app: &App, node: &Node, request: &Audited, result: Result<Option<&Response>, &RequestError>) {
        let refusal = |response: &Response| service::refusal_code(&response.answer);
        let outcome = match result {
            Ok(response) => response.and_then(refusal).map_or(Ok(()), Err),
            Err(error) => Err(service::request_error(error.clone()).code),
        };
        self.list(app, node, request, outcome);
    }

    /// Writes the line of a change whose client leaves before the answer: the change can still be made.
    pub fn audit_if_dropped<'a>(&'a self, app: &'a App, node: &'a Node, request: &'a Audited) -> Unanswered<'a> {
        Unanswered { credentials: self, app, node, request, has_answer: false }
    }

    fn list(&self, app: &App, node: &Node, request: &Audited, outcome: Result<(), Code>) {
        let access = node.access_state();
        let is_guarded = access.is_enabled() || request.principal.is_some();
        if !is_guarded && !request.is_access {
            return;
        }
        // A renewal with the token of another principal is refused as lost.
        let is_refused = matches!(outcome, Err(Code::Unauthenticated | Code::Forbidden | Code::Lost));
        if !request.is_listed && !is_refused {
            return;
        }
        match (request.principal.as_ref().or_else(|| access.principal(&self.caller)), outcome) {
            (None, Err(code)) if is_refused || is_guarded => {
                self.list_unknown(app, request.action, &request.subject, code)
            }
            (principal, _) => {
                let principal = principal.map_or("-", AccessName::as_str);
                self.write(principal, request.action, &request.subject, outcome);
            }
        }
    }

    /// Writes the line of a failed request of an unknown caller, unless its address has caused too many.
    fn list_unknown(&self, app: &App, action: &str, subject: &str, code: Code) {
        if app.failures.may_list(self.address, Instant::now()) {
            self.write("-", action, subject, Err(code));
        }
    }

    fn write(&self, principal: &str, action: &str, subject: &str, outcome: Result<(), Code>) {
        let address = self.address.map(|address| address.to_string());
        let address = address.as_deref().unwrap_or("-");
        let outcome = outcome.err().map_or("ok", Code::as_str);
        tracing::info!(target: "tenure::audit", principal, address, action, subject, outcome, "audit");
    }
}

/// A request as the audit log shows it: no secret, and no metadata.
pub(super) struct Audited {
    action: &'static str,
    subject: String,
    /// A change or a backup. Renewals are too many, and change only the time.
    is_listed: bool,
    is_access: bool,
    /// The principal of the caller at the arrival of the request.
    principal: Option<AccessName>,
}

/// A request that has no answer yet.
pub(super) struct Unanswered<'a> {
    credentials: &'a Credentials,
    app: &'a App,
    node: &'a Node,
    request: &'a Audited,
    has_answer: bool,
}

impl Unanswered<'_> {
    pub fn answered(mut self) {
        self.has_answer = true;
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if self.has_answer {
            return;
        }
        let access = self.node.access_state();
        // An unknown caller changes nothing, and would have a line for each attempt.
        let is_known = !access.is_enabled()
            || self.request.principal.is_some()
            || access.principal(&self.credentials.caller).is_some();
        if is_known {
            self.credentials.list(self.app, self.node, self.request, Err(Code::OutcomeUnknown));
        }
    }
}

impl Audited {
    fn new(request: &Request) -> Audited {
        let (action, subject) = request.summary();
        let is_access = matches!(request, Request::ChangeAccess(_));
        Audited { action, subject, is_listed: request.is_change() && action != "renew", is_access, principal: None }
    }

    /// A request that is listed only if access control refuses it.
    pub fn read(action: &'static str, subject: impl Into<String>) -> Audited {
        Audited { action, subject: subject.into(), is_listed: false, is_access: false, principal: None }
    }

    /// A download of the whole state.
    pub fn backup(consistency: Consistency) -> Audited {
        let source = if consistency == Consistency::Stale { "stale" } else { "leader" };
        Audited { is_listed: true, ..Audited::read("backup", source) }
    }
}

/// The failed attempts of each address, and their counters.
pub(super) struct Failures {
    by_address: Mutex<HashMap<Option<IpAddr>, Attempts>>,
    /// Permits to ask the leader.
    questions: Semaphore,
    unauthenticated: Counter,
    forbidden: Counter,
    limited: Counter,
}

#[derive(Clone, Copy)]
struct Attempts {
    since: Instant,
    count: u32,
    /// Lines of the audit log for other refusals than `too_busy`.
    lines: u32,
    /// Whether the audit log has the first `too_busy` of this window.
    is_listed: bool,
}

impl Failures {
    pub fn new() -> Failures {
        let counter = |reason: &'static str| {
            let counter = counter!("tenure_access_refused_total", "reason" => reason);
            counter.increment(0);
            counter
        };
        Failures {
            by_address: Mutex::default(),
            questions: Semaphore::new(MAX_QUESTIONS),
            unauthenticated: counter("unauthenticated"),
            forbidden: counter("forbidden"),
            limited: counter("limited"),
        }
    }

    fn count(&self, address: Option<IpAddr>, now: Instant) {
        self.with_attempts(address, now, |attempts| attempts.count += 1);
    }

    /// Counts a line of the audit log. Returns whether the log has room for it.
    fn may_list(&self, address: Option<IpAddr>, now: Instant) -> bool {
        self.with_attempts(address, now, |attempts| {
            attempts.lines += 1;
            attempts.lines <= MAX_UNKNOWN_LINES
        })
    }

    /// Changes the attempts of an address in the current window.
    fn with_attempts<T>(&self, address: Option<IpAddr>, now: Instant, change: impl FnOnce(&mut Attempts) -> T) -> T {
        let mut by_address = self.by_address.lock();
        if by_address.len() >= MAX_ADDRESSES && !by_address.contains_key(&address) {
            by_address.retain(|_, attempts| !attempts.is_over(now));
        }
        let is_full = by_address.len() >= MAX_ADDRESSES && !by_address.contains_key(&address);
        // `None` is the shared count.
        let address = address.filter(|_| !is_full);
        let attempts = by_address.entry(address).or_insert(Attempts::begin(now));
        if attempts.is_over(now) {
            *attempts = Attempts::begin(now);
        }
        change(attempts)
    }

    /// The rest of the window of an address that has made all its attempts.
    fn refused_for(&self, address: Option<IpAddr>, now: Instant) -> Option<Duration> {
        let by_address = self.by_address.lock();
        let is_full = by_address.len() >= MAX_ADDRESSES && !by_address.contains_key(&address);
        let attempts = by_address.get(&address.filter(|_| !is_full))?;
        (attempts.count >= MAX_FAILURES && !attempts.is_over(now)).then(|| WINDOW - now.duration_since(attempts.since))
    }

    /// Whether the refusal is the first one of its window. A flood must not fill the audit log.
    fn begins_to_refuse(&self, address: Option<IpAddr>) -> bool {
        let mut by_address = self.by_address.lock();
        let is_full = by_address.len() >= MAX_ADDRESSES && !by_address.contains_key(&address);
        let attempts = by_address.get_mut(&address.filter(|_| !is_full));
        attempts.is_some_and(|attempts| !std::mem::replace(&mut attempts.is_listed, true))
    }
}

impl Attempts {
    fn begin(now: Instant) -> Attempts {
        Attempts { since: now, count: 0, lines: 0, is_listed: false }
    }

    fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.since) >= WINDOW
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::access::AccessChange;
    use crate::http::{NodeRef, Settings};
    use crate::lease::{Acquire, Command, Renewal};
    use crate::node::Query;
    use crate::token::FencingToken;
    use crate::types::{HolderId, LeaseName, MemberChange, Metadata, Ttl};

    fn address(number: u32) -> Option<IpAddr> {
        Some(IpAddr::V4(number.into()))
    }

    /// Without a node, each token is unknown.
    #[tokio::test]
    async fn unknown_token_wins_over_a_certificate() {
        let app = App::new(NodeRef::empty(), Settings::new(1), CancellationToken::new());
        let (name, token) = (AccessName::new("ops").expect("valid"), AccessToken::from_secret([7; 32]));
        let (of_token, bearer) = (Caller::Token(TokenHash::of(&token)), format!("Bearer {}", token.expose()));
        for (header, certificate, expected) in [
            (None, None, Caller::Anonymous),
            (None, Some(&name), Caller::Certificate(name.clone())),
            (Some(&bearer), None, of_token.clone()),
            (Some(&bearer), Some(&name), of_token),
        ] {
            let mut request = axum::http::Request::get("/v1/leases");
            if let Some(header) = header {
                request = request.header(AUTHORIZATION, header);
            }
            let (mut parts, ()) = request.body(()).expect("a valid request").into_parts();
            let (address, has_certificate) = (IpAddr::from([127, 0, 0, 1]), certificate.is_some());
            let (certificate, client) = (certificate.cloned(), Client::default());
            let peer = Peer { address, has_certificate, certificate, client };
            parts.extensions.insert(Arc::new(peer));
            let Ok(credentials) = Credentials::from_request_parts(&mut parts, &app).await else {
                panic!("no earlier attempt has failed");
            };
            assert_eq!(credentials.caller, expected, "with a certificate: {has_certificate}");
        }
    }

    #[test]
    fn each_change_except_a_renewal_is_listed() {
        let (name, holder) = (LeaseName::new("job").expect("valid"), HolderId::new("h").expect("valid"));
        let (token, metadata) = (FencingToken { term: 1, index: 2 }, Metadata::default());
        let acquire = Acquire {
            name: name.clone(),
            holder: holder.clone(),
            ttl: Ttl::INFINITE,
            wait_ms: None,
            lock_delay_ms: 0,
            limit: 1,
            metadata: metadata.clone(),
        };
        let release = Command::Release { name: name.clone(), holder: holder.clone(), token };
        let hand_over = Command::HandOver { name: name.clone(), holder: holder.clone(), token, to: None };
        let (at, by) = (name.clone(), holder.clone());
        let update = Command::UpdateMetadata { name: at, holder: by, token, version: 0, metadata };
        let revoke = Command::Revoke { name: name.clone(), reason: "stuck".to_owned() };
        let query = Query::Explain { name: name.clone(), holder: None };
        let renew = Command::Renew { holder, leases: vec![Renewal { name, token, ttl: None }] };
        let promote = Request::ChangeMembers(MemberChange::Promote { id: 4 });
        for (request, action, subject, is_listed) in [
            (Request::Acquire(acquire), "acquire", "job", true),
            (Request::Change(release), "release", "job", true),
            (Request::Change(hand_over), "hand over", "job", true),
            (Request::Change(update), "update metadata", "job", true),
            (Request::Change(revoke), "revoke", "job", true),
            (Request::Change(renew), "renew", "job", false),
            (promote, "change members", "Promote { id: 4 }", true),
            (Request::Transfer(Some(3)), "transfer", "3", true),
            (Request::ChangeAccess(AccessChange::Enable(true)), "enable access control", "", true),
            (Request::Read { query, consistency: Consistency::Leader }, "read", "job", false),
            (Request::Members, "read", "members", false),
            (Request::Access, "read", "access control", false),
        ] {
            let audited = Audited::new(&request);
            assert_eq!((audited.action, &*audited.subject, audited.is_listed), (action, subject, is_listed));
        }
    }

    /// A rule of a log system finds all lines about a name.
    #[test]
    fn subject_of_a_change_of_access_control_is_a_plain_name() {
        let name = || AccessName::new("ops").expect("valid");
        let (principal, hash) = (name(), TokenHash::of(&AccessToken::from_secret([7; 32])));
        let (id, revoked) = (hash.id(), hash.id().to_string());
        let (created, permissions) = (format!("ops {id}"), BTreeSet::new());
        for (change, action, subject) in [
            (AccessChange::SetRole { role: name(), permissions }, "set role", "ops"),
            (AccessChange::RemoveRole(name()), "remove role", "ops"),
            (AccessChange::SetPrincipal { principal: name(), roles: [name()].into() }, "set principal", "ops"),
            (AccessChange::RemovePrincipal(name()), "remove principal", "ops"),
            (AccessChange::AddToken { principal, hash, created_wall_ms: 0 }, "create token", &*created),
            (AccessChange::RemoveToken(id), "revoke token", &*revoked),
        ] {
            let audited = Audited::new(&Request::ChangeAccess(change));
            assert_eq!((audited.action, &*audited.subject), (action, subject));
        }
    }

    #[test]
    fn address_is_limited_after_ten_failures_for_ten_seconds() {
        let (failures, now) = (Failures::new(), Instant::now());
        for _ in 0..9 {
            failures.count(address(1), now);
        }
        assert_eq!(failures.refused_for(address(1), now), None);
        failures.count(address(1), now);
        assert!(failures.refused_for(address(1), now).is_some());
        assert_eq!(failures.refused_for(address(2), now), None, "another address");
        assert!(failures.begins_to_refuse(address(1)) && !failures.begins_to_refuse(address(1)), "listed once");
        assert!(failures.refused_for(address(1), now + Duration::from_millis(9_999)).is_some());
        assert_eq!(failures.refused_for(address(1), now + WINDOW), None);
        failures.count(address(1), now + WINDOW);
        assert_eq!(failures.refused_for(address(1), now + WINDOW), None, "a new window has one failure");
        assert!(failures.begins_to_refuse(address(1)), "a new window is listed again");
    }

    #[test]
    fn address_causes_at_most_20_lines_in_ten_seconds() {
        let (failures, now) = (Failures::new(), Instant::now());
        let listed = |from, at| (0..100).filter(|_| failures.may_list(address(from), at)).count();
        assert_eq!((listed(1, now), listed(2, now)), (20, 20));
        assert_eq!(failures.refused_for(address(1), now), None, "a request without a token is no failed attempt");
        assert_eq!(listed(1, now + Duration::from_millis(9_999)), 0);
        assert_eq!(listed(1, now + WINDOW), 20);
    }

    #[test]
    fn failures_of_many_addresses_share_one_count() {
        let (failures, now) = (Failures::new(), Instant::now());
        for number in 0..MAX_ADDRESSES as u32 {
            failures.count(address(number), now);
        }
        let others = MAX_ADDRESSES as u32..MAX_ADDRESSES as u32 + 10;
        others.clone().for_each(|number| failures.count(address(number), now));
        assert!(failures.refused_for(address(u32::MAX), now).is_some(), "any further address");
        assert_eq!(failures.refused_for(address(0), now), None);
        assert!(failures.by_address.lock().len() <= MAX_ADDRESSES + 1);
        let later = now + WINDOW;
        failures.count(address(u32::MAX), later);
        assert_eq!(failures.refused_for(address(u32::MAX), later), None);
        assert_eq!(failures.by_address.lock().len(), 1, "old counts are forgotten");
    }
}
