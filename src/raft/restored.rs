//! The state of a backup as the start of a new cluster.

use std::collections::{BTreeMap, BTreeSet};

use super::log::{Joined, MembershipRecord};
use super::snapshot::{self, Meta, SnapshotError};
use super::state_machine::State;
use super::types::{PeerInfo, Stored, log_id, position};
use crate::storage::{Done, Position, Storage, StorageError, VoteRecord, codec};
use crate::token::FencingToken;
use crate::types::NodeId;

impl State {
    /// The position of the last applied entry.
    pub fn position(&self) -> Position {
        self.applied.as_ref().map(position).unwrap_or_default()
    }

    pub fn members(&self) -> BTreeSet<NodeId> {
        self.membership.nodes().map(|(id, _)| *id).collect()
    }

    /// Continues at `at` with other members, all voters. Of their disks only `own` has joined: the others start empty.
    ///
    /// See [`Machine::restore`](crate::lease::Machine::restore) for the leases.
    pub fn restore(
        &mut self,
        at: Position,
        members: BTreeMap<NodeId, PeerInfo>,
        own: Joined,
        wall_ms: u64,
        no_grants_ms: Option<u64>,
    ) -> Result<(), SnapshotError> {
        let Position { term, index } = at;
        self.machine.restore(FencingToken { term, index }, wall_ms, no_grants_ms);
        let nodes = members.into_iter().map(|(id, info)| (id, (info.http, info.peer))).collect::<BTreeMap<_, _>>();
        let voters: BTreeSet<NodeId> = nodes.keys().copied().collect();
        let membership = MembershipRecord { configs: vec![voters], nodes }.membership()?;
        self.membership = Stored::new(Some(log_id(at)), membership);
        self.applied = Some(log_id(at));
        self.joined = BTreeMap::from([(own.node, own.incarnation)]);
        Ok(())
    }
}

/// Writes the state to an empty store: a vote, an empty log that starts after the state, and the snapshot. Blocks.
///
/// The vote is of the state's term, so this node stands for election in a higher one.
pub fn write_restored<S: Storage>(state: &State, node: NodeId, storage: &S) -> Result<(), SnapshotError> {
    let at = state.position();
    let mut writer = storage.begin_snapshot()?;
    snapshot::write(state, &mut writer)?;
    writer.finish_blocking(codec::encode(&Meta::of(state)))?;
    wait(|done| storage.purge(at, done))?;
    let vote = VoteRecord { term: at.term, candidate: Some(node), committed: false };
    wait(|done| storage.save_vote(vote, done))?;
    Ok(())
}

/// Reads the snapshot of a restored store.
pub fn read_restored<S: Storage>(storage: &S) -> Result<State, SnapshotError> {
    let manifest = storage.snapshot().ok_or(SnapshotError::Truncated)?;
    snapshot::load(storage, &manifest)
}

fn wait(start: impl FnOnce(Done)) -> Result<(), StorageError> {
    let (done, durable) = std::sync::mpsc::sync_channel(1);
    start(Box::new(move |result| drop(done.send(result))));
    durable.recv().unwrap_or(Err(StorageError::Closed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{Access, AccessChange, AccessName, AccessToken, TokenHash};

    #[test]
    fn restored_tokens_keep_their_expiry() {
        let principal = AccessName::new("p").expect("valid");
        let hash = TokenHash::of(&AccessToken::from_secret([7; 32]));
        let changes = [
            AccessChange::SetPrincipal { principal: principal.clone(), roles: BTreeSet::new() },
            AccessChange::AddExpiringToken { principal, hash, created_wall_ms: 7, expires_wall_ms: 9 },
        ];
        let access = changes.iter().fold(Access::default(), |access, change| access.with(change));
        let before = access.state().clone();
        let mut state = State { access, ..State::default() };
        let members = BTreeMap::from([(4, PeerInfo { http: "h".to_owned(), peer: "p".to_owned() })]);
        let own = Joined { node: 4, incarnation: 5 };
        state.restore(Position { term: 1, index: 3 }, members, own, 300, None).expect("restored");
        assert_eq!(state.access.state(), &before);
        assert_eq!((state.access.expired(8).len(), state.access.expired(9).len()), (0, 1));
    }
}
