//! The faults that change the members or transfer the leadership, and the members that the cluster must have afterwards.
//!
//! While a fault is active, the cluster may refuse a change or leave its outcome unknown: the fault then asks again. After
//! the faults, the run completes the change. The cluster must then have the wanted voters and no joint configuration, and
//! the removed node must have exited.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngExt, SeedableRng};
use reqwest::Method;
use serde_json::{Value, json};

use super::client::{Client, Reply};
use super::judge::Broken;
use super::world::World;

/// The pause between two attempts of a change.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// The pauses between two transfers.
const TRANSFER_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(800));

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// A new node replaces a voter in one step.
    Replace,
    /// A new node becomes a voter. Then the cluster removes a voter.
    AddAndRemove,
}

/// A change of the members.
#[derive(Clone, Debug)]
pub struct Change {
    pub kind: ChangeKind,
    /// The new node, and its addresses.
    pub joining: u64,
    pub http: String,
    pub peer: String,
    /// The node that the cluster removes. It can be the new node.
    pub leaving: u64,
    pub joining_host: u64,
    pub leaving_host: u64,
}

/// A request of a change.
#[derive(Clone, Copy, Debug)]
enum Step {
    Add,
    Promote,
    Replace,
    Remove,
}

impl Step {
    /// The name in the table of operations.
    fn word(self) -> &'static str {
        match self {
            Step::Add => "add member",
            Step::Promote => "promote member",
            Step::Replace => "replace member",
            Step::Remove => "remove member",
        }
    }
}

impl Change {
    fn request(&self, step: Step) -> (Method, String, Option<Value>) {
        let Change { joining, http, peer, leaving, .. } = self;
        let member = |id: &u64, verb: &str| format!("/v1/cluster/members/{id}{verb}");
        match step {
            Step::Add => {
                let body = json!({"id": joining, "http": http, "peer": peer});
                (Method::POST, "/v1/cluster/members".to_owned(), Some(body))
            }
            Step::Promote => (Method::POST, member(joining, "/promote"), None),
            Step::Replace => (Method::POST, member(leaving, "/replace"), Some(json!({"with": joining}))),
            Step::Remove => (Method::DELETE, member(leaving, ""), None),
        }
    }

    fn steps(&self) -> &'static [Step] {
        match self.kind {
            ChangeKind::Replace => &[Step::Add, Step::Replace],
            ChangeKind::AddAndRemove => &[Step::Add, Step::Promote, Step::Remove],
        }
    }

    /// Whether this answer to a step shows that the step is done. A repeated removal finds no member. The cluster refuses
    /// to add a node that it has removed, and to promote it.
    fn is_done(&self, step: Step, answer: &Reply) -> bool {
        let is_removed_again = self.joining == self.leaving;
        match (step, answer) {
            (_, Reply::Done(..)) => true,
            (Step::Replace | Step::Remove, Reply::Refused(code, _)) => code == "not_found",
            (Step::Add, Reply::Refused(code, _)) => is_removed_again && code == "member_refused",
            (Step::Promote, Reply::Refused(code, _)) => is_removed_again && code == "not_found",
            (_, Reply::Unknown | Reply::Fault(_)) => false,
        }
    }
}

/// Sends the requests of a fault, and records their outcomes.
#[derive(Clone)]
pub struct Operator {
    pub world: Arc<World>,
    pub client: Client,
}

impl Operator {
    /// Makes a change, with requests to random nodes.
    pub async fn make(self, change: Change, mut rng: StdRng) {
        for step in change.steps() {
            while !change.is_done(*step, &self.ask(&change, *step, &mut rng).await) {
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }

    /// Completes a change after the faults. Returns the state that the leader reports, if it is not the wanted one.
    pub async fn complete(&self, change: &Change, wanted: &BTreeSet<u64>, until: Instant) -> Result<(), String> {
        let mut rng = StdRng::seed_from_u64(change.joining);
        for step in change.steps() {
            loop {
                let answer = self.ask(change, *step, &mut rng).await;
                if change.is_done(*step, &answer) {
                    break;
                }
                if Instant::now() > until {
                    return Err(format!("{} for {change:?}: {answer:?}", step.word()));
                }
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
        loop {
            let seen = self.voters(wanted, &mut rng).await;
            match seen {
                Ok(voters) if voters == *wanted => return Ok(()),
                seen if Instant::now() > until => {
                    return Err(format!("the voters are {seen:?} after {change:?}, expected {wanted:?}"));
                }
                _ => tokio::time::sleep(RETRY_PAUSE).await,
            }
        }
    }

    /// Transfers the leadership once, to a random node of `ids` or to the choice of the leader. Returns whether another
    /// node leads now.
    pub async fn transfer(&self, ids: &[u64], rng: &mut impl Rng) -> bool {
        let to = ids.choose(rng).filter(|_| rng.random_bool(0.5));
        let body = to.map_or_else(|| json!({}), |to| json!({"to": to}));
        let answer = self.send("transfer leadership", Method::POST, "/v1/cluster/transfer", Some(body), rng).await;
        matches!(answer, Reply::Done(value, _) if value["from"] != value["leader"])
    }

    /// Transfers the leadership again and again.
    pub async fn keep_transferring(self, ids: Vec<u64>, mut rng: StdRng) {
        loop {
            tokio::time::sleep(rng.random_range(TRANSFER_PAUSE.0..TRANSFER_PAUSE.1)).await;
            self.transfer(&ids, &mut rng).await;
        }
    }

    /// The voters, as the leader sees them, or its refusal. The leader refuses the request while it has a joint
    /// configuration. Otherwise it changes nothing, because the node is a voter.
    async fn voters(&self, wanted: &BTreeSet<u64>, rng: &mut impl Rng) -> Result<BTreeSet<u64>, String> {
        let voter = wanted.first().expect("a cluster has members");
        let path = format!("/v1/cluster/members/{voter}/promote");
        match self.send("promote member", Method::POST, &path, None, rng).await {
            Reply::Done(value, _) => voters(&value).ok_or_else(|| format!("unexpected answer: {value}")),
            other => Err(format!("{other:?}")),
        }
    }

    async fn ask(&self, change: &Change, step: Step, rng: &mut impl Rng) -> Reply {
        let (method, path, body) = change.request(step);
        self.send(step.word(), method, &path, body, rng).await
    }

    async fn send(
        &self,
        word: &'static str,
        method: Method,
        path: &str,
        body: Option<Value>,
        rng: &mut impl Rng,
    ) -> Reply {
        let host = self.world.random_host(rng);
        let answer = self.client.send(host, method, path, body, Duration::ZERO).await;
        let outcome = match &answer {
            Reply::Done(..) => "done".to_owned(),
            Reply::Refused(code, _) => code.clone(),
            Reply::Unknown => "unknown".to_owned(),
            Reply::Fault(how) => {
                self.world.break_promise(Broken::of_cluster("api", format!("{word}: {how}")));
                "fault".to_owned()
            }
        };
        *self.world.recorder.lock().counts.entry((word, outcome)).or_default() += 1;
        answer
    }
}

/// The ids of the voters in an answer. `None` if a member is no voter.
fn voters(answer: &Value) -> Option<BTreeSet<u64>> {
    let members = answer["members"].as_array()?;
    members.iter().map(|member| member["id"].as_u64().filter(|_| member["role"] != "learner")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(kind: ChangeKind, leaving: u64) -> Change {
        let (http, peer) = ("a:1".to_owned(), "a:2".to_owned());
        Change { kind, joining: 4, http, peer, leaving, joining_host: 4, leaving_host: leaving }
    }

    fn refused(code: &str) -> Reply {
        Reply::Refused(code.to_owned(), None)
    }

    #[test]
    fn step_is_done_only_if_the_answer_shows_it() {
        let replace = change(ChangeKind::Replace, 1);
        assert!(replace.is_done(Step::Replace, &Reply::Done(json!({}), None)));
        assert!(replace.is_done(Step::Replace, &refused("not_found")), "an earlier request removed the node");
        for step in [Step::Add, Step::Promote, Step::Replace] {
            assert!(!replace.is_done(step, &Reply::Unknown) && !replace.is_done(step, &refused("member_lags")));
        }
        assert!(!replace.is_done(Step::Add, &refused("member_refused")), "the new node must stay");
        let again = change(ChangeKind::AddAndRemove, 4);
        assert!(
            again.is_done(Step::Add, &refused("member_refused")) && !replace.is_done(Step::Promote, &Reply::Unknown)
        );
    }

    #[test]
    fn learner_is_no_voter() {
        let mut answer = json!({"members": [{"id": 2, "role": "leader"}, {"id": 4, "role": "follower"}]});
        assert_eq!(voters(&answer), Some(BTreeSet::from([2, 4])));
        answer["members"][1]["role"] = "learner".into();
        assert_eq!(voters(&answer), None);
    }
}
