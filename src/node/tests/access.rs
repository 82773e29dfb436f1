//! Access control at the leader and at the other nodes.

use super::*;
use crate::access::{AccessChange, AccessName, AccessToken, Denied, PrefixRight, Right, TokenHash};
use crate::lease::{ListFilter, Renewal};
use crate::node::Response;
use crate::node::request::call::NodeCall;

/// One heartbeat interval, and the time of a message on the way.
const HEARTBEAT: Duration = Duration::from_millis(80);

fn name(text: &str) -> AccessName {
    AccessName::new(text).expect("valid")
}

fn hash(number: u8) -> TokenHash {
    TokenHash::of(&AccessToken::from_secret([number; 32]))
}

async fn change(node: &TestNode, change: AccessChange) -> Result<Response, RequestError> {
    node.request_of(&Caller::Program, Request::ChangeAccess(change), Forward::Once).await
}

/// Access control is on. The token 1 is of `worker`, which may hold all names.
async fn start_guarded() -> (Cluster, NodeId, [NodeId; 2]) {
    let (cluster, leader, others) = start().await;
    let permissions = [PrefixRight { right: Right::Hold, prefix: String::new() }].into();
    for wanted in [
        AccessChange::SetRole { role: name("worker"), permissions },
        AccessChange::SetPrincipal { principal: name("worker"), roles: [name("worker")].into() },
        AccessChange::AddToken { principal: name("worker"), hash: hash(1), created_wall_ms: 0 },
        AccessChange::Enable(true),
    ] {
        change(cluster.node(others[0]), wanted).await.expect("made");
    }
    tokio::time::sleep(HEARTBEAT).await;
    (cluster, leader, others)
}

fn is_unauthenticated<T>(result: &Result<T, RequestError>) -> bool {
    matches!(result, Err(RequestError::Denied(Denied::Unauthenticated(_))))
}

/// A claim of another lease, without a wait.
fn claim(holder: &str) -> Request {
    let Request::Acquire(claim) = claim_of(holder) else { unreachable!("it is a claim") };
    Request::Acquire(Acquire { name: LeaseName::new("other").expect("valid"), wait_ms: None, ..claim })
}

fn stale_read() -> Request {
    let query = Query::Lease(LeaseName::new("job").expect("valid"));
    Request::Read { query, consistency: Consistency::Stale }
}

#[tokio::test(start_paused = true)]
async fn leader_refuses_what_a_follower_lets_through() {
    let (cluster, leader, [follower, _]) = start_guarded().await;
    let service = NodeService(cluster.node(leader).inner.clone());
    let reply = async |call: NodeCall<Request>| {
        let reply: NodeReply = codec::decode(&service.serve(follower, call.encode()).await, 4_096).expect("a reply");
        let NodeReply::Done(done) = reply else { panic!("no answer: {reply:?}") };
        *done
    };
    // A node of an older version names no caller, and an outdated one still accepts a revoked token.
    assert!(is_unauthenticated(&reply(NodeCall::Forward(claim("a"))).await));
    let as_worker = || NodeCall::ForwardAs { caller: Caller::Token(hash(1)), request: claim("a") };
    reply(as_worker()).await.expect("the token is valid");
    change(cluster.node(leader), AccessChange::RemoveToken(hash(1).id())).await.expect("made");
    assert!(is_unauthenticated(&reply(as_worker()).await));
    let request = || Request::Access;
    let denied = reply(NodeCall::ForwardAs { caller: Caller::Certificate(name("worker")), request: request() }).await;
    assert!(matches!(denied, Err(RequestError::Denied(Denied::Forbidden(_)))), "{denied:?}");
    reply(NodeCall::ForwardAs { caller: Caller::Program, request: request() }).await.expect("nodes have all rights");
    cluster.shutdown().await;
}

/// A stale read is checked by the node that answers it, and each other read by the leader.
#[tokio::test(start_paused = true)]
async fn each_read_needs_a_right_on_its_names() {
    let (cluster, leader, [follower, _]) = start_guarded().await;
    let permissions = [PrefixRight { right: Right::Hold, prefix: "job".to_owned() }].into();
    change(cluster.node(leader), AccessChange::SetRole { role: name("worker"), permissions }).await.expect("made");
    tokio::time::sleep(HEARTBEAT).await;
    let queries = |text: &str| {
        let name = || LeaseName::new(text).expect("valid");
        let filter = ListFilter { prefix: text.to_owned(), ..ListFilter::default() };
        [
            Query::Lease(name()),
            Query::History(name()),
            Query::Queue(name()),
            Query::Explain { name: name(), holder: None },
            Query::List { filter, after: None, limit: 1 },
        ]
    };
    for id in [leader, follower] {
        for consistency in [Consistency::Leader, Consistency::Linearizable, Consistency::Stale] {
            let read = async |query: &Query| {
                let request = Request::Read { query: query.clone(), consistency };
                cluster.node(id).request_of(&Caller::Token(hash(1)), request, Forward::Once).await
            };
            for query in queries("job") {
                let allowed = read(&query).await;
                assert!(allowed.is_ok(), "node {id}, {consistency:?}, {query:?}: {allowed:?}");
            }
            for query in queries("other") {
                let denied = read(&query).await;
                let is_forbidden = matches!(denied, Err(RequestError::Denied(Denied::Forbidden(_))));
                assert!(is_forbidden, "node {id}, {consistency:?}, {query:?}: {denied:?}");
            }
        }
    }
    cluster.shutdown().await;
}

/// The leader checks each change, also for the other nodes.
#[tokio::test(start_paused = true)]
async fn each_change_of_a_lease_needs_a_right() {
    let (cluster, leader, [follower, _]) = start_guarded().await;
    let caller = Caller::Token(hash(1));
    let held = cluster.node(leader).request_of(&caller, claim("a"), Forward::Once).await.expect("free").answer;
    let Answer::Outcome(Outcome::Held { lease, .. }) = held else { panic!("not granted: {held:?}") };
    let requests = || {
        let (name, holder, token) = (lease.name.clone(), lease.holder.clone(), lease.token);
        let (renewal, metadata) = (Renewal { name: name.clone(), token, ttl: None }, Metadata::default());
        let renew = Command::Renew { holder: holder.clone(), leases: vec![renewal] };
        let release = Command::Release { name: name.clone(), holder: holder.clone(), token };
        let hand_over = Command::HandOver { name: name.clone(), holder: holder.clone(), token, to: None };
        let update = Command::UpdateMetadata { name: name.clone(), holder, token, version: 0, metadata };
        let revoke = Command::Revoke { name, reason: String::new() };
        let changes =
            [("renew", renew), ("update", update), ("hand over", hand_over), ("release", release), ("revoke", revoke)];
        std::iter::once(("acquire", claim("a")))
            .chain(changes.into_iter().map(|(action, command)| (action, Request::Change(command))))
    };
    let is_allowed = |right: Right, action: &str| match right {
        Right::Read => false,
        Right::Hold => action != "revoke",
        Right::Operate => action == "revoke" || action == "hand over",
        Right::Admin => true,
    };
    for right in [Right::Read, Right::Hold, Right::Operate, Right::Admin] {
        let permissions = [PrefixRight { right, prefix: String::new() }].into();
        change(cluster.node(leader), AccessChange::SetRole { role: name("worker"), permissions }).await.expect("made");
        for id in [leader, follower] {
            for (action, request) in requests() {
                let answer = cluster.node(id).request_of(&caller, request, Forward::Once).await;
                let is_forbidden = matches!(answer, Err(RequestError::Denied(Denied::Forbidden(_))));
                let is_answered = answer.is_ok();
                let expected = is_allowed(right, action);
                assert_eq!((is_answered, is_forbidden), (expected, !expected), "{right:?}, {action} at node {id}");
            }
        }
    }
    cluster.shutdown().await;
}

/// Its state may be old: another leader may have added the token.
#[tokio::test(start_paused = true)]
async fn isolated_leader_refuses_no_change_from_memory() {
    let (cluster, leader, _) = start_guarded().await;
    let unknown = || AccessChange::RemoveToken(hash(2).id());
    let refused = change(cluster.node(leader), unknown()).await;
    assert!(matches!(refused, Err(RequestError::Denied(Denied::NotFound(_)))), "a leader with a majority: {refused:?}");
    cluster.board.isolate(leader, cluster.ids());
    let answered = change(cluster.node(leader), unknown()).await;
    assert!(!matches!(answered, Ok(_) | Err(RequestError::Denied(_))), "{answered:?}");
    cluster.shutdown().await;
}

/// Its state may be old: another leader may have changed the rights.
#[tokio::test(start_paused = true)]
async fn isolated_leader_shows_no_access_from_memory() {
    let (cluster, leader, _) = start_guarded().await;
    let shown = async || cluster.node(leader).request_of(&Caller::Program, Request::Access, Forward::Once).await;
    let with_majority = shown().await;
    assert!(with_majority.is_ok(), "control: a leader with a majority: {with_majority:?}");
    cluster.board.isolate(leader, cluster.ids());
    let isolated = shown().await;
    assert!(isolated.is_err(), "{isolated:?}");
    cluster.shutdown().await;
}

/// Two administrators remove each other. The client of the first request leaves while the entry is in flight.
#[tokio::test(start_paused = true)]
async fn change_waits_for_the_entry_of_a_request_without_a_client() {
    let (cluster, leader, others) = start_guarded().await;
    let permissions = [PrefixRight { right: Right::Admin, prefix: String::new() }].into();
    change(cluster.node(leader), AccessChange::SetRole { role: name("admin"), permissions }).await.expect("made");
    for administrator in ["anna", "bert"] {
        let (principal, roles) = (name(administrator), [name("admin")].into());
        change(cluster.node(leader), AccessChange::SetPrincipal { principal, roles }).await.expect("made");
    }
    others.into_iter().for_each(|other| cluster.board.delay(leader, other, Duration::from_millis(40)));
    let remove = |administrator, other| {
        let (node, removed) = (cluster.node(leader).clone(), AccessChange::RemovePrincipal(name(other)));
        let caller = Caller::Certificate(name(administrator));
        tokio::spawn(async move { node.request_of(&caller, Request::ChangeAccess(removed), Forward::Once).await })
    };
    let first = remove("anna", "bert");
    tokio::time::sleep(Duration::from_millis(20)).await;
    first.abort();
    let second = remove("bert", "anna").await.expect("no panic");
    assert!(matches!(second, Err(RequestError::Denied(_))), "its principal is removed: {second:?}");
    let access = cluster.node(leader).inner.access();
    assert!(access.view().principals.contains_key(&name("anna")), "one administrator stays");
    cluster.shutdown().await;
}

/// Adds the principal `second` with the role `worker` and the token 2.
async fn add_second(at: &TestNode) {
    for wanted in [
        AccessChange::SetPrincipal { principal: name("second"), roles: [name("worker")].into() },
        AccessChange::AddToken { principal: name("second"), hash: hash(2), created_wall_ms: 0 },
    ] {
        change(at, wanted).await.expect("made");
    }
    tokio::time::sleep(HEARTBEAT).await;
}

/// Found by the simulation, seed 227: an isolated leader answered a claim with a revoked token from its old state.
#[tokio::test(start_paused = true)]
async fn isolated_leader_refuses_no_holder_from_memory() {
    let (cluster, leader, others) = start_guarded().await;
    add_second(cluster.node(others[0])).await;
    let claims = |token| {
        let node = cluster.node(leader);
        async move { node.request_of(&Caller::Token(hash(token)), claim("a"), Forward::Once).await.map(|done| done.answer) }
    };
    let held = claims(2).await;
    assert!(matches!(held, Ok(Answer::Outcome(Outcome::Held { .. }))), "{held:?}");
    assert_eq!(claims(1).await, Ok(Answer::Outcome(Outcome::Refused(Refusal::HolderInUse))), "with a majority");
    cluster.board.isolate(leader, cluster.ids());
    let answered = claims(1).await;
    assert!(answered.is_err(), "{answered:?}");
    cluster.shutdown().await;
}

/// The cluster has given the principal more rights since.
#[tokio::test(start_paused = true)]
async fn isolated_follower_refuses_no_read_from_memory() {
    let (cluster, leader, [follower, _]) = start_guarded().await;
    let hold = |prefix: &str| {
        let permissions = [PrefixRight { right: Right::Hold, prefix: prefix.to_owned() }].into();
        AccessChange::SetRole { role: name("worker"), permissions }
    };
    change(cluster.node(leader), hold("other")).await.expect("made");
    tokio::time::sleep(HEARTBEAT).await;
    let caller = Caller::Token(hash(1));
    let read = async || cluster.node(follower).request_of(&caller, stale_read(), Forward::Once).await;
    let refused = read().await;
    assert!(matches!(refused, Err(RequestError::Denied(Denied::Forbidden(_)))), "with a leader: {refused:?}");
    cluster.board.isolate(follower, cluster.ids());
    change(cluster.node(leader), hold("job")).await.expect("made");
    tokio::time::sleep(SOON).await;
    assert_eq!(read().await, Err(RequestError::NoLeader));
    cluster.shutdown().await;
}

/// The request of the first principal is at another node, so the leader has none for its waiter.
#[tokio::test(start_paused = true)]
async fn claim_with_the_holder_id_of_another_principal_takes_no_waiter_out() {
    let (cluster, leader, others) = start_guarded().await;
    add_second(cluster.node(others[0])).await;
    let node = cluster.node(leader).clone();
    let holder = lease(&manager(&node));
    holder.acquire(Wait::No).await.expect("free");
    let Request::Acquire(claim) = claim_of("a") else { unreachable!("it is a claim") };
    let commands = vec![Command::Acquire(claim).owned_by(name("worker"))];
    let batch = Batch { stamp: Stamp { now: 0, wall_ms: 0 }, commands };
    let term = node.raft().leadership().term;
    node.raft().propose(term, Proposal::leases(&batch)).await.expect("it leads");
    assert_eq!(queue(&node).await, ["a"]);
    let (inner, caller) = (node.inner.clone(), Caller::Token(hash(2)));
    let mut foreign = Box::pin(inner.execute_as_leader(&caller, claim_of("a")));
    drop(foreign.as_mut().now_or_never());
    drop(foreign);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(queue(&node).await, ["a"], "its place stays");
    let refused = inner.execute_as_leader(&caller, claim_of("a")).await.map(|response| response.answer);
    assert_eq!(refused, Ok(Answer::Outcome(Outcome::Refused(Refusal::HolderInUse))), "control");
    cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn revoked_token_reads_nowhere_after_one_heartbeat() {
    let (cluster, leader, others) = start_guarded().await;
    let caller = Caller::Token(hash(1));
    for id in cluster.ids() {
        cluster.node(id).request_of(&caller, stale_read(), Forward::Once).await.expect("allowed");
    }
    change(cluster.node(others[1]), AccessChange::RemoveToken(hash(1).id())).await.expect("made");
    let at_leader = cluster.node(leader).request_of(&caller, stale_read(), Forward::Once).await;
    assert!(is_unauthenticated(&at_leader), "the leader has applied it: {at_leader:?}");
    tokio::time::sleep(HEARTBEAT).await;
    for id in cluster.ids() {
        let read = cluster.node(id).request_of(&caller, stale_read(), Forward::Once).await;
        assert!(is_unauthenticated(&read), "node {id}: {read:?}");
    }
    cluster.shutdown().await;
}

/// The leader removes the token, so it ends on each node.
#[tokio::test(start_paused = true)]
async fn expired_token_reads_nowhere_after_its_ttl() {
    const TTL: Duration = Duration::from_secs(60);
    let (mut cluster, leader, others) = start_guarded().await;
    let (_, wall_ms) = cluster.node(leader).inner.requests.clock.reading();
    // The clock of the node that creates the token is one hour late. That of the leader counts.
    let (ttl_ms, created_wall_ms) = (TTL.as_millis() as u64, wall_ms - 3_600_000);
    let expires_wall_ms = created_wall_ms + ttl_ms;
    let principal = name("worker");
    let added = AccessChange::AddExpiringToken { principal, hash: hash(2), created_wall_ms, expires_wall_ms };
    let answer = change(cluster.node(others[0]), added).await.expect("made").answer;
    let Answer::AccessWithExpiries { expiries, .. } = answer else { panic!("{answer:?}") };
    let late_ms = expiries.into_values().next().expect("the token expires") - (wall_ms + ttl_ms);
    assert!(late_ms < 1_000, "{late_ms} ms");
    // A later leader and a restarted node know the expiry.
    cluster.crash(leader).await;
    cluster.restart(leader).await;
    tokio::time::sleep(TTL - Duration::from_secs(2)).await;
    let caller = Caller::Token(hash(2));
    for id in cluster.ids() {
        cluster.node(id).request_of(&caller, stale_read(), Forward::Once).await.expect("its ttl has not passed");
    }
    tokio::time::sleep(Duration::from_secs(4)).await;
    for id in cluster.ids() {
        let read = cluster.node(id).request_of(&caller, stale_read(), Forward::Once).await;
        assert!(is_unauthenticated(&read), "node {id}: {read:?}");
        let other = cluster.node(id).request_of(&Caller::Token(hash(1)), stale_read(), Forward::Once).await;
        other.expect("this token does not expire");
    }
    cluster.shutdown().await;
}

/// No client of these nodes can have a certificate. So an administrator without a token cannot act.
#[tokio::test(start_paused = true)]
async fn without_tls_no_administrator_has_a_certificate() {
    let (cluster, leader, _) = start_guarded().await;
    let node = cluster.node(leader);
    let permissions = [PrefixRight { right: Right::Admin, prefix: String::new() }].into();
    change(node, AccessChange::SetRole { role: name("admin"), permissions }).await.expect("made");
    for administrator in ["expiring", "lasting", "other"] {
        let (principal, roles) = (name(administrator), [name("admin")].into());
        change(node, AccessChange::SetPrincipal { principal, roles }).await.expect("made");
    }
    let (_, created_wall_ms) = node.inner.requests.clock.reading();
    let (principal, expires_wall_ms) = (name("expiring"), created_wall_ms + 3_600_000);
    let expiring = AccessChange::AddExpiringToken { principal, hash: hash(2), created_wall_ms, expires_wall_ms };
    let lasting = AccessChange::AddToken { principal: name("lasting"), hash: hash(3), created_wall_ms };
    for wanted in [expiring, lasting] {
        change(node, wanted).await.expect("made");
    }
    let remove = Request::ChangeAccess(AccessChange::RemovePrincipal(name("lasting")));
    let refused = node.request_of(&Caller::Token(hash(2)), remove, Forward::Once).await;
    let is_refused =
        matches!(&refused, Err(RequestError::Denied(Denied::Refused(why))) if why.contains("without a ttl"));
    assert!(is_refused, "{refused:?}");
    cluster.shutdown().await;
}

/// The removal waits for another change, for longer than a request may take.
#[tokio::test(start_paused = true)]
async fn expired_token_is_removed_after_a_failed_attempt() {
    const TTL: Duration = Duration::from_secs(60);
    let (cluster, leader, [follower, _]) = start_guarded().await;
    let inner = &cluster.node(leader).inner;
    let (_, created_wall_ms) = inner.requests.clock.reading();
    let expires_wall_ms = created_wall_ms + TTL.as_millis() as u64;
    let principal = name("worker");
    let added = AccessChange::AddExpiringToken { principal, hash: hash(2), created_wall_ms, expires_wall_ms };
    change(cluster.node(leader), added).await.expect("made");
    let other_change = inner.requests.access_changes.clone().lock_owned().await;
    tokio::time::sleep(TTL + 3 * inner.settings.timeouts.request).await;
    let caller = Caller::Token(hash(2));
    let read = async |id| cluster.node(id).request_of(&caller, stale_read(), Forward::Once).await;
    read(leader).await.expect("control: the leader could not remove it");
    drop(other_change);
    tokio::time::sleep(SOON).await;
    for id in [leader, follower] {
        let read = read(id).await;
        assert!(is_unauthenticated(&read), "node {id}: {read:?}");
    }
    cluster.shutdown().await;
}

/// A place in the queue is of a holder, and not of a token. The next waiter gets the lease when the ttl of the grant ends.
#[tokio::test(start_paused = true)]
async fn waiter_with_a_revoked_token_keeps_its_place() {
    const TTL_MS: u64 = 5_000;
    let (cluster, leader, [follower, other]) = start_guarded().await;
    for wanted in [
        AccessChange::SetPrincipal { principal: name("second"), roles: [name("worker")].into() },
        AccessChange::AddToken { principal: name("second"), hash: hash(2), created_wall_ms: 0 },
    ] {
        change(cluster.node(other), wanted).await.expect("made");
    }
    tokio::time::sleep(HEARTBEAT).await;
    let request = |token, request: Request| {
        let node = cluster.node(follower).clone();
        async move { node.request_of(&Caller::Token(hash(token)), request, Forward::Once).await.map(|done| done.answer) }
    };
    let claim = |holder: &str| {
        let Request::Acquire(claim) = claim_of(holder) else { unreachable!("it is a claim") };
        Request::Acquire(Acquire { ttl: Ttl::millis(TTL_MS).expect("valid"), ..claim })
    };
    let token_of = |answer: Result<Answer, RequestError>| match answer {
        Ok(Answer::Outcome(Outcome::Held { lease, .. })) => lease.token,
        other => panic!("not granted: {other:?}"),
    };
    let held = token_of(request(2, claim("holds")).await);
    let revoked = tokio::spawn(request(1, claim("revoked")));
    until_waiters(cluster.node(leader), 1).await;
    let next = tokio::spawn(request(2, claim("next")));
    until_waiters(cluster.node(leader), 2).await;

    change(cluster.node(other), AccessChange::RemoveToken(hash(1).id())).await.expect("made");
    tokio::time::sleep(HEARTBEAT).await;
    assert!(is_unauthenticated(&request(1, stale_read()).await), "control: the token is revoked");
    assert_eq!(queue(cluster.node(leader)).await, ["revoked", "next"]);
    let job = || LeaseName::new("job").expect("valid");
    let holder = |text: &str| HolderId::new(text).expect("valid");
    let release = Command::Release { name: job(), holder: holder("holds"), token: held };
    assert_eq!(request(2, Request::Change(release)).await, Ok(Answer::Outcome(Outcome::Released(true))));
    let token = token_of(revoked.await.expect("the task does not panic"));
    let granted = Instant::now();
    let renewal = Renewal { name: job(), token, ttl: None };
    let renew = Command::Renew { holder: holder("revoked"), leases: vec![renewal] };
    let renewed = request(1, Request::Change(renew)).await;
    assert!(is_unauthenticated(&renewed), "{renewed:?}");
    assert!(token_of(next.await.expect("the task does not panic")) > token);
    let after = granted.elapsed();
    // The leader looks for ended leases at least once a second.
    let expected = Duration::from_millis(TTL_MS - 100)..=Duration::from_millis(TTL_MS + 1_100);
    assert!(expected.contains(&after), "granted after {after:?}");
    cluster.shutdown().await;
}

/// The claim goes to the next leader, which checks it again. Without it, the place goes to the next waiter.
#[tokio::test(start_paused = true)]
async fn next_leader_refuses_a_waiter_with_a_revoked_token() {
    let (cluster, leader, [follower, other]) = start_guarded().await;
    add_second(cluster.node(other)).await;
    let request = |token, request: Request| {
        let node = cluster.node(follower).clone();
        async move { node.request_of(&Caller::Token(hash(token)), request, Forward::Once).await.map(|done| done.answer) }
    };
    let held = match request(2, claim_of("holds")).await {
        Ok(Answer::Outcome(Outcome::Held { lease, .. })) => lease,
        other => panic!("not granted: {other:?}"),
    };
    let revoked = tokio::spawn(request(1, claim_of("revoked")));
    until_waiters(cluster.node(leader), 1).await;
    let next = tokio::spawn(request(2, claim_of("next")));
    until_waiters(cluster.node(leader), 2).await;
    change(cluster.node(other), AccessChange::RemoveToken(hash(1).id())).await.expect("made");
    tokio::time::sleep(HEARTBEAT).await;
    assert_eq!(queue(cluster.node(leader)).await, ["revoked", "next"], "with the same leader");

    assert_eq!(cluster.node(leader).transfer_leadership_to(other).await, Ok(other));
    let ended = tokio::time::timeout(SOON, revoked).await.expect("the next leader refuses it").expect("no panic");
    assert!(matches!(ended, Err(RequestError::Unknown(_))), "it can still be granted: {ended:?}");
    let release = Command::Release { name: held.name.clone(), holder: held.holder.clone(), token: held.token };
    assert_eq!(request(2, Request::Change(release)).await, Ok(Answer::Outcome(Outcome::Released(true))));
    let granted = tokio::time::timeout(SOON, next).await.expect("no other waiter is left").expect("no panic");
    assert!(matches!(granted, Ok(Answer::Outcome(Outcome::Held { .. }))), "{granted:?}");
    cluster.shutdown().await;
}

/// The follower has not applied the entry that turns access control on when it forwards the program's request.
#[tokio::test(start_paused = true)]
async fn program_keeps_all_rights_while_access_control_turns_on() {
    let (cluster, leader, [follower, _]) = start().await;
    let manager = manager(cluster.node(follower));
    let held = lease(&manager);
    held.acquire(Wait::No).await.expect("free");
    change(cluster.node(leader), AccessChange::Enable(true)).await.expect("made");
    assert!(!cluster.node(follower).access_state().is_enabled(), "the follower has not heard of it");
    cluster.node(follower).request(claim("b"), Forward::Once).await.expect("answered");
    tokio::time::sleep(TTL).await;
    assert!(held.is_held(), "it was renewed");
    cluster.shutdown().await;
}

/// The token is valid when the request arrives. Its removal is committed, and the leader applies it during the request.
#[tokio::test]
async fn backup_is_refused_after_the_removal_of_its_token() {
    let data = tempfile::tempdir().expect("a folder");
    let (node, url) = served(data.path(), LeaseSettings::default()).await;
    let change = |wanted| {
        let node = node.clone();
        async move { node.request_of(&Caller::Program, Request::ChangeAccess(wanted), Forward::Once).await }
    };
    let permissions = [PrefixRight { right: Right::Admin, prefix: String::new() }].into();
    for wanted in [
        AccessChange::SetRole { role: name("admin"), permissions },
        AccessChange::SetPrincipal { principal: name("anna"), roles: [name("admin")].into() },
        AccessChange::AddToken { principal: name("anna"), hash: hash(1), created_wall_ms: 0 },
        AccessChange::Enable(true),
    ] {
        change(wanted).await.expect("made");
    }
    let raft = node.raft().raft();
    let (resume, resumed) = tokio::sync::oneshot::channel::<()>();
    let stall = raft.external_state_machine_request(move |_| Box::pin(async move { _ = resumed.await }));
    stall.await.expect("Raft runs");
    let committed = async || {
        let index = raft.with_raft_state(|state| state.local_committed().map(|at| at.index));
        index.await.expect("Raft runs")
    };
    let before = committed().await;
    let removal = tokio::spawn(change(AccessChange::RemoveToken(hash(1).id())));
    while committed().await == before {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // A node writes two backups at a time. So the download has passed the first check when no permit is left.
    let _other = node.backup_view(Consistency::Stale).await.expect("no other backup");
    let request = plain_http::client().get(format!("{url}/v1/cluster/snapshot"));
    let download = tokio::spawn(request.bearer_auth(AccessToken::from_secret([1; 32]).expose()).send());
    while node.backup_view(Consistency::Stale).await.is_ok() {
        assert!(!download.is_finished(), "the download waits for the state");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    resume.send(()).expect("the state machine waits");
    removal.await.expect("no panic").expect("made");
    let answer = download.await.expect("no panic").expect("an answer");
    assert_eq!(answer.status(), 401, "the token is removed");
    node.shutdown().await;
}
