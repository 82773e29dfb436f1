//! The content of a backup, and the state that continues from it.

use std::collections::BTreeMap;

use tempfile::NamedTempFile;

use super::restore::check_stored;
use super::{
    BackupHeader, BackupInfo, Freshness, LostHolders, RestoreError, RestoreOptions, Restored, Target, check, encode,
    inspect,
};
use crate::api::Timestamp;
use crate::config::MemberConfig;
use crate::lease::{Acquire, Batch, Change, Command, Stamp};
use crate::raft::types::log_id;
use crate::raft::{Joined, PeerInfo, State, write_restored};
use crate::sim::MemoryStorage;
use crate::storage::Position;
use crate::token::FencingToken;
use crate::types::{HolderId, LeaseName, Metadata, Ttl};

/// 2026-01-01.
const BACKUP_MS: u64 = 1_767_225_600_000;
const NOW_MS: u64 = BACKUP_MS + 1_000;

fn name(text: &str) -> LeaseName {
    LeaseName::new(text).expect("valid")
}

fn holder(text: &str) -> HolderId {
    HolderId::new(text).expect("valid")
}

fn acquire(lease: &str, by: &str) -> Command {
    Command::Acquire(Acquire {
        name: name(lease),
        holder: holder(by),
        ttl: Ttl::millis(5_000).expect("valid"),
        wait_ms: Some(60_000),
        lock_delay_ms: 0,
        limit: 1,
        metadata: Metadata::default(),
    })
}

/// A backup with a released lease, and a held lease that has three waiters.
fn backup() -> NamedTempFile {
    let mut state = State::default();
    let members = BTreeMap::from([(4, PeerInfo { http: "h".to_owned(), peer: "p".to_owned() })]);
    let own = Joined { node: 4, incarnation: 5 };
    state.restore(Position { term: 1, index: 1 }, members, own, 300, None).expect("members");
    let token = FencingToken { term: 1, index: 2 };
    let release = Command::Release { name: name("done"), holder: holder("a"), token };
    let waiters = ["b", "c", "d"].map(|by| acquire("jobs", by));
    let commands = [acquire("done", "a"), release, acquire("jobs", "a")].into_iter().chain(waiters);
    for (index, command) in (2..).zip(commands) {
        let batch = Batch { stamp: Stamp { now: 70, wall_ms: 300 }, commands: vec![command] };
        state.machine.apply(FencingToken { term: 1, index }, &batch);
    }
    let position = Position { term: 1, index: 7 };
    state.applied = Some(log_id(position));
    let header = BackupHeader {
        cluster: "lost".to_owned(),
        node: 4,
        position,
        cluster_ms: state.machine.now(),
        wall_ms: BACKUP_MS,
        freshness: Freshness::Stale { ms: 40 },
    };
    let mut file = NamedTempFile::new().expect("a file");
    encode(&header, &state, &mut file).expect("written");
    file
}

/// The state of the new cluster.
fn restored() -> (State, Restored) {
    let file = backup();
    let members = vec![MemberConfig { id: 1, http: "h".to_owned(), peer: "p".to_owned() }];
    let target = Target { cluster: "new".to_owned(), id: 1, members };
    let checked = check(file.path(), &target, RestoreOptions::new(LostHolders::Stopped), NOW_MS).expect("valid");
    checked.write(target, 5, &MemoryStorage::default()).expect("an empty store")
}

#[test]
fn restore_with_another_stored_state_is_refused() {
    let (state, _) = restored();
    let storage = MemoryStorage::default();
    write_restored(&state, 1, &storage).expect("an empty store");
    check_stored(&storage, &state).expect("the same state");
    let mut other = state.clone();
    let Position { term, index } = state.position();
    let tick = Batch { stamp: Stamp { now: 80, wall_ms: NOW_MS }, commands: vec![Command::Tick] };
    other.machine.apply(FencingToken { term, index: index + 1 }, &tick);
    assert_eq!(other.position(), state.position(), "control: only the leases differ");
    let refused = check_stored(&storage, &other).expect_err("another state");
    assert!(matches!(refused, RestoreError::State(_)), "{refused}");
}

#[test]
fn restored_lease_ended_at_the_wall_clock_of_the_restore() {
    let (state, _) = restored();
    let history = state.machine.history(&name("jobs"));
    let last = history.last().expect("a transition");
    assert_eq!((&last.change, last.wall_ms), (&Change::Restored, NOW_MS));
}

#[test]
fn restore_tells_how_many_leases_and_waiters_it_ended() {
    let (_, restored) = restored();
    assert_eq!((restored.ended, restored.dropped), (1, 3));
}

#[test]
fn description_of_a_backup_has_the_numbers_of_its_state() {
    let file = backup();
    let expected = BackupInfo {
        cluster_id: "lost".to_owned(),
        node: 4,
        term: 1,
        applied: 7,
        cluster_time_ms: 70,
        at: Timestamp::from_millis(BACKUP_MS),
        current: false,
        stale_ms: Some(40),
        members: vec![4],
        names: 2,
        held: 1,
        waiting: 3,
        bytes: std::fs::metadata(file.path()).expect("a file").len(),
    };
    assert_eq!(inspect(file.path()).expect("readable"), expected);
}
