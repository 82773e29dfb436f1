//! Joins in log entries that are not applied.

use std::collections::BTreeMap;
use std::sync::Arc;

use openraft::EntryPayload;

use super::super::log::record;
use super::super::types::{Entry, RaftMembership, log_id};
use crate::clock::SystemClock;
use crate::config::RaftTimings;
use crate::lease::{Batch, Command, Stamp};
use crate::node::MemberRegistry;
use crate::peer::Incarnations;
use crate::raft::{FeatureLevel, Joined, PeerInfo, Proposal, RaftHandle, Replica};
use crate::sim::{MemoryStorage, Switchboard, SyncMode};
use crate::storage::{Position, Storage, VoteRecord};
use crate::types::LeaseName;

/// A read of the log returns at most 128 KiB, so the join is in a later part.
#[tokio::test]
async fn joins_are_found_in_the_whole_log() {
    let storage = MemoryStorage::new(SyncMode::default());
    let membership = RaftMembership::new(vec![[1].into()], BTreeMap::from([(1, PeerInfo::default())]));
    let large = || {
        let name = LeaseName::new("job").expect("valid");
        let commands = vec![Command::Revoke { name, reason: "r".repeat(100_000) }];
        EntryPayload::Normal(Proposal::leases(&Batch { stamp: Stamp::default(), commands }))
    };
    let joined = Joined { node: 2, incarnation: 20 };
    let payloads = [
        EntryPayload::Membership(membership.expect("valid")),
        large(),
        large(),
        large(),
        EntryPayload::Normal(Proposal::joined(joined)),
    ];
    let entries = payloads.into_iter().zip(0..).map(|(payload, index)| {
        let log_id = log_id(Position { term: 1, index });
        record(&Entry { log_id, payload })
    });
    storage.save_vote(VoteRecord { term: 1, candidate: Some(1), committed: true }, Box::new(drop));
    storage.append(entries.collect(), Box::new(drop));
    let (transport, replica) = (Switchboard::default().transport(1), Replica::new(Vec::new(), FeatureLevel::SUPPORTED));
    let (timings, clock) = (RaftTimings::lan(), Arc::new(SystemClock));
    let raft = RaftHandle::build(1, "joins", timings, storage, transport, replica, clock).await.expect("it is built");
    assert_eq!(raft.replica().read(|state| state.applied), None, "no entry is committed");
    let logged = raft.joined_in_log().await.expect("readable");
    assert_eq!(logged, [joined]);
    let known = MemberRegistry::default();
    known.load(raft.replica().clone(), logged);
    known.observe(2, 21);
    assert_eq!(known.joined(2), Some(20));
}
