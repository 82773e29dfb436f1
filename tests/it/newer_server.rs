//! The HTTP client against a server of a later version, whose answers have unknown names and fields.

use serde_json::{Value, json};
use tenure::api::{
    Code, EventKind, GrantCause, LeaseState, LostReason, MemberState, RenewBatch, RenewItem, Role, Standing,
};
use tenure::client::{CallError, LeaseManager, Loss, Wait};

use crate::remote::{ScriptedNode, TOKEN, answer, holder, name, remote};
use crate::steady::strict;

strict!(
    unknown_problem_code_is_other,
    unknown_event_kind_and_cause_are_other,
    unknown_lease_state_is_other,
    unknown_role_is_other,
    unknown_lost_reason_is_other,
    unknown_standing_is_other,
    unknown_standing_keeps_the_lease,
    absent_standing_keeps_the_lease,
    lease_ended_for_an_unknown_reason_is_lost,
    lease_ended_by_a_restore_is_lost_as_restored,
);

fn lease(state: &str) -> Value {
    json!({
        "name": "a", "holder": "h", "token": TOKEN.to_string(), "term": 1, "index": 5, "ttl_ms": 60_000,
        "expires_in_ms": 60_000, "state": state, "granted_at": "2026-01-31T12:00:00.000Z",
        "renewed_at": "2026-01-31T12:00:00.000Z", "renewals": 0, "limit": 1, "lock_delay_ms": 0, "waiters": 0,
        "region": "eu-1"
    })
}

fn event(kind: &str) -> Value {
    json!({
        "event": kind, "index": 7, "part": 0, "name": "a", "holder": "h", "token": TOKEN.to_string(),
        "cause": "preempted", "at": "2026-01-31T12:00:00.000Z", "region": "eu-1"
    })
}

fn explanation(standing: Value) -> Value {
    json!({
        "name": "a", "summary": "", "holders": 0, "held": [], "lock_delay_left_ms": null, "next": null, "waiters": 0,
        "standing": standing, "region": "eu-1"
    })
}

fn problem(status: u16) -> String {
    let body = json!({
        "type": "urn:tenure:problem:quota", "title": "The quota is used up", "status": status, "detail": "quota",
        "code": "quota", "quota": 7
    });
    answer(status, body)
}

async fn unknown_problem_code_is_other() {
    for status in [429, 507] {
        let node = ScriptedNode::start(vec![problem(status)]).await;
        let error = remote(&[&node.address]).revoke(&name(), "why").await.expect_err("a problem");
        match status {
            429 => assert!(matches!(&error, CallError::Refused(problem) if problem.code == Code::Other), "{error:?}"),
            _ => assert!(matches!(&error, CallError::Unknown { .. }), "{error:?}"),
        }
    }
}

async fn unknown_event_kind_and_cause_are_other() {
    let frame = |kind| format!("id: 7\nevent: {kind}\ndata: {}\n\n", event(kind));
    let events = format!("{}event: notice\ndata: {{\"text\": \"hello\"}}\n\n{}", frame("frozen"), frame("granted"));
    let stream = format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n{events}");
    let node = ScriptedNode::start(vec![stream]).await;
    let mut watch = remote(&[&node.address]).watch("", None);
    let first = watch.next().await.expect("the event of an unknown kind");
    assert_eq!((first.event, first.index, first.token), (EventKind::Other, 7, TOKEN));
    let second = watch.next().await.expect("the event after an unknown message");
    assert_eq!((second.event, second.cause), (EventKind::Granted, Some(GrantCause::Other)));
}

async fn unknown_lease_state_is_other() {
    let node = ScriptedNode::start(vec![answer(200, lease("frozen"))]).await;
    let lease = remote(&[&node.address]).get(&name()).await.expect("the lease");
    assert_eq!((lease.state, lease.token), (LeaseState::Other, TOKEN));
}

async fn unknown_role_is_other() {
    let member = json!({
        "id": 1, "role": "witness", "state": "stopping", "http": "a:1", "peer": "a:2", "lag": null, "last_contact_ms": null, "zone": "b"
    });
    let clock = json!({"monotonic_ms": 5, "wall": "2026-01-31T12:00:00.000Z"});
    let status = json!({"cluster_id": "c", "node": 1, "leader": 1, "quorum": true, "term": 1, "applied": 9, "clock": clock, "feature_level": 9, "members": [member], "zone": "b"});
    let node = ScriptedNode::start(vec![answer(200, status)]).await;
    let cluster = remote(&[&node.address]).cluster().await.expect("the status");
    assert_eq!((cluster.members[0].role, cluster.members[0].state), (Role::Other, MemberState::Other));
}

async fn unknown_lost_reason_is_other() {
    let problem = json!({"type": "t", "title": "t", "status": 409, "detail": "d", "code": "lost", "why": "preempted"});
    let renewed = json!({"results": [{"name": "a", "problem": problem, "region": "eu-1"}]});
    let node = ScriptedNode::start(vec![answer(200, renewed)]).await;
    let item = RenewItem::new(name(), TOKEN);
    let batch = RenewBatch::new(holder(), vec![item]);
    let renewed = remote(&[&node.address]).renew_batch(&batch).await.expect("one result");
    let problem = renewed.results[0].problem.as_ref().expect("a problem");
    assert_eq!((problem.code, problem.why), (Code::Lost, Some(LostReason::Other)));
    assert_eq!(Loss::from(LostReason::Other), Loss::Other);
}

async fn unknown_standing_is_other() {
    let suspended = json!({"status": "suspended", "until": "2026-01-31T12:00:00.000Z"});
    let node = ScriptedNode::start(vec![answer(200, explanation(suspended))]).await;
    let explained = remote(&[&node.address]).explain(&name(), Some(&holder())).await.expect("an explanation");
    assert_eq!(explained.standing, Some(Standing::Other));
}

/// A manager that holds a lease at a server with this standing of the holder.
async fn held(standing: Value) -> (LeaseManager, tenure::Lease) {
    let answers = vec![answer(200, lease("active")), answer(200, explanation(standing))];
    let node = ScriptedNode::start(answers).await;
    let manager = LeaseManager::new(remote(&[&node.address]));
    let lease = manager.lease("a").expect("a valid name");
    lease.acquire(Wait::No).await.expect("granted");
    (manager, lease)
}

async fn unknown_standing_keeps_the_lease() {
    let (_manager, lease) = held(json!({"status": "suspended"})).await;
    let checked = lease.check().await;
    assert!(matches!(checked, Err(CallError::Unknown { .. })), "{checked:?}");
    assert!(lease.is_held(), "an unknown standing does not say that the lease is lost");
}

async fn absent_standing_keeps_the_lease() {
    let (_manager, lease) = held(Value::Null).await;
    let checked = lease.check().await;
    assert!(matches!(checked, Err(CallError::Unknown { .. })), "{checked:?}");
    assert!(lease.is_held(), "an answer without a standing does not say that the lease is lost");
}

async fn lease_ended_for_an_unknown_reason_is_lost() {
    let (_manager, lease) = held(json!({"status": "ended", "event": event("frozen")})).await;
    assert_eq!(lease.check().await, Ok(false));
    assert!(matches!(lease.state(), tenure::HoldState::Lost { why: Loss::Other, .. }), "{:?}", lease.state());
}

async fn lease_ended_by_a_restore_is_lost_as_restored() {
    let (_manager, lease) = held(json!({"status": "ended", "event": event("restored")})).await;
    assert_eq!(lease.check().await, Ok(false));
    assert!(matches!(lease.state(), tenure::HoldState::Lost { why: Loss::Restored, .. }), "{:?}", lease.state());
}
