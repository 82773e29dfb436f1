//! One run: episode after episode of faults, healing, calm and judgement, until the time is over.
//!
//! An episode has leases of its own. Its faults begin, last and end; then everything is healed, all nodes must be ready and
//! agree, and after a calm moment the clients go on to the next episode's leases. The old ones must lapse, all watchers must
//! have heard of it, and then each of them is judged.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use parking_lot::Mutex;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::arguments::Run as Arguments;
use super::book::now;
use super::client::{Answer, Client};
use super::cluster::Cluster;
use super::figures::Figures;
use super::holders::{self, Holders};
use super::judge::Judge;
use super::leftovers::Folder;
use super::machine::Machine;
use super::names::{self, Names};
use super::nemesis::{Field, Nemesis};
use super::plan::{Fault, Plan};
use super::register::{self, Register};
use super::shade::Shade;
use super::verdict::Broken;
use super::watcher;
use super::workload::{self, LONGEST_TTL, LONGEST_WAIT};
use super::world::World;

const LOOK: Duration = Duration::from_millis(20);
/// The longest that a cluster takes, once everything works, until it serves and all nodes are ready and equally far.
const CONVERGENCE: Duration = Duration::from_secs(30);
/// How long clients go on after that.
const CALM: Duration = Duration::from_millis(1_500);
/// A lease's holder and whoever waits for it are gone: the ttl, once more for a waiter that gets it last, a tick of the
/// cluster's time, and some time for a busy machine.
const LAPSE: Duration = Duration::from_secs(2 * LONGEST_TTL.as_secs() + LONGEST_WAIT.as_secs() + 1 + 3);
/// The longest that a watcher is behind once everything works. A stream that broke without a word is given up after 30 s.
const WATCH: Duration = Duration::from_secs(45);
/// The longest that faults of one episode last. What takes longer is the harness's own fault.
const FAULTS: Duration = Duration::from_secs(90);
/// A cluster that takes longer for a write is not serving.
const BRISK: Duration = Duration::from_secs(1);
const ANSWERS: Duration = Duration::from_secs(20);

/// Everything that a run has made. What it made outside of this process is gone when it is dropped.
pub struct Run {
    world: Arc<World>,
    field: Field,
    nemesis: Nemesis,
    plan: Plan,
    judge: Judge,
    figures: Figures,
    shades: Vec<Shade>,
    client: Client,
    tasks: JoinSet<()>,
    /// Where clients run. The driver has a runtime of its own, whose thread is the parent of all processes.
    clients: Option<Runtime>,
    machine: Machine,
    /// Last, when nothing uses it any more.
    _folder: Folder,
}

impl Run {
    pub async fn start(arguments: &Arguments, keep: &Path) -> Result<Run> {
        let nodes = arguments.nodes;
        let folder = Folder::new()?;
        let cluster = Cluster::new(nodes, &arguments.binary, folder.path(), keep)?;
        let figures = Figures::new(arguments, &cluster)?;
        let clients = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let (world, register) = (Arc::new(World::new(nodes)), Arc::<Mutex<Register>>::default());
        let mut tasks = JoinSet::new();
        let socket = folder.path().join("register");
        {
            let _inside = clients.enter();
            register::serve(&world, &register, &socket, &mut tasks)?;
        }
        let mut run = Run {
            field: Field { holders: Holders::new(nodes, &socket, keep), cluster },
            nemesis: Nemesis::default(),
            plan: Plan::new(arguments.seed, nodes, arguments.kinds()?),
            judge: Judge::new(world.clone(), register, keep),
            figures,
            shades: Vec::new(),
            client: Client::new()?,
            tasks,
            clients: Some(clients),
            machine: Machine::watch(folder.path()),
            _folder: folder,
            world,
        };
        run.field.cluster.ids().into_iter().try_for_each(|id| run.field.cluster.launch(id))?;
        let began = Instant::now();
        let index = run.marker(began + CONVERGENCE).await?;
        if let Err(how) = run.field.cluster.settled(index, CONVERGENCE).await {
            bail!("the cluster did not start: {how}");
        }
        run.field.holders.restart()?;
        let clients = run.clients.as_ref().expect("it was just made").enter();
        workload::start(&run.world, arguments.seed, arguments.rate, &mut run.tasks)?;
        watcher::start(&run.world, arguments.seed, &mut run.tasks)?;
        drop(clients);
        Ok(run)
    }

    /// Episodes, until so much time is over. Stops at the first that broke a promise.
    pub async fn play(&mut self, time: Duration) -> Result<()> {
        let began = Instant::now();
        for episode in 1.. {
            let faults = self.plan.episode();
            let words: Vec<String> = faults.iter().map(|fault| fault.kind.to_string()).collect();
            let (seconds, operations) = (began.elapsed().as_secs(), self.world.book.lock().operations());
            eprintln!("{seconds:>6} s  {operations:>8} operations  episode {episode}: {}", words.join(", "));
            self.make(&faults).await?;
            self.nemesis.heal(&mut self.field)?;
            self.converge().await?;
            tokio::time::sleep(CALM).await;
            self.close(episode).await?;
            self.figures.note(&self.world, &self.judge, self.machine.standstills(), began.elapsed());
            if !self.world.broken().is_empty() || began.elapsed() >= time {
                for how in self.field.cluster.panics()? {
                    self.world.break_promise(Broken::of_cluster("nodes_live", how));
                }
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

    /// Makes the faults of an episode, and returns when all of them are over.
    async fn make(&mut self, faults: &[Fault]) -> Result<()> {
        let began = Instant::now();
        let mut left: Vec<&Fault> = faults.iter().collect();
        left.sort_by_key(|fault| fault.begins);
        while !left.is_empty() || !self.nemesis.is_idle() {
            while left.first().is_some_and(|fault| fault.begins <= began.elapsed()) {
                let fault = left.remove(0);
                self.figures.planned(fault.kind);
                if self.nemesis.begin(&mut self.field, fault).await? {
                    self.figures.happened(fault.kind);
                    self.shades.push(Shade { kind: fault.kind, from: now(), until: None });
                }
            }
            for over in self.nemesis.look(&mut self.field).await? {
                let shade = self.shades.iter_mut().rev().find(|shade| shade.kind == over.fault.kind);
                shade.expect("it was begun").until = Some(now());
            }
            self.look()?;
            if began.elapsed() > FAULTS {
                bail!("the faults are not over after {FAULTS:?}: {faults:?}");
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Nobody has ended who should not have.
    fn look(&mut self) -> Result<()> {
        for how in self.field.cluster.look()? {
            self.world.break_promise(Broken::of_cluster("nodes_live", how));
        }
        let ended = self.field.holders.look()?;
        if !ended.is_empty() {
            bail!("holders ended: {ended:?}");
        }
        if let Some(task) = self.tasks.try_join_next() {
            bail!("a task of the harness ended: {task:?}");
        }
        self.field.cluster.weather()
    }

    /// Everything works: the cluster has to serve, and every node to be ready and as far as the others.
    async fn converge(&mut self) -> Result<()> {
        let until = Instant::now() + CONVERGENCE;
        loop {
            self.look()?;
            // A node whose disk was full may end only now.
            for id in self.field.cluster.ids() {
                self.field.cluster.launch(id)?;
            }
            let index = self.marker(until).await?;
            let settled = self.field.cluster.settled(index, Duration::from_secs(1)).await;
            match settled {
                Ok(()) => break,
                Err(how) if Instant::now() > until => {
                    self.world.break_promise(Broken::of_cluster("converges", how));
                    break;
                }
                Err(_) => {}
            }
        }
        self.field.cluster.forgive();
        Ok(())
    }

    /// An acknowledged write, and its index.
    async fn marker(&mut self, until: Instant) -> Result<u64> {
        let mut last = Answer::Unknown;
        for node in self.field.cluster.ids().into_iter().cycle() {
            if Instant::now() > until {
                let how = format!("nobody serves after {CONVERGENCE:?}: {last:?}");
                self.world.break_promise(Broken::of_cluster("converges", how));
                return Ok(0);
            }
            let body = json!({"holder": "marker", "ttl_ms": 500});
            last = self.client.send(node, Method::POST, "/v1/leases/marker/acquire", Some(body), Duration::ZERO).await;
            if let Answer::Done(_, Some(index)) = last {
                return Ok(index);
            }
            self.look()?;
            tokio::time::sleep(LOOK).await;
        }
        unreachable!("nodes go around")
    }

    /// The clients leave the episode's leases; these lapse, and are judged.
    async fn close(&mut self, episode: u64) -> Result<()> {
        *self.world.names.lock() = Names::new(episode + 1);
        let closed = Instant::now();
        while self.world.book.lock().in_flight(episode) > 0 {
            self.look()?;
            if closed.elapsed() > ANSWERS {
                bail!("an operation has neither an answer nor given up after {ANSWERS:?}");
            }
            tokio::time::sleep(LOOK).await;
        }
        self.lapse(episode).await?;
        let index = self.marker(Instant::now() + CONVERGENCE).await?;
        self.told(index).await?;
        self.agree(episode, index).await?;
        self.judge.episode(episode, &self.shades);
        holders::names().for_each(|name| self.judge.lock(&name));
        for silence in self.world.book.lock().take_silences() {
            self.figures.silence(silence, &self.shades);
        }
        self.shades.clear();
        Ok(())
    }

    /// `lapse_happens`. A request whose client has given up may still be under way, in packets that are sent again, and
    /// is carried out late: the lapse is due behind that. Time in which nothing is committed does not count, up to
    /// [`CONVERGENCE`] of it: the disks are this machine's, and may all hang at once.
    async fn lapse(&mut self, episode: u64) -> Result<()> {
        let (closed, mut last, mut served) = (now(), Duration::ZERO, Duration::ZERO);
        loop {
            let held = self.judge.still_held(&names::prefix(episode));
            let Some(seen) = held.iter().map(|(_, seen)| *seen).max() else { return Ok(()) };
            if seen > last {
                (last, served) = (seen, Duration::ZERO);
            }
            let waited = now().saturating_sub(last.max(closed));
            if served > LAPSE || waited > LAPSE + CONVERGENCE {
                let how = format!("still held after {waited:?}, of which the cluster served {served:?}: {held:?}");
                self.world.break_promise(Broken::of_cluster("lapse_happens", how));
                return Ok(());
            }
            let asked = Instant::now();
            self.marker(asked + CONVERGENCE).await?;
            tokio::time::sleep(LOOK).await;
            served += Some(asked.elapsed()).filter(|took| *took < BRISK).unwrap_or_default();
            self.look()?;
        }
    }

    /// Every watcher has heard of everything up to an index.
    async fn told(&mut self, index: u64) -> Result<()> {
        let began = Instant::now();
        while !self.world.log.lock().is_beyond(index) {
            if began.elapsed() > WATCH {
                let how = format!("{WATCH:?} after {index} watchers are at {:?}", self.world.log.lock().places());
                self.world.break_promise(Broken::of_cluster("watch_complete", how));
                return Ok(());
            }
            self.look()?;
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// `replicas_agree`: once they are as far as an index, all nodes tell the same of the episode's leases, which nobody
    /// uses any more.
    async fn agree(&mut self, episode: u64, index: u64) -> Result<()> {
        if let Err(how) = self.field.cluster.settled(index, CONVERGENCE).await {
            self.world.break_promise(Broken::of_cluster("converges", how));
            return Ok(());
        }
        let path = format!("/v1/leases?consistency=stale&limit=1000&prefix={}", names::prefix(episode));
        let mut told: Vec<(u64, Value)> = Vec::new();
        for id in self.field.cluster.ids() {
            let began = Instant::now();
            let answer = loop {
                if let Some(answer) = self.field.cluster.ask(id, &path).await {
                    break answer;
                }
                if began.elapsed() > ANSWERS {
                    bail!("node {id} lists nothing within {ANSWERS:?}");
                }
                self.look()?;
            };
            told.push((id, answer));
        }
        if let Some(how) = disagreement(&told) {
            self.world.break_promise(Broken::of_cluster("replicas_agree", how));
        }
        Ok(())
    }
}

/// Two nodes that do not tell the same.
fn disagreement(told: &[(u64, Value)]) -> Option<String> {
    let pair = told.windows(2).find(|pair| pair[0].1 != pair[1].1)?;
    let ((one, first), (other, second)) = (&pair[0], &pair[1]);
    let leases = |told: &Value| told["leases"].as_array().cloned().unwrap_or_default();
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
    fn replicas_that_tell_different_things_are_noticed() {
        let mut told: Vec<_> = (1..=3).map(|id| (id, json!({"leases": [{"name": "e1.0.0", "renewals": 2}]}))).collect();
        assert_eq!(disagreement(&told), None);
        told[2].1["leases"][0]["renewals"] = json!(1);
        assert!(disagreement(&told).expect("a renewal is missing").starts_with("only node 2"));
    }
}
