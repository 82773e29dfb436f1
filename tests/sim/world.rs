//! The shared state of a run: the cluster, the network, the records and the counters.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tenure::clock::Clock;
use tenure::config::LeaseSettings;
use tenure::lease::Limits;
use tenure::node::{Consistency, NodeFailure, PeerRefusal, StartError, StorageError};
use tenure::raft::FeatureLevel;
use tenure::testing::{ApplyObserver, Cluster, Cut, MemoryStorage, NodeTime, Setup, Switchboard, SyncMode, TestNode};
use tenure::token::FencingToken;
use tenure::types::{LeaseName, MemberChange, NodeId};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::clock::DriftingClock;
use super::judge::Broken;
use super::judge::history::History;
use super::ledger::{Ledger, LedgerObserver};
use super::plan::{Plan, limits};
use super::principals::Principals;
use super::register::Registers;
use super::verdict::Counts;

/// The shared state of one run.
pub struct World {
    pub plan: Plan,
    pub began: Instant,
    pub network: Switchboard,
    pub cluster: Mutex<Cluster>,
    pub ledger: Arc<Mutex<Ledger>>,
    pub history: Mutex<History>,
    pub registers: Mutex<Registers>,
    pub principals: Mutex<Principals>,
    pub violations: Mutex<Vec<Broken>>,
    pub faults: Mutex<Counts>,
    pub work: Mutex<Counts>,
    trace: Mutex<Vec<String>>,
    /// The number of power cuts of each node.
    pub incarnations: watch::Sender<BTreeMap<NodeId, u64>>,
    /// The rate of each node's tasks, and whether they run.
    node_times: BTreeMap<NodeId, NodeTime>,
    /// The machines of the clients, by client number.
    client_machines: Vec<ClientMachine>,
    /// The steps of work that clients did under a guard.
    pub steps: Mutex<Vec<WorkStep>>,
    slow_disks: Mutex<BTreeSet<NodeId>>,
    /// Nodes whose disk completes no sync for a while.
    hung_disks: watch::Sender<BTreeSet<NodeId>>,
    /// Running nodes whose next sync fails, or has failed.
    failing_disks: Mutex<BTreeSet<NodeId>>,
    /// Nodes that never start again, because their disk is corrupt or was wiped.
    lost: Mutex<BTreeSet<NodeId>>,
    tasks: Mutex<BTreeMap<NodeId, Vec<AbortHandle>>>,
    /// Nodes that were started to join the cluster.
    joining: Mutex<BTreeSet<NodeId>>,
    /// Nodes that the cluster was asked to remove.
    removed: Mutex<BTreeSet<NodeId>>,
    /// The leadership lease that the rollout configures on all nodes, in milliseconds.
    lease_wanted: AtomicU64,
    /// Each node's leadership lease since its last start, in milliseconds.
    leases: Mutex<BTreeMap<NodeId, u64>>,
    /// Chooses the limits of restarted nodes.
    limits_rng: Mutex<StdRng>,
    /// Chooses which restarted nodes are upgraded.
    upgrade_rng: Mutex<StdRng>,
    /// Chooses the crashes that the other nodes notice at once.
    ends_rng: Mutex<StdRng>,
    /// Chooses the power cuts that keep the writes of snapshots without the log.
    cuts_rng: Mutex<StdRng>,
    /// Chooses the requests that end at the node when their client gives up.
    cancels_rng: Mutex<StdRng>,
    /// The position of the last transition that the watcher has received.
    pub watched: Mutex<(u64, u32)>,
    /// Voters that start on an empty disk, and whether the cluster has refused them.
    wiped: Mutex<BTreeMap<NodeId, bool>>,
    /// All clients are dead: no request or response of a client is delivered.
    pub no_clients: AtomicBool,
}

/// The machine that the processes of one client run on.
struct ClientMachine {
    time: NodeTime,
    /// The number of resumes after a suspend.
    resumes: watch::Sender<u64>,
}

/// One step of work that a client did under a guard.
#[derive(Clone, Debug)]
pub struct WorkStep {
    pub name: LeaseName,
    pub token: FencingToken,
    pub at: Duration,
}

impl World {
    /// Prepares a cluster without starting a node.
    pub fn new(plan: Plan) -> Arc<World> {
        let began = Instant::now();
        let ledger = Arc::new(Mutex::new(Ledger::new(began)));
        let (observed, rates, jump) = (ledger.clone(), plan.rates.clone(), plan.planted.jumping_clock);
        let node_times: BTreeMap<_, _> =
            plan.rates.iter().map(|(id, rate)| (*id, NodeTime::new(began, *rate))).collect();
        let machine = |rate: &f64| ClientMachine { time: NodeTime::new(began, *rate), resumes: watch::Sender::new(0) };
        let client_machines = plan.client_rates.iter().map(machine).collect();
        let (machines, suspended) = (node_times.clone(), plan.suspended_rates.clone());
        let clock = move |id: NodeId| -> Arc<dyn Clock> {
            let clock = DriftingClock::new(began, Duration::from_secs(100 * id), rates[&id]);
            let clock = clock.of_machine(machines[&id].clone(), suspended[&id]);
            if jump { Arc::new(super::clock::JumpingClock(clock)) } else { Arc::new(clock) }
        };
        let setup = Setup {
            timings_of: (1..=plan.last_id).map(|id| (id, plan.timings(id, plan.lease_ms))).collect(),
            lease_of: plan.limits.iter().map(|(id, limits)| (*id, settings(*limits))).collect(),
            levels: plan.older.iter().map(|id| (*id, FeatureLevel::FIRST)).collect(),
            node_times: node_times.clone(),
            clock: Arc::new(clock),
            observer: Some(Arc::new(move |id| -> Arc<dyn ApplyObserver> { LedgerObserver::new(id, observed.clone()) })),
            ..Setup::default()
        };
        let cluster = Cluster::prepare(plan.nodes, setup);
        let leases = plan.limits.keys().map(|id| (*id, plan.lease_ms)).collect();
        Arc::new(World {
            began,
            network: cluster.board.clone(),
            incarnations: watch::Sender::new((1..=plan.last_id).map(|id| (id, 0)).collect()),
            lease_wanted: AtomicU64::new(plan.lease_ms),
            leases: Mutex::new(leases),
            limits_rng: Mutex::new(StdRng::seed_from_u64(plan.seed ^ 7_000)),
            upgrade_rng: Mutex::new(StdRng::seed_from_u64(plan.seed ^ 0x7570)),
            ends_rng: Mutex::new(StdRng::seed_from_u64(plan.seed ^ 0x656e_6473)),
            cuts_rng: Mutex::new(StdRng::seed_from_u64(plan.seed ^ 0x6375_7473)),
            cancels_rng: Mutex::new(StdRng::seed_from_u64(plan.seed ^ 0x6361_6e63)),
            watched: Mutex::new((0, u32::MAX)),
            wiped: Mutex::default(),
            plan,
            cluster: Mutex::new(cluster),
            ledger,
            history: Mutex::default(),
            registers: Mutex::default(),
            principals: Mutex::default(),
            node_times,
            client_machines,
            steps: Mutex::default(),
            violations: Mutex::default(),
            faults: Mutex::default(),
            work: Mutex::default(),
            trace: Mutex::default(),
            slow_disks: Mutex::default(),
            hung_disks: watch::Sender::default(),
            failing_disks: Mutex::default(),
            lost: Mutex::default(),
            tasks: Mutex::default(),
            joining: Mutex::default(),
            removed: Mutex::default(),
            no_clients: AtomicBool::default(),
        })
    }

    /// All nodes that were started, removed ones included.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (1..=self.plan.nodes).chain(lock(&self.joining).clone())
    }

    /// The nodes that can start and that the cluster was not asked to remove.
    pub fn usable_nodes(&self) -> BTreeSet<NodeId> {
        let (lost, removed) = (lock(&self.lost), lock(&self.removed));
        self.ids().filter(|id| !lost.contains(id) && !removed.contains(id)).collect()
    }

    /// The node after this one, among those that a client knows.
    pub fn next_node(&self, after: NodeId) -> NodeId {
        let usable = self.usable_nodes();
        let next = usable.range(after + 1..).next().or(usable.first());
        *next.expect("a cluster has usable nodes")
    }

    pub fn random_node(&self, rng: &mut StdRng) -> NodeId {
        let usable = self.usable_nodes();
        *usable.iter().nth(rng.random_range(0..usable.len())).expect("the place is in range")
    }

    /// Starts a node that joins the cluster. Returns the change that adds it, or `None` if all nodes are in use.
    pub fn start_joining(self: &Arc<World>) -> Option<(NodeId, MemberChange)> {
        let id = self.plan.nodes + 1 + lock(&self.joining).len() as u64;
        if id > self.plan.last_id {
            return None;
        }
        let add = lock(&self.cluster).prepare_joining(id);
        lock(&self.joining).insert(id);
        self.set_lease(id, self.lease_wanted());
        self.restart(id);
        Some((id, add))
    }

    /// Marks a node that the cluster is asked to remove.
    pub fn mark_removed(&self, id: NodeId) {
        lock(&self.removed).insert(id);
    }

    pub fn is_marked_removed(&self, id: NodeId) -> bool {
        lock(&self.removed).contains(&id)
    }

    /// Whether a disk was lost in this run.
    pub fn has_lost_nodes(&self) -> bool {
        !lock(&self.lost).is_empty()
    }

    /// Marks a node that never starts again.
    pub fn lose(&self, id: NodeId) {
        lock(&self.lost).insert(id);
    }

    /// True time since the start of the run.
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// A separate random number generator for a part of the run, so that one part does not change another's choices.
    pub fn rng(&self, part: u64) -> StdRng {
        StdRng::seed_from_u64(self.plan.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ part)
    }

    /// Adds a line to the trace, if the plan asks for one.
    pub fn trace(&self, line: impl FnOnce() -> String) {
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
        self.trace(|| format!("fault {fault}"));
    }

    pub fn count_work(&self, work: &'static str) {
        *lock(&self.work).entry(work).or_default() += 1;
    }

    /// The fastest consistency that is current. A leader reads from memory only while the clocks stay inside the drift.
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

    /// The node that claims leadership in the highest term.
    pub fn leader(&self) -> Option<NodeId> {
        let cluster = lock(&self.cluster);
        let leads = |id: &NodeId| {
            let seen = cluster.running(*id)?.leadership();
            (seen.leader == Some(*id)).then_some((seen.term, *id))
        };
        self.ids().filter_map(|id| leads(&id)).max().map(|(_, id)| id)
    }

    /// Cuts a node's power. The node may be running, starting or down.
    pub fn crash(&self, id: NodeId, cut: Cut) {
        for task in lock(&self.tasks).remove(&id).unwrap_or_default() {
            task.abort();
        }
        lock(&self.wiped).remove(&id);
        lock(&self.failing_disks).remove(&id);
        let keeps_snapshots = lock(&self.cuts_rng).random_bool(0.1);
        // A caller of `Keep(0)` may need a disk that loses everything.
        let cut = if keeps_snapshots && cut != Cut::Keep(0) { Cut::Snapshots } else { cut };
        let stopped = lock(&self.cluster).cut_power(id, cut);
        // The kernel closes the connections of a process that ends, and not those of a machine without power.
        if lock(&self.ends_rng).random_bool(0.5) {
            lock(&self.cluster).board.close_connections(id);
        }
        self.incarnations.send_modify(|incarnations| *incarnations.get_mut(&id).expect("a member") += 1);
        // The remaining tasks of a stopped node would never end, and the next incarnation must not start stopped.
        self.resume(id);
        if let Some(stopped) = stopped {
            tokio::spawn(stopped);
        }
        self.trace(|| format!("node {id} lost power, {cut:?}"));
    }

    /// Starts a node that is down on its disk, sometimes with other limits.
    pub fn restart(self: &Arc<World>, id: NodeId) {
        if lock(&self.tasks).contains_key(&id) || lock(&self.lost).contains(&id) {
            return;
        }
        let small = Some(lock(&self.limits_rng).random_range(1..=10)).filter(|small| *small <= 5);
        if let Some(small) = small {
            lock(&self.cluster).set_lease(id, settings(limits(small)));
        }
        if self.plan.older.contains(&id) && lock(&self.upgrade_rng).random_bool(0.5) {
            lock(&self.cluster).upgrade(id);
            self.count_fault("upgraded");
        }
        self.start_disk(id);
        let launch = lock(&self.cluster).launch(id);
        let world = self.clone();
        let boot = tokio::spawn(async move {
            match launch.await {
                Ok(node) => {
                    lock(&world.cluster).put(id, node);
                    world.trace(|| format!("node {id} has started"));
                }
                Err(StartError::Refused(PeerRefusal::Removed { .. })) if world.is_marked_removed(id) => {
                    world.trace(|| format!("node {id} was removed and does not start"));
                }
                Err(error) => world.report_violation("starts", format!("node {id} does not start: {error}")),
            }
        });
        self.track_task(id, boot.abort_handle());
    }

    /// Starts a node that is down on an empty disk. The other nodes must refuse it.
    pub fn restart_wiped(self: &Arc<World>, id: NodeId) {
        lock(&self.cluster).replace_disk(id);
        lock(&self.wiped).insert(id, false);
        self.start_disk(id);
        let launch = lock(&self.cluster).launch(id);
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
            world.trace(|| format!("wiped node {id} is refused: {refused}"));
            lock(&world.wiped).insert(id, refused);
        });
        self.track_task(id, boot.abort_handle());
    }

    /// Voters on an empty disk that the cluster did not refuse.
    pub fn wiped_and_not_refused(&self) -> Vec<NodeId> {
        lock(&self.wiped).iter().filter(|(_, refused)| !**refused).map(|(id, _)| *id).collect()
    }

    /// The leadership lease that the rollout configures on all nodes, in milliseconds.
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

    /// Configures the leadership lease of a node that is down.
    pub fn set_lease(&self, id: NodeId, lease_ms: u64) {
        lock(&self.leases).insert(id, lease_ms);
        lock(&self.cluster).set_timings(id, self.plan.timings(id, lease_ms));
    }

    /// Stops the node's process: no task runs, and no message arrives or leaves.
    pub fn stop(&self, id: NodeId) {
        self.network.pause(id);
        self.node_times[&id].pause();
    }

    /// Suspends the node's machine. In addition to the effects of [`World::stop`], its monotonic clock stops.
    pub fn suspend(&self, id: NodeId) {
        self.network.pause(id);
        self.node_times[&id].suspend();
    }

    pub fn resume(&self, id: NodeId) {
        self.node_times[&id].resume();
        self.network.resume(id);
    }

    /// Suspends a client's machine and its monotonic clock. Messages to the client wait.
    pub fn suspend_client(&self, number: u64) {
        self.client_machines[number as usize].time.suspend();
        self.trace(|| format!("the machine of client {number} is suspended"));
    }

    pub fn resume_client(&self, number: u64) {
        let machine = &self.client_machines[number as usize];
        machine.time.resume();
        machine.resumes.send_modify(|resumes| *resumes += 1);
    }

    /// The time of a client's processes.
    pub fn client_time(&self, number: u64) -> &NodeTime {
        &self.client_machines[number as usize].time
    }

    /// Changes when the client's machine resumes after a suspend.
    pub fn client_resumes(&self, number: u64) -> watch::Receiver<u64> {
        self.client_machines[number as usize].resumes.subscribe()
    }

    /// Runs a future at the rate of a node, as part of its process.
    pub fn on_node<T>(&self, id: NodeId, work: impl Future<Output = T>) -> impl Future<Output = T> {
        self.node_times[&id].run_with(work)
    }

    /// Switches slow syncs of a node's disk on or off.
    pub fn set_slow_disk(&self, id: NodeId, slow: bool) {
        if slow {
            lock(&self.slow_disks).insert(id)
        } else {
            lock(&self.slow_disks).remove(&id)
        };
    }

    /// Lets a node's disk hang, or complete its syncs again.
    pub fn set_hung_disk(&self, id: NodeId, hangs: bool) {
        self.hung_disks.send_if_modified(|hung| if hangs { hung.insert(id) } else { hung.remove(&id) });
    }

    /// Makes the next sync of a running node's disk fail. Returns the disk.
    pub fn fail_disk(&self, id: NodeId, error: StorageError) -> MemoryStorage {
        let disk = lock(&self.cluster).disk(id);
        lock(&self.failing_disks).insert(id);
        disk.fail_next(error);
        disk
    }

    /// The number of power cuts of a node.
    pub fn incarnation(&self, id: NodeId) -> u64 {
        self.incarnations.borrow()[&id]
    }

    /// Whether a request ends at the node when its client gives up, as after the end of its connection.
    pub fn is_cancelled_at_the_node(&self) -> bool {
        lock(&self.cancels_rng).random_bool(0.33)
    }

    fn track_task(&self, id: NodeId, task: AbortHandle) {
        lock(&self.tasks).entry(id).or_default().push(task);
    }

    fn start_disk(self: &Arc<World>, id: NodeId) {
        let disk = lock(&self.cluster).disk(id);
        disk.set_mode(if self.plan.planted.early_syncs { SyncMode::Early } else { SyncMode::Manual });
        let world = self.clone();
        self.track_task(id, tokio::spawn(async move { world.sync(id, disk).await }).abort_handle());
    }

    async fn sync(&self, id: NodeId, disk: MemoryStorage) {
        let mut rng = self.rng(1000 + id);
        loop {
            disk.wait_unsynced().await;
            let slow = lock(&self.slow_disks).contains(&id);
            let micros = if slow { rng.random_range(20_000..400_000) } else { rng.random_range(100..800) };
            let micros = if self.plan.planted.early_syncs { micros + 50_000 } else { micros };
            tokio::time::sleep(Duration::from_micros(micros)).await;
            // The wait cannot fail, because the world has the sender.
            let _ = self.hung_disks.subscribe().wait_for(|hung| !hung.contains(&id)).await;
            self.network.running(id).await;
            disk.sync();
        }
    }

    /// Ends all nodes. A node that still runs when its runtime is dropped leaks its memory.
    pub async fn end(&self) {
        let ids: Vec<_> = self.ids().collect();
        let stopped: Vec<_> =
            ids.into_iter().filter_map(|id| lock(&self.cluster).cut_power(id, Cut::Keep(0))).collect();
        futures_util::future::join_all(stopped).await;
    }

    pub fn report_violation(&self, promise: &'static str, how: String) {
        self.trace(|| format!("BROKEN {promise}: {how}"));
        lock(&self.violations).push(Broken::of_cluster(promise, how));
    }

    /// Ends all faults and starts all nodes that have a disk with the wanted leadership lease.
    pub fn heal(self: &Arc<World>) {
        self.network.heal();
        self.network.clear_faults();
        (0..self.plan.clients).for_each(|number| self.resume_client(number));
        for id in self.ids() {
            self.resume(id);
            self.set_slow_disk(id, false);
            self.set_hung_disk(id, false);
            let is_failing = lock(&self.failing_disks).contains(&id);
            if is_failing {
                self.crash(id, Cut::Keep(0));
            }
            let wanted = self.lease_wanted();
            // Also a node that the cluster was asked to remove: as long as it votes, it must agree with the others.
            if !lock(&self.lost).contains(&id) && self.lease(id) != Duration::from_millis(wanted) {
                self.crash(id, Cut::Keep(0));
                self.set_lease(id, wanted);
            }
            self.restart(id);
        }
        self.trace(|| "healed".to_owned());
    }
}

fn settings(limits: Limits) -> LeaseSettings {
    let mut settings = LeaseSettings::default();
    settings.limits = limits;
    settings
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no task panics while it holds the lock")
}
