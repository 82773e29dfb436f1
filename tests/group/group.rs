//! Groups: members see joins, leaves and changes of other members.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt};
use tenure::api::{Acquire, Code, TtlMs, UpdateMetadata};
use tenure::client::{CallError, LeaseManager, LeaseOptions, Wait};
use tenure::group::{Group, GroupChange, GroupError, MemberOptions, Membership};
use tenure::types::{HolderId, LeaseName, Metadata};

use crate::cluster::{Cluster, LONG_TTL, NEVER, TTL, soon, until};
use crate::steady::{steady, strict};

strict!(
    group_has_at_most_1000_members,
    late_answer_does_not_bring_back_a_member,
    age_of_a_list_counts_from_the_start_of_its_read,
);
steady!(
    joins_and_leaves_are_seen_at_once,
    crashed_member_disappears_after_its_ttl,
    snapshot_has_own_and_ready_members,
    group_that_missed_events_reads_again,
    late_requests_do_not_undo_readiness,
    id_is_unique_and_other_leases_are_no_members,
    members_of_a_group_with_a_longer_name_do_not_count,
    group_lease_is_acquired_only_by_its_owner,
    dropped_manager_releases_leases_of_its_group,
    member_that_joins_again_is_as_ready_as_before,
    join_waits_for_the_end_of_a_dead_member,
);

fn options(id: &str) -> MemberOptions {
    MemberOptions::new(id).ttl(LONG_TTL).refresh(Duration::from_secs(1))
}

async fn join(manager: &LeaseManager, options: MemberOptions) -> Membership {
    soon(Group::join(manager, "workers", options)).await.expect("the member joins")
}

fn ids(group: &Group) -> Vec<String> {
    group.snapshot().all.into_iter().map(|member| member.id).collect()
}

async fn joins_and_leaves_are_seen_at_once() {
    let cluster = Cluster::start().await;
    let a = join(&cluster.manager("a"), options("a")).await;
    let mut changes = a.changes();
    let b = join(&cluster.manager("b"), options("b")).await;
    assert_eq!(ids(&b), ["a", "b"], "a new member sees the present members and itself");
    assert!(matches!(soon(changes.next()).await, Some(GroupChange::Joined(member)) if member.id == "b"));
    assert_eq!(ids(&a), ["a", "b"]);
    assert_eq!(b.leave().await, Ok(true));
    assert!(matches!(soon(changes.next()).await, Some(GroupChange::Left(member)) if member.id == "b"));
    assert_eq!(ids(&a), ["a"]);
}

async fn crashed_member_disappears_after_its_ttl() {
    let cluster = Cluster::start().await;
    let a = join(&cluster.manager("a"), options("a")).await;
    let (manager, faults) = cluster.mortal("b");
    let mut b = join(&manager, options("b").ttl(TTL)).await;
    until("a sees b", || ids(&a) == ["a", "b"]).await;
    faults.cut_off(true);
    let cut_off = Instant::now();
    soon(b.lost().cancelled()).await;
    assert!(cut_off.elapsed() <= TTL + Duration::from_millis(200), "{:?}", cut_off.elapsed());
    let seen = b.snapshot();
    assert_eq!((seen.me, b.is_member()), (None, false), "the member knows its loss without a request");
    assert!(seen.age >= TTL / 2, "the age of the list is only {:?}", seen.age);
    assert!(seen.all.iter().all(|member| member.id == "a"), "the snapshot contains the lost member");
    until("a sees that b is gone", || ids(&a) == ["a"]).await;
    assert!(cut_off.elapsed() < TTL + Duration::from_secs(5));
    assert!(matches!(b.set_ready(true).await, Err(GroupError::Lost(_))));
    faults.cut_off(false);
    soon(b.rejoin()).await.expect("the member joins again");
    assert_eq!(b.snapshot().me.expect("there is a member").id, "b");
    until("a sees b again", || ids(&a) == ["a", "b"]).await;
}

async fn snapshot_has_own_and_ready_members() {
    let cluster = Cluster::start().await;
    let often = |id: &str| options(id).refresh(Duration::from_millis(20));
    let metadata =
        Metadata::new([("zone".to_owned(), "1".to_owned())].into()).expect("the metadata is within its limit");
    let a = join(&cluster.manager("a"), often("a").weight(7).metadata(metadata)).await;
    let b = join(&cluster.manager("b"), often("b").ready(false)).await;
    let me = a.snapshot().me.expect("there is a member");
    assert_eq!((me.id.as_str(), me.weight, me.is_ready, me.holder.as_str()), ("a", 7, true, "a"));
    assert_eq!(me.metadata, [("zone".to_owned(), "1".to_owned())].into());
    assert!(!b.snapshot().me.expect("there is a member").is_ready);
    let ready = || a.snapshot().ready.into_iter().map(|member| member.id).collect::<Vec<_>>();
    until("a sees b", || a.snapshot().all.len() == 2).await;
    assert_eq!(ready(), ["a"]);
    let before = b.snapshot().me.expect("there is a member").token;
    b.set_ready(true).await.expect("the cluster accepts it");
    assert!(b.snapshot().me.expect("there is a member").is_ready, "its own snapshot shows the change at once");
    until("a sees that b is ready", || ready() == ["a", "b"]).await;
    let mut changes = a.changes();
    b.set_ready(false).await.expect("the cluster accepts it");
    assert!(
        matches!(soon(changes.next()).await, Some(GroupChange::Changed { before, now }) if before.is_ready && !now.is_ready)
    );
    assert_eq!(b.snapshot().me.expect("there is a member").token, before, "the membership is the same");
    assert!(a.snapshot().age < Duration::from_secs(5));
}

async fn group_that_missed_events_reads_again() {
    let cluster = Cluster::start().await;
    let (manager, faults) = cluster.mortal("watcher");
    let group = Group::watch(&manager, "workers", NEVER).await.expect("the cluster answers");
    let _a = join(&cluster.manager("a"), options("a")).await;
    until("the group sees the first member", || ids(&group) == ["a"]).await;
    faults.stream_failed.store(true, Ordering::SeqCst);
    let _b = join(&cluster.manager("b"), options("b")).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(ids(&group), ["a"], "control: no event arrived");
    faults.compacted.notify_one();
    until("the group reads again", || ids(&group) == ["a", "b"]).await;
    group.close().await;
}

async fn late_answer_does_not_bring_back_a_member() {
    let cluster = Cluster::start().await;
    let (manager, faults) = cluster.patient("watcher");
    let group = Group::watch(&manager, "workers", NEVER).await.expect("the cluster answers");
    let _a = join(&cluster.manager("a"), options("a")).await;
    let b = join(&cluster.manager("b"), options("b")).await;
    until("the group sees both members", || ids(&group) == ["a", "b"]).await;
    // From now on, only the test reads.
    faults.stream_failed.store(true, Ordering::SeqCst);
    let mut read = faults.withhold_next_read();
    let later = async {
        read.answered().await;
        assert_eq!(b.leave().await, Ok(true));
        group.refresh().await.expect("the cluster answers");
        assert_eq!(ids(&group), ["a"], "control: the later read shows that b is gone");
        read.release();
    };
    let (earlier, ()) = soon(async { tokio::join!(group.refresh(), later) }).await;
    earlier.expect("the cluster answered");
    assert_eq!(ids(&group), ["a"], "the late answer of the earlier read replaced the list");
    group.close().await;
}

async fn age_of_a_list_counts_from_the_start_of_its_read() {
    let cluster = Cluster::start().await;
    let (manager, faults) = cluster.patient("watcher");
    let group = Group::watch(&manager, "workers", NEVER).await.expect("the cluster answers");
    let _a = join(&cluster.manager("a"), options("a")).await;
    until("the group sees the member", || ids(&group) == ["a"]).await;
    // From now on, only the test reads.
    faults.stream_failed.store(true, Ordering::SeqCst);
    let mut read = faults.withhold_next_read();
    let later = async {
        read.answered().await;
        let answered = Instant::now();
        tokio::time::sleep(Duration::from_millis(100)).await;
        read.release();
        answered
    };
    let (refreshed, answered) = soon(async { tokio::join!(group.refresh(), later) }).await;
    refreshed.expect("the cluster answered");
    let since_answer = answered.elapsed();
    let age = group.snapshot().age;
    assert!(age >= since_answer, "the cluster answered {since_answer:?} ago, and the age of the list is {age:?}");
    group.close().await;
}

async fn late_requests_do_not_undo_readiness() {
    let cluster = Cluster::start().await;
    let (a, remote) = (join(&cluster.manager("a"), options("a").ready(false)).await, cluster.remote());
    let name = LeaseName::new("workers:a").expect("a valid name");
    let before = remote.get(&name).await.expect("the lease is held");
    a.set_ready(true).await.expect("the cluster accepts it");

    let metadata = Metadata::new(before.metadata).expect("the cluster accepted this metadata before");
    let (holder, token, version) = (HolderId::new("a").expect("a valid holder"), before.token, before.metadata_version);
    let update = UpdateMetadata::new(holder.clone(), token, version, metadata.clone());
    let refused = remote.update_metadata(&name, &update).await.expect_err("the update names an older version");
    assert!(matches!(refused, CallError::Refused(problem) if problem.metadata_version == Some(version + 1)));
    let claim = Acquire::new(holder).ttl(TtlMs::Millis(100)).metadata(metadata);
    let after = remote.acquire(&name, &claim).await.expect("the holder has the lease");
    assert_eq!((after.metadata["tenure.ready"].as_str(), after.token), ("true", token));
    assert!(a.refresh().await.is_ok() && a.snapshot().me.expect("there is a member").is_ready);
}

async fn id_is_unique_and_other_leases_are_no_members() {
    let cluster = Cluster::start().await;
    let manager = cluster.manager("a");
    let a = join(&manager, options("a")).await;
    // It waits for its ttl.
    let twin = Group::join(&cluster.manager("b"), "workers", options("a").ttl(TTL)).await;
    assert!(matches!(&twin, Err(GroupError::IdTaken { id, .. }) if id == "a"), "{twin:?}");
    let other = manager.lease("workers:shard-1").expect("the value is valid");
    other.acquire(Wait::No).await.expect("the lease is free");
    a.refresh().await.expect("the cluster answers");
    assert_eq!(ids(&a), ["a"]);
    let bad = Group::join(&manager, "workers", options("no spaces")).await;
    assert!(matches!(bad, Err(GroupError::Invalid(_))));
}

async fn members_of_a_group_with_a_longer_name_do_not_count() {
    let cluster = Cluster::start().await;
    let a = join(&cluster.manager("a"), options("a")).await;
    // The lease workers:eu:b could also be the member eu:b of the group workers.
    let b = Group::join(&cluster.manager("b"), "workers:eu", options("b")).await.expect("the id is free");
    let c = join(&cluster.manager("c"), options("eu:c")).await;
    a.refresh().await.expect("the cluster answers");
    b.set_ready(true).await.expect("the membership is held");
    assert_eq!((ids(&a), ids(&b)), (vec!["a".to_owned(), "eu:c".to_owned()], vec!["b".to_owned()]));
    drop(c);
}

async fn group_lease_is_acquired_only_by_its_owner() {
    let cluster = Cluster::start().await;
    let a = join(&cluster.manager("a"), options("a")).await;
    let b = join(&cluster.manager("b"), options("b")).await;
    until("a sees b", || ids(&a) == ["a", "b"]).await;
    let mut owned = [0, 0];
    for n in 0..20 {
        let name = format!("shard-{n}");
        let owner = a.placement().owner(&name).expect("there are members").id.clone();
        for (n, member) in [&a, &b].into_iter().enumerate() {
            let lease = member.lease(&name, LeaseOptions::new().ttl(LONG_TTL)).expect("the value is valid");
            let acquired = lease.acquire(Wait::No).await;
            assert_eq!(lease.should_hold(), member.id() == owner);
            match member.id() == owner {
                true => owned[n] += acquired.map(|_| 1).expect("the lease is free"),
                false => assert!(
                    matches!(&acquired, Err(CallError::Refused(p)) if p.code == Code::ShouldNotHold),
                    "{acquired:?}"
                ),
            }
        }
    }
    assert!(owned.iter().all(|owned| *owned > 3), "{owned:?}");
    let lease = b.lease("any", LeaseOptions::new()).expect("the value is valid");
    assert_eq!(a.leave().await, Ok(true));
    until("the name belongs to the remaining member", || lease.should_hold()).await;
    assert_eq!(b.leave().await, Ok(true));
    assert!(!lease.should_hold(), "a name belongs to a process that left the group");
}

async fn dropped_manager_releases_leases_of_its_group() {
    let cluster = Cluster::start().await;
    let other = cluster.manager("b");
    {
        let manager = cluster.manager("a");
        let a = join(&manager, options("a").ttl(Duration::from_secs(600))).await;
        let lease = a.lease("shard", LeaseOptions::new().ttl(Duration::from_secs(600))).expect("the value is valid");
        lease.acquire(Wait::No).await.expect("the name belongs to this member and its lease is free");
    }
    let shard =
        soon(other.lease("shard").expect("the value is valid").guard(Wait::UpTo(Duration::from_secs(60)))).await;
    shard.expect("the lease was released").release().await.expect("the cluster answers");
}

async fn group_has_at_most_1000_members() {
    let cluster = Cluster::start().await;
    let remote = &cluster.remote();
    // These leases look like members of other processes.
    let others = (1..1_000).map(|number| {
        let name = LeaseName::new(format!("workers:{number:03}")).expect("the value is valid");
        let metadata =
            [("tenure.weight", "1"), ("tenure.ready", "true")].map(|(key, value)| (key.into(), value.into()));
        let metadata = Metadata::new(metadata.into()).expect("the metadata is within its limit");
        let holder = HolderId::new("other").expect("the value is valid");
        let claim = Acquire::new(holder).ttl(TtlMs::Infinite).metadata(metadata);
        async move { remote.acquire(&name, &claim).await }
    });
    // A thousand requests at a time can take longer than one request may.
    let joined = futures_util::stream::iter(others).buffer_unordered(50).try_collect::<Vec<_>>();
    soon(joined).await.expect("all members have joined");
    let a = join(&cluster.manager("a"), options("a")).await;
    assert_eq!(ids(&a).len(), 1_000);
    let one_more = soon(Group::join(&cluster.manager("b"), "workers", options("b"))).await.err();
    assert!(matches!(one_more, Some(GroupError::Full { members: 1_000 })), "{one_more:?}");
    assert_eq!(a.leave().await, Ok(true));
    join(&cluster.manager("b"), options("b")).await.leave().await.expect("the group has room again");
}

async fn member_that_joins_again_is_as_ready_as_before() {
    let cluster = Cluster::start().await;
    let a = join(&cluster.manager("a"), options("a").refresh(Duration::from_millis(20))).await;
    for (id, at_first) in [("b", false), ("c", true)] {
        let (manager, faults) = cluster.mortal(id);
        let mut member = join(&manager, options(id).ttl(TTL).ready(at_first)).await;
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

async fn join_waits_for_the_end_of_a_dead_member() {
    let cluster = Cluster::start().await;
    let (manager, faults) = cluster.mortal("old");
    let old = join(&manager, options("a").ttl(TTL)).await;
    let token = old.snapshot().me.expect("there is a member").token;
    faults.cut_off(true);
    let cut_off = Instant::now();
    let new = join(&cluster.manager("new"), options("a").ttl(TTL * 2)).await;
    assert!(cut_off.elapsed() >= TTL / 2, "joined before the end of the dead member: {:?}", cut_off.elapsed());
    assert!(new.snapshot().me.expect("there is a member").token > token);
}
