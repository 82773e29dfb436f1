//! Changes of the members, and transfers of the leadership, by the leader.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use serde::{Deserialize, Serialize};

use crate::config::{MAX_ID, MAX_NODES, address_problem};
use crate::node::NodeCore;
use crate::node::leader::LeaderTerm;
use crate::node::request::propose::ProposeError;
use crate::node::request::{Answer, RequestError};
use crate::node::status::MemberStatus;
use crate::peer::Transport;
use crate::raft::{ChangeError, FeatureLevel, MembershipChange, PeerInfo, TransferError};
use crate::storage::{Position, Storage};
use crate::types::{MemberChange, MemberState, NodeId, Role};

/// A learner can become a voter when it lacks at most this many log entries. Under load, about as many are in flight.
const MAX_VOTER_LAG: u64 = 256;
/// How often a new leader looks whether it has heard all members.
const HEARD_POLL: Duration = Duration::from_millis(5);

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
    /// The member has not caught up.
    Lags,
}

/// The facts that decide whether the leader makes a change.
struct MembershipView {
    own: NodeId,
    /// The log position of this membership.
    decided_at: Option<Position>,
    members: Vec<MemberStatus>,
    /// The ids of all nodes that joined the cluster, removed ones included.
    used: BTreeSet<NodeId>,
    may_be_reached: bool,
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
    Make(MembershipChange),
}

impl<S: Storage, T: Transport> NodeCore<S, T> {
    /// Makes a change as the leader of a term.
    pub(in crate::node) async fn change_members(
        self: &Arc<Self>,
        leader_term: &LeaderTerm,
        change: MemberChange,
    ) -> Result<Answer, ProposeError> {
        let view = self.view(leader_term).await?;
        let step = view.next_step(&change);
        let not_member = |refused: &RequestError| {
            matches!(refused, RequestError::MemberRefused { refusal: MemberRefusal::NotMember, .. })
        };
        if step == Ok(Step::Done) || step.as_ref().is_err_and(not_member) {
            // A deposed leader does not know later changes. This attempt changed nothing.
            self.confirm_leadership(leader_term).boxed().await.map_err(|_| ProposeError::NotLeader)?;
        }
        let step = step.map_err(ProposeError::Refused)?;
        if let Some(id) = view.promoted_by(&change) {
            self.check_level(id).await.map_err(ProposeError::Refused)?;
        }
        match step {
            Step::Done => {}
            Step::TransferFirst => {
                return match self.raft.transfer_leadership(self.settings.timeouts.transfer_leadership).await {
                    Err(error @ TransferError::NoCaughtUpVoter) => Err(transfer_error(error)),
                    // The next leader makes the change. This one changed nothing, also if the transfer was not taken in time.
                    _ => Err(ProposeError::NotLeader),
                };
            }
            Step::Make(make) => {
                tracing::info!(?change, "changing the members");
                let made = self.raft.change_members(leader_term.term, view.decided_at, make);
                let made = tokio::time::timeout(self.settings.timeouts.request, made).await;
                let unknown =
                    |_| ChangeError::Unknown(format!("not committed within {:?}", self.settings.timeouts.request));
                made.unwrap_or_else(|late| Err(unknown(late))).map_err(propose_error)?;
                tracing::info!(?change, "the members have changed");
            }
        }
        Ok(Answer::Members(self.members()))
    }

    /// Fails unless a learner can read the entries of the cluster. An older program refuses those of a newer level, and
    /// Raft's heartbeats, which have no entries, do not show that.
    async fn check_level(&self, id: NodeId) -> Result<(), RequestError> {
        let members = self.raft.current_membership().nodes;
        let peer = members.get(&id).map(|info| info.peer.clone()).unwrap_or_default();
        can_read(id, self.feature_level_of(id, &peer).await, self.raft.replica().level())
    }

    /// Transfers the leadership to a voter, or to the voter that lacks the fewest entries.
    pub(in crate::node) async fn transfer(
        &self,
        leader_term: &LeaderTerm,
        to: Option<NodeId>,
    ) -> Result<Answer, ProposeError> {
        let timeout = self.settings.timeouts.transfer_leadership;
        let transferred = match to {
            None => self.raft.transfer_leadership(timeout).await,
            Some(to) if to == self.settings.id => {
                // A deposed leader does not know the next one.
                self.confirm_leadership(leader_term).boxed().await.map_err(|_| ProposeError::NotLeader)?;
                Ok(to)
            }
            Some(to) => {
                self.view(leader_term).await?.successor(to).map_err(ProposeError::Refused)?;
                self.raft.transfer_leadership_to(to, timeout).await
            }
        };
        let leader = transferred.map_err(transfer_error)?;
        Ok(Answer::Transferred { from: self.settings.id, leader })
    }

    /// A new leader has not heard the members yet, and does not know which entries they have, so it waits for them. A member
    /// that stays silent is unreachable. The wait ends well before the request does.
    async fn view(&self, leader_term: &LeaderTerm) -> Result<MembershipView, ProposeError> {
        let clock = &self.requests.clock;
        let longest = self.settings.timeouts.leaderless.min(self.settings.timeouts.request / 2);
        let (decided_at, members) = loop {
            let decided_at = self.raft.membership_position();
            let members = self.judged_by_leader(self.members());
            if clock.leader_term().is_none_or(|current| current.term != leader_term.term) {
                return Err(ProposeError::NotLeader);
            }
            let all_are_well = members.iter().all(|member| member.state == MemberState::Ok);
            if all_are_well || clock.led_for(leader_term) >= longest {
                break (decided_at, members);
            }
            tokio::time::sleep(HEARD_POLL).await;
        };
        Ok(MembershipView {
            own: self.settings.id,
            decided_at,
            members,
            used: self.raft.replica().read(|state| state.joined.keys().copied().collect()),
            may_be_reached: self.settings.may_be_reached,
            is_changing: self.raft.is_changing(),
        })
    }
}

impl MembershipView {
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
                Ok(Step::Make(MembershipChange::Promote(*id)))
            }
            MemberChange::Remove { id, force } => self.remove(*id, *force),
            MemberChange::Replace { old, new } => {
                let new = self.member(*new)?;
                if self.used.contains(old) && self.member(*old).is_err() && new.role != Role::Learner {
                    // An earlier attempt has completed. The state does not say by which member a node was replaced.
                    return Ok(Step::Done);
                }
                let old = self.member(*old)?;
                if old.id == new.id {
                    // Below, a voter as the new node means that an earlier replacement is to be completed.
                    let why = "cannot replace itself: add a member with a new id, and replace it with that one";
                    return Err(refused(format!("node {} {why}", old.id)));
                }
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
                Ok(Step::Make(MembershipChange::Replace { old: old.id, new: new.id }))
            }
            MemberChange::Update { id, http, peer } => {
                let member = self.member(*id)?;
                self.can_use(*id, http, peer)?;
                if (&member.http, &member.peer) == (http, peer) {
                    return Ok(Step::Done);
                }
                Ok(Step::Make(MembershipChange::SetAddresses(*id, info(http, peer))))
            }
        }
    }

    /// The learner that becomes a voter. `None` if the member is a voter already, as after a first attempt or after it
    /// promoted itself. Such a voter may even be this leader.
    fn promoted_by(&self, change: &MemberChange) -> Option<NodeId> {
        let (MemberChange::Promote { id } | MemberChange::Replace { new: id, .. }) = change else { return None };
        self.member(*id).is_ok_and(|member| member.role == Role::Learner).then_some(*id)
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
        Ok(Step::Make(MembershipChange::AddLearner(id, info)))
    }

    fn remove(&self, id: NodeId, force: bool) -> Result<Step, RequestError> {
        let member = self.member(id)?;
        if member.role == Role::Learner {
            return Ok(Step::Make(MembershipChange::Remove(id)));
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
        Ok(Step::Make(MembershipChange::Remove(id)))
    }

    fn member(&self, id: NodeId) -> Result<&MemberStatus, RequestError> {
        self.members.iter().find(|member| member.id == id).ok_or_else(|| {
            let removed = if self.used.contains(&id) { ": it was removed" } else { "" };
            let detail = format!("node {id} is not a member of this cluster{removed}");
            RequestError::MemberRefused { refusal: MemberRefusal::NotMember, detail }
        })
    }

    fn voters(&self) -> impl Iterator<Item = &MemberStatus> {
        self.members.iter().filter(|member| member.role != Role::Learner)
    }

    /// Fails unless the learner can vote: the leader hears it, it has almost all entries, and the cluster knows its
    /// disk.
    fn caught_up(&self, member: &MemberStatus) -> Result<(), RequestError> {
        let id = member.id;
        if member.state == MemberState::Unreachable || !self.used.contains(&id) {
            return Err(lags(format!("node {id} does not answer the leader: start it with --join")));
        }
        match member.lag {
            Some(lag) if lag <= MAX_VOTER_LAG => Ok(()),
            lag => {
                let lag = lag.map_or("an unknown number of".to_owned(), |lag| lag.to_string());
                Err(lags(format!("node {id} lacks {lag} log entries: expected at most {MAX_VOTER_LAG}")))
            }
        }
    }

    /// Fails unless a majority of the voters after the change is healthy.
    fn rest_is_healthy(&self, removed: NodeId, added: Option<NodeId>) -> Result<(), RequestError> {
        let stays =
            |member: &&MemberStatus| member.id != removed && (member.role != Role::Learner || Some(member.id) == added);
        let rest: Vec<&MemberStatus> = self.members.iter().filter(stays).collect();
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
            if let Some(problem) = address_problem(address, self.may_be_reached) {
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

fn can_read(id: NodeId, supported: Option<FeatureLevel>, used: FeatureLevel) -> Result<(), RequestError> {
    match supported {
        Some(supported) if supported >= used => Ok(()),
        Some(supported) => Err(lags(format!(
            "node {id} supports only feature level {supported}, and the cluster uses {used}: upgrade its program"
        ))),
        None => Err(lags(format!("node {id} does not answer the leader"))),
    }
}

fn lags(detail: String) -> RequestError {
    RequestError::MemberRefused { refusal: MemberRefusal::Lags, detail }
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
        TransferError::NoCaughtUpVoter => ProposeError::Refused(lags(error.to_string())),
        TransferError::NotTaken { .. } => ProposeError::Unknown(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: NodeId, role: Role) -> MemberStatus {
        let (http, peer) = (format!("127.0.0.1:{}", 8_000 + id), format!("127.0.0.1:{}", 9_000 + id));
        MemberStatus {
            id,
            role,
            state: MemberState::Ok,
            http,
            peer,
            lag: Some(0),
            last_contact_ms: Some(0),
            certificate_expires_ms: None,
            disk: None,
        }
    }

    /// Node 1 leads nodes 2 and 3, and node 4 is a learner. Node 9 was removed.
    fn view() -> MembershipView {
        let roles = [(1, Role::Leader), (2, Role::Follower), (3, Role::Follower), (4, Role::Learner)];
        MembershipView {
            own: 1,
            decided_at: None,
            members: roles.map(|(id, role)| member(id, role)).to_vec(),
            used: BTreeSet::from([1, 2, 3, 4, 9]),
            may_be_reached: false,
            is_changing: false,
        }
    }

    fn with(id: usize, change: impl Fn(&mut MemberStatus)) -> MembershipView {
        let mut view = view();
        change(&mut view.members[id - 1]);
        view
    }

    fn add(id: NodeId, http: &str, peer: &str) -> MemberChange {
        MemberChange::Add { id, http: http.to_owned(), peer: peer.to_owned() }
    }

    fn remove(id: NodeId) -> MemberChange {
        MemberChange::Remove { id, force: false }
    }

    /// The step, or the words of the refusal.
    fn step(view: &MembershipView, change: &MemberChange) -> Result<Step, String> {
        view.next_step(change).map_err(|error| error.to_string())
    }

    fn assert_refused(view: &MembershipView, change: &MemberChange, why: &str) {
        let refused = step(view, change).expect_err("the change is refused");
        assert!(refused.contains(why), "{change:?}: {refused:?} does not contain {why:?}");
    }

    #[test]
    fn new_node_is_added_as_a_learner() {
        let change = add(5, "127.0.0.1:8005", "127.0.0.1:9005");
        let made = MembershipChange::AddLearner(5, info("127.0.0.1:8005", "127.0.0.1:9005"));
        assert_eq!(step(&view(), &change), Ok(Step::Make(made)));
        assert_eq!(step(&view(), &add(4, "127.0.0.1:8004", "127.0.0.1:9004")), Ok(Step::Done), "a repeated request");
    }

    #[test]
    fn used_ids_and_addresses_are_refused() {
        for (change, why) in [
            (add(9, "127.0.0.1:1", "127.0.0.1:2"), "was used by a removed node"),
            (add(4, "127.0.0.1:1", "127.0.0.1:2"), "node 4 is a member at 127.0.0.1:8004"),
            (add(0, "127.0.0.1:1", "127.0.0.1:2"), "the id 0 is outside 1 to"),
            (add(MAX_ID + 1, "127.0.0.1:1", "127.0.0.1:2"), "is outside 1 to 9223372036854775807"),
            (add(5, "127.0.0.1:8002", "127.0.0.1:2"), "node 2 has the address 127.0.0.1:8002"),
            (add(5, "127.0.0.1:1", "127.0.0.1:8002"), "node 2 has the address 127.0.0.1:8002"),
            (add(5, "127.0.0.1:1", "127.0.0.1:1"), "must differ"),
            (add(5, "127.0.0.1", "127.0.0.1:2"), "http: \"127.0.0.1\" must be host:port"),
            (add(5, "127.0.0.1:1", "10.0.0.5:2"), "peer: \"10.0.0.5:2\" is not a loopback address"),
            (MemberChange::Update { id: 2, http: "127.0.0.1:8003".into(), peer: "127.0.0.1:2".into() }, "node 3 has"),
        ] {
            assert_refused(&view(), &change, why);
        }
        assert!(step(&view(), &add(MAX_ID, "127.0.0.1:1", "127.0.0.1:2")).is_ok());
        let trusted = MembershipView { may_be_reached: true, ..view() };
        assert!(step(&trusted, &add(5, "10.0.0.5:1", "10.0.0.5:2")).is_ok());
    }

    #[test]
    fn cluster_has_at_most_15_members() {
        let mut full = view();
        full.members.extend((5..=14).map(|id| member(id, Role::Learner)));
        assert!(step(&full, &add(20, "127.0.0.1:1", "127.0.0.1:2")).is_ok(), "it is the 15th member");
        full.members.push(member(15, Role::Learner));
        assert_refused(&full, &add(20, "127.0.0.1:1", "127.0.0.1:2"), "the cluster has 15 members");
    }

    #[test]
    fn learner_that_lags_or_is_unknown_is_not_promoted() {
        let promote = MemberChange::Promote { id: 4 };
        let replace = MemberChange::Replace { old: 3, new: 4 };
        assert_eq!(step(&view(), &promote), Ok(Step::Make(MembershipChange::Promote(4))));
        assert_eq!(step(&view(), &replace), Ok(Step::Make(MembershipChange::Replace { old: 3, new: 4 })));
        assert_eq!(step(&view(), &MemberChange::Promote { id: 2 }), Ok(Step::Done), "it is a voter");
        assert!(step(&with(4, |learner| learner.lag = Some(MAX_VOTER_LAG)), &promote).is_ok());
        let never_joined = MembershipView { used: BTreeSet::from([1, 2, 3]), ..view() };
        for change in [promote, replace] {
            let behind = with(4, |learner| learner.lag = Some(MAX_VOTER_LAG + 1));
            assert_refused(&behind, &change, "node 4 lacks 257 log entries: expected at most 256");
            assert_refused(&with(4, |learner| learner.lag = None), &change, "an unknown number");
            let silent = with(4, |learner| learner.state = MemberState::Unreachable);
            assert_refused(&silent, &change, "does not answer the leader");
            assert_refused(&never_joined, &change, "does not answer the leader");
        }
    }

    #[test]
    fn healthy_majority_stays_after_a_removal() {
        assert_eq!(step(&view(), &remove(3)), Ok(Step::Make(MembershipChange::Remove(3))));
        let one_down = with(2, |voter| voter.state = MemberState::Unreachable);
        assert_refused(&one_down, &remove(3), "only 1 of 2 voters would be healthy");
        let by_a_voter = MemberChange::Replace { old: 3, new: 1 };
        assert_refused(&one_down, &by_a_voter, "only 1 of 2 voters would be healthy");
        let by_a_learner = MemberChange::Replace { old: 3, new: 4 };
        let replace = Step::Make(MembershipChange::Replace { old: 3, new: 4 });
        assert_eq!(step(&one_down, &by_a_learner), Ok(replace), "of 1, 2 and 4, two are healthy");
        assert_eq!(step(&one_down, &remove(2)), Ok(Step::Make(MembershipChange::Remove(2))), "the broken one");
        let forced = MemberChange::Remove { id: 3, force: true };
        assert_eq!(step(&one_down, &forced), Ok(Step::Make(MembershipChange::Remove(3))));
        assert_eq!(step(&one_down, &remove(4)), Ok(Step::Make(MembershipChange::Remove(4))), "a learner has no vote");
        let lagging = with(2, |voter| voter.state = MemberState::Lagging);
        assert_refused(&lagging, &remove(3), "only 1 of 2 voters would be healthy");
    }

    #[test]
    fn member_does_not_replace_itself() {
        for id in [1, 3] {
            assert_refused(&view(), &MemberChange::Replace { old: id, new: id }, "cannot replace itself");
        }
    }

    #[test]
    fn only_a_voter_is_replaced() {
        let mut view = view();
        view.members.push(member(5, Role::Learner));
        for new in [2, 5] {
            assert_refused(&view, &MemberChange::Replace { old: 4, new }, "node 4 is not a voter: remove it instead");
        }
    }

    #[test]
    fn completed_replacement_can_be_repeated() {
        let repeated = |new| MemberChange::Replace { old: 9, new };
        assert_eq!(step(&view(), &repeated(2)), Ok(Step::Done));
        assert_refused(&view(), &repeated(4), "it was removed");
        let never_joined = MemberChange::Replace { old: 7, new: 2 };
        assert_refused(&view(), &never_joined, "node 7 is not a member");
    }

    #[test]
    fn leader_transfers_before_it_is_removed() {
        assert_eq!(step(&view(), &remove(1)), Ok(Step::TransferFirst));
        assert_eq!(step(&view(), &MemberChange::Replace { old: 1, new: 4 }), Ok(Step::TransferFirst));
    }

    #[test]
    fn learner_of_an_older_program_does_not_vote() {
        let (older, used) = (FeatureLevel::FIRST, FeatureLevel::SUPPORTED);
        assert_eq!((can_read(4, Some(used), used), can_read(4, Some(used), older)), (Ok(()), Ok(())));
        for supported in [Some(older), None] {
            let refused = can_read(4, supported, used);
            let is_lagging = matches!(refused, Err(RequestError::MemberRefused { refusal: MemberRefusal::Lags, .. }));
            assert!(is_lagging, "{supported:?}: {refused:?}");
        }
    }

    #[test]
    fn only_learners_are_promoted() {
        let replaced_by = |new| MemberChange::Replace { old: 3, new };
        assert_eq!(view().promoted_by(&replaced_by(4)), Some(4));
        assert_eq!(view().promoted_by(&MemberChange::Promote { id: 4 }), Some(4));
        for change in [replaced_by(1), replaced_by(2), MemberChange::Promote { id: 1 }, remove(4)] {
            assert_eq!(view().promoted_by(&change), None, "{change:?}");
        }
    }

    #[test]
    fn last_voter_is_not_removed() {
        let mut alone = view();
        alone.members.retain(|member| member.id == 1 || member.id == 4);
        for force in [false, true] {
            assert_refused(&alone, &MemberChange::Remove { id: 1, force }, "node 1 is the only voter");
        }
    }

    #[test]
    fn second_change_is_refused() {
        let changing = MembershipView { is_changing: true, ..view() };
        let refused = changing.next_step(&remove(4)).expect_err("refused");
        assert!(
            matches!(refused, RequestError::MemberRefused { refusal: MemberRefusal::InProgress, .. }),
            "{refused:?}"
        );
    }

    #[test]
    fn unknown_member_is_not_found() {
        for change in [remove(7), MemberChange::Promote { id: 7 }, MemberChange::Replace { old: 3, new: 7 }] {
            let refused = view().next_step(&change).expect_err("refused");
            assert!(
                matches!(refused, RequestError::MemberRefused { refusal: MemberRefusal::NotMember, .. }),
                "{refused:?}"
            );
        }
        assert_refused(&view(), &remove(9), "node 9 is not a member of this cluster: it was removed");
    }

    #[test]
    fn only_a_voter_that_caught_up_can_lead() {
        assert_eq!(view().successor(2), Ok(()));
        assert!(view().successor(4).is_err(), "a learner");
        assert!(with(2, |voter| voter.lag = Some(257)).successor(2).is_err());
        assert!(view().successor(7).is_err(), "no member");
    }
}
