//! Client processes, each with its own lease manager, and their beliefs about held leases.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use tenure::client::{CallError, Lease, LeaseManager, LeaseOptions, ManagerOptions, Wait};
use tenure::lease::{
    Acquire, Command, Explanation, LeaseState, ListFilter, Machine, Outcome, Refusal, Renewal, StateFilter,
};
use tenure::node::{Answer, Consistency, Forward, Query, Request, RequestError, Response};
use tenure::token::FencingToken;
use tenure::types::{HolderId, LeaseName, Metadata, Ttl};
use tokio::task::JoinSet;

use super::clock::DriftingClock;
use super::judge::history::{Belief, Ended, RequestKind};
use super::recording_client::{RecordingClient, SendOptions};
use super::world::{WorkStep, World, lock};

/// The leases of the simulation, with their limits.
pub const LEASES: [(&str, u32); 4] = [("a", 1), ("b", 1), ("c", 1), ("pool", 2)];
/// The longest ttl that a client requests.
pub const LONGEST_TTL: Duration = Duration::from_millis(4_000);
pub const LONGEST_DELAY: Duration = Duration::from_millis(500);

/// Timeout of a request that a client sends without its lease manager.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(8);
/// Maximum delay of the duplicate of a metadata update.
const MAX_DUPLICATE_DELAY_MS: u64 = 3_000;
/// The key of the metadata that tells one update from the others.
const TAG: &str = "tag";
/// Interval between two steps of work under a guard.
const STEP_INTERVAL: Duration = Duration::from_millis(10);

/// All lease names of a run: those of the clients, and `probe`.
pub fn leases() -> impl Iterator<Item = LeaseName> {
    LEASES.iter().map(|(name, _)| *name).chain(["probe"]).map(|name| LeaseName::new(name).expect("valid"))
}

/// Runs client `number` until it is aborted. Its process dies now and then, and a new one replaces it.
pub async fn run(world: Arc<World>, number: u64) {
    let mut rng = world.rng(2_000 + number);
    for generation in 0.. {
        let holder = HolderId::new(format!("c{number}.{generation}")).expect("valid");
        let lifetime = Duration::from_millis(rng.random_range(4_000..30_000));
        let at = world.random_node(&mut rng);
        let client = RecordingClient::new(world.clone(), at, world.rng(5_000 + 100 * number + generation));
        // More choices, with their own random numbers: a seed keeps its other choices.
        let mut more = world.rng(15_000 + 100 * number + generation);
        let mut beliefs = JoinSet::new();
        let died = {
            let process = ClientProcess::new(world.clone(), client.clone(), number, holder.clone(), &mut beliefs);
            tokio::time::timeout(lifetime, world.client_time(number).run_with(process.work(&mut rng, &mut more))).await
        };
        assert!(died.is_err(), "a client process works until it dies");
        // A dead process does nothing, not even a release.
        client.close();
        beliefs.shutdown().await;
        end_beliefs(&world, &holder);
        world.count_fault("client_crash");
    }
}

/// Ends all beliefs of a holder now.
pub fn end_beliefs(world: &World, holder: &HolderId) {
    let now = world.now();
    for belief in lock(&world.history).beliefs.iter_mut().filter(|belief| belief.by == *holder) {
        belief.until = belief.until.min(now);
    }
}

struct ClientProcess {
    world: Arc<World>,
    client: RecordingClient,
    holder: HolderId,
    leases: Vec<Lease>,
    /// The version of the metadata of each grant, as far as this process knows.
    versions: Mutex<BTreeMap<(LeaseName, FencingToken), u64>>,
    /// Must stay alive: a drop of the manager releases all leases.
    _manager: LeaseManager,
}

impl ClientProcess {
    fn new(
        world: Arc<World>,
        client: RecordingClient,
        number: u64,
        holder: HolderId,
        beliefs: &mut JoinSet<()>,
    ) -> ClientProcess {
        let rate = world.plan.client_rates[number as usize];
        let suspended_rate = if world.plan.planted.ignores_suspend { 0.0 } else { rate };
        let clock = DriftingClock::new(world.began, Duration::from_secs(7 * number), rate);
        let clock = Arc::new(clock.of_machine(world.client_time(number).clone(), suspended_rate));
        let options = ManagerOptions::new().holder(holder.clone()).clock(clock.clone());
        let manager = LeaseManager::with_options(client.clone(), options).expect("valid options");
        let leases: Vec<Lease> = LEASES.iter().map(|(name, _)| manager.lease(name).expect("valid")).collect();
        for lease in &leases {
            beliefs.spawn(record_beliefs(world.clone(), number, clock.clone(), lease.clone()));
        }
        ClientProcess { world, client, holder, leases, versions: Mutex::default(), _manager: manager }
    }

    async fn work(&self, rng: &mut StdRng, more: &mut StdRng) {
        loop {
            tokio::time::sleep(Duration::from_millis(rng.random_range(2..250))).await;
            let index = rng.random_range(0..LEASES.len());
            let lease = &self.leases[index];
            if more.random_bool(0.03) {
                self.update_metadata(lease, more).await;
            }
            match rng.random_range(0..100) {
                0..24 => self.acquire(lease, LEASES[index].1, rng, more).await,
                24..30 => self.work_under_a_guard(lease, LEASES[index].1, rng).await,
                30..45 => self.release(lease).await,
                45..52 => self.hand_over(lease, more).await,
                52..54 => self.revoke(lease).await,
                54..60 => self.client.set_node(self.world.random_node(rng)),
                60..66 => self.write(lease, rng),
                66..70 => self.send_with_old_token(lease, rng).await,
                70..72 => self.acquire_again(lease, LEASES[index].1).await,
                72..76 => self.renew_late_and_twice(lease, rng).await,
                76..90 => self.read(lease, self.world.local_read(), more).await,
                _ => self.read(lease, Consistency::Linearizable, more).await,
            }
        }
    }

    async fn acquire(&self, lease: &Lease, limit: u32, rng: &mut StdRng, more: &mut StdRng) {
        self.choose_options(lease, limit, rng);
        let wait = rng.random_range(10..3_000);
        // Some waits are longer than `lease.waiter_timeout_ms`.
        let wait = if more.random_bool(0.25) { 3 * wait } else { wait };
        let wait = if rng.random_bool(0.5) { Wait::UpTo(Duration::from_millis(wait)) } else { Wait::No };
        let acquired = lease.acquire(wait).await;
        self.world.count_work(label(&acquired, ["granted", "refused", "acquire unknown"]));
        self.write(lease, rng);
        self.write(lease, rng);
    }

    /// Chooses another ttl and lock delay for the next acquire.
    fn choose_options(&self, lease: &Lease, limit: u32, rng: &mut StdRng) {
        let ttl = Duration::from_millis(rng.random_range(300..LONGEST_TTL.as_millis() as u64));
        let delay = Duration::from_millis(if rng.random_bool(0.1) {
            rng.random_range(1..LONGEST_DELAY.as_millis() as u64)
        } else {
            0
        });
        let options = LeaseOptions::new().ttl(ttl).limit(limit).lock_delay(delay);
        if !lease.is_held() {
            // Returns the same handle and sets the options of its next acquire.
            self._manager.lease_with(lease.name().as_str(), options).expect("valid");
        }
    }

    /// Works in steps while it holds the lease, and records each step.
    async fn work_under_a_guard(&self, lease: &Lease, limit: u32, rng: &mut StdRng) {
        self.choose_options(lease, limit, rng);
        let steps = rng.random_range(1..300);
        let Ok(guard) = lease.guard(Wait::No).await else { return };
        let (world, name, token) = (&self.world, lease.name().clone(), guard.token());
        let work = async {
            for _ in 0..steps {
                lock(&world.steps).push(WorkStep { name: name.clone(), token, at: world.now() });
                tokio::time::sleep(STEP_INTERVAL).await;
            }
        };
        let worked = guard.while_held(work).await;
        self.world.count_work(if worked.is_ok() { "worked" } else { "work stopped" });
        // After a failed release the lease expires.
        let _ = guard.release().await;
    }

    async fn release(&self, lease: &Lease) {
        let released = lease.release().await;
        self.world.count_work(label(&released, ["released", "release refused", "release unknown"]));
    }

    async fn hand_over(&self, lease: &Lease, more: &mut StdRng) {
        if !lease.is_held() {
            return;
        }
        // The belief ends at the request. After a refused hand-over, the continued belief does not count.
        let now = self.world.now();
        for belief in lock(&self.world.history).beliefs.iter_mut().filter(|belief| belief.by == self.holder) {
            if belief.name == *lease.name() {
                belief.until = belief.until.min(now);
            }
        }
        let to = self.recipient(lease.name(), more);
        let is_named = to.is_some();
        let handed = lease.hand_over(to).await;
        self.world.count_work(label(&handed, ["handed over", "hand-over refused", "hand-over unknown"]));
        if is_named && matches!(handed, Ok(true)) {
            self.world.count_work("handed over to a named waiter");
        }
    }

    /// Chooses a waiter, which may not have reached the leader, or another client, or leaves the choice to the cluster.
    fn recipient(&self, name: &LeaseName, more: &mut StdRng) -> Option<HolderId> {
        match more.random_range(0..10) {
            0 => Some(HolderId::new("stranger").expect("valid")),
            1..5 => {
                let waiting = lock(&self.world.ledger).entries.last()?.machine.queue(name);
                waiting.choose(more).map(|waiter| waiter.holder.clone())
            }
            _ => None,
        }
    }

    /// Replaces the metadata of a held lease. Sometimes a duplicate of the request arrives later.
    async fn update_metadata(&self, lease: &Lease, more: &mut StdRng) {
        let Some(token) = lease.token().filter(|_| lease.is_held()) else { return };
        let (name, holder) = (lease.name().clone(), self.holder.clone());
        let known = (name.clone(), token);
        let version = lock(&self.versions).get(&known).copied().unwrap_or(0);
        let tag = more.random::<u64>().to_string();
        let metadata = Metadata::new([(TAG.to_owned(), tag.clone())].into()).expect("short");
        let command = Command::UpdateMetadata { name: name.clone(), holder: holder.clone(), token, version, metadata };
        let what = RequestKind::UpdateMetadata { token, version, tag };
        if more.random_bool(0.5) {
            let (world, client) = (self.world.clone(), self.client.clone());
            let (of, what, command) = (name.clone(), what.clone(), command.clone());
            let delay = Duration::from_millis(more.random_range(0..MAX_DUPLICATE_DELAY_MS));
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                ask(&world, &client, &holder, &of, what, Request::Change(command)).await;
            });
        }
        match self.request(&name, what, Request::Change(command)).await {
            Ended::Updated { version, .. } => {
                lock(&self.versions).insert(known, version);
                self.world.count_work("metadata updated");
            }
            Ended::Refused(code) if code == "metadata_changed" => {
                lock(&self.versions).insert(known, version + 1);
                self.world.count_work("metadata changed before");
            }
            _ => {}
        }
    }

    async fn revoke(&self, lease: &Lease) {
        let command = Command::Revoke { name: lease.name().clone(), reason: "simulated".into() };
        let ended = self.request(lease.name(), RequestKind::Revoke, Request::Change(command)).await;
        self.world.count_work(if ended == Ended::Unknown { "revoke unknown" } else { "revoked" });
    }

    async fn read(&self, lease: &Lease, consistency: Consistency, more: &mut StdRng) {
        let name = lease.name().clone();
        let query = match more.random_range(0..10) {
            0..2 => Query::Explain { name, holder: None },
            2..4 => {
                let filter = ListFilter { prefix: name.to_string(), holder: None, states: vec![StateFilter::Active] };
                Query::List { filter, after: None, limit: 100 }
            }
            4 => Query::Queue(name),
            5 => Query::History(name),
            _ => Query::Lease(name),
        };
        let ended = self.request(lease.name(), RequestKind::Read, Request::Read { query, consistency }).await;
        self.world.count_work(if matches!(ended, Ended::Saw(..) | Ended::Showed) { "read" } else { "read refused" });
    }

    /// Writes to the resource that the lease protects. The write may arrive late, as after a pause of the process.
    fn write(&self, lease: &Lease, rng: &mut StdRng) {
        let Some(token) = lease.token().filter(|_| lease.is_held() && lease.name().as_str() != "pool") else { return };
        let late = if rng.random_bool(0.3) { rng.random_range(0..8_000) } else { rng.random_range(0..20) };
        let (world, name, by) = (self.world.clone(), lease.name().clone(), self.holder.clone());
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(late)).await;
            lock(&world.registers).write(&name, token, &by, world.now(), !world.plan.planted.no_fence);
            world.count_work("written");
        });
    }

    /// Sends a request with the token of an ended lease, as after a long delay of the message.
    async fn send_with_old_token(&self, lease: &Lease, rng: &mut StdRng) {
        let (name, holder) = (lease.name().clone(), self.holder.clone());
        let past: Vec<_> = {
            let history = lock(&self.world.history);
            let own = history.beliefs.iter().filter(|belief| belief.by == holder && belief.name == name);
            own.filter(|belief| belief.until < self.world.now()).map(|belief| belief.token).collect()
        };
        let Some(&token) = past.choose(rng).filter(|token| lease.token() != Some(**token)) else { return };
        let (what, command) = match rng.random_range(0..3) {
            0 => (RequestKind::Release { token }, Command::Release { name: name.clone(), holder, token }),
            1 => {
                let command = Command::HandOver { name: name.clone(), holder, token, to: None };
                (RequestKind::HandOver { token, to: None }, command)
            }
            _ => {
                let leases = vec![Renewal { name: name.clone(), token, ttl: None }];
                (RequestKind::Renew { token }, Command::Renew { holder, leases })
            }
        };
        self.request(&name, what, Request::Change(command)).await;
        self.world.count_work("asked late");
    }

    /// Acquires a held lease again, as a retry does.
    async fn acquire_again(&self, lease: &Lease, limit: u32) {
        if !lease.is_held() {
            return;
        }
        let (name, holder, ttl_ms) = (lease.name().clone(), self.holder.clone(), 2_000);
        let claim = Acquire {
            name: name.clone(),
            holder,
            ttl: Ttl::millis(ttl_ms).expect("valid"),
            wait_ms: None,
            lock_delay_ms: 0,
            limit,
            metadata: Metadata::default(),
        };
        self.request(
            &name,
            RequestKind::Acquire { ttl_ms: Some(ttl_ms), limit, wait_ms: None, lock_delay_ms: 0 },
            Request::Acquire(claim),
        )
        .await;
        self.world.count_work("asked again");
    }

    /// Renews with a long ttl, and then with a short one, once or twice. This is a delayed older renewal.
    async fn renew_late_and_twice(&self, lease: &Lease, rng: &mut StdRng) {
        let Some(token) = lease.token().filter(|_| lease.is_held()) else { return };
        let (name, holder) = (lease.name().clone(), self.holder.clone());
        let longest = LONGEST_TTL.as_millis() as u64;
        let short = rng.random_range(100..longest / 2);
        let mut ttls = vec![rng.random_range(longest / 2..longest), short];
        if rng.random_bool(0.5) {
            ttls.push(short);
        }
        for ttl_ms in ttls {
            let leases = vec![Renewal { name: name.clone(), token, ttl: Some(Ttl::millis(ttl_ms).expect("valid")) }];
            let command = Command::Renew { holder: holder.clone(), leases };
            self.request(&name, RequestKind::Renew { token }, Request::Change(command)).await;
            tokio::time::sleep(Duration::from_millis(rng.random_range(0..400))).await;
        }
        self.world.count_work("renewed late and twice");
    }

    /// Sends a request directly to the node, as the HTTP listener does.
    async fn request(&self, name: &LeaseName, what: RequestKind, request: Request) -> Ended {
        ask(&self.world, &self.client, &self.holder, name, what, request).await
    }
}

async fn ask(
    world: &World,
    client: &RecordingClient,
    by: &HolderId,
    name: &LeaseName,
    what: RequestKind,
    request: Request,
) -> Ended {
    let begun = lock(&world.history).begin(by, name, what.clone(), world.now());
    world.trace(|| format!("{by} at {} asks {name} {what:?}", client.node()));
    let query = match &request {
        Request::Read { query, .. } => Some(query.clone()),
        _ => None,
    };
    let sent = client.send(SendOptions::once(REQUEST_TIMEOUT), move |node| {
        Box::pin(async move {
            match node.request(request, Forward::Once).await {
                Ok(response) => Ok(response),
                Err(RequestError::Unknown(why)) => Err(CallError::Unknown { why, last: None }),
                Err(error) => Err(CallError::Unavailable(error.to_string())),
            }
        })
    });
    let answer = sent.await;
    if let (Some(query), Ok(response)) = (&query, &answer) {
        check_state(world, query, response);
    }
    let ended = match (&what, &answer) {
        (RequestKind::UpdateMetadata { .. }, Ok(response)) => updated(response),
        (_, answer) => answer.as_ref().map_or_else(super::recording_client::failure, outcome_of),
    };
    world.trace(|| format!("op {begun} {ended:?}"));
    let shown = answer.ok().filter(|_| ended == Ended::Showed).map(|response| response.served.applied);
    let mut history = lock(&world.history);
    history.end(begun, ended.clone(), world.now());
    if shown.is_some() {
        history.operations[begun].index = shown;
    }
    ended
}

/// Reports a read whose answer is not the state of the log at its index.
fn check_state(world: &World, query: &Query, response: &Response) {
    let expected = lock(&world.ledger).entry(response.served.applied).map(|entry| state_of(&entry.machine, query));
    if expected.is_some_and(|expected| expected != response.answer) {
        world.report_violation("reads_are_current", format!("{query:?} was answered with another state: {response:?}"));
    }
}

/// The answer of a state with few leases and waiters.
fn state_of(machine: &Machine, query: &Query) -> Answer {
    match query {
        Query::Lease(name) => match machine.holders(name).0 {
            held if held.is_empty() => Answer::Lease(machine.last_ended(name).into_iter().collect()),
            held => Answer::Lease(held),
        },
        Query::History(name) => Answer::History(machine.history(name)),
        Query::Queue(name) => Answer::Queue(machine.queue(name)),
        Query::Explain { name, holder } => Answer::Explain(machine.explain(name, holder.as_ref())),
        Query::List { filter, after, limit } => {
            let (leases, next) = machine.list(filter, after.as_ref(), *limit as usize);
            Answer::List { leases, next }
        }
    }
}

fn updated(response: &Response) -> Ended {
    match &response.answer {
        Answer::Outcome(Outcome::Held { lease, .. }) => {
            let tag = lease.metadata.iter().find(|(key, _)| *key == TAG).map(|(_, tag)| tag.to_owned());
            Ended::Updated { version: lease.metadata_version, tag: tag.unwrap_or_default() }
        }
        _ => outcome_of(response),
    }
}

pub fn outcome_of(response: &Response) -> Ended {
    match &response.answer {
        Answer::Lease(leases) | Answer::List { leases, .. } | Answer::Explain(Explanation { held: leases, .. }) => {
            let active = leases.iter().filter(|lease| lease.state == LeaseState::Active);
            Ended::Saw(active.map(|lease| (lease.holder.to_string(), lease.token)).collect(), response.served.applied)
        }
        Answer::Outcome(Outcome::Revoked(count)) => Ended::Changed(*count > 0),
        Answer::Outcome(Outcome::Released(released)) => Ended::Changed(*released),
        Answer::Outcome(Outcome::Held { lease, .. } | Outcome::HandedOver(lease)) => held(lease, response),
        Answer::Outcome(Outcome::Renewed(renewed)) => match &renewed[..] {
            [Ok(lease)] => held(lease, response),
            _ => Ended::Refused("lost".to_owned()),
        },
        Answer::Queue(_) | Answer::History(_) => Ended::Showed,
        Answer::Outcome(Outcome::Refused(Refusal::Held { .. })) => Ended::Refused("held".to_owned()),
        Answer::Outcome(Outcome::Refused(Refusal::Lost(_))) => Ended::Refused("lost".to_owned()),
        Answer::Outcome(Outcome::Refused(Refusal::MetadataChanged { .. })) => {
            Ended::Refused("metadata_changed".to_owned())
        }
        other => Ended::Refused(format!("{other:?}")),
    }
}

/// The result has at most the time left: a lease that is acquired again with a shorter ttl keeps its deadline and ttl.
fn held(lease: &tenure::lease::HolderLease, response: &Response) -> Ended {
    let left = lease.deadline.map(|deadline| deadline.saturating_sub(response.served.now));
    Ended::Held(lease.token, lease.ttl.as_millis().map(|ttl| left.map_or(ttl, |left| left.min(ttl))))
}

fn label<T>(ended: &Result<T, CallError>, [done, refused, unknown]: [&'static str; 3]) -> &'static str {
    match ended {
        Ok(_) => done,
        Err(CallError::Unknown { .. }) => unknown,
        Err(_) => refused,
    }
}

/// Records the true times in which the holder believes that it holds the lease.
///
/// The task reads the belief at each state change and after each suspend, because a suspend changes the time left.
async fn record_beliefs(world: Arc<World>, number: u64, clock: Arc<DriftingClock>, lease: Lease) {
    let (mut states, mut resumes) = (lease.states(), world.client_resumes(number));
    let mut open: Option<usize> = None;
    loop {
        let is_held = states.borrow_and_update().is_held();
        record_belief(&world, &clock, &lease, is_held, &mut open);
        tokio::select! {
            biased;
            changed = states.changed() => if changed.is_err() { return },
            _ = resumes.changed() => {}
        }
    }
}

fn record_belief(world: &World, clock: &DriftingClock, lease: &Lease, is_held: bool, open: &mut Option<usize>) {
    let now = world.now();
    let until = lease.remaining().map(|left| now + clock.in_true_time(left));
    let token = lease.token();
    let beliefs = &mut lock(&world.history).beliefs;
    let known = open.map(|index| beliefs[index].token);
    if let (true, Some(until), Some(token)) = (is_held, until, token) {
        if known == Some(token) {
            beliefs[open.expect("a known token has an open belief")].until = until;
            return;
        }
        let (by, name) = (lease.holder().clone(), lease.name().clone());
        beliefs.push(Belief { by, name, token, from: now, until });
        if let Some(before) = open.replace(beliefs.len() - 1) {
            beliefs[before].until = beliefs[before].until.min(now);
        }
    } else if let Some(before) = open.take() {
        beliefs[before].until = beliefs[before].until.min(now);
    }
}
