//! Requests of one holder that overlap: a later one comes before the wait of an earlier one has ended.

use super::*;

/// Holder 1 has the lease, and a request of holder 2 is queued.
fn start() -> (Leader, WaiterId, WaitHandle) {
    let (registry, _) = WaitRegistry::new();
    let mut leader = Leader { machine: Machine::new(), registry, token: FencingToken { term: 1, index: 1 } };
    let id = WaiterId { name: name(), holder: holder(2) };
    leader.apply(claim(1, None));
    let mut first = leader.registry.register_alone(id.clone());
    leader.apply(claim(2, Some(60_000)));
    first.queued_at(leader.index());
    (leader, id, first)
}

/// The first client has left. Its leave, the later claim and the grant are applied before the later request runs.
#[test]
fn grant_behind_the_end_of_an_earlier_wait_wakes_its_request() {
    let (mut leader, id, mut first) = start();
    let mut again = leader.registry.register_alone(id.clone());
    leader.apply(Command::LeaveQueue { waiter: id });
    assert!(matches!(woken(&mut first), Some(Wake::Dropped(DropCause::Left))));
    leader.apply(claim(2, Some(60_000)));
    let queued_at = leader.index();
    leader.release(1);
    again.queued_at(queued_at);
    let Some(Wake::Granted(lease)) = woken(&mut again) else { panic!("the grant is not told") };
    assert_eq!(lease.token, leader.token);
    assert_eq!(leader.registry.ids(), []);
}

/// One entry grants the lease to the first request, revokes it, and queues the claim of the second request.
#[test]
fn end_of_a_grant_wakes_no_claim_that_its_entry_queues() {
    let (mut leader, id, mut first) = start();
    let mut second = leader.registry.register_alone(id.clone());
    let release = Command::Release { name: name(), holder: holder(1), token: leader.token };
    let revoke = Command::Revoke { name: name(), reason: String::new() };
    leader.apply_all(vec![release, revoke, claim(2, Some(60_000))]);
    assert!(leader.machine.is_waiting(&id), "the second claim is queued");
    assert!(matches!(woken(&mut first), Some(Wake::Ended(_))));
    second.queued_at(leader.index());
    assert!(woken(&mut second).is_none(), "the second request waits");
    assert_eq!(leader.registry.ids(), [id]);
}

/// The claim of the other request is not applied yet. Until then, the position of the first request can be granted.
#[test]
fn wait_is_not_over_before_the_claim_of_another_request_is_decided() {
    let (registry, _left) = WaitRegistry::new();
    let (id, now) = (WaiterId { name: name(), holder: holder(1) }, tokio::time::Instant::now());
    let until = |seconds| now + Duration::from_secs(seconds);
    let register = |seconds| registry.register(id.clone(), 1, until(seconds), |_| ()).0;
    let over = |request: &WaitHandle| registry.over(request.request(), until(10), drop);
    let mut first = register(10);
    first.queued_at(1);
    let refused = register(20);
    assert!(matches!(over(&first), WaitOver::OtherMayWait));
    drop(refused);
    assert!(matches!(over(&first), WaitOver::Leaves(())), "no other request is left");
    let mut other = register(20);
    assert!(matches!(over(&first), WaitOver::OtherMayWait));
    other.queued_at(2);
    assert!(matches!(over(&first), WaitOver::OtherWaits));
}
