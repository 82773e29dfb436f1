//! Runs episodes until the time is over. An episode injects faults, heals the cluster, waits, and checks the leases.
//!
//! Each episode has separate leases. After the faults, the members must be the wanted ones, and all nodes must become
//! ready and agree. After a calm period the
//! clients move to the leases of the next episode. The old leases must expire, all watchers must receive the expiries,
//! and then the judge checks each lease.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use parking_lot::Mutex;
use reqwest::Method;
use serde_json::{Value, json};
use tenure::types::{HolderId, LeaseName};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use super::arguments::Run as Arguments;
use super::backups;
use super::client::{Client, Reply};
use super::cluster::{Cluster, SPARE_HOSTS, Setup};
use super::episodes::EpisodeJudge;
use super::export::Export;
use super::fault_window::FaultWindow;
use super::figures::Figures;
use super::holders::{self, Holders};
use super::judge::Broken;
use super::judge::history::Ended;
use super::machine::Machine;
use super::members::Operator;
use super::mode::LONGEST_DELAY;
use super::names::{self, MARKER, Names};
use super::nemesis::{Nemesis, Targets};
use super::plan::{Fault, Plan};
use super::recorder::now;
use super::register::{self, Register};
use super::run_directory::RunDirectory;
use super::security::Security;
use super::watcher;
use super::workload::{self, LONGEST_TTL, LONGEST_WAIT, Worker};
use super::world::World;

const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The limit for convergence after the last fault: the cluster serves, and all nodes are ready and have the same log.
const CONVERGES_WITHIN: Duration = Duration::from_secs(30);
/// How long the clients use the healed cluster.
const CALM: Duration = Duration::from_millis(1_500);
/// The limit for the end of abandoned leases: the ttl twice (a waiter may get the lease last), a wait, a tick of
/// cluster time, and a reserve for a busy machine.
const EXPIRES_WITHIN: Duration = Duration::from_secs(2 * LONGEST_TTL.as_secs() + LONGEST_WAIT.as_secs() + 1 + 3);
/// The limit for the operator to acquire every lease that no client uses.
const CLAIMED_WITHIN: Duration =
    Duration::from_secs(EXPIRES_WITHIN.as_secs() + LONGEST_DELAY.as_secs() + CONVERGES_WITHIN.as_secs());
/// The limit for watchers to catch up in a healed cluster. A watcher gives up a stream without data after 30 s.
const WATCHED_WITHIN: Duration = Duration::from_secs(45);
/// The limit for the faults of one episode. A longer time is an error of the harness.
const FAULTS_END_WITHIN: Duration = Duration::from_secs(90);
/// While a write takes longer than this, the cluster does not count as serving.
const SERVING_WITHIN: Duration = Duration::from_secs(1);
/// The limit for the exit of a removed node in a healed cluster, after the change.
const REMOVED_WITHIN: Duration = Duration::from_secs(10);
const ANSWERED_WITHIN: Duration = Duration::from_secs(20);

/// All resources of a run. Dropping it removes those outside this process.
pub struct Run {
    world: Arc<World>,
    targets: Targets,
    nemesis: Nemesis,
    plan: Plan,
    judge: EpisodeJudge,
    figures: Figures,
    windows: Vec<FaultWindow>,
    client: Client,
    /// The credentials of the clients.
    security: Security,
    /// Revokes infinite leases, and acquires leases that must be free.
    operator: Worker,
    tasks: JoinSet<()>,
    /// The runtime of the clients. The driver has another runtime, whose thread is the parent of all processes.
    clients: Option<Runtime>,
    machine: Machine,
    /// The folder that is kept after the run.
    keep: PathBuf,
    /// Declared last: the other fields use the directory.
    _folder: RunDirectory,
}

impl Run {
    pub async fn start(arguments: &Arguments, keep: &Path) -> Result<Run> {
        let nodes = arguments.nodes;
        let folder = RunDirectory::new()?;
        let suspends = arguments.kinds()?.iter().any(|kind| kind.suspends());
        let mut cluster = Cluster::new(&Setup {
            nodes,
            binary: &arguments.binary,
            folder: folder.path(),
            logs: keep,
            suspends,
            tls: arguments.tls(),
        })?;
        let figures = Figures::new(arguments, &cluster)?;
        let export = arguments.history.as_deref().map(|file| Export::create(file, arguments.seed)).transpose()?;
        let clients = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let (world, register) = (Arc::new(World::new(nodes)), Arc::<Mutex<Register>>::default());
        let (mut tasks, client) = (JoinSet::new(), Client::new(&cluster.security)?);
        let socket = folder.path().join("register");
        {
            let _inside = clients.enter();
            register::serve(&world, &register, &socket, &mut tasks)?;
        }
        cluster.hosts().into_iter().try_for_each(|host| cluster.launch(host))?;
        let security = cluster.security.clone();
        let mut run = Run {
            nemesis: Nemesis::new(Operator { world: world.clone(), client: client.clone() }),
            targets: Targets { holders: Holders::new(&world, &cluster.security, &socket, keep), cluster },
            plan: Plan::new(arguments.seed, nodes + SPARE_HOSTS, arguments.kinds()?),
            judge: EpisodeJudge::new(world.clone(), register, keep, export),
            figures,
            windows: Vec::new(),
            operator: Worker::operator(&world, &client, arguments.seed),
            client,
            security,
            tasks,
            clients: Some(clients),
            machine: Machine::watch(folder.path()),
            keep: keep.to_owned(),
            _folder: folder,
            world,
        };
        let began = Instant::now();
        let index = run.write_marker(began + CONVERGES_WITHIN).await?;
        if let Err(how) = run.targets.cluster.converged(index, CONVERGES_WITHIN).await {
            bail!("the cluster did not become ready: {how}");
        }
        if arguments.access() {
            run.enable_access(&socket, keep, arguments.seed)?;
        }
        run.targets.holders.restart()?;
        let clients = run.clients.as_ref().expect("the runtime exists until the run is dropped").enter();
        workload::start(&run.world, &run.client, arguments.seed, arguments.rate, &mut run.tasks);
        watcher::start(&run.world, &run.security, arguments.seed, &mut run.tasks);
        drop(clients);
        Ok(run)
    }

    /// Turns access control on. The nodes then refuse requests without a token.
    fn enable_access(&mut self, socket: &Path, keep: &Path, seed: u64) -> Result<()> {
        self.security = self.targets.cluster.enable_access()?;
        self.client = Client::new(&self.security)?;
        self.operator = Worker::operator(&self.world, &self.client, seed);
        self.nemesis.operator.client = Client::new(&self.targets.cluster.security)?;
        self.targets.holders = Holders::new(&self.world, &self.security, socket, keep);
        Ok(())
    }

    /// Runs episodes for `time`. Stops after the first episode with a broken promise.
    pub async fn run_episodes(&mut self, time: Duration) -> Result<()> {
        let began = Instant::now();
        for episode in 1.. {
            let faults = self.plan.episode();
            let words: Vec<String> = faults.iter().map(|fault| fault.kind.to_string()).collect();
            let (seconds, operations) = (began.elapsed().as_secs(), self.world.recorder.lock().operations());
            eprintln!("{seconds:>6} s  {operations:>8} operations  episode {episode}: {}", words.join(", "));
            self.inject(&faults).await?;
            self.nemesis.heal(&mut self.targets)?;
            self.converge().await?;
            tokio::time::sleep(CALM).await;
            self.finish_episode(episode).await?;
            self.figures.members = self.targets.cluster.ids();
            self.figures.note(&self.world, &self.judge, self.machine.standstills(), began.elapsed());
            if !self.world.broken().is_empty() || began.elapsed() >= time {
                for how in self.targets.cluster.panics()? {
                    self.world.break_promise(Broken::of_cluster("nodes_live", how));
                }
                self.figures.backups = backups::check(&self.targets.cluster, &self.world, &self.keep).await?;
                return Ok(());
            }
        }
        unreachable!("episodes go on")
    }

    pub fn figures(&self) -> &Figures {
        &self.figures
    }

    pub fn broken(&self) -> Vec<Broken> {
        self.world.broken()
    }

    /// Injects the faults of an episode, and returns when all have ended.
    async fn inject(&mut self, faults: &[Fault]) -> Result<()> {
        let began = Instant::now();
        let mut left: Vec<&Fault> = faults.iter().collect();
        left.sort_by_key(|fault| fault.begins);
        while !left.is_empty() || !self.nemesis.is_idle() {
            while left.first().is_some_and(|fault| fault.begins <= began.elapsed()) {
                let fault = left.remove(0);
                self.figures.planned(fault.kind);
                if self.nemesis.begin(&mut self.targets, fault).await? {
                    self.figures.happened(fault.kind);
                    self.windows.push(FaultWindow { kind: fault.kind, from: now(), until: None });
                } else {
                    self.plan.repeat(fault.kind);
                }
            }
            for over in self.nemesis.advance(&mut self.targets).await? {
                let window = self.windows.iter_mut().rev().find(|window| window.kind == over.fault.kind);
                window.expect("the fault has a window").until = Some(now());
            }
            self.check_exits()?;
            if began.elapsed() > FAULTS_END_WITHIN {
                bail!("the faults have not ended after {FAULTS_END_WITHIN:?}: {faults:?}");
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Detects unexpected exits of nodes, holders and tasks.
    fn check_exits(&mut self) -> Result<()> {
        for how in self.targets.cluster.unexpected_exits()? {
            self.world.break_promise(Broken::of_cluster("nodes_live", how));
        }
        self.world.hosts.lock().retain(|host| !self.targets.cluster.is_removed(*host));
        let ended = self.targets.holders.unexpected_exits()?;
        if !ended.is_empty() {
            bail!("holder processes exited: {ended:?}");
        }
        if let Some(task) = self.tasks.try_join_next() {
            bail!("a task of the harness ended early: {task:?}");
        }
        self.targets.cluster.check_packet_queues()
    }

    /// Waits until the healed cluster serves, and all nodes are ready and have applied the same log.
    async fn converge(&mut self) -> Result<()> {
        let until = Instant::now() + CONVERGES_WITHIN;
        self.complete_change(until).await?;
        loop {
            self.check_exits()?;
            self.launch_all()?;
            let index = self.write_marker(until).await?;
            let converged = self.targets.cluster.converged(index, Duration::from_secs(1)).await;
            match converged {
                Ok(()) => break,
                Err(how) if Instant::now() > until => {
                    self.world.break_promise(Broken::of_cluster("converges", how));
                    break;
                }
                Err(_) => {}
            }
        }
        self.targets.cluster.expect_no_exits();
        Ok(())
    }

    /// Starts the nodes that do not run. A node with a full disk may exit late.
    fn launch_all(&mut self) -> Result<()> {
        let cluster = &mut self.targets.cluster;
        cluster.hosts().into_iter().try_for_each(|host| cluster.launch(host))
    }

    /// Completes the change of the members that a fault began. The cluster then has the wanted voters, and the removed
    /// node has exited.
    async fn complete_change(&mut self, until: Instant) -> Result<()> {
        let Some(change) = self.targets.cluster.change.clone() else { return Ok(()) };
        let mut wanted = self.targets.cluster.ids();
        wanted.remove(&change.leaving);
        let operator = self.nemesis.operator.clone();
        let requests = tokio::spawn({
            let (change, wanted) = (change.clone(), wanted.clone());
            async move { operator.complete(&change, &wanted, until).await }
        });
        let mut requests = AbortOnDropHandle::new(requests);
        // The time until which the removed node may run, once the cluster has removed it.
        let mut exits_until = None;
        loop {
            self.check_exits()?;
            self.launch_all()?;
            if exits_until.is_none() && requests.is_finished() {
                if let Err(how) = (&mut requests).await? {
                    self.world.break_promise(Broken::of_cluster("members_converge", how));
                    return Ok(());
                }
                exits_until = Some(Instant::now() + REMOVED_WITHIN);
            }
            if exits_until.is_some() && self.targets.cluster.is_removed(change.leaving_host) {
                break;
            }
            if exits_until.is_some_and(|until| Instant::now() > until) {
                let how = format!("node {} was removed and still runs after {REMOVED_WITHIN:?}", change.leaving);
                self.world.break_promise(Broken::of_cluster("removed_node_stops", how));
                return Ok(());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        self.targets.cluster.complete_change()?;
        self.figures.removed();
        Ok(())
    }

    /// Writes to the cluster until a write is acknowledged. Returns its log index.
    async fn write_marker(&mut self, until: Instant) -> Result<u64> {
        let mut last = Reply::Unknown;
        for host in self.targets.cluster.hosts().into_iter().cycle() {
            if Instant::now() > until {
                let how = format!("no node acknowledges a write after {CONVERGES_WITHIN:?}: {last:?}");
                self.world.break_promise(Broken::of_cluster("converges", how));
                return Ok(0);
            }
            let (path, body) = (format!("/v1/leases/{MARKER}/acquire"), json!({"holder": MARKER, "ttl_ms": 500}));
            last = self.client.send(host, Method::POST, &path, Some(body), Duration::ZERO).await;
            match &last {
                Reply::Done(_, Some(index)) => return Ok(*index),
                Reply::Fault(how) => self.world.break_promise(Broken::of_lease("api", MARKER, how)),
                _ => {}
            }
            self.check_exits()?;
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        unreachable!("hosts go around")
    }

    /// Moves the clients to the next episode, waits for the expiry of the leases, and checks them.
    async fn finish_episode(&mut self, episode: u64) -> Result<()> {
        *self.world.names.lock() = Names::new(episode + 1);
        let (closed, closed_at) = (Instant::now(), now());
        while self.world.recorder.lock().in_flight(episode) > 0 {
            self.check_exits()?;
            if closed.elapsed() > ANSWERED_WITHIN {
                bail!("an operation is still open after {ANSWERED_WITHIN:?}; expected an answer or a timeout");
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        self.wait_for_expiry(episode, &BTreeSet::new()).await?;
        let ambiguous = self.claim_all(episode).await?;
        self.wait_for_expiry(episode, &ambiguous).await?;
        let index = self.write_marker(Instant::now() + CONVERGES_WITHIN).await?;
        self.wait_for_watchers(index).await?;
        self.check_replicas(episode, index).await?;
        self.judge.episode(episode, &self.windows)?;
        holders::names().for_each(|name| self.judge.lock(&name));
        for gap in self.world.recorder.lock().take_gaps() {
            self.figures.add_gap(gap, &self.windows);
        }
        self.windows.clear();
        // The leases of this episode are checked. The leases of the next one begin after `closed_at`.
        self.world.recorder.lock().progress.forget_before(closed_at);
        Ok(())
    }

    /// Waits until all leases of the episode have ended.
    ///
    /// A lease whose last extension is known has its own bound. The others have [`EXPIRES_WITHIN`], because the
    /// cluster may still apply a request that its client gave up. Time without a commit does not count, up to
    /// [`CONVERGES_WITHIN`]: all disks belong to this machine, and may hang at once.
    ///
    /// The operator revokes infinite leases, and leases with an `ambiguous` claim of the operator: their ttl is too
    /// long to wait.
    async fn wait_for_expiry(&mut self, episode: u64, ambiguous: &BTreeSet<LeaseName>) -> Result<()> {
        let (closed, mut last, mut served) = (now(), Duration::ZERO, Duration::ZERO);
        loop {
            let held = self.judge.still_held(&names::prefix(episode));
            let Some(seen) = held.iter().map(|(_, seen)| *seen).max() else { return Ok(()) };
            if seen > last {
                (last, served) = (seen, Duration::ZERO);
            }
            if let Some(broken) = self.judge.overdue(&names::prefix(episode)) {
                self.world.break_promise(broken);
                return Ok(());
            }
            let waited = now().saturating_sub(last.max(closed));
            if served > EXPIRES_WITHIN || waited > EXPIRES_WITHIN + CONVERGES_WITHIN {
                let how = format!("still held after {waited:?}, of which the cluster served {served:?}: {held:?}");
                self.world.break_promise(Broken::of_cluster("expiry_happens", how));
                return Ok(());
            }
            for (name, _) in held {
                let name = LeaseName::new(name)?;
                if self.operator.mode(&name).is_infinite || ambiguous.contains(&name) {
                    self.operator.revoke(episode, &name).await;
                }
            }
            let asked = Instant::now();
            self.write_marker(asked + CONVERGES_WITHIN).await?;
            tokio::time::sleep(POLL_INTERVAL).await;
            served += Some(asked.elapsed()).filter(|took| *took < SERVING_WITHIN).unwrap_or_default();
            self.check_exits()?;
        }
    }

    /// Acquires every place of every lease of the episode at once. All places are free after the last lock delay,
    /// except for a request that its client gave up and the cluster applies late. So this may take as long as such a
    /// grant lasts.
    ///
    /// Returns the leases with a claim of unknown outcome: the cluster may apply the claim after the release.
    async fn claim_all(&mut self, episode: u64) -> Result<BTreeSet<LeaseName>> {
        let names = self.world.recorder.lock().names(&names::prefix(episode));
        let places = |name: &LeaseName| (0..self.operator.mode(name).limit).map(|_| name.clone()).collect::<Vec<_>>();
        let claims: Vec<LeaseName> = names.iter().flat_map(places).collect();
        let mut left: Vec<(LeaseName, HolderId)> =
            claims.into_iter().map(|name| (name, self.operator.new_holder())).collect();
        let (mut granted, mut ambiguous) = (Vec::new(), BTreeSet::new());
        let began = Instant::now();
        while !left.is_empty() {
            let mut refused = Vec::new();
            for (name, by) in std::mem::take(&mut left) {
                // A long ttl, so that all places of a name are held at the same time.
                match self.operator.claim(episode, &by, &name, CLAIMED_WITHIN.as_millis() as u64, None).await {
                    Ended::Held(token, _) => granted.push((name, by, token)),
                    ended => {
                        if ended == Ended::Unknown {
                            ambiguous.insert(name.clone());
                        }
                        refused.push((name, by, ended));
                    }
                }
            }
            if began.elapsed() > CLAIMED_WITHIN {
                let how = format!("claims of free leases are refused after {:?}: {refused:?}", began.elapsed());
                self.world.break_promise(Broken::of_cluster("waiters_are_served", how));
                break;
            }
            left = refused.into_iter().map(|(name, by, _)| (name, by)).collect();
            self.check_exits()?;
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        for (name, by, token) in granted {
            // The operator also repeats a release that was certainly not applied: the cluster may have no leader for a
            // moment.
            while !matches!(self.operator.release_grant(episode, &by, &name, token).await, Ended::Changed(_)) {
                if began.elapsed() > 2 * CLAIMED_WITHIN {
                    bail!("cannot release lease {name} within {:?}", began.elapsed());
                }
                self.check_exits()?;
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
        Ok(ambiguous)
    }

    /// Waits until every watcher has received all events up to an index.
    async fn wait_for_watchers(&mut self, index: u64) -> Result<()> {
        let began = Instant::now();
        while !self.world.log.lock().is_beyond(index) {
            if began.elapsed() > WATCHED_WITHIN {
                let how = format!(
                    "{WATCHED_WITHIN:?} after index {index} the watchers are at {:?}",
                    self.world.log.lock().indices()
                );
                self.world.break_promise(Broken::of_cluster("watch_complete", how));
                return Ok(());
            }
            self.check_exits()?;
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Checks `replicas_agree`: after all nodes have applied an index, they show the same state of the episode's unused
    /// leases.
    async fn check_replicas(&mut self, episode: u64, index: u64) -> Result<()> {
        if let Err(how) = self.targets.cluster.converged(index, CONVERGES_WITHIN).await {
            self.world.break_promise(Broken::of_cluster("converges", how));
            return Ok(());
        }
        let path = format!("/v1/leases?consistency=stale&limit=1000&prefix={}", names::prefix(episode));
        let mut answers: Vec<(u64, Value)> = Vec::new();
        for host in self.targets.cluster.hosts() {
            let (began, id) = (Instant::now(), self.targets.cluster.nodes[&host].id);
            let answer = loop {
                if let Some(answer) = self.targets.cluster.ask(host, &path).await {
                    break answer;
                }
                if began.elapsed() > ANSWERED_WITHIN {
                    bail!("node {id} does not list its leases within {ANSWERED_WITHIN:?}");
                }
                self.check_exits()?;
            };
            answers.push((id, answer));
        }
        if let Some(how) = disagreement(&answers) {
            self.world.break_promise(Broken::of_cluster("replicas_agree", how));
        }
        Ok(())
    }
}

/// The difference between two nodes, or `None` if all nodes agree.
fn disagreement(answers: &[(u64, Value)]) -> Option<String> {
    let pair = answers.windows(2).find(|pair| pair[0].1 != pair[1].1)?;
    let ((one, first), (other, second)) = (&pair[0], &pair[1]);
    let leases = |answer: &Value| answer["leases"].as_array().cloned().unwrap_or_default();
    let (first, second) = (leases(first), leases(second));
    let only = |these: &[Value], those: &[Value]| -> Vec<String> {
        these.iter().filter(|lease| !those.contains(lease)).map(Value::to_string).collect()
    };
    Some(format!("only node {one}: {:?}\nonly node {other}: {:?}", only(&first, &second), only(&second, &first)))
}

impl Drop for Run {
    fn drop(&mut self) {
        self.world.stop.cancel();
        if let Some(clients) = self.clients.take() {
            clients.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replica_disagreement_is_detected() {
        let mut answers: Vec<_> =
            (1..=3).map(|id| (id, json!({"leases": [{"name": "e1.0.0", "renewals": 2}]}))).collect();
        assert_eq!(disagreement(&answers), None);
        answers[2].1["leases"][0]["renewals"] = json!(1);
        assert!(disagreement(&answers).expect("a renewal is missing").starts_with("only node 2"));
    }
}
