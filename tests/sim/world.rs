//! Everything that a run is made of, and what its parts share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tenure::clock::Clock;
use tenure::config::LeaseSettings;
use tenure::lease::Limits;
use tenure::node::{Consistency, NodeFailure, StartError};
use tenure::testing::{Cluster, Cut, MemoryStorage, NodeTime, Observer, Setup, Switchboard, SyncMode, TestNode};
use tenure::token::FencingToken;
use tenure::types::{LeaseName, NodeId};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::clock::SkewedClock;
use super::fault_injector::Meddler;
use super::history::History;
use super::ledger::{Ledger, Tap};
use super::plan::{Plan, limits};
use super::register::Registers;
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
    paces: BTreeMap<NodeId, NodeTime>,
    /// The machines of the clients.
    machines: Vec<Machine>,
    /// The steps of work under guards.
    pub steps: Mutex<Vec<Step>>,
    slow: Mutex<BTreeSet<NodeId>>,
    /// Nodes whose disk is spoiled: they refuse to start.
    lost: Mutex<BTreeSet<NodeId>>,
    tasks: Mutex<BTreeMap<NodeId, Vec<AbortHandle>>>,
    /// The leadership lease that all nodes are to have in the end, in milliseconds.
    lease_wanted: AtomicU64,
    /// Each node's since its last start.
    leases: Mutex<BTreeMap<NodeId, u64>>,
    /// For the limits that nodes start with.
    starts: Mutex<StdRng>,
    /// Voters that start on an empty disk, and whether they were refused yet.
    wiped: Mutex<BTreeMap<NodeId, bool>>,
    /// All clients have died: nothing of them is asked or answered any more.
    pub no_clients: AtomicBool,
}

/// The machine that the processes of one client run on.
struct Machine {
    pace: NodeTime,
    /// How often it went on after a suspend.
    wakes: watch::Sender<u64>,
}

/// A step of work under a guard.
#[derive(Clone, Debug)]
pub struct Step {
    pub name: LeaseName,
    pub token: FencingToken,
    pub at: Duration,
}

impl World {
    /// A cluster of which no node runs yet.
    pub fn new(plan: Plan) -> Arc<World> {
        let began = Instant::now();
        let ledger = Arc::new(Mutex::new(Ledger::new(began)));
        let (taps, rates, jump) = (ledger.clone(), plan.rates.clone(), plan.planted.wall_clock);
        let paces: BTreeMap<_, _> = plan.rates.iter().map(|(id, rate)| (*id, NodeTime::new(began, *rate))).collect();
        let machine = |rate: &f64| Machine { pace: NodeTime::new(began, *rate), wakes: watch::Sender::new(0) };
        let client_machines = plan.client_rates.iter().map(machine).collect();
        let (bug, machines, suspended) = (plan.planted.machine, paces.clone(), plan.suspended_rates.clone());
        let clock = move |id: NodeId| -> Arc<dyn Clock> {
            let steady = SkewedClock::new(began, Duration::from_secs(100 * id), rates[&id]);
            let steady = steady.of_machine(machines[&id].clone(), suspended[&id]);
            if jump { Arc::new(super::clock::JumpingClock(steady)) } else { Arc::new(steady) }
        };
        let setup = Setup {
            timings_of: (1..=plan.nodes).map(|id| (id, plan.timings(id, plan.lease_ms))).collect(),
            lease_of: plan.limits.iter().map(|(id, limits)| (*id, settings(*limits))).collect(),
            paces: paces.clone(),
            safeguards: plan.planted.safeguards,
            clock: Arc::new(clock),
            tap: Some(Arc::new(move |id| -> Arc<dyn Observer> { Tap::new(id, taps.clone(), bug.map(Meddler::new)) })),
            ..Setup::default()
        };
        let cluster = Cluster::prepare(plan.nodes, setup);
        let leases = plan.limits.keys().map(|id| (*id, plan.lease_ms)).collect();
        Arc::new(World {
            began,
            board: cluster.board.clone(),
            lives: watch::Sender::new(cluster.ids().map(|id| (id, 0)).collect()),
            lease_wanted: AtomicU64::new(plan.lease_ms),
            leases: Mutex::new(leases),
            starts: Mutex::new(StdRng::seed_from_u64(plan.seed ^ 7_000)),
            wiped: Mutex::default(),
            plan,
            cluster: Mutex::new(cluster),
            ledger,
            history: Mutex::default(),
            registers: Mutex::default(),
            paces,
            machines: client_machines,
            steps: Mutex::default(),
            broken: Mutex::default(),
            faults: Mutex::default(),
            work: Mutex::default(),
            trace: Mutex::default(),
            slow: Mutex::default(),
            lost: Mutex::default(),
            tasks: Mutex::default(),
            no_clients: AtomicBool::default(),
        })
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
        lock(&self.wiped).remove(&id);
        let gone = lock(&self.cluster).cut_power(id, cut);
        self.lives.send_modify(|lives| *lives.get_mut(&id).expect("a member") += 1);
        // What is left of it would never end if it stood still; and the next life of it does not.
        self.go_on(id);
        if let Some(gone) = gone {
            tokio::spawn(gone);
        }
        self.note(|| format!("node {id} is gone, {cut:?}"));
    }

    /// Starts a node that is down, on its disk. Now and then it has other limits from then on.
    pub fn restart(self: &Arc<World>, id: NodeId) {
        if lock(&self.tasks).contains_key(&id) || lock(&self.lost).contains(&id) {
            return;
        }
        let small = Some(lock(&self.starts).random_range(1..=10)).filter(|small| *small <= 5);
        if let Some(small) = small {
            lock(&self.cluster).set_lease(id, settings(limits(small)));
        }
        self.play_disk(id);
        let launch = lock(&self.cluster).launch(id, self.plan.planted.safeguards);
        let world = self.clone();
        let boot = tokio::spawn(async move {
            match launch.await {
                Ok(node) => {
                    lock(&world.cluster).put(id, node);
                    world.note(|| format!("node {id} is back"));
                }
                Err(error) => world.break_promise("starts", format!("node {id} does not start: {error}")),
            }
        });
        self.own(id, boot.abort_handle());
    }

    /// Starts a node that is down on an empty disk: the others must refuse it.
    pub fn restart_wiped(self: &Arc<World>, id: NodeId) {
        lock(&self.cluster).replace_disk(id);
        lock(&self.wiped).insert(id, false);
        self.play_disk(id);
        let launch = lock(&self.cluster).launch(id, self.plan.planted.safeguards);
        let world = self.clone();
        let boot = tokio::spawn(async move {
            let refused = match launch.await {
                Err(StartError::Refused(_)) => true,
                Err(_) => false,
                Ok(node) => {
                    lock(&world.cluster).put(id, node.clone());
                    matches!(node.wait_failed().await, NodeFailure::Refused(_))
                }
            };
            world.note(|| format!("wiped node {id} is refused: {refused}"));
            lock(&world.wiped).insert(id, refused);
        });
        self.own(id, boot.abort_handle());
    }

    /// Voters on an empty disk that were not refused.
    pub fn wiped_and_not_refused(&self) -> Vec<NodeId> {
        lock(&self.wiped).iter().filter(|(_, refused)| !**refused).map(|(id, _)| *id).collect()
    }

    /// The leadership lease that all nodes are to have in the end, in milliseconds.
    pub fn lease_wanted(&self) -> u64 {
        self.lease_wanted.load(Ordering::Relaxed)
    }

    pub fn want_lease(&self, lease_ms: u64) {
        self.lease_wanted.store(lease_ms, Ordering::Relaxed);
    }

    /// The leadership lease of a node since its last start.
    pub fn lease(&self, id: NodeId) -> Duration {
        Duration::from_millis(lock(&self.leases)[&id])
    }

    /// A node that is down gets another leadership lease.
    pub fn set_lease(&self, id: NodeId, lease_ms: u64) {
        lock(&self.leases).insert(id, lease_ms);
        lock(&self.cluster).set_timings(id, self.plan.timings(id, lease_ms));
    }

    /// The node's process stands still: nothing reaches or leaves it, and nothing of it runs.
    pub fn stop(&self, id: NodeId) {
        self.board.stop(id);
        self.paces[&id].halt();
    }

    /// The node's machine is suspended: it stands still as a stopped process does, and so does its monotonic clock.
    pub fn suspend(&self, id: NodeId) {
        self.board.stop(id);
        self.paces[&id].suspend();
    }

    pub fn go_on(&self, id: NodeId) {
        self.paces[&id].go_on();
        self.board.go_on(id);
    }

    /// A client's machine is suspended, and its monotonic clock stands still. Messages to it wait.
    pub fn suspend_client(&self, number: u64) {
        self.machines[number as usize].pace.suspend();
        self.note(|| format!("the machine of client {number} is suspended"));
    }

    /// A client's machine goes on.
    pub fn wake_client(&self, number: u64) {
        let machine = &self.machines[number as usize];
        machine.pace.go_on();
        machine.wakes.send_modify(|wakes| *wakes += 1);
    }

    /// The pace of a client's processes.
    pub fn client_pace(&self, number: u64) -> &NodeTime {
        &self.machines[number as usize].pace
    }

    /// Changes whenever the client's machine goes on after a suspend.
    pub fn client_wakes(&self, number: u64) -> watch::Receiver<u64> {
        self.machines[number as usize].wakes.subscribe()
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
        (0..self.plan.clients).for_each(|number| self.wake_client(number));
        for id in self.ids() {
            self.go_on(id);
            self.slow_down(id, false);
            let wanted = self.lease_wanted();
            if self.living().contains(&id) && self.lease(id) != Duration::from_millis(wanted) {
                self.crash(id, Cut::Keep(0));
                self.set_lease(id, wanted);
            }
            self.restart(id);
        }
        self.note(|| "healed".to_owned());
    }
}

fn settings(limits: Limits) -> LeaseSettings {
    LeaseSettings { limits, ..LeaseSettings::default() }
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while it has the lock")
}
