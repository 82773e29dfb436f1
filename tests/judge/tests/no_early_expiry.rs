//! An early expiry is found.

use std::time::Duration;

use crate::judge::history::{Ended, RequestKind};
use crate::judge::no_early_expiry::check;
use crate::judge::samples::{BOUNDS, acquired, did, expired, granted, history, token};
use crate::judge::{Bounds, LeaseHistory};

#[test]
fn expiry_before_the_acknowledged_ttl_is_caught() {
    let renewed = did("a", RequestKind::Renew { token: token(5) }, (600, 610), Ended::Held(token(5), Some(1000)));
    let asked = [acquired("a", (0, 10), 5), renewed];
    check(&history(&asked, &[granted(5, "a", 5), expired(1600, "a", 5, 9)])).expect("a second after the renewal");
    check(&history(&asked, &[granted(5, "a", 5), expired(1500, "a", 5, 9)])).expect_err("100 ms early");
}

#[test]
fn expiry_of_an_infinite_lease_is_caught() {
    let claim = RequestKind::Acquire { ttl_ms: None, limit: 1, wait_ms: None, lock_delay_ms: 0 };
    let claimed = |ended| [did("a", claim.clone(), (0, 10), ended)];
    let log = [granted(5, "a", 5), expired(90_000, "a", 5, 9)];
    check(&history(&claimed(Ended::Held(token(5), None)), &log[..1])).expect("the lease is still held");
    check(&history(&claimed(Ended::Held(token(5), None)), &log)).expect_err("it expired");
    check(&history(&claimed(Ended::Unknown), &log)).expect_err("it expired without an answer to its holder");
    check(&history(&claimed(Ended::Held(token(5), Some(9))), &log[..1])).expect_err("the answer has a finite ttl");
}

#[test]
fn infinite_answer_to_a_finite_claim_is_caught() {
    let renewal = did("a", RequestKind::Renew { token: token(5) }, (20, 30), Ended::Held(token(5), None));
    let asked = [acquired("a", (0, 10), 5), renewal];
    check(&history(&asked[..1], &[granted(5, "a", 5)])).expect("the answer has the claimed ttl");
    check(&history(&asked, &[granted(5, "a", 5)])).expect_err("the renewal made it infinite");
}

#[test]
fn rounding_and_drift_are_taken_off() {
    let asked = [acquired("a", (0, 10), 5)];
    let log = |ms| [granted(5, "a", 5), expired(ms, "a", 5, 9)];
    check(&history(&asked, &log(990))).expect("1 % of a second early");
    check(&history(&asked, &log(989))).expect_err("1 ms more");
    let bounds = Bounds { rounding: Duration::from_millis(1), ..BOUNDS.clone() };
    check(&LeaseHistory { bounds: &bounds, ..history(&asked, &log(989)) }).expect("within the rounding");
    let bounds = Bounds { inside_drift: false, ..BOUNDS.clone() };
    check(&LeaseHistory { bounds: &bounds, ..history(&asked, &log(100)) }).expect("clocks of any rate");
}

#[test]
fn early_expiry_of_a_handed_over_lease_is_caught() {
    let handed =
        [did("b", RequestKind::HandOver { token: token(5), to: None }, (0, 10), Ended::Held(token(8), Some(1000)))];
    check(&history(&handed, &[granted(5, "a", 8), expired(1000, "a", 8, 9)])).expect("a second after the handover");
    check(&history(&handed, &[granted(5, "a", 8), expired(900, "a", 8, 9)])).expect_err("the giver knows its ttl");
}
