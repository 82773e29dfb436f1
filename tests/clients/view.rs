//! The evidence of one driver: its answers and events, and the requests that its proxies saw.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tenure::token::FencingToken;
use tenure::types::{HolderId, LeaseName};

use crate::evidence::Observed;
use crate::judge::history::{Belief, Ended, Operation, RequestKind};
use crate::judge::{Transition, held};
use crate::link::Exchange;
use crate::session::{Asked, at, token};

/// The default of the cluster.
const DEFAULT_TTL_MS: u64 = 30_000;
/// The shortest time that a client has for one attempt of a renewal.
const SHORTEST_ATTEMPT: Duration = Duration::from_millis(50);
/// The reasons of a loss that only the cluster knows.
const LOST_BY_THE_CLUSTER: [&str; 6] = ["expired", "revoked", "released", "handed_over", "restored", "forgotten"];

/// The evidence of one driver.
pub struct View {
    pub holder: String,
    drift_permille: u32,
    pub asked: Vec<Asked>,
    events: Vec<Value>,
    exchanges: Vec<Exchange>,
    /// The end of the driver, or of the case.
    until: Duration,
}

impl View {
    pub fn new(observed: &Observed, now: Duration) -> View {
        View {
            holder: observed.holder.clone(),
            drift_permille: observed.drift_permille,
            asked: observed.record.asked(),
            events: observed.record.events(),
            exchanges: observed.traffic.exchanges(),
            until: observed.record.ended().unwrap_or(now),
        }
    }

    /// The candidates of this driver, each with its holder.
    pub fn candidates(&self) -> impl Iterator<Item = (&str, &str)> {
        let names = self.asked.iter().filter_map(|asked| asked.command["candidate"].as_str());
        names.map(|candidate| (candidate, self.holder.as_str()))
    }

    /// Each event of work is before the deadline that the responses until then allow.
    pub fn stops_before_its_deadline(&self, name: &str) -> Result<(), String> {
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
    pub fn refuses_only_certain_outcomes(&self, name: &str) -> Result<(), String> {
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

    /// The commands and their outcomes. Each election of a campaign is an acquire.
    pub fn told(&self, name: &str) -> Vec<Operation> {
        let options = self.options(name);
        let ttl_ms = ttl_ms(options);
        let mut held: Option<FencingToken> = None;
        let mut told: Vec<Operation> = Vec::new();
        for asked in self.asked.iter().filter(|asked| name_of(asked) == Some(name)) {
            let done = match asked.response["outcome"].as_str() {
                Some("held") => {
                    held = asked.response["token"].as_str().and_then(|token| token.parse().ok()).or(held);
                    let token = held.unwrap_or_else(no_token);
                    // The rest of an earlier grant is not known.
                    let is_known = told.iter().any(|earlier| earlier.granted() == Some(token));
                    Ended::Held(token, ttl_ms.map(|ttl_ms| if is_known { 0 } else { ttl_ms }))
                }
                // The driver does not tell the new grant.
                Some("handed_over") => Ended::Changed(true),
                Some("released") => Ended::Changed(asked.response["was_held"] == true),
                Some("unknown" | "cancelled") | None => Ended::Unknown,
                // The lease was granted, and the grant ended before the client had it.
                Some("refused") if asked.response["code"] == "lost" => Ended::Unknown,
                Some("lost") => Ended::Unknown,
                Some(other) => Ended::Refused(asked.response["code"].as_str().unwrap_or(other).to_owned()),
            };
            let what = match asked.command["op"].as_str() {
                Some("acquire" | "work" | "campaign") => acquire(options, &asked.command),
                Some("release") => RequestKind::Release { token: held.unwrap_or_else(no_token) },
                Some("hand_over") => RequestKind::HandOver { token: held.unwrap_or_else(no_token), to: None },
                _ => continue,
            };
            told.push(self.operation(name, what, (asked.invoked, asked.returned), done));
            if asked.command["op"] == "campaign" {
                told.extend(self.elections(name, asked));
            }
        }
        told
    }

    /// The elections of a campaign.
    fn elections(&self, name: &str, campaign: &Asked) -> Vec<Operation> {
        let next = self.asked.iter().find(|asked| {
            asked.command["op"] == "campaign" && name_of(asked) == Some(name) && asked.invoked > campaign.invoked
        });
        let period = campaign.invoked..next.map_or(Duration::MAX, |next| next.invoked);
        let elected =
            |event: &&Value| event["event"] == "elected" && event["election"] == name && period.contains(&at(event));
        let operation = |event: &Value| {
            let what = acquire(&campaign.command, &campaign.command);
            let done = Ended::Held(token(event), ttl_ms(&campaign.command));
            self.operation(name, what, (campaign.invoked, Some(at(event))), done)
        };
        self.events.iter().filter(elected).map(operation).collect()
    }

    /// The acquired grants, and their extensions by renewals until the client stopped counting them as held. Later
    /// requests of the client must not extend them.
    pub fn kept(&self, name: &str) -> Vec<Operation> {
        let mut kept = Vec::new();
        for told in self.told(name).into_iter().filter(|told| matches!(told.what, RequestKind::Acquire { .. })) {
            if let (Some(token), Some(ttl_ms), Some(returned)) =
                (told.granted(), ttl_ms(self.options(name)), told.returned)
            {
                let last = self.last_request(name, self.end_of_hold(name, returned), Duration::from_millis(ttl_ms));
                let (what, done) = (RequestKind::Renew { token }, Ended::Held(token, Some(ttl_ms)));
                kept.push(self.operation(name, what, (returned, Some(last)), done));
            }
            kept.push(told);
        }
        kept
    }

    /// When the client stopped counting a grant as held that it had at `from`.
    fn end_of_hold(&self, name: &str, from: Duration) -> Duration {
        let is_end = |event: &&Value| {
            event["event"] == "state"
                && event["lease"] == name
                && (event["state"] == "lost" || event["state"] == "released")
        };
        let ends = self.events.iter().filter(is_end).map(at).filter(|at| *at > from);
        ends.min().unwrap_or(self.until)
    }

    /// The latest time at which a node can get a renewal that began before `end`.
    fn last_request(&self, name: &str, end: Duration, ttl: Duration) -> Duration {
        let last = end + (ttl / 3).max(SHORTEST_ATTEMPT);
        let of_lease =
            |exchange: &&Exchange| exchange.is("/renew") || exchange.path == format!("/v1/leases/{name}/acquire");
        let begun = self.exchanges.iter().filter(of_lease).filter(|exchange| exchange.received <= last);
        begun.filter_map(|exchange| exchange.forwarded).fold(last, Duration::max)
    }

    /// The tokens that the client named as those of its current grant. A client that says so could renew the grant.
    pub fn named(&self, name: &str) -> Vec<Operation> {
        let is_held = |asked: &&Asked| {
            name_of(asked) == Some(name)
                && (asked.response["held"] == true
                    || asked.command["op"] == "check" && asked.response["outcome"] == "held")
                && asked.response["token"].is_string()
        };
        let said = self.asked.iter().filter(is_held).map(|asked| (token(&asked.response), asked.invoked));
        let worked = self.beliefs(name).into_iter().map(|belief| (belief.token, belief.until));
        let operation =
            |(token, at)| self.operation(name, RequestKind::Renew { token }, (at, None), Ended::Held(token, Some(1)));
        said.chain(worked).map(operation).collect()
    }

    /// The results of `check`, with the transitions of this holder.
    pub fn checks(&self, name: &str, own: &[Transition]) -> Vec<Operation> {
        let mut last = None;
        let mut checks = Vec::new();
        for asked in self.asked.iter().filter(|asked| name_of(asked) == Some(name)) {
            last = asked.response["token"].as_str().and_then(|token| token.parse().ok()).or(last);
            if asked.command["op"] != "check" {
                continue;
            }
            let saw = match (asked.response["outcome"].as_str(), last) {
                (Some("held"), Some(token)) => vec![(self.holder.clone(), token)],
                (Some("lost"), _) if LOST_BY_THE_CLUSTER.iter().any(|why| asked.response["why"] == *why) => Vec::new(),
                _ => continue,
            };
            let is_it = |held: &[&Transition]| {
                held.iter().map(|grant| (&grant.holder, grant.token)).eq(saw.iter().map(|(by, token)| (by, *token)))
            };
            let index = index_of_read(own, asked.invoked, is_it);
            checks.push(self.read(name, asked, Ended::Saw(saw.clone(), index)));
        }
        checks
    }

    /// The results of `leader`. `candidates` has the holders of the candidates.
    pub fn leaders(&self, name: &str, seen: &[Transition], candidates: &BTreeMap<&str, &str>) -> Vec<Operation> {
        let reads = self.asked.iter().filter(|asked| {
            asked.command["op"] == "leader" && name_of(asked) == Some(name) && asked.response.get("leader").is_some()
        });
        let operation = |asked: &Asked| {
            let leader = asked.response["leader"].as_str();
            let holder = leader.map(|leader| candidates.get(leader).copied().unwrap_or(leader));
            let is_it = |held: &[&Transition]| held.iter().map(|grant| grant.holder.as_str()).eq(holder);
            let index = index_of_read(seen, asked.invoked, is_it);
            let held = held(seen.iter().take_while(|seen| seen.index <= index));
            let saw = if is_it(&held) {
                held.iter().map(|grant| (grant.holder.clone(), grant.token)).collect()
            } else {
                holder.map(|holder| (holder.to_owned(), no_token())).into_iter().collect()
            };
            self.read(name, asked, Ended::Saw(saw, index))
        };
        reads.map(operation).collect()
    }

    fn read(&self, name: &str, asked: &Asked, saw: Ended) -> Operation {
        self.operation(name, RequestKind::Read, (asked.invoked, asked.returned), saw)
    }

    /// The command that sets the options of a lease or an election.
    fn options(&self, name: &str) -> &Value {
        let is_first =
            |asked: &&Asked| name_of(asked) == Some(name) && (is_acquire(asked) || asked.command["op"] == "campaign");
        self.asked.iter().find(is_first).map_or(&Value::Null, |asked| &asked.command)
    }

    /// The requests that reached a node, and their responses.
    pub fn sent(&self, name: &str) -> Vec<Operation> {
        let mut sent = Vec::new();
        for exchange in self.exchanges.iter().filter(|exchange| exchange.forwarded.is_some()) {
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
                    (RequestKind::HandOver { token: *token, to: None }, Ended::Changed(true))
                }
                (Some("acquire"), _) if exchange.is_done() => {
                    let granted = token(answer);
                    let left = answer["expires_in_ms"].as_u64().min(answer["ttl_ms"].as_u64());
                    (acquire(&exchange.body, &exchange.body), Ended::Held(granted, left))
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

    /// The periods in which the driver worked or led. A leader that was not deposed leads until the end of the driver.
    pub fn beliefs(&self, name: &str) -> Vec<Belief> {
        let is_belief = |event: &&Value| {
            let (lease, election) = (event["lease"] == name, event["election"] == name);
            lease && event["event"] == "work"
                || election && (event["event"] == "elected" || event["event"] == "deposed")
        };
        let mut periods: BTreeMap<FencingToken, (Duration, Duration)> = BTreeMap::new();
        for event in self.events.iter().filter(is_belief) {
            let at = at(event);
            let is_over = event["event"] != "elected" || self.is_deposed(token(event));
            let end = if is_over { at } else { self.until };
            let (from, until) = periods.entry(token(event)).or_insert((at, end));
            (*from, *until) = ((*from).min(at), (*until).max(end));
        }
        let (by, name) = (self.by(), LeaseName::new(name).expect("a name of the suite"));
        let belief = |(token, (from, until))| Belief { by: by.clone(), name: name.clone(), token, from, until };
        periods.into_iter().map(belief).collect()
    }

    fn is_deposed(&self, leader: FencingToken) -> bool {
        self.events.iter().any(|event| event["event"] == "deposed" && token(event) == leader)
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

pub fn name_of(asked: &Asked) -> Option<&str> {
    asked.command["lease"].as_str().or(asked.command["election"].as_str())
}

fn is_acquire(asked: &Asked) -> bool {
    matches!(asked.command["op"].as_str(), Some("acquire" | "work"))
}

/// The claim of a command, with the options that the first command for its lease has set.
fn acquire(options: &Value, command: &Value) -> RequestKind {
    let number = |fields: &Value, field: &str| fields[field].as_u64();
    RequestKind::Acquire {
        ttl_ms: ttl_ms(options),
        limit: number(options, "limit").unwrap_or(1) as u32,
        wait_ms: number(command, "wait_ms").filter(|wait| *wait > 0).or((command["op"] == "campaign").then_some(0)),
        lock_delay_ms: number(options, "lock_delay_ms").unwrap_or(0),
    }
}

/// `None`: infinite.
fn ttl_ms(options: &Value) -> Option<u64> {
    options["ttl_ms"].as_u64().or((options["ttl_ms"] != "infinite").then_some(DEFAULT_TTL_MS))
}

/// The log index that a read shows: the first one at which the lease was as the client says, from the last transition on
/// that the observer had seen before the read. Without such an index, that of this transition.
fn index_of_read(seen: &[Transition], invoked: Duration, is_it: impl Fn(&[&Transition]) -> bool) -> u64 {
    let floor = seen.iter().filter(|seen| seen.at < invoked).map(|seen| seen.index).max().unwrap_or(0);
    let later = seen.iter().map(|seen| seen.index).filter(|index| *index > floor);
    let at = |index: u64| held(seen.iter().take_while(move |seen| seen.index <= index));
    std::iter::once(floor).chain(later).find(|index| is_it(&at(*index))).unwrap_or(floor)
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
