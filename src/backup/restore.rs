//! The restore of a backup: the store of the first node of a new cluster.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{BackupError, PositionError, position, read};
use crate::clock::{Clock, SystemClock};
use crate::config::{MemberConfig, Problems};
use crate::raft::snapshot::SnapshotError;
use crate::raft::{Joined, PeerInfo, State, read_restored, write_restored};
use crate::storage::{Identity, Position, Restoring, Storage, StorageError};
use crate::token::FencingToken;
use crate::types::NodeId;

/// Pause until the wall clock shows the next millisecond.
const CLOCK_PAUSE: Duration = Duration::from_micros(100);

/// What the operator knows about the holders of the lost cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostHolders {
    /// All have stopped. The restored cluster grants leases at once, except during a lock delay of the backup.
    Stopped,
    /// They stop within this time: the longest ttl and lock delay that the lost cluster can have granted. The restored
    /// cluster grants no lease for as long after its first leader is elected.
    StopWithin(Duration),
}

/// The options of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoreOptions {
    /// The holders of the lost cluster.
    pub holders: LostHolders,
    /// The highest token that the lost cluster can have granted, if the clock cannot tell.
    pub above: Option<FencingToken>,
}

impl RestoreOptions {
    /// Options without `above`.
    pub fn new(holders: LostHolders) -> RestoreOptions {
        RestoreOptions { holders, above: None }
    }

    /// Sets the highest token that the lost cluster can have granted.
    pub fn above(self, token: FencingToken) -> RestoreOptions {
        RestoreOptions { above: Some(token), ..self }
    }
}

/// A restored node, ready to start.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// The name of the lost cluster.
    pub from_cluster: String,
    /// All new tokens are above this one.
    pub above: FencingToken,
    /// Number of leases that were held in the backup and ended.
    pub ended: u64,
    /// Number of waiters that left their queues.
    pub dropped: u64,
}

/// Why a backup is not restored. The data directory is unchanged, except after an error of the storage.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message explains the fields")]
pub enum RestoreError {
    /// The settings of the node are invalid.
    #[error("a node cannot be restored with these settings:\n{0}")]
    Settings(Problems),
    /// The file cannot be used.
    #[error(transparent)]
    Backup(#[from] BackupError),
    /// Another node must be restored.
    #[error(
        "node {node} is not the first node of cluster {cluster:?}: restore node {first}. The other nodes start with empty \
         directories and receive the state. Only the node with the lowest id forms a cluster"
    )]
    OtherNode { cluster: String, node: NodeId, first: NodeId },
    /// The new cluster has the name of the lost one.
    #[error(
        "the backup is of a cluster with the same name, {cluster:?}: choose another name, so that the new cluster refuses \
         the nodes of the lost one"
    )]
    SameCluster { cluster: String },
    /// No position is certainly above the lost cluster.
    #[error(transparent)]
    Position(#[from] PositionError),
    /// The holders of the lost cluster can be active for longer.
    #[error(
        "lease {name}, which {holder} held or waited for, must stay free for its ttl of {ttl_ms} ms plus its lock delay of {lock_delay_ms} ms, \
         which is more than {given_ms} ms. Use a longer --grant-after, or stop all holders and use --holders-stopped"
    )]
    TooSoon { name: String, holder: String, ttl_ms: u64, lock_delay_ms: u64, given_ms: u64 },
    /// A holder of the lost cluster does not stop.
    #[error(
        "{holder} held or waited for lease {name} without a ttl, so it does not stop: stop all holders and use \
         --holders-stopped"
    )]
    Infinite { name: String, holder: String },
    /// The data directory cannot be written, or is not empty.
    #[error(transparent)]
    Storage(StorageError),
    /// The restored state cannot be stored.
    #[error("the restored state cannot be stored: {0}")]
    State(String),
}

impl From<SnapshotError> for RestoreError {
    fn from(error: SnapshotError) -> RestoreError {
        match error {
            SnapshotError::Storage(error) => RestoreError::Storage(error),
            error => RestoreError::State(error.to_string()),
        }
    }
}

/// The node of the new cluster that gets the state.
pub(crate) struct Target {
    pub cluster: String,
    pub id: NodeId,
    pub members: Vec<MemberConfig>,
}

/// A backup that a new cluster can start from.
pub(crate) struct Checked {
    state: State,
    at: Position,
    now_ms: u64,
    no_grants_ms: Option<u64>,
    restored: Restored,
}

/// Checks that the new cluster can start from a backup. `now_ms` is the wall clock. Blocks.
pub(crate) fn check(
    file: &Path,
    target: &Target,
    options: RestoreOptions,
    now_ms: u64,
) -> Result<Checked, RestoreError> {
    let first = target.members.iter().map(|member| member.id).min().unwrap_or(target.id);
    if target.id != first {
        return Err(RestoreError::OtherNode { cluster: target.cluster.clone(), node: target.id, first });
    }
    let (header, state) = read(file)?;
    if header.cluster == target.cluster {
        return Err(RestoreError::SameCluster { cluster: header.cluster });
    }
    let no_grants_ms = no_grants_ms(&state, options.holders)?;
    let at = position::restored(header.position, header.wall_ms, now_ms, options.above)?;
    let counts = state.machine.counts();
    let above = FencingToken { term: at.term, index: at.index };
    let restored = Restored { from_cluster: header.cluster, above, ended: counts.held, dropped: counts.waiting };
    Ok(Checked { state, at, now_ms, no_grants_ms, restored })
}

impl Checked {
    /// Writes the state of the new cluster to the empty store of its first node. Blocks.
    pub fn write<S: Storage>(
        mut self,
        target: Target,
        incarnation: u64,
        storage: &S,
    ) -> Result<(State, Restored), RestoreError> {
        let own = Joined { node: target.id, incarnation };
        self.state.restore(self.at, infos(target.members), own, self.now_ms, self.no_grants_ms)?;
        assert_eq!(self.state.position(), self.at, "the restored state begins at the new position");
        write_restored(&self.state, target.id, storage)?;
        Ok((self.state, self.restored))
    }
}

/// Restores a backup into a data directory. Blocks.
pub(crate) fn restore(
    file: &Path,
    target: Target,
    data: PathBuf,
    options: RestoreOptions,
) -> Result<Restored, RestoreError> {
    let now_ms = SystemClock.wall_ms();
    let backup = check(file, &target, options, now_ms)?;
    let identity = Identity { cluster: target.cluster.clone(), node: target.id };
    let store = Restoring::begin(data, identity)?;
    let (state, restored) = backup.write(target, store.incarnation, &store.storage)?;
    store.finish(|reopened| check_stored(reopened, &state))?;
    wait_for_the_next_ms(now_ms);
    Ok(restored)
}

/// Checks that the store has this state.
pub(super) fn check_stored<S: Storage>(store: &S, state: &State) -> Result<(), RestoreError> {
    let stored = read_restored(store)?;
    let is_same = stored.position() == state.position() && stored.machine.header() == state.machine.header();
    if is_same { Ok(()) } else { Err(RestoreError::from(SnapshotError::OtherState)) }
}

/// A later restore on this machine must read a later millisecond: the millisecond is the base of the tokens.
fn wait_for_the_next_ms(used: u64) {
    while SystemClock.wall_ms() == used {
        std::thread::sleep(CLOCK_PAUSE);
    }
}

/// The time without grants. It covers at least the holders and waiters in the backup.
fn no_grants_ms(state: &State, holders: LostHolders) -> Result<Option<u64>, RestoreError> {
    let LostHolders::StopWithin(given) = holders else { return Ok(None) };
    let given_ms = given.as_millis().try_into().unwrap_or(u64::MAX);
    let Some((name, holder, ttl, lock_delay_ms)) = state.machine.longest_claim() else { return Ok(Some(given_ms)) };
    let (name, holder) = (name.to_string(), holder.to_string());
    match ttl.as_millis() {
        None => Err(RestoreError::Infinite { name, holder }),
        Some(ttl_ms) if ttl_ms.saturating_add(lock_delay_ms) > given_ms => {
            Err(RestoreError::TooSoon { name, holder, ttl_ms, lock_delay_ms, given_ms })
        }
        Some(_) => Ok(Some(given_ms)),
    }
}

fn infos(members: Vec<MemberConfig>) -> BTreeMap<NodeId, PeerInfo> {
    members.into_iter().map(|MemberConfig { id, http, peer }| (id, PeerInfo { http, peer })).collect()
}
