//! A grant inside a lock delay is found.

use tenure::api::GrantCause;

use crate::judge::history::{Ended, Operation, RequestKind};
use crate::judge::lock_delay::{check, judged};
use crate::judge::samples::{did, expired, from_queue, granted, handed_over, history, released, revoked, token};

fn claimed(by: &str, times: (u64, u64), index: u64, ttl_ms: Option<u64>) -> Operation {
    let what = RequestKind::Acquire { ttl_ms, limit: 1, wait_ms: None, lock_delay_ms: 500 };
    did(by, what, times, Ended::Held(token(index), ttl_ms))
}

#[test]
fn grant_inside_the_delay_of_an_expiry_is_caught() {
    let asked = [claimed("a", (0, 10), 5, Some(1_000))];
    let log = |at| [granted(5, "a", 5), expired(1_005, "a", 5, 8), granted(at, "b", 9)];
    check(&history(&asked, &log(1_500))).expect("500 ms after the end of the ttl");
    check(&history(&asked, &log(1_480))).expect_err("15 ms early, the drift taken off");
    check(&history(&asked, &[log(0)[0].clone(), log(0)[1].clone(), from_queue(1_480, "b", 9)]))
        .expect_err("the delay applies to waiters, too");
    assert_eq!((judged(&history(&asked, &log(1_500))), judged(&history(&asked, &log(0)[..2]))), (1, 0));
}

#[test]
fn grant_answered_inside_the_delay_is_caught() {
    let asked = [claimed("a", (0, 10), 5, Some(1_000)), claimed("b", (1_400, 1_450), 9, Some(1_000))];
    let log = [granted(5, "a", 5), expired(1_005, "a", 5, 8), granted(1_700, "b", 9)];
    check(&history(&asked[..1], &log)).expect("the watchers saw it after the delay");
    check(&history(&asked, &log)).expect_err("the answer to its holder came 50 ms before the end of the delay");
}

#[test]
fn renewed_ttl_moves_the_delay() {
    let renewal = did("a", RequestKind::Renew { token: token(5) }, (600, 610), Ended::Held(token(5), Some(1_000)));
    let asked = [claimed("a", (0, 10), 5, Some(1_000)), renewal];
    let log = |at| [granted(5, "a", 5), expired(1_610, "a", 5, 8), granted(at, "b", 9)];
    check(&history(&asked, &log(2_100))).expect("500 ms after the renewed ttl");
    check(&history(&asked, &log(2_060))).expect_err("25 ms early");
}

#[test]
fn grant_inside_the_delay_of_a_revoke_is_caught() {
    let revoke = |sent, ended| did("x", RequestKind::Revoke, (sent, sent + 10), ended);
    let log = |at| [granted(5, "a", 5), revoked(2_005, "a", 5, 8), granted(at, "b", 9)];
    let asked = [claimed("a", (0, 10), 5, None), revoke(2_000, Ended::Changed(true))];
    check(&history(&asked, &log(2_500))).expect("500 ms after the revoke");
    check(&history(&asked, &log(2_490))).expect_err("5 ms early, the drift taken off");
    let early = [asked[0].clone(), revoke(1_000, Ended::Unknown), asked[1].clone()];
    check(&history(&early, &log(2_490))).expect("the revoke of unknown outcome may have ended the grant earlier");
    let refused = [asked[0].clone(), revoke(1_000, Ended::Changed(false)), asked[1].clone()];
    check(&history(&refused, &log(2_490))).expect_err("the first revoke found nothing");
}

#[test]
fn handover_may_come_inside_the_delay() {
    let asked = [claimed("a", (0, 10), 5, Some(1_000))];
    let log = |cause| {
        let mut to_c = granted(1_101, "c", 9);
        to_c.cause = Some(cause);
        [granted(5, "a", 5), granted(6, "b", 6), expired(1_005, "a", 5, 8), handed_over(1_100, "b", 6, 9), to_c]
    };
    check(&history(&asked, &log(GrantCause::HandOver))).expect("the holder chose the waiter");
    check(&history(&asked, &log(GrantCause::Queue))).expect_err("the delay applies to the queue");
}

#[test]
fn release_has_no_delay() {
    let asked = [claimed("a", (0, 10), 5, Some(1_000))];
    let log = [granted(5, "a", 5), released(500, "a", 5, 8), granted(501, "b", 9)];
    check(&history(&asked, &log)).expect("a release has no lock delay");
    assert_eq!(judged(&history(&asked, &log)), 0);
}
