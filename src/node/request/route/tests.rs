//! Tests of attempts, and of the calls between nodes.

use super::*;
use crate::node::Query;
use crate::peer::Lane;
use crate::token::FencingToken;
use crate::types::{HolderId, LeaseName, Metadata, Ttl};

#[test]
fn refusal_after_a_lost_answer_stays_unknown() {
    let response =
        |answer| Response { answer, served: Served { node: 1, term: 1, applied: 1, now: 1, stale_ms: None } };
    let refusals = [
        Answer::Outcome(Outcome::Refused(Refusal::QueueFull { max_waiters: 1 })),
        Answer::Outcome(Outcome::Refused(Refusal::MetadataChanged { version: 2 })),
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

fn claim(wait_ms: Option<u64>) -> Request {
    let (name, holder) = (LeaseName::new("n").expect("valid"), HolderId::new("h").expect("valid"));
    let (ttl, metadata) = (Ttl::millis(1_000).expect("valid"), Metadata::default());
    let (lock_delay_ms, limit) = (0, 1);
    Request::Acquire(Acquire { name, holder, ttl, wait_ms, lock_delay_ms, limit, metadata })
}

/// Requests that keep or free a lease must not wait behind other requests on their way to the leader.
#[test]
fn requests_that_keep_or_free_leases_have_the_urgent_lane() {
    let name = || LeaseName::new("n").expect("valid");
    let holder = || HolderId::new("h").expect("valid");
    let token = FencingToken { term: 1, index: 5 };
    let waiter = || WaiterId { name: name(), holder: holder() };
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

/// A wait of 0 would end the wait of another request of its holder.
#[test]
fn claim_that_may_be_queued_goes_without_a_wait_after_its_end() {
    let arrived = Instant::now() - Duration::from_secs(1);
    let left = |wait_ms, may_be_queued| match claim(Some(wait_ms)).clone_with_remaining_wait(arrived, may_be_queued) {
        Request::Acquire(claim) => claim.wait_ms,
        other => panic!("{other:?}"),
    };
    assert!(left(86_400_000, true).is_some_and(|left| left <= 86_399_000), "it waits on");
    assert_eq!(left(1_000, false), Some(0), "it has not waited yet");
    assert_eq!(left(1_000, true), None);
}
