//! Members see each other come, go and change.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tenure::api::{Acquire, Code, TtlMs, UpdateMetadata};
use tenure::client::{CallError, LeaseManager, LeaseOptions, Wait};
use tenure::group::{Group, GroupChange, GroupError, MemberOptions, Membership};
use tenure::types::{HolderId, LeaseName, Metadata};

use crate::cluster::{Cluster, NEVER, TTL, soon, until};
use crate::steady::{steady, strict};

strict!(a_group_has_1000_members_and_no_more);
steady!(
    who_joins_and_leaves_is_seen_at_once_by_all,
    a_member_that_crashed_is_gone_for_the_others_after_its_ttl_and_at_once_for_itself,
    a_snapshot_has_oneself_and_those_that_are_ready,
    a_group_that_missed_events_reads_its_list_again,
    late_requests_do_not_undo_readiness,
    an_id_is_one_members_and_other_leases_are_nobodys_members,
    a_lease_of_the_group_is_acquired_only_where_it_belongs,
    a_manager_that_is_dropped_gives_everything_back_though_its_leases_ask_the_group,
    member_that_joins_again_is_as_ready_as_before,
);

fn options(id: &str) -> MemberOptions {
    MemberOptions::new(id).ttl(TTL).refresh(Duration::from_secs(1))
}

async fn join(manager: &LeaseManager, options: MemberOptions) -> Membership {
    soon(Group::join(manager, "workers", options)).await.expect("it joins")
}

fn ids(group: &Group) -> Vec<String> {
    group.snapshot().all.into_iter().map(|member| member.id).collect()
}

async fn who_joins_and_leaves_is_seen_at_once_by_all() {
    let cluster = Cluster::start().await;
    let a = join(&cluster.manager("a"), options("a")).await;
    let mut changes = a.changes();
    let b = join(&cluster.manager("b"), options("b")).await;
    assert_eq!(ids(&b), ["a", "b"], "a member sees those who were there, and itself");
    assert!(matches!(soon(changes.next()).await, Some(GroupChange::Joined(member)) if member.id == "b"));
    assert_eq!(ids(&a), ["a", "b"]);
    assert_eq!(b.leave().await, Ok(true));
    assert!(matches!(soon(changes.next()).await, Some(GroupChange::Left(member)) if member.id == "b"));
    assert_eq!(ids(&a), ["a"]);
}

async fn a_member_that_crashed_is_gone_for_the_others_after_its_ttl_and_at_once_for_itself() {
    let cluster = Cluster::start().await;
    let a = join(&cluster.manager("a"), options("a")).await;
    let (manager, faults) = cluster.mortal("b");
    let mut b = join(&manager, options("b")).await;
    until("a sees b", || ids(&a) == ["a", "b"]).await;
    faults.cut_off(true);
    let cut_off = Instant::now();
    soon(b.lost().cancelled()).await;
    assert!(cut_off.elapsed() <= TTL + Duration::from_millis(200), "{:?}", cut_off.elapsed());
    let seen = b.snapshot();
    assert_eq!((seen.me, b.is_member()), (None, false), "it knows without asking");
    assert!(seen.age >= TTL / 2, "and that its list is old: {:?}", seen.age);
    assert!(seen.all.iter().all(|member| member.id == "a"), "it does not count itself in");
    until("a sees that b is gone", || ids(&a) == ["a"]).await;
    assert!(cut_off.elapsed() < TTL + Duration::from_secs(5));
    assert!(matches!(b.set_ready(true).await, Err(GroupError::Lost(_))));
    faults.cut_off(false);
    soon(b.rejoin()).await.expect("it joins again");
    assert_eq!(b.snapshot().me.expect("a member").id, "b");
    until("a sees b again", || ids(&a) == ["a", "b"]).await;
}

async fn a_snapshot_has_oneself_and_those_that_are_ready() {
    let cluster = Cluster::start().await;
    let often = |id: &str| options(id).refresh(Duration::from_millis(20));
    let metadata = Metadata::new([("zone".to_owned(), "1".to_owned())].into()).expect("small");
    let a = join(&cluster.manager("a"), often("a").weight(7).metadata(metadata)).await;
    let b = join(&cluster.manager("b"), often("b").ready(false)).await;
    let me = a.snapshot().me.expect("a member");
    assert_eq!((me.id.as_str(), me.weight, me.is_ready, me.holder.as_str()), ("a", 7, true, "a"));
    assert_eq!(me.metadata, [("zone".to_owned(), "1".to_owned())].into());
    assert!(!b.snapshot().me.expect("a member").is_ready);
    let ready = || a.snapshot().ready.into_iter().map(|member| member.id).collect::<Vec<_>>();
    until("a sees b", || a.snapshot().all.len() == 2).await;
    assert_eq!(ready(), ["a"]);
    let before = b.snapshot().me.expect("a member").token;
    b.set_ready(true).await.expect("it is said");
    assert!(b.snapshot().me.expect("a member").is_ready, "its own snapshot has it at once");
    until("a sees that b is ready", || ready() == ["a", "b"]).await;
    let mut changes = a.changes();
    b.set_ready(false).await.expect("it is said");
    assert!(
        matches!(soon(changes.next()).await, Some(GroupChange::Changed { before, now }) if before.is_ready && !now.is_ready)
    );
    assert_eq!(b.snapshot().me.expect("a member").token, before, "the membership is the same");
    assert!(a.snapshot().age < Duration::from_secs(5));
}

async fn a_group_that_missed_events_reads_its_list_again() {
    let cluster = Cluster::start().await;
    let (manager, faults) = cluster.mortal("watcher");
    let group = Group::watch(&manager, "workers", NEVER).await.expect("it answers");
    let _a = join(&cluster.manager("a"), options("a")).await;
    until("the first is heard of", || ids(&group) == ["a"]).await;
    faults.stream_failed.store(true, Ordering::SeqCst);
    let _b = join(&cluster.manager("b"), options("b")).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(ids(&group), ["a"], "the control: nothing was heard");
    faults.compacted.notify_one();
    until("it looks again", || ids(&group) == ["a", "b"]).await;
    group.close().await;
}

async fn late_requests_do_not_undo_readiness() {
    let cluster = Cluster::start().await;
    let (a, remote) = (join(&cluster.manager("a"), options("a").ready(false)).await, cluster.remote());
    let name = LeaseName::new("workers:a").expect("a name");
    let before = remote.get(&name).await.expect("it is held");
    a.set_ready(true).await.expect("it is told");

    let metadata = Metadata::new(before.metadata).expect("it was accepted before");
    let (holder, token, version) = (HolderId::new("a").expect("a holder"), before.token, before.metadata_version);
    let update = UpdateMetadata { holder: holder.clone(), token, version, metadata: metadata.clone() };
    let refused = remote.update_metadata(&name, &update).await.expect_err("it replaces an older version");
    assert!(matches!(refused, CallError::Refused(problem) if problem.metadata_version == Some(version + 1)));
    let claim = Acquire { metadata, ttl_ms: Some(TtlMs::Millis(100)), ..Acquire::new(holder) };
    let after = remote.acquire(&name, &claim).await.expect("it holds the lease");
    assert_eq!((after.metadata["tenure.ready"].as_str(), after.token), ("true", token));
    assert!(a.refresh().await.is_ok() && a.snapshot().me.expect("a member").is_ready);
}

async fn an_id_is_one_members_and_other_leases_are_nobodys_members() {
    let cluster = Cluster::start().await;
    let manager = cluster.manager("a");
    let a = join(&manager, options("a")).await;
    let twin = Group::join(&cluster.manager("b"), "workers", options("a")).await;
    assert!(matches!(&twin, Err(GroupError::IdTaken { id, .. }) if id == "a"), "{twin:?}");
    let other = manager.lease("workers:shard-1").expect("valid");
    other.acquire(Wait::No).await.expect("it is free");
    a.refresh().await.expect("it answers");
    assert_eq!(ids(&a), ["a"]);
    let bad = Group::join(&manager, "workers", options("no spaces")).await;
    assert!(matches!(bad, Err(GroupError::Invalid(_))));
}

async fn a_lease_of_the_group_is_acquired_only_where_it_belongs() {
    let cluster = Cluster::start().await;
    let a = join(&cluster.manager("a"), options("a")).await;
    let b = join(&cluster.manager("b"), options("b")).await;
    until("a sees b", || ids(&a) == ["a", "b"]).await;
    let mut owned = [0, 0];
    for n in 0..20 {
        let name = format!("shard-{n}");
        let owner = a.placement().owner(&name).expect("there are members").id.clone();
        for (n, member) in [&a, &b].into_iter().enumerate() {
            let lease = member.lease(&name, LeaseOptions::new().ttl(TTL)).expect("valid");
            let acquired = lease.acquire(Wait::No).await;
            assert_eq!(lease.should_hold(), member.id() == owner);
            match member.id() == owner {
                true => owned[n] += acquired.map(|_| 1).expect("it is free"),
                false => assert!(
                    matches!(&acquired, Err(CallError::Refused(p)) if p.code == Code::ShouldNotHold),
                    "{acquired:?}"
                ),
            }
        }
    }
    assert!(owned.iter().all(|owned| *owned > 3), "{owned:?}");
    let lease = b.lease("any", LeaseOptions::new()).expect("valid");
    assert_eq!(a.leave().await, Ok(true));
    until("all belongs to the one that is left", || lease.should_hold()).await;
    assert_eq!(b.leave().await, Ok(true));
    assert!(!lease.should_hold(), "nothing belongs to somebody who is no member");
}

async fn a_manager_that_is_dropped_gives_everything_back_though_its_leases_ask_the_group() {
    let cluster = Cluster::start().await;
    let other = cluster.manager("b");
    {
        let manager = cluster.manager("a");
        let a = join(&manager, options("a").ttl(Duration::from_secs(600))).await;
        let lease = a.lease("shard", LeaseOptions::new().ttl(Duration::from_secs(600))).expect("valid");
        lease.acquire(Wait::No).await.expect("it belongs here, and is free");
    }
    let shard = soon(other.lease("shard").expect("valid").guard(Wait::UpTo(Duration::from_secs(60)))).await;
    shard.expect("it was released").release().await.expect("it answers");
}

async fn a_group_has_1000_members_and_no_more() {
    let cluster = Cluster::start().await;
    let remote = &cluster.remote();
    // As members of other processes look from here.
    let others = (1..1_000).map(|number| {
        let name = LeaseName::new(format!("workers:{number:03}")).expect("valid");
        let metadata =
            [("tenure.weight", "1"), ("tenure.ready", "true")].map(|(key, value)| (key.into(), value.into()));
        let metadata = Metadata::new(metadata.into()).expect("it fits");
        let ttl_ms = Some(TtlMs::Infinite);
        let holder = HolderId::new("other").expect("valid");
        let claim = Acquire { holder, ttl_ms, wait_ms: None, lock_delay_ms: None, limit: None, metadata };
        async move { remote.acquire(&name, &claim).await }
    });
    soon(futures_util::future::try_join_all(others)).await.expect("all are there");
    let a = join(&cluster.manager("a"), options("a")).await;
    assert_eq!(ids(&a).len(), 1_000);
    let one_more = soon(Group::join(&cluster.manager("b"), "workers", options("b"))).await.err();
    assert!(matches!(one_more, Some(GroupError::Full { members: 1_000 })), "{one_more:?}");
    assert_eq!(a.leave().await, Ok(true));
    join(&cluster.manager("b"), options("b")).await.leave().await.expect("there is room again");
}

async fn member_that_joins_again_is_as_ready_as_before() {
    let cluster = Cluster::start().await;
    let a = join(&cluster.manager("a"), options("a").refresh(Duration::from_millis(20))).await;
    for (id, at_first) in [("b", false), ("c", true)] {
        let (manager, faults) = cluster.mortal(id);
        let mut member = join(&manager, options(id).ready(at_first)).await;
        member.set_ready(!at_first).await.expect("it is said");
        faults.cut_off(true);
        soon(member.lost().cancelled()).await;
        until("a sees that it is gone", || !ids(&a).contains(&id.to_owned())).await;
        faults.cut_off(false);
        soon(member.rejoin()).await.expect("it joins again");
        assert_eq!(member.snapshot().me.expect("a member").is_ready, !at_first, "{id} in its own eyes");
        let shown = || a.snapshot().all.into_iter().find(|other| other.id == id);
        until("a sees it again", || shown().is_some()).await;
        assert_eq!(shown().map(|other| other.is_ready), Some(!at_first), "{id} in the eyes of another member");
        member.leave().await.expect("it answers");
    }
}
