//! The promises that a client can break, judged by the events of its drivers, the requests that the proxies saw, and the
//! history of the cluster.
//!
//! All times are of the clock that counts suspend, which the suite, the nodes and the clients share. There is no
//! tolerance: a proxy gets a request after the client has read its clock, and the observer sees a transition after its
//! commit. A clock with a low resolution only makes a reading earlier.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tenure::token::FencingToken;
use tenure::types::{HolderId, LeaseName};

use crate::judge::history::{Belief, Ended, Operation, RequestKind};
use crate::judge::{
    Bounds, Broken, LeaseHistory, Observed as Sees, Transition, current_token_only, grants_survive, holder_stops_first,
    no_early_expiry, one_holder, tokens_rise, unknown_is_said,
};
use crate::link::{Exchange, Traffic};
use crate::session::{Asked, Record, at, token};

static BOUNDS: Bounds = Bounds {
    // All processes read the clock of one machine.
    inside_drift: true,
    shortest_second: 0.99,
    longest_second: 1.01,
    rounding: Duration::ZERO,
    observed: Sees::Later,
    tick: Duration::from_secs(1),
    commit: Duration::from_millis(250),
};

/// A driver and what was seen of it.
#[derive(Clone)]
pub struct Observed {
    pub holder: String,
    pub drift_permille: u32,
    pub record: Arc<Record>,
    pub traffic: Arc<Traffic>,
}

/// The evidence of a case.
pub struct Evidence {
    pub observed: Vec<Observed>,
    /// Grants that a request of the suite began or ended.
    pub touched: Vec<FencingToken>,
}

impl Evidence {
    /// Checks all leases. `transitions` returns those of a lease, in the order of the log.
    pub fn broken(&self, transitions: impl Fn(&str) -> Vec<Transition>) -> Vec<Broken> {
        let views: Vec<View> = self.observed.iter().map(View::new).collect();
        let names: BTreeSet<&str> = views.iter().flat_map(|view| view.asked.iter().filter_map(name_of)).collect();
        let mut broken = Vec::new();
        for name in names {
            let mut judge = |promise, checked: Result<(), String>| {
                broken.extend(checked.err().map(|how| Broken::of_lease(promise, name, how)));
            };
            let seen = transitions(name);
            for view in &views {
                judge("holder_stops_first", view.stops_before_its_deadline(name));
                judge("unknown_is_said", view.refuses_only_certain_outcomes(name));
            }
            self.check_history(&views, name, &seen, &mut judge);
        }
        broken
    }

    fn check_history(
        &self,
        views: &[View],
        name: &str,
        seen: &[Transition],
        judge: &mut impl FnMut(&'static str, Result<(), String>),
    ) {
        let told: Vec<Operation> = views.iter().flat_map(|view| view.told(name)).collect();
        let sent: Vec<Operation> = views.iter().flat_map(|view| view.sent(name)).collect();
        let history = |operations, transitions| LeaseHistory { operations, queues: &[], transitions, bounds: &BOUNDS };
        judge("one_holder", one_holder::check(&history(&told, seen)));
        judge("tokens_rise", tokens_rise::check(&history(&told, seen)));
        judge("grants_survive", grants_survive::check(&history(&told, seen)));
        judge("no_early_expiry", no_early_expiry::check(&history(&sent, seen)));
        judge("current_token_only", current_token_only::check(&history(&sent, seen)));

        // The other holders of a case are no clients under test, and nothing records their requests.
        let is_own = |seen: &&Transition| {
            views.iter().any(|view| view.holder == seen.holder) && !self.touched.contains(&seen.token)
        };
        let own: Vec<Transition> = seen.iter().filter(is_own).cloned().collect();
        let ends = sent.iter().filter(|sent| !matches!(sent.what, RequestKind::Acquire { .. }));
        let all: Vec<Operation> = told.iter().chain(ends).cloned().collect();
        judge("unknown_is_said", unknown_is_said::check(&history(&all, &own)));

        let beliefs: Vec<Belief> = views.iter().flat_map(|view| view.beliefs(name)).collect();
        for belief in &beliefs {
            judge("holder_stops_first", holder_stops_first::check(seen, belief.token, belief.until, belief));
        }
        let certain: Vec<Belief> = beliefs.into_iter().filter(|belief| !self.touched.contains(&belief.token)).collect();
        if history(&told, seen).limit() == 1 {
            judge("one_holder", holder_stops_first::check_overlaps(&[], &certain));
        }
    }
}

/// The evidence of one driver.
struct View {
    holder: String,
    drift_permille: u32,
    asked: Vec<Asked>,
    events: Vec<Value>,
    exchanges: Vec<Exchange>,
}

impl View {
    fn new(observed: &Observed) -> View {
        let (asked, events) = (observed.record.asked(), observed.record.events());
        let exchanges = observed.traffic.exchanges();
        View { holder: observed.holder.clone(), drift_permille: observed.drift_permille, asked, events, exchanges }
    }

    /// Each event of work is before the deadline that the responses until then allow.
    fn stops_before_its_deadline(&self, name: &str) -> Result<(), String> {
        for event in self.events.iter().filter(|event| event["event"] == "work" && event["lease"] == name) {
            let (token, at) = (token(event), at(event));
            let answered = self.exchanges.iter().filter(|exchange| exchange.answered.is_some_and(|then| then <= at));
            let deadlines = answered.filter_map(|exchange| {
                let ttl = granted_ttl(exchange, name, token)?;
                Some(ttl.map(|ttl| exchange.received + ttl - ttl * self.drift_permille / 1000))
            });
            // An infinite ttl has no deadline.
            let deadline = deadlines.max_by_key(|deadline| deadline.unwrap_or(Duration::MAX));
            match deadline {
                None => return Err(format!("{event}, but no response granted this token")),
                Some(Some(deadline)) if at >= deadline => {
                    return Err(format!("{event} is {:?} after its deadline", at - deadline));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// A request without a response may be done, so a later refusal proves nothing.
    fn refuses_only_certain_outcomes(&self, name: &str) -> Result<(), String> {
        let path = format!("/v1/leases/{name}/acquire");
        for asked in self.asked.iter().filter(|asked| name_of(asked) == Some(name)) {
            let is_certain = match asked.response["outcome"].as_str() {
                // With this code, the lease was granted, and the grant ended before the client had it.
                Some("refused") => asked.response["code"] != "lost",
                outcome => outcome == Some("unavailable"),
            };
            let (Some(returned), true, true) = (asked.returned, is_certain, is_acquire(asked)) else { continue };
            let lost = self.exchanges.iter().find(|exchange| {
                exchange.path == path
                    && (asked.invoked..returned).contains(&exchange.received)
                    && exchange.answered.is_none_or(|answered| answered > returned)
            });
            if let Some(lost) = lost {
                return Err(format!("{asked:?}, but {lost:?} has no response"));
            }
        }
        Ok(())
    }

    /// The commands and their outcomes.
    fn told(&self, name: &str) -> Vec<Operation> {
        let mut held = None;
        let mut told = Vec::new();
        for asked in self.asked.iter().filter(|asked| name_of(asked) == Some(name)) {
            let outcome = asked.response["outcome"].as_str();
            let done = match outcome {
                Some("held") => {
                    held = asked.response["token"].as_str().and_then(|token| token.parse().ok()).or(held);
                    // The ttl of the answer is in the requests of the client.
                    Ended::Held(
                        held.unwrap_or_else(no_token),
                        Some(1).filter(|_| asked.command["ttl_ms"] != "infinite"),
                    )
                }
                Some("handed_over") => Ended::Held(held.unwrap_or_else(no_token), Some(1)),
                Some("released") => Ended::Changed(asked.response["was_held"] == true),
                Some("unknown" | "cancelled") | None => Ended::Unknown,
                // The lease was granted, and the grant ended before the client had it.
                Some("refused") if asked.response["code"] == "lost" => Ended::Unknown,
                Some("lost") => Ended::Unknown,
                Some(other) => Ended::Refused(asked.response["code"].as_str().unwrap_or(other).to_owned()),
            };
            let what = match asked.command["op"].as_str() {
                Some("acquire" | "work" | "campaign") => acquire(&asked.command),
                Some("release") => RequestKind::Release { token: held.unwrap_or_else(no_token) },
                Some("hand_over") => RequestKind::HandOver { token: held.unwrap_or_else(no_token) },
                _ => continue,
            };
            told.push(self.operation(name, what, (asked.invoked, asked.returned), done));
        }
        told
    }

    /// The requests that reached a node, and their responses.
    fn sent(&self, name: &str) -> Vec<Operation> {
        let mut sent = Vec::new();
        for exchange in self.exchanges.iter().filter(|exchange| exchange.forwarded) {
            let (begun, answer) = ((exchange.received, exchange.answered), &exchange.answer);
            if exchange.is("/renew") {
                for token in exchange.tokens() {
                    let renewed = granted_ttl(exchange, name, token);
                    let ended = renewed.map(|ttl| Ended::Held(token, ttl.map(|ttl| ttl.as_millis() as u64)));
                    if let Some(ended) = ended {
                        sent.push(self.operation(name, RequestKind::Renew { token }, begun, ended));
                    }
                }
            }
            let of_lease = exchange.path.strip_prefix(&format!("/v1/leases/{name}/"));
            let (what, done) = match (of_lease, exchange.tokens().first()) {
                (Some("release"), Some(token)) => {
                    (RequestKind::Release { token: *token }, Ended::Changed(answer["released"] == true))
                }
                (Some("handover"), Some(token)) => {
                    (RequestKind::HandOver { token: *token }, Ended::Held(*token, Some(1)))
                }
                (Some("acquire"), _) if exchange.is_done() => {
                    let granted = token(answer);
                    let left = answer["expires_in_ms"].as_u64().min(answer["ttl_ms"].as_u64());
                    (acquire(&exchange.body), Ended::Held(granted, left))
                }
                _ => continue,
            };
            let ended = match exchange.status {
                Some(200) => done,
                None | Some(500..) => Ended::Unknown,
                Some(_) => Ended::Refused(answer["code"].as_str().unwrap_or_default().to_owned()),
            };
            sent.push(self.operation(name, what, begun, ended));
        }
        sent
    }

    /// The periods in which the driver worked or led.
    fn beliefs(&self, name: &str) -> Vec<Belief> {
        let is_belief = |event: &&Value| {
            let (lease, election) = (event["lease"] == name, event["election"] == name);
            lease && event["event"] == "work"
                || election && (event["event"] == "elected" || event["event"] == "deposed")
        };
        let mut periods: BTreeMap<FencingToken, (Duration, Duration)> = BTreeMap::new();
        for event in self.events.iter().filter(is_belief) {
            let at = at(event);
            let (from, until) = periods.entry(token(event)).or_insert((at, at));
            (*from, *until) = ((*from).min(at), (*until).max(at));
        }
        let (by, name) = (self.by(), LeaseName::new(name).expect("a name of the suite"));
        let belief = |(token, (from, until))| Belief { by: by.clone(), name: name.clone(), token, from, until };
        periods.into_iter().map(belief).collect()
    }

    fn operation(
        &self,
        name: &str,
        what: RequestKind,
        (invoked, returned): (Duration, Option<Duration>),
        ended: Ended,
    ) -> Operation {
        let name = LeaseName::new(name).expect("a name of the suite");
        Operation { by: self.by(), name, what, invoked, returned, ended, index: None }
    }

    fn by(&self) -> HolderId {
        HolderId::new(self.holder.as_str()).expect("a holder of the suite")
    }
}

/// For outcomes without a token. No transition has it.
fn no_token() -> FencingToken {
    FencingToken::try_from(1_u64).expect("a token of term 0")
}

fn name_of(asked: &Asked) -> Option<&str> {
    asked.command["lease"].as_str().or(asked.command["election"].as_str())
}

fn is_acquire(asked: &Asked) -> bool {
    matches!(asked.command["op"].as_str(), Some("acquire" | "work"))
}

fn acquire(fields: &Value) -> RequestKind {
    let number = |field: &str| fields[field].as_u64();
    RequestKind::Acquire {
        ttl_ms: number("ttl_ms").or((fields["ttl_ms"] != "infinite").then_some(30_000)),
        limit: number("limit").unwrap_or(1) as u32,
        wait: number("wait_ms").is_some_and(|wait| wait > 0) || fields["op"] == "campaign",
        lock_delay_ms: number("lock_delay_ms").unwrap_or(0),
    }
}

/// The time for which a response grants or renews a lease with this token. The inner `None` is an infinite ttl.
fn granted_ttl(exchange: &Exchange, name: &str, token: FencingToken) -> Option<Option<Duration>> {
    let (path, answer) = (exchange.path.as_str(), &exchange.answer);
    let lease = match path.strip_prefix("/v1/leases/").and_then(|path| path.strip_prefix(name)) {
        Some("/acquire" | "/renew") => answer,
        None if path == "/v1/renew" => {
            &answer["results"].as_array()?.iter().find(|item| item["name"] == name)?["lease"]
        }
        _ => return None,
    };
    let is_of_token = lease["token"].as_str().and_then(|text| text.parse().ok()) == Some(token);
    if !exchange.is_done() || !is_of_token {
        return None;
    }
    // An acquire by the holder with a shorter ttl does not restart a longer one.
    let left = lease["expires_in_ms"].as_u64().filter(|_| exchange.is("/acquire"));
    let ttl = lease["ttl_ms"].as_u64().map(|ttl| left.map_or(ttl, |left| left.min(ttl)));
    Some(ttl.map(Duration::from_millis))
}
