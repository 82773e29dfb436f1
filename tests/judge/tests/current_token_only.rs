//! A renewal of an ended grant is found.

use crate::judge::current_token_only::check;
use crate::judge::history::{Ended, Operation, RequestKind};
use crate::judge::samples::{BOUNDS, did, expired, granted, history, token};
use crate::judge::{Bounds, LeaseHistory, Observed};

#[test]
fn renewal_of_an_ended_grant_is_caught() {
    let renewed = |times, answered| {
        [did("a", RequestKind::Renew { token: token(5) }, times, Ended::Held(token(answered), Some(1000)))]
    };
    let log = [granted(10, "a", 5), expired(100, "a", 5, 8)];
    check(&history(&renewed((90, 110), 5), &log)).expect("it expired during the call");
    check(&history(&renewed((100, 110), 5), &log)).expect("it was seen to expire when the call began");
    check(&history(&renewed((101, 110), 5), &log)).expect_err("it had expired before the call");
    check(&history(&renewed((20, 30), 9), &log)).expect_err("the answer has another token");
    check(&history(&renewed((0, 9), 5), &log)).expect("a watcher may be late");
    let bounds = Bounds { observed: Observed::AtApply, ..BOUNDS.clone() };
    check(&LeaseHistory { bounds: &bounds, ..history(&renewed((0, 9), 5), &log) }).expect_err("it was granted later");
    check(&history(&renewed((20, 30), 5), &[])).expect_err("the log has no such grant");
}

#[test]
fn token_that_is_lost_while_it_is_held_is_caught() {
    let lost = |times, index| {
        let what = RequestKind::Renew { token: token(5) };
        [Operation { index, ..did("a", what, times, Ended::Refused("lost".into())) }]
    };
    let log = [granted(10, "a", 5), expired(100, "a", 5, 8)];
    check(&history(&lost((20, 30), Some(7)), &log)).expect_err("the answer shows a state before the expiry");
    check(&history(&lost((20, 30), Some(8)), &log)).expect("a watcher may hear late of the expiry");
    check(&history(&lost((20, 30), None), &log)).expect("the state of the answer is not known");
    check(&history(&lost((9, 30), Some(7)), &log)).expect("it was perhaps granted after the answer");
    check(&history(&lost((20, 30), Some(7)), &log[..1])).expect_err("it was held to the end");
    check(&history(&lost((20, 30), Some(7)), &[granted(10, "b", 5)])).expect("another holder has this token");
    let release = did("a", RequestKind::Release { token: token(5) }, (20, 30), Ended::Changed(false));
    let release = |index| [Operation { index: Some(index), ..release.clone() }];
    check(&history(&release(7), &log)).expect_err("the release found no grant, but it was held");
    check(&history(&release(8), &log)).expect("it had expired");
    let bounds = Bounds { observed: Observed::AtApply, ..BOUNDS.clone() };
    let exact = |times| check(&LeaseHistory { bounds: &bounds, ..history(&lost(times, None), &log) });
    exact((20, 99)).expect_err("it expired after the answer");
    exact((20, 100)).expect("it expired during the call");
    exact((9, 99)).expect("it was granted during the call");
}
