//! Injects faults and ends them. Each fault begins, is updated while it lasts, and ends. [`Nemesis::heal`] ends the
//! remaining faults in any order. Afterwards no fault is in force.

use std::time::{Duration, Instant};

use anyhow::Result;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;
use tokio_util::task::AbortOnDropHandle;

use super::clocks;
use super::cluster::{Cluster, ExpectedExit, Standing};
use super::holders::Holders;
use super::kind::Kind;
use super::members::{ChangeKind, Operator};
use super::network::{self, Cut};
use super::network_faults::NetworkFaults;
use super::plan::Fault;

/// How long a fault of the leader waits until the cluster has one.
const LEADER_WITHIN: Duration = Duration::from_secs(3);

/// If a suspended machine is cut off from the other nodes, the cut lasts for this time after the suspend.
const WITHOUT_NODES: Duration = Duration::from_secs(1);

/// The shortest time of a change of the members. The new node needs it to start and to catch up.
const CHANGE_LASTS: Duration = Duration::from_secs(3);
/// The longest time from the start of a joining node to its crash. Within this time, it usually becomes a voter.
const CRASH_WITHIN: Duration = Duration::from_millis(2_500);

/// The targets of faults.
pub struct Targets {
    pub cluster: Cluster,
    pub holders: Holders,
}

/// An active fault.
pub struct ActiveFault {
    pub fault: Fault,
    /// A number that is unique in the run.
    number: usize,
    /// The hosts or holders that the fault affects.
    pub hit: Vec<u64>,
    ends: Instant,
    rng: StdRng,
    /// The time of the next update.
    next: Instant,
    is_down: bool,
    /// For a rolling restart: the nodes that remain, and the node that is stopping.
    rolling: Vec<u64>,
    stopping: Option<u64>,
    /// The requests of a change of the members or of transfers.
    requests: Option<AbortOnDropHandle<()>>,
}

pub struct Nemesis {
    active: Vec<ActiveFault>,
    made: usize,
    pub operator: Operator,
}

impl Nemesis {
    pub fn new(operator: Operator) -> Nemesis {
        Nemesis { active: Vec::new(), made: 0, operator }
    }

    /// Begins a fault. Returns whether it had a target.
    pub async fn begin(&mut self, targets: &mut Targets, fault: &Fault) -> Result<bool> {
        self.made += 1;
        let now = Instant::now();
        let mut active = ActiveFault {
            fault: fault.clone(),
            number: self.made,
            hit: Vec::new(),
            ends: now + fault.lasts,
            rng: StdRng::seed_from_u64(fault.draw),
            next: now,
            is_down: false,
            rolling: Vec::new(),
            stopping: None,
            requests: None,
        };
        let happened = active.begin(targets, &self.operator).await?;
        if happened {
            self.active.push(active);
        }
        Ok(happened)
    }

    /// Updates the active faults and ends those whose time is over. Returns the ended faults.
    pub async fn advance(&mut self, targets: &mut Targets) -> Result<Vec<ActiveFault>> {
        let now = Instant::now();
        for active in &mut self.active {
            if now >= active.next {
                active.update(targets).await?;
            }
        }
        let is_over =
            |active: &mut ActiveFault| now >= active.ends && active.rolling.is_empty() && active.stopping.is_none();
        let mut over: Vec<ActiveFault> = self.active.extract_if(.., is_over).collect();
        for active in &mut over {
            active.end(targets)?;
        }
        Ok(over)
    }

    pub fn is_idle(&self) -> bool {
        self.active.is_empty()
    }

    /// Ends all faults, and starts all nodes and holders.
    pub fn heal(&mut self, targets: &mut Targets) -> Result<()> {
        for mut active in self.active.drain(..) {
            active.end(targets)?;
        }
        for host in targets.cluster.hosts() {
            targets.cluster.network.link(host, true)?;
            targets.cluster.pause(host, false)?;
            repair_and_start(&mut targets.cluster, host)?;
        }
        targets.holders.restart()
    }
}

impl ActiveFault {
    async fn begin(&mut self, targets: &mut Targets, operator: &Operator) -> Result<bool> {
        let cluster = &mut targets.cluster;
        let hosts = cluster.host_count();
        let has_node = |host: &u64| cluster.nodes.get(host).is_some_and(|node| node.standing != Standing::Removed);
        let order: Vec<u64> = self.fault.order.iter().copied().filter(has_node).collect();
        let some = order[..cluster.minority()].to_vec();
        let up: Vec<u64> = order.iter().copied().filter(|host| cluster.runs(*host)).collect();
        // A joining node may have no store yet, and may become ready only after the other faults.
        let joined = |host: &u64| cluster.nodes[host].standing != Standing::Joining;
        let joined: Vec<u64> = up.iter().copied().filter(joined).collect();
        match self.fault.kind {
            Kind::Minority => self.cut(cluster, some.clone(), network::apart(&some, hosts))?,
            Kind::Bridge => self.cut(cluster, order.clone(), network::bridge(&order))?,
            Kind::Ring => self.cut(cluster, order.clone(), network::ring(&order))?,
            Kind::OneWay => {
                // Half of these faults choose the leader, if there is one. The cut blocks one direction: to the node,
                // or from it.
                let of_leader = self.rng.random_bool(0.5);
                let leader = if of_leader { leader(cluster).await } else { None };
                let (deaf, one) = (self.either(true, false), leader.unwrap_or(order[0]));
                let all = network::apart(&[one], hosts).into_iter();
                self.cut(cluster, vec![one], all.filter(|(listener, _)| (*listener == one) == deaf).collect())?;
            }
            Kind::Flapping => self.hit = vec![order[0]],
            Kind::Loss | Kind::Delay => return self.impair_network(cluster, &order),
            Kind::LeaderIsolated
            | Kind::RestartInPromise
            | Kind::KillLeader
            | Kind::PauseLeader
            | Kind::SuspendLeader => {
                let Some(leader) = leader(cluster).await else { return Ok(false) };
                return self.begin_at_leader(cluster, leader, &joined);
            }
            Kind::Kill => return self.kill(cluster, &up[..up.len().min(1)]),
            Kind::KillMinority => return self.kill(cluster, &some),
            Kind::KillAll => return self.kill(cluster, &up),
            Kind::Pause => return self.pause(cluster, up.first().copied()),
            Kind::Suspend => return self.suspend(cluster, up.first().copied()),
            Kind::RollingRestart => (self.rolling, self.hit) = (joined.clone(), joined),
            Kind::HolderPause | Kind::HolderKill => return self.hit_holders(&mut targets.holders),
            Kind::PowerCut => return self.cut_power(cluster, &up[..up.len().min(1)]),
            Kind::PowerCutMinority => return self.cut_power(cluster, &some),
            Kind::PowerCutAll => return self.cut_power(cluster, &up),
            Kind::MemberReplace | Kind::MemberAddRemove => return self.change_members(cluster, operator).await,
            Kind::Transfer => return self.transfer(cluster, operator).await,
            Kind::DiskFull | Kind::DiskBreaks => {
                let Some(&one) = joined.first() else { return Ok(false) };
                self.hit = vec![one];
                let node = cluster.node(one);
                if self.fault.kind == Kind::DiskFull {
                    node.expected_exit = Some(ExpectedExit::DiskFull);
                    node.disk.fill()?;
                } else {
                    node.expected_exit = Some(ExpectedExit::DiskBroken);
                    node.disk.cut_power()?;
                }
            }
            Kind::WallJump | Kind::TimersInsideDrift | Kind::TimersBeyondDrift => {
                let Some(&one) = joined.first() else { return Ok(false) };
                self.hit = vec![one];
                cluster.kill(one)?;
                let folder = cluster.folder().to_owned();
                cluster.node(one).clocks = match self.fault.kind {
                    Kind::WallJump => clocks::jumping(&folder, one)?,
                    Kind::TimersInsideDrift => clocks::at_rate(self.either(1.005, 0.995)),
                    _ => clocks::at_rate(self.either(2.0, 0.5)),
                };
                cluster.launch(one)?;
                // The start of the node takes time.
                self.ends += Duration::from_secs(2);
            }
        }
        Ok(true)
    }

    fn begin_at_leader(&mut self, cluster: &mut Cluster, leader: u64, joined: &[u64]) -> Result<bool> {
        let hosts = cluster.host_count();
        match self.fault.kind {
            Kind::KillLeader => return self.kill(cluster, &[leader]),
            Kind::PauseLeader => return self.pause(cluster, Some(leader)),
            Kind::SuspendLeader => return self.suspend(cluster, Some(leader)),
            Kind::RestartInPromise => {
                // A follower that loses its promise to the leader could elect another leader while the old one still
                // serves reads.
                let Some(follower) = joined.iter().copied().find(|host| *host != leader) else { return Ok(false) };
                cluster.kill(follower)?;
                self.cut(cluster, vec![leader, follower], network::apart(&[leader], hosts))?;
                cluster.launch(follower)?;
            }
            _ => self.cut(cluster, vec![leader], network::apart(&[leader], hosts))?,
        }
        Ok(true)
    }

    async fn update(&mut self, targets: &mut Targets) -> Result<()> {
        let cluster = &mut targets.cluster;
        match self.fault.kind {
            Kind::Flapping => {
                self.is_down = !self.is_down;
                cluster.network.link(self.hit[0], !self.is_down)?;
                self.next += Duration::from_millis(self.rng.random_range(50..600));
            }
            Kind::WallJump => {
                clocks::jump(cluster.folder(), self.hit[0], self.rng.random_range(-100_000..100_000))?;
                self.next += Duration::from_millis(300);
            }
            Kind::RollingRestart => self.roll(cluster).await?,
            Kind::MemberReplace | Kind::MemberAddRemove => self.crash_joining(cluster)?,
            Kind::Suspend | Kind::SuspendLeader => {
                cluster.suspend(self.hit[0], false)?;
                self.next = self.ends + Duration::from_secs(1);
            }
            _ => self.next = self.ends,
        }
        Ok(())
    }

    /// Restarts one node after the other with SIGTERM. Each node must be ready before the next one stops.
    async fn roll(&mut self, cluster: &mut Cluster) -> Result<()> {
        self.next += Duration::from_millis(50);
        match self.stopping {
            None => {
                let Some(id) = self.rolling.pop() else {
                    self.next = self.ends + Duration::from_secs(1);
                    return Ok(());
                };
                let node = cluster.node(id);
                let Some(process) = &node.process else { return Ok(()) };
                process.signal(Signal::TERM)?;
                node.expected_exit = Some(ExpectedExit::Stopped);
                self.stopping = Some(id);
            }
            Some(id) if cluster.is_removed(id) => self.stopping = None,
            Some(id) if !cluster.runs(id) => cluster.launch(id)?,
            Some(id) if cluster.node(id).expected_exit == Some(ExpectedExit::Stopped) => {}
            Some(id) if cluster.ask(id, "/readyz").await.is_some() => self.stopping = None,
            Some(_) => {}
        }
        Ok(())
    }

    fn end(&mut self, targets: &mut Targets) -> Result<()> {
        let cluster = &mut targets.cluster;
        match self.fault.kind {
            Kind::HolderPause | Kind::HolderKill => return targets.holders.restart(),
            Kind::Loss | Kind::Delay => {
                for &id in &self.hit {
                    cluster.packet_queues[&id].clear();
                    cluster.queue(id, false)?;
                }
            }
            Kind::Flapping => cluster.network.link(self.hit[0], true)?,
            // The run completes the change later.
            Kind::MemberReplace | Kind::MemberAddRemove | Kind::Transfer => self.requests = None,
            Kind::Pause | Kind::PauseLeader => drop(cluster.pause(self.hit[0], false)?),
            Kind::Suspend | Kind::SuspendLeader => {
                cluster.suspend(self.hit[0], false)?;
                cluster.cut(self.number, None)?;
            }
            Kind::WallJump | Kind::TimersInsideDrift | Kind::TimersBeyondDrift => {
                cluster.kill(self.hit[0])?;
                cluster.node(self.hit[0]).clocks.clear();
            }
            _ => cluster.cut(self.number, None)?,
        }
        if self.fault.kind.ends_nodes() {
            for &id in &self.hit {
                repair_and_start(cluster, id)?;
            }
        }
        Ok(())
    }

    /// One of two variants, chosen by the schedule.
    fn either<T>(&self, one: T, other: T) -> T {
        if self.fault.draw.is_multiple_of(2) { one } else { other }
    }

    fn cut(&mut self, cluster: &mut Cluster, hit: Vec<u64>, cut: Cut) -> Result<()> {
        self.hit = hit;
        cluster.cut(self.number, Some(cut))
    }

    fn kill(&mut self, cluster: &mut Cluster, who: &[u64]) -> Result<bool> {
        for &id in who {
            if cluster.kill(id)? {
                self.hit.push(id);
            }
        }
        Ok(!self.hit.is_empty())
    }

    fn pause(&mut self, cluster: &mut Cluster, who: Option<u64>) -> Result<bool> {
        self.hit.extend(who);
        who.map_or(Ok(false), |id| cluster.pause(id, true))
    }

    /// Suspends a machine. In half of these faults, the clients reach the machine again before the other nodes do. Only
    /// its clocks then show a leader that another node may lead.
    fn suspend(&mut self, cluster: &mut Cluster, who: Option<u64>) -> Result<bool> {
        let Some(id) = who else { return Ok(false) };
        self.hit = vec![id];
        if !cluster.suspend(id, true)? {
            return Ok(false);
        }
        self.next = self.ends;
        if self.either(true, false) {
            self.cut(cluster, vec![id], network::apart(&[id], cluster.host_count()))?;
            self.ends += WITHOUT_NODES;
        }
        Ok(true)
    }

    /// Cuts the power of all disks before it kills the processes. The last writes of a process then reach no device.
    fn cut_power(&mut self, cluster: &mut Cluster, who: &[u64]) -> Result<bool> {
        self.hit = who.iter().copied().filter(|id| cluster.runs(*id)).collect();
        for &id in &self.hit {
            cluster.node(id).disk.cut_power()?;
        }
        for &id in &self.hit {
            cluster.kill(id)?;
            cluster.node(id).disk.unmount()?;
        }
        Ok(!self.hit.is_empty())
    }

    /// Starts a joining node and the requests that add it and remove a node. In half of these faults, the cluster removes
    /// its leader or, with `member-add-remove`, the new node itself.
    async fn change_members(&mut self, cluster: &mut Cluster, operator: &Operator) -> Result<bool> {
        if cluster.change.is_some() {
            return Ok(false);
        }
        let kind = match self.fault.kind {
            Kind::MemberReplace => ChangeKind::Replace,
            _ => ChangeKind::AddAndRemove,
        };
        let other = self.fault.order.iter().copied().find(|host| cluster.nodes.contains_key(host));
        let leaving = match kind {
            ChangeKind::Replace if self.either(true, false) => leader(cluster).await.or(other),
            ChangeKind::AddAndRemove if self.either(true, false) => None,
            _ => other,
        };
        let change = cluster.begin_change(kind, leaving)?;
        operator.world.hosts.lock().insert(change.joining_host);
        cluster.launch(change.joining_host)?;
        self.hit = vec![change.joining_host, change.leaving_host];
        self.ends += CHANGE_LASTS;
        self.next += self.rng.random_range(Duration::ZERO..CRASH_WITHIN);
        let requests = operator.clone().make(change, StdRng::seed_from_u64(self.fault.draw));
        self.requests = Some(AbortOnDropHandle::new(tokio::spawn(requests)));
        Ok(true)
    }

    /// In a third of the changes, the joining node crashes once and starts again.
    fn crash_joining(&mut self, cluster: &mut Cluster) -> Result<()> {
        let joining = self.hit[0];
        if self.fault.draw.is_multiple_of(3) && cluster.kill(joining)? {
            cluster.launch(joining)?;
        }
        self.next = self.ends + Duration::from_secs(1);
        Ok(())
    }

    /// Transfers the leadership once, and then again until the fault ends.
    async fn transfer(&mut self, cluster: &Cluster, operator: &Operator) -> Result<bool> {
        let ids = Vec::from_iter(cluster.ids());
        let began = Instant::now();
        while !operator.transfer(&ids, &mut self.rng).await {
            if began.elapsed() > LEADER_WITHIN {
                return Ok(false);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let requests = operator.clone().keep_transferring(ids, StdRng::seed_from_u64(self.fault.draw));
        self.requests = Some(AbortOnDropHandle::new(tokio::spawn(requests)));
        Ok(true)
    }

    fn impair_network(&mut self, cluster: &mut Cluster, order: &[u64]) -> Result<bool> {
        let everywhere = self.either(true, false);
        self.hit = if everywhere { order.to_vec() } else { vec![order[0]] };
        let ms = Duration::from_millis;
        let faults = match self.fault.kind {
            Kind::Loss => NetworkFaults { loss: self.rng.random_range(0.03..0.3), ..NetworkFaults::default() },
            _ => {
                let most = self.rng.random_range(20..if everywhere { 60 } else { 300 });
                NetworkFaults { delay: (ms(self.rng.random_range(0..most)), ms(most)), loss: 0.0 }
            }
        };
        for &id in &self.hit {
            cluster.packet_queues[&id].set(faults, self.fault.draw.wrapping_add(id));
            cluster.queue(id, true)?;
        }
        Ok(true)
    }

    fn hit_holders(&mut self, holders: &mut Holders) -> Result<bool> {
        for place in 0..holders.count() {
            if self.rng.random_bool(0.4) || place == self.fault.draw as usize % holders.count() {
                let hit = if self.fault.kind == Kind::HolderKill {
                    holders.kill(place)?
                } else {
                    holders.pause(place, true)?
                };
                self.hit.extend(hit.then_some(place as u64));
            }
        }
        Ok(!self.hit.is_empty())
    }
}

/// Starts the node on a working disk, unless the cluster has removed it.
fn repair_and_start(cluster: &mut Cluster, id: u64) -> Result<()> {
    let node = cluster.node(id);
    if node.expected_exit == Some(ExpectedExit::DiskBroken) {
        // A disk without power works again only after a new mount. A node that did not write has not noticed the fault
        // and still runs.
        cluster.kill(id)?;
        cluster.node(id).disk.unmount()?;
    } else if node.disk.is_full() {
        node.disk.free()?;
    }
    cluster.launch(id)
}

async fn leader(cluster: &Cluster) -> Option<u64> {
    let began = Instant::now();
    while began.elapsed() < LEADER_WITHIN {
        if let Some(leader) = cluster.leader().await.filter(|leader| cluster.runs(*leader)) {
            return Some(leader);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    None
}
