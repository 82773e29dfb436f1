//! Changes of the members, and transfers of the leadership, by the leader.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::config::{MAX_ID, MAX_NODES, address_problem};
use crate::node::Inner;
use crate::node::leader::LeaderTerm;
use crate::node::request::propose::ProposeError;
use crate::node::request::{Answer, RequestError};
use crate::node::status::Member;
use crate::peer::Transport;
use crate::raft::{Change, ChangeError, PeerInfo, TransferError};
use crate::storage::Storage;
use crate::types::{MemberChange, MemberState, NodeId, Role};

/// A learner can become a voter when it lacks at most this many log entries. Under load, about as many are in flight.
const MAX_VOTER_LAG: u64 = 256;

/// Why the leader refuses a change of the members. Nodes of different versions exchange it: append new variants at the
/// end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberRefusal {
    /// The cluster makes another change.
    InProgress,
    /// The node is not a member.
    NotMember,
    /// Any other reason.
    Other,
}

/// The facts that decide whether the leader makes a change.
struct View {
    own: NodeId,
    members: Vec<Member>,
    /// The ids of all nodes that joined the cluster, removed ones included.
    used: BTreeSet<NodeId>,
    allow_insecure_network: bool,
    /// The cluster has not completed a change of its voters.
    is_changing: bool,
}

/// The next step of a change.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// The members are already as wanted.
    Done,
    /// The leader must first transfer its leadership.
    TransferFirst,
    Make(Change),
}

impl<S: Storage, T: Transport> Inner<S, T> {
    /// Makes a change as the leader of a term.
    pub(in crate::node) async fn change_members(
        self: &Arc<Self>,
        leader_term: &LeaderTerm,
        change: MemberChange,
    ) -> Result<Answer, ProposeError> {
        match self.view().next_step(&change).map_err(ProposeError::Refused)? {
            Step::Done => {}
            Step::TransferFirst => {
                let transferred = self.raft.transfer_leadership(self.settings.timeouts.transfer_leadership).await;
                // This leader changed nothing. The next leader makes the change.
                return Err(transferred.map_or_else(transfer_error, |_| ProposeError::NotLeader));
            }
            Step::Make(make) => {
                tracing::info!(?change, "changing the members");
                let made = self.raft.change_members(leader_term.term, make);
                let made = tokio::time::timeout(self.settings.timeouts.request, made).await;
                let unknown =
                    |_| ChangeError::Unknown(format!("not committed within {:?}", self.settings.timeouts.request));
                made.unwrap_or_else(|late| Err(unknown(late))).map_err(propose_error)?;
                tracing::info!(?change, "the members have changed");
            }
        }
        Ok(Answer::Members(self.members()))
    }

    /// Transfers the leadership to a voter, or to the voter that lacks the fewest entries.
    pub(in crate::node) async fn transfer(&self, to: Option<NodeId>) -> Result<Answer, ProposeError> {
        let timeout = self.settings.timeouts.transfer_leadership;
        let transferred = match to {
            None => self.raft.transfer_leadership(timeout).await,
            Some(to) if to == self.settings.id => Ok(to),
            Some(to) => {
                self.view().successor(to).map_err(ProposeError::Refused)?;
                self.raft.transfer_leadership_to(to, timeout).await
            }
        };
        let leader = transferred.map_err(transfer_error)?;
        Ok(Answer::Transferred { from: self.settings.id, leader })
    }

    fn view(&self) -> View {
        View {
            own: self.settings.id,
            members: self.judged_by_leader(self.members()),
            used: self.raft.replica().read(|state| state.joined.keys().copied().collect()),
            allow_insecure_network: self.settings.allow_insecure_network,
            is_changing: self.raft.current_membership().next_voters.is_some(),
        }
    }
}

impl View {
    fn next_step(&self, change: &MemberChange) -> Result<Step, RequestError> {
        if self.is_changing {
            return Err(in_progress());
        }
        match change {
            MemberChange::Add { id, http, peer } => self.add(*id, info(http, peer)),
            MemberChange::Promote { id } => {
                let member = self.member(*id)?;
                if member.role != Role::Learner {
                    return Ok(Step::Done);
                }
                self.caught_up(member)?;
                Ok(Step::Make(Change::Promote(*id)))
            }
            MemberChange::Remove { id, force } => self.remove(*id, *force),
            MemberChange::Replace { old, new } => {
                let (old, new) = (self.member(*old)?, self.member(*new)?);
                if old.role == Role::Learner {
                    return Err(refused(format!("node {} is not a voter: remove it instead", old.id)));
                }
                if new.role != Role::Learner {
                    return self.remove(old.id, false);
                }
                self.caught_up(new)?;
                self.rest_is_healthy(old.id, Some(new.id))?;
                if old.id == self.own {
                    return Ok(Step::TransferFirst);
                }
                Ok(Step::Make(Change::Replace { old: old.id, new: new.id }))
            }
            MemberChange::Update { id, http, peer } => {
                let member = self.member(*id)?;
                self.can_use(*id, http, peer)?;
                if (&member.http, &member.peer) == (http, peer) {
                    return Ok(Step::Done);
                }
                Ok(Step::Make(Change::SetAddresses(*id, info(http, peer))))
            }
        }
    }

    fn add(&self, id: NodeId, info: PeerInfo) -> Result<Step, RequestError> {
        if let Ok(member) = self.member(id) {
            if (&member.http, &member.peer) == (&info.http, &info.peer) {
                return Ok(Step::Done);
            }
            return Err(refused(format!("node {id} is a member at {} and {}", member.http, member.peer)));
        }
        if self.used.contains(&id) {
            return Err(refused(format!("the id {id} was used by a removed node: choose an id that was never used")));
        }
        if self.members.len() >= MAX_NODES {
            return Err(refused(format!("the cluster has {MAX_NODES} members, which is the limit")));
        }
        if !(1..=MAX_ID).contains(&id) {
            return Err(refused(format!("the id {id} is outside 1 to {MAX_ID}")));
        }
        self.can_use(id, &info.http, &info.peer)?;
        Ok(Step::Make(Change::AddLearner(id, info)))
    }

    fn remove(&self, id: NodeId, force: bool) -> Result<Step, RequestError> {
        let member = self.member(id)?;
        if member.role == Role::Learner {
            return Ok(Step::Make(Change::Remove(id)));
        }
        if self.voters().count() == 1 {
            return Err(refused(format!("node {id} is the only voter: add another one first")));
        }
        if !force {
            self.rest_is_healthy(id, None)?;
        }
        if id == self.own {
            return Ok(Step::TransferFirst);
        }
        Ok(Step::Make(Change::Remove(id)))
    }

    fn member(&self, id: NodeId) -> Result<&Member, RequestError> {
        self.members.iter().find(|member| member.id == id).ok_or_else(|| {
            let removed = if self.used.contains(&id) { ": it was removed" } else { "" };
            let detail = format!("node {id} is not a member of this cluster{removed}");
            RequestError::MemberRefused { refusal: MemberRefusal::NotMember, detail }
        })
    }

    fn voters(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.role != Role::Learner)
    }

    /// Fails unless the learner can vote: the leader hears it, it has almost all entries, and the cluster knows its
    /// disk.
    fn caught_up(&self, member: &Member) -> Result<(), RequestError> {
        let id = member.id;
        if member.state == MemberState::Unreachable || !self.used.contains(&id) {
            return Err(refused(format!("node {id} does not answer the leader: start it with --join")));
        }
        match member.lag {
            Some(lag) if lag <= MAX_VOTER_LAG => Ok(()),
            lag => {
                let lag = lag.map_or("an unknown number of".to_owned(), |lag| lag.to_string());
                Err(refused(format!("node {id} lacks {lag} log entries: expected at most {MAX_VOTER_LAG}")))
            }
        }
    }

    /// Fails unless a majority of the voters after the change is healthy.
    fn rest_is_healthy(&self, removed: NodeId, added: Option<NodeId>) -> Result<(), RequestError> {
        let stays =
            |member: &&Member| member.id != removed && (member.role != Role::Learner || Some(member.id) == added);
        let rest: Vec<&Member> = self.members.iter().filter(stays).collect();
        let healthy = rest.iter().filter(|member| member.state == MemberState::Ok).count();
        if healthy > rest.len() / 2 {
            return Ok(());
        }
        Err(refused(format!(
            "without node {removed}, only {healthy} of {} voters would be healthy, which is no majority: the cluster \
             would stop",
            rest.len()
        )))
    }

    /// Fails unless both addresses are valid and no other member has them.
    fn can_use(&self, id: NodeId, http: &str, peer: &str) -> Result<(), RequestError> {
        for (key, address) in [("http", http), ("peer", peer)] {
            if let Some(problem) = address_problem(address, self.allow_insecure_network) {
                return Err(refused(format!("{key}: {problem}")));
            }
        }
        if http == peer {
            return Err(refused(format!("the addresses for clients and for nodes are both {http}: they must differ")));
        }
        let others = self.members.iter().filter(|member| member.id != id);
        for member in others {
            if let Some(used) = [&member.http, &member.peer].into_iter().find(|used| *used == http || *used == peer) {
                return Err(refused(format!("node {} has the address {used}", member.id)));
            }
        }
        Ok(())
    }

    /// Fails unless the member can take the leadership.
    fn successor(&self, to: NodeId) -> Result<(), RequestError> {
        let member = self.member(to)?;
        if member.role == Role::Learner {
            return Err(refused(format!("node {to} is a learner: only a voter can lead")));
        }
        self.caught_up(member)
    }
}

fn info(http: &str, peer: &str) -> PeerInfo {
    PeerInfo { http: http.to_owned(), peer: peer.to_owned() }
}

fn refused(detail: String) -> RequestError {
    RequestError::MemberRefused { refusal: MemberRefusal::Other, detail }
}

fn in_progress() -> RequestError {
    let detail = "another change of the members is in progress: try again when it is complete".to_owned();
    RequestError::MemberRefused { refusal: MemberRefusal::InProgress, detail }
}

fn propose_error(error: ChangeError) -> ProposeError {
    match error {
        ChangeError::NotLeader => ProposeError::NotLeader,
        ChangeError::InProgress => ProposeError::Refused(in_progress()),
        ChangeError::Refused(detail) => ProposeError::Refused(refused(detail)),
        ChangeError::Unknown(reason) => ProposeError::Unknown(reason),
    }
}

fn transfer_error(error: TransferError) -> ProposeError {
    match error {
        TransferError::NotLeader => ProposeError::NotLeader,
        TransferError::NoCaughtUpVoter => ProposeError::Refused(refused(error.to_string())),
        TransferError::NotTaken { .. } => ProposeError::Unknown(error.to_string()),
    }
}
