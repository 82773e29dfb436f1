//! Everything that a run is made of, and what its parts share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tenure::clock::Clock;
use tenure::config::{LeaseSettings, RaftTimings};
use tenure::node::Consistency;
use tenure::testing::{Cluster, Cut, MemoryStorage, Observer, Pace, Setup, Switchboard, SyncMode, TestNode};
use tenure::types::NodeId;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::history::History;
use super::ledger::{Ledger, Tap};
use super::meddler::Meddler;
use super::plan::Plan;
use super::register::Registers;
use super::skew::SkewedClock;
use super::verdict::{Broken, Counts};

pub struct World {
    pub plan: Plan,
    pub began: Instant,
    pub board: Switchboard,
    pub cluster: Mutex<Cluster>,
    pub ledger: Arc<Mutex<Ledger>>,
    pub history: Mutex<History>,
    pub registers: Mutex<Registers>,
    pub broken: Mutex<Vec<Broken>>,
    pub faults: Mutex<Counts>,
    pub work: Mutex<Counts>,
    trace: Mutex<Vec<String>>,
    /// How often each node's power was cut.
    pub lives: watch::Sender<BTreeMap<NodeId, u64>>,
    /// How fast each node's tasks run, and whether they do.
    paces: BTreeMap<NodeId, Pace>,
    slow: Mutex<BTreeSet<NodeId>>,
    /// Nodes whose disk is spoiled: they refuse to start.
    lost: Mutex<BTreeSet<NodeId>>,
    tasks: Mutex<BTreeMap<NodeId, Vec<AbortHandle>>>,
    /// All clients have died: nothing of them is asked or answered any more.
    pub no_clients: AtomicBool,
}

impl World {
    pub async fn new(plan: Plan) -> Arc<World> {
        let began = Instant::now();
        let ledger = Arc::new(Mutex::new(Ledger::new(began)));
        let (taps, rates, jump) = (ledger.clone(), plan.rates.clone(), plan.planted.wall_clock);
        let paces: BTreeMap<_, _> = plan.rates.iter().map(|(id, rate)| (*id, Pace::new(began, *rate))).collect();
        let bug = plan.planted.machine;
        let clock = move |id: NodeId| -> Arc<dyn Clock> {
            let steady = SkewedClock::new(began, Duration::from_secs(100 * id), rates[&id]);
            if jump { Arc::new(super::skew::JumpingClock(steady)) } else { steady }
        };
        let setup = Setup {
            timings: RaftTimings { snapshot_every: plan.snapshot_every, snapshot_keep: 10, ..RaftTimings::lan() },
            lease: LeaseSettings::default(),
            paces: paces.clone(),
            safeguards: plan.planted.safeguards,
            clock: Arc::new(clock),
            tap: Some(Arc::new(move |id| -> Arc<dyn Observer> { Tap::new(id, taps.clone(), bug.map(Meddler::new)) })),
        };
        let cluster = Cluster::start_with(plan.nodes, setup).await;
        let world = Arc::new(World {
            began,
            board: cluster.board.clone(),
            lives: watch::Sender::new(cluster.ids().map(|id| (id, 0)).collect()),
            plan,
            cluster: Mutex::new(cluster),
            ledger,
            history: Mutex::default(),
            registers: Mutex::default(),
            paces,
            broken: Mutex::default(),
            faults: Mutex::default(),
            work: Mutex::default(),
            trace: Mutex::default(),
            slow: Mutex::default(),
            lost: Mutex::default(),
            tasks: Mutex::default(),
            no_clients: AtomicBool::default(),
        });
        for id in world.ids() {
            world.play_disk(id);
        }
        world
    }

    pub fn ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        1..=self.plan.nodes
    }

    /// Those that can run.
    pub fn living(&self) -> BTreeSet<NodeId> {
        let lost = lock(&self.lost);
        self.ids().filter(|id| !lost.contains(id)).collect()
    }

    /// The node never starts again.
    pub fn lose(&self, id: NodeId) {
        lock(&self.lost).insert(id);
    }

    /// True time.
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// A generator of its own for a part of the run, so that parts do not shift each other's choices.
    pub fn dice(&self, part: u64) -> StdRng {
        StdRng::seed_from_u64(self.plan.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ part)
    }

    pub fn note(&self, line: impl FnOnce() -> String) {
        if !self.plan.traced {
            return;
        }
        let line = format!("{:>12.6} {}", self.now().as_secs_f64(), line());
        lock(&self.trace).push(line);
    }

    pub fn take_trace(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.trace))
    }

    pub fn count_fault(&self, fault: &'static str) {
        *lock(&self.faults).entry(fault).or_default() += 1;
        self.note(|| format!("fault {fault}"));
    }

    pub fn count_work(&self, work: &'static str) {
        *lock(&self.work).entry(work).or_default() += 1;
    }

    /// The quickest read that promises to be current: from the leader's memory, as long as clocks keep to the drift.
    pub fn local_read(&self) -> Consistency {
        match self.plan.planted.stale_reads {
            true => Consistency::Stale,
            false if self.plan.inside_drift => Consistency::Leader,
            false => Consistency::Linearizable,
        }
    }

    pub fn node(&self, id: NodeId) -> Option<TestNode> {
        lock(&self.cluster).running(id).cloned()
    }

    /// The node that leads in the highest term, if one says that it does.
    pub fn leader(&self) -> Option<NodeId> {
        let cluster = lock(&self.cluster);
        let leads = |id: &NodeId| {
            let seen = cluster.running(*id)?.leadership();
            (seen.leader == Some(*id)).then_some((seen.term, *id))
        };
        self.ids().filter_map(|id| leads(&id)).max().map(|(_, id)| id)
    }

    /// Cuts a node's power, whether it runs, starts or is down already.
    pub fn crash(&self, id: NodeId, cut: Cut) {
        for task in lock(&self.tasks).remove(&id).unwrap_or_default() {
            task.abort();
        }
        let gone = lock(&self.cluster).cut_power(id, cut);
        self.lives.send_modify(|lives| *lives.get_mut(&id).expect("a member") += 1);
        // What is left of it would never end if it stood still; and the next life of it does not.
        self.go_on(id);
        if let Some(gone) = gone {
            tokio::spawn(gone);
        }
        self.note(|| format!("node {id} is gone, {cut:?}"));
    }

    /// Starts a node that is down, on its disk.
    pub fn restart(self: &Arc<World>, id: NodeId) {
        if lock(&self.tasks).contains_key(&id) || lock(&self.lost).contains(&id) {
            return;
        }
        self.play_disk(id);
        let launch = lock(&self.cluster).launch(id, false, self.plan.planted.safeguards);
        let world = self.clone();
        let boot = tokio::spawn(async move {
            let node = launch.await;
            lock(&world.cluster).put(id, node);
            world.note(|| format!("node {id} is back"));
        });
        self.own(id, boot.abort_handle());
    }

    /// The node's process stands still: nothing reaches or leaves it, and nothing of it runs.
    pub fn stop(&self, id: NodeId) {
        self.board.stop(id);
        self.paces[&id].halt();
    }

    pub fn go_on(&self, id: NodeId) {
        self.paces[&id].go_on();
        self.board.go_on(id);
    }

    /// What is done inside a node runs at its pace.
    pub fn inside<T>(&self, id: NodeId, work: impl Future<Output = T>) -> impl Future<Output = T> {
        self.paces[&id].keep(work)
    }

    /// From now on the node's disk takes long for each sync, or not.
    pub fn slow_down(&self, id: NodeId, slow: bool) {
        if slow {
            lock(&self.slow).insert(id)
        } else {
            lock(&self.slow).remove(&id)
        };
    }

    fn own(&self, id: NodeId, task: AbortHandle) {
        lock(&self.tasks).entry(id).or_default().push(task);
    }

    fn play_disk(self: &Arc<World>, id: NodeId) {
        let disk = lock(&self.cluster).disk(id);
        disk.set_mode(if self.plan.planted.early_disk { SyncMode::Early } else { SyncMode::Manual });
        let world = self.clone();
        self.own(id, tokio::spawn(async move { world.sync(id, disk).await }).abort_handle());
    }

    async fn sync(&self, id: NodeId, disk: MemoryStorage) {
        let mut dice = self.dice(1000 + id);
        loop {
            disk.wait_unsynced().await;
            let slow = lock(&self.slow).contains(&id);
            let micros = if slow { dice.random_range(20_000..400_000) } else { dice.random_range(100..800) };
            let micros = if self.plan.planted.early_disk { micros + 50_000 } else { micros };
            tokio::time::sleep(Duration::from_micros(micros)).await;
            self.board.running(id).await;
            disk.sync();
        }
    }

    /// Ends all nodes. One whose runtime goes away under it would keep its memory.
    pub async fn end(&self) {
        let ids: Vec<_> = self.ids().collect();
        let gone: Vec<_> = ids.into_iter().filter_map(|id| lock(&self.cluster).cut_power(id, Cut::Keep(0))).collect();
        futures_util::future::join_all(gone).await;
    }

    pub fn break_promise(&self, promise: &'static str, how: String) {
        self.note(|| format!("BROKEN {promise}: {how}"));
        lock(&self.broken).push(Broken::new(promise, how));
    }

    /// Everything works again, and everybody is started.
    pub fn heal(self: &Arc<World>) {
        self.board.heal();
        self.board.calm();
        for id in self.ids() {
            self.go_on(id);
            self.slow_down(id, false);
            self.restart(id);
        }
        self.note(|| "healed".to_owned());
    }
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while it has the lock")
}
