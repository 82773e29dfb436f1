//! The effect of a refused request is found.

use crate::judge::history::{Ended, RequestKind};
use crate::judge::samples::{BOUNDS, acquire, acquired, did, expired, granted, history, released, token};
use crate::judge::unknown_is_said::check;
use crate::judge::{Bounds, LeaseHistory, Observed};

#[test]
fn effect_of_a_refused_request_is_caught() {
    let log = [granted(5, "a", 5)];
    let ended = |ended| [did("a", acquire(), (0, 10), ended)];
    check(&history(&[acquired("a", (0, 10), 5)], &log)).expect("the answer has the grant");
    check(&history(&ended(Ended::Unknown), &log)).expect("the claim may have been applied");
    check(&history(&ended(Ended::Refused("held".into())), &log)).expect_err("the claim was refused");
    check(&history(&[acquired("a", (0, 10), 6)], &log)).expect("the answer has a later grant");
    check(&history(&[acquired("a", (0, 10), 4)], &log)).expect_err("the answer has an earlier grant");
    check(&history(&[acquired("a", (6, 10), 5)], &log)).expect_err("the event came before the request");
    check(&history(&[], &log)).expect_err("no request");
    let waits = RequestKind::Acquire { ttl_ms: Some(1000), limit: 1, wait_ms: Some(9_000), lock_delay_ms: 0 };
    let lost = [did("a", waits, (0, 10), Ended::Refused("lost".into()))];
    check(&history(&lost, &log)).expect_err("the answer says lost, but the grant has not ended");
    check(&history(&lost, &[granted(5, "a", 5), expired(5, "a", 5, 5)]))
        .expect("the entry that granted the lease ended it");
    check(&history(&lost, &[granted(5, "a", 5), expired(8, "a", 5, 6)])).expect_err("a later entry ended the grant");
    let release = did("a", RequestKind::Release { token: token(5) }, (6, 7), Ended::Changed(false));
    let asked = [acquired("a", (0, 1), 5), release];
    check(&history(&asked, &[granted(5, "a", 5), released(7, "a", 5, 6)]))
        .expect_err("the answer says that nothing was released");
}

#[test]
fn effect_after_the_answer_is_caught_where_times_are_exact() {
    let bounds = Bounds { observed: Observed::AtApply, ..BOUNDS.clone() };
    let asked = [acquired("a", (0, 10), 5)];
    let exact = |ms| check(&LeaseHistory { bounds: &bounds, ..history(&asked, &[granted(ms, "a", 5)]) });
    exact(10).expect("applied when the answer arrived");
    exact(11).expect_err("applied after the answer");
    check(&history(&asked, &[granted(11, "a", 5)])).expect("a watcher may be late");
}
