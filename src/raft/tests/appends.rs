//! Appends of deposed leaders, in an in-memory cluster under a paused clock.

use std::time::Duration;

use tokio::time::Instant;

use super::super::wire::{self, Append, AppendReply, Call, Reply};
use crate::config::{LeaseSettings, RaftTimings};
use crate::node::{Consistency, Forward, Query, Request};
use crate::peer::{Lane, Payload, Transport};
use crate::storage::Storage;
use crate::testing::Cluster;
use crate::types::LeaseName;

const SOON: Duration = Duration::from_secs(30);

/// A follower that only a deposed leader reaches reports the age of its data, and knows no leader.
#[tokio::test(start_paused = true)]
async fn refused_append_does_not_refresh_leader_contact() {
    const CUT_OFF: Duration = Duration::from_secs(3);
    let mut cluster = Cluster::start(3, RaftTimings::lan(), LeaseSettings::default()).await;
    let old = cluster.leader().await;
    let vote = cluster.disk(old).vote().expect("the leader voted for itself");
    cluster.crash(old).await;
    let next = cluster.leader_except(&[old]).await;
    let follower = cluster.ids().find(|id| ![old, next].contains(id)).expect("three nodes");
    cluster.board.isolate(follower, [next]);
    let cut = Instant::now();
    while cut.elapsed() < CUT_OFF {
        let append = Call::Append(Append { vote, previous: None, commit: None, entries: Vec::new() });
        let payload = Payload::Raft(wire::encode(&append));
        let answer = cluster.board.transport(old).call(follower, "in memory", Lane::Log, payload, SOON).await;
        let reply = wire::decode(&answer.expect("answered")).expect("readable");
        assert!(matches!(&reply, Reply::Append(AppendReply::HigherVote(newer)) if newer.term > vote.term), "{reply:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let query = Query::Lease(LeaseName::new("job").expect("valid"));
    let read = Request::Read { query, consistency: Consistency::Stale };
    let served = cluster.node(follower).request(read, Forward::Never).await.expect("answered").served;
    let stale = served.stale_ms.map(Duration::from_millis);
    assert!(stale >= Some(CUT_OFF), "{stale:?}");
    assert_eq!(cluster.node(follower).health().not_ready.as_deref(), Some("no leader is known"));
    cluster.shutdown().await;
}
