//! Tests of attempts, and of the calls between nodes.

use super::*;
use crate::api::MAX_RENEW_ITEMS;
use crate::lease::Renewal;
use crate::node::Query;
use crate::peer::Lane;
use crate::token::FencingToken;
use crate::types::{HolderId, LeaseName, MAX_TTL_MS, Metadata, Ttl};

#[test]
fn refusal_after_a_lost_answer_stays_unknown() {
    let response =
        |answer| Response { answer, served: Served { node: 1, term: 1, applied: 1, now: 1, stale_ms: None } };
    let refusals = [
        Answer::Outcome(Outcome::Refused(Refusal::QueueFull { max_waiters: 1 })),
        Answer::WaitTimeout,
        Answer::WaitAbandoned,
    ];
    for answer in refusals {
        assert!(
            unless_ambiguous(response(answer.clone()), None).is_ok(),
            "{answer:?} after no other attempt is certain"
        );
        let answered = unless_ambiguous(response(answer.clone()), Some("lost".to_owned()));
        assert!(matches!(answered, Err(RequestError::Unknown(_))), "{answer:?}: {answered:?}");
    }
    let released = response(Answer::Outcome(Outcome::Released(true)));
    assert!(unless_ambiguous(released, Some("lost".to_owned())).is_ok());
}

#[test]
fn only_idempotent_changes_are_repeated() {
    let name = || LeaseName::new("n").expect("valid");
    let holder = || HolderId::new("h").expect("valid");
    let token = FencingToken { term: 1, index: 5 };
    let changes = [
        (Command::Renew { holder: holder(), leases: Vec::new() }, true),
        (Command::Release { name: name(), holder: holder(), token }, false),
        (Command::HandOver { name: name(), holder: holder(), token, to: None }, false),
        (Command::Revoke { name: name(), reason: String::new() }, false),
        (
            Command::UpdateMetadata {
                name: name(),
                holder: holder(),
                token,
                version: 1,
                metadata: Metadata::default(),
            },
            true,
        ),
    ];
    for (command, repeats) in changes {
        assert_eq!(Request::Change(command.clone()).is_idempotent(), repeats, "{command:?}");
    }
}

/// Requests that keep or free a lease must not wait behind other requests on their way to the leader.
#[test]
fn requests_that_keep_or_free_leases_have_the_urgent_lane() {
    let name = || LeaseName::new("n").expect("valid");
    let holder = || HolderId::new("h").expect("valid");
    let token = FencingToken { term: 1, index: 5 };
    let waiter = || WaiterId { name: name(), holder: holder() };
    let claim = |wait_ms| {
        let (ttl, metadata) = (Ttl::millis(1_000).expect("valid"), Metadata::default());
        let (lock_delay_ms, limit) = (0, 1);
        Request::Acquire(Acquire { name: name(), holder: holder(), ttl, wait_ms, lock_delay_ms, limit, metadata })
    };
    let urgent = [
        Command::Renew { holder: holder(), leases: Vec::new() },
        Command::Release { name: name(), holder: holder(), token },
        Command::HandOver { name: name(), holder: holder(), token, to: None },
        Command::LeaveQueue { waiter: waiter() },
        Command::KeepWaiting { waiters: vec![waiter()] },
    ];
    for command in urgent {
        assert_eq!(Request::Change(command.clone()).lane(), Lane::Urgent, "{command:?}");
    }
    let metadata = Metadata::default();
    let ordinary = [
        claim(None),
        claim(Some(1_000)),
        Request::Change(Command::Revoke { name: name(), reason: String::new() }),
        Request::Change(Command::UpdateMetadata { name: name(), holder: holder(), token, version: 1, metadata }),
        Request::Read { query: Query::Lease(name()), consistency: Consistency::Leader },
        Request::Members,
    ];
    for request in ordinary {
        assert_eq!(request.lane(), Lane::Request, "{request:?}");
    }
}

#[test]
fn forwarded_request_has_at_most_4_mib() {
    // At 100,000 bytes and more the length prefix takes five bytes.
    let revoke = |bytes: usize| {
        let (name, reason) = (LeaseName::new("n").expect("valid"), "r".repeat(bytes));
        NodeCall::Forward(&Request::Change(Command::Revoke { name, reason })).encode()
    };
    let around = revoke(100_000).len() - 100_000;
    let largest = revoke((4 << 20) - around);
    assert_eq!(largest.len(), 4_194_304);
    assert!(matches!(NodeCall::decode(&largest), Ok(NodeCall::Forward(_))), "the request is at the bound");
    let refused = NodeCall::decode(&revoke((4 << 20) + 1 - around)).expect_err("the request is above the bound");
    assert!(matches!(refused, DecodeError::TooLong { bytes: 4_194_305, limit: 4_194_304 }), "{refused}");
}

#[test]
fn forwarded_request_is_encoded_once() {
    let request = Request::Members;
    assert_eq!(NodeCall::Forward(&request).encode()[..], [&[0], &codec::encode(&request)[..]].concat());
}

/// An older node cannot decode a newer call, so a trace must not change the call at an older level.
#[test]
fn trace_is_sent_only_at_its_level() {
    let trace = || Some(TraceParent { trace: [1; 16], span: [2; 8], flags: 1, state: String::new() });
    let sent = |caller, trace, level| NodeCall::forward(&Request::Members, 7, &caller, trace, level).encode()[0];
    for caller in [Caller::Anonymous, Caller::Program] {
        for level in [FeatureLevel::FIRST, FeatureLevel::ACCESS_CONTROL] {
            assert_eq!(sent(caller.clone(), trace(), level), sent(caller.clone(), None, level), "{caller:?} {level}");
        }
        assert_eq!(sent(caller.clone(), trace(), FeatureLevel::TRACES), 4, "{caller:?}");
        assert!(sent(caller.clone(), None, FeatureLevel::TRACES) < 4, "a request without a trace needs no new call");
        for trace in [trace(), None] {
            assert_eq!(sent(caller.clone(), trace, FeatureLevel::REQUEST_TERMS), 5, "{caller:?}");
        }
    }
}

#[test]
fn call_with_a_term_has_a_frozen_form() {
    let trace = TraceParent { trace: [1; 16], span: [2; 8], flags: 1, state: "a=1".to_owned() };
    let request = Request::Members;
    let body = codec::encode(&(Caller::Program, Request::Members));
    let traced = NodeCall::forward(&request, 9, &Caller::Program, Some(trace), FeatureLevel::REQUEST_TERMS);
    let context = [&[5, 9, 1][..], &[1; 16], &[2; 8], &[1, 3], b"a=1"].concat();
    assert_eq!(traced.encode()[..], [&context[..], &body].concat());
    let plain = NodeCall::forward(&request, 300, &Caller::Program, None, FeatureLevel::REQUEST_TERMS);
    assert_eq!(plain.encode()[..], [&[5, 251, 44, 1, 0][..], &body].concat());
}

#[test]
fn traced_call_has_a_frozen_form() {
    let trace = TraceParent { trace: [1; 16], span: [2; 8], flags: 1, state: "a=1".to_owned() };
    let call = NodeCall::ForwardTraced { trace, caller: Caller::Program, request: &Request::Members };
    let context = [&[4][..], &[1; 16], &[2; 8], &[1, 3], b"a=1"].concat();
    assert_eq!(call.encode()[..], [&context[..], &codec::encode(&(Caller::Program, Request::Members))].concat());
}

#[test]
fn largest_renewal_batch_can_be_forwarded() {
    let renewal = |number: usize| Renewal {
        name: LeaseName::new(format!("{number:0>200}")).expect("valid"),
        token: FencingToken { term: u64::MAX, index: u64::MAX },
        ttl: Some(Ttl::millis(MAX_TTL_MS).expect("the longest ttl")),
    };
    let holder = HolderId::new("h".repeat(200)).expect("valid");
    let leases = (0..MAX_RENEW_ITEMS).map(renewal).collect();
    let call = NodeCall::Forward(&Request::Change(Command::Renew { holder, leases })).encode();
    assert!(NodeCall::decode(&call).is_ok(), "{} bytes", call.len());
}
