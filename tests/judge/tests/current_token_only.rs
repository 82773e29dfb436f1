//! A renewal of an ended grant is found.

use crate::judge::current_token_only::check;
use crate::judge::history::{Ended, RequestKind};
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
