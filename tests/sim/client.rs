//! Programs that hold leases, each with a manager of its own, and what they believe.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use tenure::client::{CallError, Lease, LeaseManager, LeaseOptions, ManagerOptions, Wait};
use tenure::lease::{Acquire, Command, LeaseState, Outcome, Refusal, Renewal};
use tenure::node::{Answer, Consistency, Forward, Query, Request, RequestError, Response};
use tenure::types::{HolderId, LeaseName, Metadata, Ttl};
use tokio::task::JoinSet;

use super::clock::SkewedClock;
use super::history::{Belief, Ended, What};
use super::recording_client::{Door, Sending};
use super::world::{Step, World, lock};

/// The leases of the simulation, and how many may hold each.
pub const LEASES: [(&str, u32); 4] = [("a", 1), ("b", 1), ("c", 1), ("pool", 2)];
/// The longest ttl that anybody asks for.
pub const LONGEST_TTL: Duration = Duration::from_millis(4_000);

/// How long a program waits for the answer to a request of its own.
const PATIENCE: Duration = Duration::from_secs(8);
/// Between two steps of work under a guard.
const STEP: Duration = Duration::from_millis(10);

/// All names that anything is known of.
pub fn leases() -> impl Iterator<Item = LeaseName> {
    LEASES.iter().map(|(name, _)| *name).chain(["probe"]).map(|name| LeaseName::new(name).expect("valid"))
}

/// Runs client number `number` until it is aborted. Now and then its process dies and another takes its place.
pub async fn run(world: Arc<World>, number: u64) {
    let mut dice = world.dice(2_000 + number);
    for generation in 0.. {
        let holder = HolderId::new(format!("c{number}.{generation}")).expect("valid");
        let life = Duration::from_millis(dice.random_range(4_000..30_000));
        let at = dice.random_range(1..=world.plan.nodes);
        let door = Door::new(world.clone(), at, world.dice(5_000 + 100 * number + generation));
        let mut beliefs = JoinSet::new();
        let died = {
            let program = Program::new(world.clone(), door.clone(), number, holder.clone(), &mut beliefs);
            tokio::time::timeout(life, world.client_pace(number).keep(program.work(&mut dice))).await
        };
        assert!(died.is_err(), "a program works until it dies");
        // From here on nothing of it happens, not even a release.
        door.close();
        beliefs.shutdown().await;
        end_beliefs(&world, &holder);
        world.count_fault("client_crash");
    }
}

/// Nobody of this holder believes anything from now on.
pub fn end_beliefs(world: &World, holder: &HolderId) {
    let now = world.now();
    for belief in lock(&world.history).beliefs.iter_mut().filter(|belief| belief.by == *holder) {
        belief.until = belief.until.min(now);
    }
}

struct Program {
    world: Arc<World>,
    door: Door,
    holder: HolderId,
    leases: Vec<Lease>,
    /// Kept: at its end all would be released.
    _manager: LeaseManager,
}

impl Program {
    fn new(world: Arc<World>, door: Door, number: u64, holder: HolderId, beliefs: &mut JoinSet<()>) -> Program {
        let rate = world.plan.client_rates[number as usize];
        let suspended_rate = if world.plan.planted.deaf_to_suspend { 0.0 } else { rate };
        let clock = SkewedClock::new(world.began, Duration::from_secs(7 * number), rate);
        let clock = Arc::new(clock.of_machine(world.client_pace(number).clone(), suspended_rate));
        let options = ManagerOptions::new().holder(holder.clone()).clock(clock.clone());
        let manager = LeaseManager::with_options(door.clone(), options);
        let leases: Vec<Lease> = LEASES.iter().map(|(name, _)| manager.lease(name).expect("valid")).collect();
        for lease in &leases {
            beliefs.spawn(believe(world.clone(), number, clock.clone(), lease.clone()));
        }
        Program { world, door, holder, leases, _manager: manager }
    }

    async fn work(&self, dice: &mut StdRng) {
        loop {
            tokio::time::sleep(Duration::from_millis(dice.random_range(2..250))).await;
            let place = dice.random_range(0..LEASES.len());
            let lease = &self.leases[place];
            match dice.random_range(0..100) {
                0..24 => self.acquire(lease, LEASES[place].1, dice).await,
                24..30 => self.work_under_a_guard(lease, LEASES[place].1, dice).await,
                30..45 => self.release(lease).await,
                45..52 => self.hand_over(lease).await,
                52..54 => self.revoke(lease).await,
                54..60 => self.door.go_to(dice.random_range(1..=self.world.plan.nodes)),
                60..66 => self.write(lease, dice),
                66..70 => self.ask_late(lease, dice).await,
                70..72 => self.ask_again(lease, LEASES[place].1).await,
                72..76 => self.renew_late_and_twice(lease, dice).await,
                76..90 => self.read(lease, self.world.local_read()).await,
                _ => self.read(lease, Consistency::Linearizable).await,
            }
        }
    }

    async fn acquire(&self, lease: &Lease, limit: u32, dice: &mut StdRng) {
        self.choose_options(lease, limit, dice);
        let wait = dice.random_range(10..3_000);
        let wait = if dice.random_bool(0.5) { Wait::UpTo(Duration::from_millis(wait)) } else { Wait::No };
        let acquired = lease.acquire(wait).await;
        self.world.count_work(word(&acquired, ["granted", "refused", "acquire unknown"]));
        self.write(lease, dice);
        self.write(lease, dice);
    }

    /// Another ttl and lock delay for the next acquire.
    fn choose_options(&self, lease: &Lease, limit: u32, dice: &mut StdRng) {
        let ttl = Duration::from_millis(dice.random_range(300..LONGEST_TTL.as_millis() as u64));
        let delay = Duration::from_millis(if dice.random_bool(0.1) { dice.random_range(1..500) } else { 0 });
        let options = LeaseOptions::new().ttl(ttl).limit(limit).lock_delay(delay);
        if !lease.is_held() {
            // The same handle, with options for its next acquire.
            self._manager.lease_with(lease.name().as_str(), options).expect("valid");
        }
    }

    /// Works in steps as long as it holds the lease, and notes each step.
    async fn work_under_a_guard(&self, lease: &Lease, limit: u32, dice: &mut StdRng) {
        self.choose_options(lease, limit, dice);
        let steps = dice.random_range(1..300);
        let Ok(guard) = lease.guard(Wait::No).await else { return };
        let (world, name, token) = (&self.world, lease.name().clone(), guard.token());
        let work = async {
            for _ in 0..steps {
                lock(&world.steps).push(Step { name: name.clone(), token, at: world.now() });
                tokio::time::sleep(STEP).await;
            }
        };
        let worked = guard.while_held(work).await;
        self.world.count_work(if worked.is_ok() { "worked" } else { "work stopped" });
        // If the release fails, the lease expires.
        let _ = guard.release().await;
    }

    async fn release(&self, lease: &Lease) {
        let released = lease.release().await;
        self.world.count_work(word(&released, ["released", "release refused", "release unknown"]));
    }

    async fn hand_over(&self, lease: &Lease) {
        if !lease.is_held() {
            return;
        }
        // It believes no more from here; if the hand-over is refused, the belief that goes on is not counted.
        let now = self.world.now();
        for belief in lock(&self.world.history).beliefs.iter_mut().filter(|belief| belief.by == self.holder) {
            if belief.name == *lease.name() {
                belief.until = belief.until.min(now);
            }
        }
        let handed = lease.hand_over(None).await;
        self.world.count_work(word(&handed, ["handed over", "hand-over refused", "hand-over unknown"]));
    }

    async fn revoke(&self, lease: &Lease) {
        let command = Command::Revoke { name: lease.name().clone(), reason: "simulated".into() };
        let ended = self.ask(lease.name(), What::Revoke, Request::Change(command)).await;
        self.world.count_work(if ended == Ended::Unknown { "revoke unknown" } else { "revoked" });
    }

    async fn read(&self, lease: &Lease, consistency: Consistency) {
        let read = Request::Read { query: Query::Lease(lease.name().clone()), consistency };
        let ended = self.ask(lease.name(), What::Read, read).await;
        self.world.count_work(if matches!(ended, Ended::Saw(..)) { "read" } else { "read refused" });
    }

    /// Writes to the resource that the lease is for. The write may be long on its way, as that of a process that is
    /// paused in between.
    fn write(&self, lease: &Lease, dice: &mut StdRng) {
        let Some(token) = lease.token().filter(|_| lease.is_held() && lease.name().as_str() != "pool") else { return };
        let late = if dice.random_bool(0.3) { dice.random_range(0..8_000) } else { dice.random_range(0..20) };
        let (world, name) = (self.world.clone(), lease.name().clone());
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(late)).await;
            lock(&world.registers).write(&name, token, world.now(), !world.plan.planted.no_fence);
            world.count_work("written");
        });
    }

    /// Asks with a token that it had: a request that was long on its way, or a program with an old memory.
    async fn ask_late(&self, lease: &Lease, dice: &mut StdRng) {
        let (name, holder) = (lease.name().clone(), self.holder.clone());
        let past: Vec<_> = {
            let history = lock(&self.world.history);
            let own = history.beliefs.iter().filter(|belief| belief.by == holder && belief.name == name);
            own.filter(|belief| belief.until < self.world.now()).map(|belief| belief.token).collect()
        };
        let Some(&token) = past.choose(dice).filter(|token| lease.token() != Some(**token)) else { return };
        let (what, command) = match dice.random_range(0..3) {
            0 => (What::Release { token }, Command::Release { name: name.clone(), holder, token }),
            1 => (What::HandOver { token }, Command::HandOver { name: name.clone(), holder, token, to: None }),
            _ => {
                let leases = vec![Renewal { name: name.clone(), token, ttl: None }];
                (What::Renew { token }, Command::Renew { holder, leases })
            }
        };
        self.ask(&name, what, Request::Change(command)).await;
        self.world.count_work("asked late");
    }

    /// Asks for what it holds, as a request does that is sent again.
    async fn ask_again(&self, lease: &Lease, limit: u32) {
        if !lease.is_held() {
            return;
        }
        let (name, holder, ttl_ms) = (lease.name().clone(), self.holder.clone(), 2_000);
        let claim = Acquire {
            name: name.clone(),
            holder,
            ttl: Ttl::Finite(ttl_ms),
            wait_ms: None,
            lock_delay_ms: 0,
            limit,
            metadata: Metadata::default(),
        };
        self.ask(
            &name,
            What::Acquire { ttl_ms: Some(ttl_ms), limit, wait: false, lock_delay_ms: 0 },
            Request::Acquire(claim),
        )
        .await;
        self.world.count_work("asked again");
    }

    /// Renews for a long ttl, and then sends an older renewal for a short ttl late, and sometimes twice.
    async fn renew_late_and_twice(&self, lease: &Lease, dice: &mut StdRng) {
        let Some(token) = lease.token().filter(|_| lease.is_held()) else { return };
        let (name, holder) = (lease.name().clone(), self.holder.clone());
        let longest = LONGEST_TTL.as_millis() as u64;
        let short = dice.random_range(100..longest / 2);
        let mut ttls = vec![dice.random_range(longest / 2..longest), short];
        if dice.random_bool(0.5) {
            ttls.push(short);
        }
        for ttl_ms in ttls {
            let leases = vec![Renewal { name: name.clone(), token, ttl: Some(Ttl::Finite(ttl_ms)) }];
            let command = Command::Renew { holder: holder.clone(), leases };
            self.ask(&name, What::Renew { token }, Request::Change(command)).await;
            tokio::time::sleep(Duration::from_millis(dice.random_range(0..400))).await;
        }
        self.world.count_work("renewed late and twice");
    }

    /// Puts a request to the node itself, as the HTTP listener does.
    async fn ask(&self, name: &LeaseName, what: What, request: Request) -> Ended {
        let begun = lock(&self.world.history).begin(&self.holder, name, what.clone(), self.world.now());
        self.world.note(|| format!("{} at {} asks {name} {what:?}", self.holder, self.door.at()));
        let asked = self.door.through(Sending::once(PATIENCE), move |node| {
            Box::pin(async move {
                match node.request(request, Forward::Once).await {
                    Ok(response) => Ok(response),
                    Err(RequestError::Unknown(why)) => Err(CallError::Unknown { why, last: None }),
                    Err(error) => Err(CallError::Unavailable(error.to_string())),
                }
            })
        });
        let ended = asked.await.as_ref().map_or_else(super::recording_client::ended, saw);
        self.world.note(|| format!("op {begun} {ended:?}"));
        lock(&self.world.history).end(begun, ended.clone(), self.world.now());
        ended
    }
}

pub fn saw(response: &Response) -> Ended {
    match &response.answer {
        Answer::Lease(leases) => {
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
        Answer::Outcome(Outcome::Refused(Refusal::Held { .. })) => Ended::Refused("held".to_owned()),
        other => Ended::Refused(format!("{other:?}")),
    }
}

/// Held for what is left of it: asked again for less than before, a lease keeps its time and its ttl.
fn held(lease: &tenure::lease::Lease, response: &Response) -> Ended {
    let left = lease.deadline.map(|deadline| deadline.saturating_sub(response.served.now));
    Ended::Held(lease.token, lease.ttl.as_millis().map(|ttl| left.map_or(ttl, |left| left.min(ttl))))
}

fn word<T>(ended: &Result<T, CallError>, [done, refused, unknown]: [&'static str; 3]) -> &'static str {
    match ended {
        Ok(_) => done,
        Err(CallError::Unknown { .. }) => unknown,
        Err(_) => refused,
    }
}

/// Notes when the holder believes to hold, in true time: it is asked nothing, and every change of its mind is seen. After a
/// suspend its clock shows how long it believes from then on.
async fn believe(world: Arc<World>, number: u64, clock: Arc<SkewedClock>, lease: Lease) {
    let (mut states, mut wakes) = (lease.states(), world.client_wakes(number));
    let mut open: Option<usize> = None;
    loop {
        let is_held = states.borrow_and_update().is_held();
        note_belief(&world, &clock, &lease, is_held, &mut open);
        tokio::select! {
            biased;
            changed = states.changed() => if changed.is_err() { return },
            _ = wakes.changed() => {}
        }
    }
}

fn note_belief(world: &World, clock: &SkewedClock, lease: &Lease, is_held: bool, open: &mut Option<usize>) {
    let now = world.now();
    let until = lease.remaining().map(|left| now + clock.in_true_time(left));
    let token = lease.token();
    let beliefs = &mut lock(&world.history).beliefs;
    let known = open.map(|place| beliefs[place].token);
    if let (true, Some(until), Some(token)) = (is_held, until, token) {
        if known == Some(token) {
            beliefs[open.expect("known")].until = until;
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
