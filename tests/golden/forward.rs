//! Requests through a node that does not lead, on three nodes in simulated time. The nodes are named by their first
//! role: `leader`, `follower` and `third`.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::time::Duration;

use goldenscript::{ArgumentConsumer, Context, Runner};
use tenure::config::{LeaseSettings, RaftTimings};
use tenure::lease::{Acquire, Command, LeaseState, Outcome, Refusal, Renewal};
use tenure::node::{Answer, Consistency, Forward, Query, Request, RequestError, Response};
use tenure::testing::{Cluster, Seeded, seed};
use tenure::token::FencingToken;
use tenure::types::{HolderId, LeaseName, Metadata, NodeId, Ttl};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

type Failure = Box<dyn Error>;
type Answered = Result<Response, RequestError>;

/// The answer to a request in the background must come within this time.
const ANSWERED: Duration = Duration::from_secs(120);
const ROLES: [&str; 3] = ["leader", "follower", "third"];

pub struct Forwarding {
    runtime: Runtime,
    cluster: Option<Cluster>,
    /// By role.
    nodes: BTreeMap<&'static str, NodeId>,
    /// Nodes that lead for sure: the first leader, and targets of transfers. The winner of an election is not certain.
    leaders: BTreeSet<NodeId>,
    /// Requests in the background.
    pending: BTreeMap<String, JoinHandle<Answered>>,
    /// The token of each holder.
    tokens: BTreeMap<HolderId, FencingToken>,
    _seeded: Seeded,
}

impl Forwarding {
    pub fn new() -> Forwarding {
        let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
        let (nodes, pending, tokens) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Forwarding { runtime, cluster: None, nodes, leaders: BTreeSet::new(), pending, tokens, _seeded: seed(1) }
    }

    fn begin(&mut self) {
        self.end();
        let (cluster, leader) = self.runtime.block_on(async {
            let cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
            let leader = cluster.leader().await;
            // Its first answer tells a follower the feature level of the leader. Without it, no request would be sent.
            for id in cluster.ids() {
                cluster.node(id).request(Request::Members, Forward::Once).await.expect("answered");
            }
            (cluster, leader)
        });
        let followers = cluster.ids().filter(|id| *id != leader);
        self.nodes = ROLES.into_iter().zip([leader].into_iter().chain(followers)).collect();
        self.leaders = BTreeSet::from([leader]);
        self.cluster = Some(cluster);
        self.tokens.clear();
    }

    fn end(&mut self) {
        std::mem::take(&mut self.pending).into_values().for_each(|request| request.abort());
        if let Some(cluster) = self.cluster.take() {
            cluster.board.heal();
            self.runtime.block_on(cluster.shutdown());
        }
    }

    fn cluster(&mut self) -> Result<&mut Cluster, Failure> {
        Ok(self.cluster.as_mut().ok_or("the script must begin")?)
    }

    fn node(&self, args: &mut ArgumentConsumer) -> Result<NodeId, Failure> {
        let role = args.next_pos().ok_or("missing node")?;
        Ok(*self.nodes.get(role).ok_or_else(|| format!("unknown node {role:?}: expected one of {ROLES:?}"))?)
    }

    fn request(&self, verb: &str, args: &mut ArgumentConsumer) -> Result<Request, Failure> {
        let name = LeaseName::new("job")?;
        if verb == "read" {
            return Ok(Request::Read { query: Query::Lease(name), consistency: Consistency::Linearizable });
        }
        let holder = HolderId::new(args.next_pos().ok_or("missing holder")?)?;
        let token = self.tokens.get(&holder).copied().unwrap_or(FencingToken::new(1, 1));
        Ok(match verb {
            "acquire" => Request::Acquire(Acquire {
                name,
                holder,
                ttl: Ttl::millis(600_000)?,
                wait_ms: args.take_key("wait").map(str::parse).transpose()?,
                lock_delay_ms: 0,
                limit: 1,
                metadata: Metadata::default(),
            }),
            "release" => Request::Change(Command::Release { name, holder, token }),
            "renew" => {
                let leases = vec![Renewal { name, token, ttl: None }];
                Request::Change(Command::Renew { holder, leases })
            }
            other => return Err(format!("unknown command {other:?}").into()),
        })
    }

    /// Sends a request to a node. With `as=NAME`, it continues in the background.
    fn send(&mut self, verb: &str, args: &mut ArgumentConsumer) -> Result<String, Failure> {
        let id = self.node(args)?;
        let request = self.request(verb, args)?;
        let forward = if args.take_key("forward") == Some("never") { Forward::Never } else { Forward::Once };
        let node = self.cluster()?.running(id).ok_or("the node is down")?.clone();
        let answered = self.runtime.spawn(async move { node.request(request, forward).await });
        match args.take_key("as") {
            Some(name) => {
                self.pending.insert(name.to_owned(), answered);
                Ok(String::new())
            }
            None => self.answer(answered),
        }
    }

    fn answer(&mut self, request: JoinHandle<Answered>) -> Result<String, Failure> {
        let answered = self.runtime.block_on(async { tokio::time::timeout(ANSWERED, request).await })??;
        if let Ok(Response { answer: Answer::Outcome(Outcome::Held { lease, .. }), .. }) = &answered {
            self.tokens.insert(lease.holder.clone(), lease.token);
        }
        Ok(self.describe(answered))
    }

    fn describe(&self, answered: Answered) -> String {
        match answered {
            Ok(response) => {
                let by = response.served.node;
                let by = if self.leaders.contains(&by) { self.role(by) } else { "another node" };
                format!("{}, by {by}", describe(response.answer))
            }
            Err(RequestError::NotLeader { leader, .. }) => format!("refused: ask {}", self.role(leader)),
            Err(error) => {
                let named = |text: String, (role, id): (&&str, &NodeId)| text.replace(&format!("node {id}"), role);
                self.nodes.iter().fold(error.to_string(), named)
            }
        }
    }

    fn role(&self, node: NodeId) -> &'static str {
        self.nodes.iter().find(|(_, id)| **id == node).map_or("a stranger", |(role, _)| role)
    }

    fn sleep(&self, time: Duration) {
        self.runtime.block_on(async { tokio::time::sleep(time).await });
    }
}

fn describe(answer: Answer) -> String {
    match answer {
        Answer::Outcome(Outcome::Held { lease, fresh: true }) => format!("granted to {}", lease.holder),
        Answer::Outcome(Outcome::Held { lease, fresh: false }) => format!("held by {} already", lease.holder),
        Answer::Outcome(Outcome::Refused(Refusal::Held { holder, .. })) => format!("refused: held by {holder}"),
        Answer::Outcome(Outcome::Released(true)) => "released".to_owned(),
        Answer::Outcome(Outcome::Released(false)) => "nothing to release".to_owned(),
        Answer::Outcome(Outcome::Renewed(renewed)) => {
            if renewed.iter().all(Result::is_ok) {
                "renewed".to_owned()
            } else {
                "lost".to_owned()
            }
        }
        Answer::Lease(leases) => {
            let held = leases.into_iter().find(|lease| lease.state == LeaseState::Active);
            held.map_or("free".to_owned(), |lease| format!("held by {}", lease.holder))
        }
        other => format!("{other:?}"),
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        self.end();
    }
}

impl Runner for Forwarding {
    type Command = goldenscript::Command;

    fn run(&mut self, command: &goldenscript::Command, _: &Context) -> Result<String, Failure> {
        let mut args = command.consume_args();
        let mut output = String::new();
        match command.name.as_str() {
            "begin" => self.begin(),
            "sleep" => self.sleep(Duration::from_millis(args.next_pos().ok_or("missing time")?.parse()?)),
            "isolate" => {
                let id = self.node(&mut args)?;
                let cluster = self.cluster()?;
                cluster.board.isolate(id, cluster.ids());
            }
            // Messages from the first node to the second one are lost.
            "cut" => {
                let (from, to) = (self.node(&mut args)?, self.node(&mut args)?);
                self.cluster()?.board.cut(from, to);
            }
            "heal" => self.cluster()?.board.heal(),
            "freeze" => {
                let id = self.node(&mut args)?;
                self.cluster()?.board.pause(id);
            }
            "thaw" => {
                let id = self.node(&mut args)?;
                self.cluster()?.board.resume(id);
            }
            "crash" => {
                let id = self.node(&mut args)?;
                let cluster = self.cluster.as_mut().ok_or("the script must begin")?;
                self.runtime.block_on(cluster.crash(id));
            }
            "shut_down" => {
                let id = self.node(&mut args)?;
                let node = self.cluster()?.running(id).ok_or("the node is down")?.clone();
                self.runtime.block_on(node.shutdown());
            }
            // Waits until the other nodes have a new leader.
            "new_leader" => {
                let except = self.node(&mut args)?;
                let cluster = self.cluster.as_ref().ok_or("the script must begin")?;
                self.runtime.block_on(cluster.leader_except(&[except]));
                self.leaders.clear();
            }
            "transfer" => {
                let (from, to) = (self.node(&mut args)?, self.node(&mut args)?);
                let node = self.cluster()?.running(from).ok_or("the node is down")?.clone();
                let moved = self.runtime.block_on(node.transfer_leadership_to(to));
                self.leaders.extend(moved.as_ref().ok());
                output = moved.map_or_else(|error| error.to_string(), |to| format!("{} leads", self.role(to)));
            }
            "answer" => {
                let name = args.next_pos().ok_or("missing name")?;
                let request = self.pending.remove(name).ok_or("no such request")?;
                output = self.answer(request)?;
            }
            verb => output = self.send(verb, &mut args)?,
        }
        args.reject_next()?;
        Ok(output)
    }
}
