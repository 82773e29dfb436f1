//! Clients that acquire, renew, release, hand over, revoke and read leases and update their metadata at random nodes. They
//! record all operations.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use reqwest::Method;
use serde_json::{Value, json};
use tenure::token::FencingToken;
use tenure::types::{HolderId, LeaseName};
use tokio::task::JoinSet;

use super::client::{Client, Reply};
use super::judge::history::{Ended, RequestKind};
use super::judge::{Broken, ObservedQueue};
use super::mode::Mode;
use super::names::SLOTS;
use super::world::World;

/// The number of clients.
const CLIENTS: u64 = 64;
/// The longest ttl of a claim.
pub const LONGEST_TTL: Duration = Duration::from_millis(3_000);
/// The probability that an operation on an infinite lease is a crash of its client, or a revoke by another client.
const CRASH_PROBABILITY: f64 = 0.04;
const SHORTEST_TTL: Duration = Duration::from_millis(400);
/// The longest time that a client waits in a queue.
pub const LONGEST_WAIT: Duration = Duration::from_millis(2_000);

/// Starts the clients. Together they send `rate` operations per second if the answers come at once.
pub fn start(world: &Arc<World>, http: &Client, seed: u64, rate: u64, tasks: &mut JoinSet<()>) {
    for number in 0..CLIENTS {
        let pause = Duration::from_millis(2 * 1_000 * CLIENTS / rate);
        tasks.spawn(Worker::new(world, http, number, seed).work(pause));
    }
}

/// A lease that a worker believes to hold in a slot.
#[derive(Clone)]
struct HeldLease {
    name: LeaseName,
    by: HolderId,
    token: FencingToken,
    /// The version of the metadata, as far as the worker knows.
    version: u64,
}

/// A client that records its operations.
pub struct Worker {
    world: Arc<World>,
    http: Client,
    number: u64,
    /// The seed of the run.
    seed: u64,
    rng: StdRng,
    /// Numbers its holder ids. Each claim has a new one.
    asked: u64,
    held: HashMap<usize, HeldLease>,
    /// The waiters in the last answers about queues.
    waiters: HashMap<LeaseName, Vec<HolderId>>,
}

impl Worker {
    fn new(world: &Arc<World>, http: &Client, number: u64, seed: u64) -> Worker {
        let rng = StdRng::seed_from_u64(seed.wrapping_mul(1_000).wrapping_add(number));
        let (world, http) = (world.clone(), http.clone());
        Worker { world, http, number, seed, rng, asked: 0, held: HashMap::new(), waiters: HashMap::new() }
    }

    /// A client that works only on request.
    pub fn operator(world: &Arc<World>, http: &Client, seed: u64) -> Worker {
        Worker::new(world, http, CLIENTS, seed)
    }

    /// The mode of the leases of a name.
    pub fn mode(&self, name: &LeaseName) -> Mode {
        Mode::of(name, self.seed)
    }

    /// Sends operations until the run stops, with a random pause of at most `pause` between them.
    async fn work(mut self, pause: Duration) {
        let stop = self.world.stop.clone();
        while !stop.is_cancelled() {
            tokio::time::sleep(self.rng.random_range(Duration::ZERO..pause)).await;
            let slot = self.slot();
            let (name, episode) = self.world.names.lock().next(slot);
            let held = self.held.get(&slot).filter(|held| held.name == name).cloned();
            if held.is_none() {
                self.held.remove(&slot);
            }
            if self.mode(&name).is_infinite && self.rng.random_bool(CRASH_PROBABILITY) {
                // The client of an infinite lease crashes. Without a revoke, no other client gets the lease again.
                match self.held.remove(&slot) {
                    Some(_) => continue,
                    None => self.revoke(episode, &name).await,
                }
                continue;
            }
            match (held, self.rng.random_range(0..100)) {
                (Some(held), 0..25) => self.renew(episode, slot, &held).await,
                (Some(held), 25..40) => self.release(episode, slot, &held).await,
                (Some(held), 53..64) => self.hand_over(episode, slot, &held).await,
                (Some(held), 65..69) => self.update_metadata(episode, slot, &held).await,
                (Some(_), 64..65) | (None, 0..1) => self.revoke(episode, &name).await,
                (None, 1..30) => self.acquire(episode, slot, &name).await,
                (None, 30..45) => self.wait(episode, slot, &name).await,
                (_, 45..53) => self.queue(episode, &name).await,
                _ => self.read(episode, &name).await,
            }
        }
    }

    /// Chooses a slot, preferably one whose lease it believes to hold.
    fn slot(&mut self) -> usize {
        let own = self.held.keys().min().copied().filter(|_| self.rng.random_bool(0.6));
        own.unwrap_or_else(|| self.rng.random_range(0..SLOTS))
    }

    pub fn new_holder(&mut self) -> HolderId {
        self.asked += 1;
        HolderId::new(format!("c{}.{}", self.number, self.asked)).expect("short")
    }

    fn ttl_ms(&mut self) -> u64 {
        self.rng.random_range(SHORTEST_TTL..LONGEST_TTL).as_millis() as u64
    }

    async fn acquire(&mut self, episode: u64, slot: usize, name: &LeaseName) {
        let by = self.new_holder();
        let (mut tries, ttl_ms) = (1, self.ttl_ms());
        loop {
            let ended = self.claim(episode, &by, name, ttl_ms, None).await;
            if let Ended::Held(token, _) = ended {
                self.hold(slot, name, by, token);
                return;
            }
            // The same holder may repeat a claim of unknown outcome.
            if ended != Ended::Unknown || tries == 3 || self.rng.random_bool(0.5) {
                return;
            }
            tries += 1;
        }
    }

    async fn wait(&mut self, episode: u64, slot: usize, name: &LeaseName) {
        let (by, ttl_ms) = (self.new_holder(), self.ttl_ms());
        let wait = self.rng.random_range(Duration::from_millis(50)..LONGEST_WAIT);
        if let Ended::Held(token, _) = self.claim(episode, &by, name, ttl_ms, Some(wait)).await {
            self.hold(slot, name, by, token);
        }
    }

    fn hold(&mut self, slot: usize, name: &LeaseName, by: HolderId, token: FencingToken) {
        self.held.insert(slot, HeldLease { name: name.clone(), by, token, version: 0 });
    }

    /// Claims a lease in its mode.
    pub async fn claim(
        &mut self,
        episode: u64,
        by: &HolderId,
        name: &LeaseName,
        ttl_ms: u64,
        wait: Option<Duration>,
    ) -> Ended {
        let (body, what) = self.mode(name).claim(by, ttl_ms, wait);
        self.change(episode, by, name, what, "acquire", body, wait.unwrap_or_default()).await
    }

    async fn renew(&mut self, episode: u64, slot: usize, held: &HeldLease) {
        let what = RequestKind::Renew { token: held.token };
        let mut body = json!({"holder": held.by.as_str(), "token": held.token.to_string()});
        // A shorter ttl leaves the expiry unchanged. A finite ttl leaves an infinite lease infinite.
        if self.rng.random_bool(0.5) {
            body["ttl_ms"] = self.ttl_ms().into();
        }
        let ended = self.change(episode, &held.by, &held.name, what, "renew", body, Duration::ZERO).await;
        if matches!(ended, Ended::Refused(code) if code == "lost") {
            self.held.remove(&slot);
        }
    }

    async fn release(&mut self, episode: u64, slot: usize, held: &HeldLease) {
        self.held.remove(&slot);
        self.release_grant(episode, &held.by, &held.name, held.token).await;
    }

    /// Releases a grant.
    pub async fn release_grant(&mut self, episode: u64, by: &HolderId, name: &LeaseName, token: FencingToken) -> Ended {
        let what = RequestKind::Release { token };
        let body = json!({"holder": by.as_str(), "token": token.to_string()});
        self.change(episode, by, name, what, "release", body, Duration::ZERO).await
    }

    async fn hand_over(&mut self, episode: u64, slot: usize, held: &HeldLease) {
        let to = self.recipient(&held.name);
        let what = RequestKind::HandOver { token: held.token, to: to.clone() };
        let mut body = json!({"holder": held.by.as_str(), "token": held.token.to_string()});
        if let Some(to) = to {
            body["to"] = to.as_str().into();
        }
        let ended = self.change(episode, &held.by, &held.name, what, "handover", body, Duration::ZERO).await;
        if !matches!(ended, Ended::Refused(code) if code == "no_such_waiter") {
            self.held.remove(&slot);
        }
    }

    /// Chooses a waiter of the last observed queue, or a stranger, or leaves the choice to the cluster.
    fn recipient(&mut self, name: &LeaseName) -> Option<HolderId> {
        match self.rng.random_range(0..10) {
            0 => Some(self.new_holder()),
            1..5 => self.waiters.get(name)?.choose(&mut self.rng).cloned(),
            _ => None,
        }
    }

    async fn update_metadata(&mut self, episode: u64, slot: usize, held: &HeldLease) {
        let (version, tag) = (held.version, self.rng.random::<u64>().to_string());
        let mut body = json!({"holder": held.by.as_str(), "token": held.token.to_string(), "version": version});
        body["metadata"] = json!({"tag": tag});
        let what = RequestKind::UpdateMetadata { token: held.token, version, tag };
        let ended = self.change(episode, &held.by, &held.name, what, "metadata", body, Duration::ZERO).await;
        let now = match ended {
            Ended::Updated { version, .. } => version,
            Ended::Refused(code) if code == "metadata_changed" => version + 1,
            Ended::Refused(code) if code == "lost" => {
                self.held.remove(&slot);
                return;
            }
            _ => return,
        };
        if let Some(held) = self.held.get_mut(&slot) {
            held.version = now;
        }
    }

    pub async fn revoke(&mut self, episode: u64, name: &LeaseName) {
        let by = self.new_holder();
        let pending = self.world.recorder.lock().begin(episode, &by, name, RequestKind::Revoke);
        let (host, path) = (self.host(), format!("/v1/leases/{name}?reason=faults"));
        let answer = self.http.send(host, Method::DELETE, &path, None, Duration::ZERO).await;
        self.end(pending, name, answer, |value, _| Some(Ended::Changed(value["revoked"].as_u64()? > 0)));
    }

    async fn read(&mut self, episode: u64, name: &LeaseName) {
        let by = HolderId::new(format!("r{}", self.number)).expect("short");
        let pending = self.world.recorder.lock().begin(episode, &by, name, RequestKind::Read);
        let consistency = if self.rng.random_bool(0.6) { "leader" } else { "linearizable" };
        let path = match self.rng.random_range(0..10) {
            0..2 => format!("/v1/leases/{name}/explain?consistency={consistency}"),
            2..4 => format!("/v1/leases?prefix={name}&state=active&consistency={consistency}"),
            _ => format!("/v1/leases/{name}?consistency={consistency}"),
        };
        let host = self.host();
        let answer = match self.http.send(host, Method::GET, &path, None, Duration::ZERO).await {
            // A lease that the cluster does not know has no holder.
            Reply::Refused(code, index) if code == "not_found" && index.is_some() => Reply::Done(Value::Null, index),
            answer => answer,
        };
        self.end(pending, name, answer, |value, index| match value["cursor"].is_string() {
            // The page may lack holders.
            true => index.map(|_| Ended::Showed),
            false => Some(Ended::Saw(holders(&value, name)?, index?)),
        });
    }

    async fn queue(&mut self, episode: u64, name: &LeaseName) {
        let by = HolderId::new(format!("r{}", self.number)).expect("short");
        let pending = self.world.recorder.lock().begin(episode, &by, name, RequestKind::Read);
        let (host, path) = (self.host(), format!("/v1/leases/{name}/queue?consistency=linearizable"));
        let answer = self.http.send(host, Method::GET, &path, None, Duration::ZERO).await;
        let observed = match &answer {
            Reply::Done(value, Some(index)) => Some((value.clone(), *index)),
            _ => None,
        };
        self.end(pending, name, answer, |_, index| index.map(|_| Ended::Showed));
        let Some((value, index)) = observed else { return };
        let waiters = value["waiters"].as_array().into_iter().flatten();
        let waiters: Vec<String> = waiters.filter_map(|waiter| Some(waiter["holder"].as_str()?.to_owned())).collect();
        let known = waiters.iter().filter_map(|waiter| HolderId::new(waiter).ok());
        // Only the queue of a name in use matters.
        self.waiters.retain(|name, _| self.held.values().any(|held| held.name == *name));
        self.waiters.insert(name.clone(), known.collect());
        self.world.recorder.lock().queue(name, ObservedQueue { index, waiters });
    }

    fn host(&mut self) -> u64 {
        self.world.random_host(&mut self.rng)
    }

    /// Sends a request that changes a lease, and records its outcome.
    #[expect(clippy::too_many_arguments, reason = "an operation and its request")]
    async fn change(
        &mut self,
        episode: u64,
        by: &HolderId,
        name: &LeaseName,
        what: RequestKind,
        verb: &str,
        body: Value,
        wait: Duration,
    ) -> Ended {
        let is_update = matches!(what, RequestKind::UpdateMetadata { .. });
        let pending = self.world.recorder.lock().begin(episode, by, name, what);
        let (host, path) = (self.host(), format!("/v1/leases/{name}/{verb}"));
        let answer = self.http.send(host, Method::POST, &path, Some(body), wait).await;
        self.end(pending, name, answer, |value, _| match value["released"].as_bool() {
            Some(released) => Some(Ended::Changed(released)),
            None if is_update => {
                let tag = value["metadata"]["tag"].as_str().unwrap_or_default().to_owned();
                Some(Ended::Updated { version: value["metadata_version"].as_u64()?, tag })
            }
            None => {
                // Longer than the requested ttl after a renewal with a shorter one. Shorter after a repeated claim of
                // the same holder.
                Some(Ended::Held(token(&value)?, value["expires_in_ms"].as_u64()))
            }
        })
    }

    fn end(
        &self,
        pending: super::recorder::PendingOperation,
        name: &LeaseName,
        answer: Reply,
        read: impl FnOnce(Value, Option<u64>) -> Option<Ended>,
    ) -> Ended {
        let (ended, index) = match answer {
            Reply::Done(value, index) => match read(value.clone(), index) {
                Some(ended) => (ended, index),
                None => {
                    let how = format!("unexpected answer: {value}");
                    self.world.break_promise(Broken::of_lease("api", name.as_str(), how));
                    (Ended::Unknown, None)
                }
            },
            Reply::Refused(code, index) => (Ended::Refused(code), index),
            Reply::Unknown => (Ended::Unknown, None),
            Reply::Fault(how) => {
                self.world.break_promise(Broken::of_lease("api", name.as_str(), how));
                (Ended::Unknown, None)
            }
        };
        let noted = self.world.recorder.lock().end(pending, ended.clone(), index);
        if let Err(how) = noted {
            self.world.break_promise(Broken::of_lease("reads_are_current", name.as_str(), how));
        }
        ended
    }
}

fn token(lease: &Value) -> Option<FencingToken> {
    lease["token"].as_str()?.parse().ok()
}

/// The holders of a lease in an answer: the lease, its explanation, or a list of active leases.
fn holders(answer: &Value, name: &LeaseName) -> Option<Vec<(String, FencingToken)>> {
    let listed = answer["held"].as_array().or(answer["leases"].as_array());
    if listed.is_none() && (answer.is_null() || answer["state"].as_str()? != "active") {
        return Some(Vec::new());
    }
    // A counted lease lists its holders.
    let held = listed.or(answer["holders"].as_array()).map_or(std::slice::from_ref(answer), Vec::as_slice);
    let is_of_name = |lease: &&Value| lease["name"].as_str().is_none_or(|of| of == name.as_str());
    held.iter().filter(is_of_name).map(|lease| Some((lease["holder"].as_str()?.to_owned(), token(lease)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_of_a_counted_lease_lists_all_holders() {
        let one = |holder: &str, token: &str| json!({"state": "active", "holder": holder, "token": token});
        let listed = |lease: &Value| -> Vec<String> {
            let name = LeaseName::new("job").expect("valid");
            let holders = holders(lease, &name).expect("an answer").into_iter();
            holders.map(|(holder, token)| format!("{holder} {token}")).collect()
        };
        let mut lease = one("a", "281474976710661");
        assert_eq!(listed(&lease), ["a 281474976710661"]);
        lease["holders"] = json!([one("a", "281474976710661"), one("b", "281474976710668")]);
        assert_eq!(listed(&lease), ["a 281474976710661", "b 281474976710668"]);
        lease["state"] = "expired".into();
        assert!(listed(&lease).is_empty());
        let explained = json!({"summary": "held", "holders": 1, "held": [one("a", "281474976710661")]});
        assert_eq!(listed(&explained), ["a 281474976710661"]);
        let mut other = one("b", "281474976710668");
        other["name"] = "job2".into();
        assert_eq!(
            listed(&json!({"leases": [one("a", "281474976710661"), other], "cursor": null})),
            ["a 281474976710661"]
        );
    }
}
