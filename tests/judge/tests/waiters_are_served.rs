//! A late grant to a waiter is found.

use tenure::token::FencingToken;

use crate::judge::Transition;
use crate::judge::history::{Ended, Operation, RequestKind};
use crate::judge::samples::{commits, did, expired, from_queue, granted, history, released};
use crate::judge::waiters_are_served::{QueueGrants, check};

fn claim(by: &str, limit: u32, lock_delay_ms: u64) -> Operation {
    did(
        by,
        RequestKind::Acquire { ttl_ms: Some(1_000), limit, wait_ms: Some(9_000), lock_delay_ms },
        (0, 10),
        Ended::Unknown,
    )
}

fn judge(asked: &[Operation], log: &[Transition], without: (u64, u64)) -> QueueGrants {
    // The indices are higher than those of the commits, so only the events of the watchers give the times.
    let later = |seen: &Transition| {
        let mut seen = seen.clone();
        seen.index += 100_000;
        seen
    };
    let log: Vec<Transition> = log.iter().map(later).collect();
    check(&history(asked, &log), &commits(without))
}

#[test]
fn late_grant_to_a_waiter_is_caught() {
    let log = |at| [granted(5, "a", 5), released(4_000, "a", 5, 8), from_queue(at, "b", 9)];
    let queue_grants = judge(&[claim("a", 1, 500)], &log(5_200), (0, 0));
    assert_eq!(
        (queue_grants.judged, queue_grants.behind_delay, queue_grants.late),
        (1, 0, None),
        "a release has no delay"
    );
    assert!(judge(&[], &log(5_300), (0, 0)).late.is_some(), "1.3 s after the release");
    assert_eq!(judge(&[], &log(8_000), (4_100, 7_100)).late, None, "three seconds of them without a commit");
    assert!(judge(&[], &log(8_500), (4_100, 7_100)).late.is_some(), "four and a half seconds");
}

#[test]
fn late_grant_after_a_lock_delay_is_caught() {
    let log = |at| [granted(5, "a", 5), expired(4_000, "a", 5, 8), from_queue(at, "b", 9)];
    let asked = [claim("a", 1, 500)];
    let queue_grants = judge(&asked, &log(5_700), (0, 0));
    assert_eq!(
        (queue_grants.judged, queue_grants.behind_delay, queue_grants.late),
        (1, 1, None),
        "1.2 s after the delay"
    );
    assert!(judge(&asked, &log(5_800), (0, 0)).late.is_some(), "1.3 s after the delay");
}

#[test]
fn free_place_of_a_counted_lease_must_be_granted() {
    let asked = [claim("a", 2, 0)];
    let log = |second| {
        [
            granted(5, "a", 5),
            granted(6, "b", 6),
            released(4_000, "a", 5, 8),
            released(second, "b", 6, 9),
            from_queue(second + 10, "c", 10),
        ]
    };
    assert_eq!(judge(&asked, &log(5_000), (0, 0)).late, None);
    assert!(judge(&asked, &log(6_000), (0, 0)).late.is_some(), "it waited until the second place was free");
}

#[test]
fn grant_in_the_window_of_a_new_leader_is_not_judged() {
    let mut log = [granted(5, "a", 5), released(4_000, "a", 5, 8), from_queue(6_000, "b", 9)];
    log[2].token = FencingToken::new(2, 9);
    assert_eq!(judge(&[], &log, (0, 0)), QueueGrants::default());
    let early = [granted(3_500, "a", 5), released(4_000, "a", 5, 8), from_queue(6_000, "b", 9)];
    assert_eq!(judge(&[], &early, (0, 0)), QueueGrants::default(), "the term may have begun with its first grant");
}
