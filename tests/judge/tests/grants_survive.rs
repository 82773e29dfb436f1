//! A lost acknowledgement is found.

use tenure::types::HolderId;

use crate::judge::grants_survive::check;
use crate::judge::history::{Ended, RequestKind};
use crate::judge::samples::{
    acquired, by_hand_over, did, from_queue, granted, handed_over, history, released, revoked, token,
};

#[test]
fn lost_acknowledged_operation_is_caught() {
    let release = did("a", RequestKind::Release { token: token(5) }, (10, 11), Ended::Changed(true));
    let asked = [acquired("a", (0, 1), 5), release];
    check(&history(&asked, &[granted(1, "a", 5), released(11, "a", 5, 6)])).expect("the log has both");
    check(&history(&asked, &[granted(1, "a", 5)])).expect_err("the release is lost");
    check(&history(&asked[..1], &[])).expect_err("the grant is lost");
    check(&history(&asked[..1], &[granted(1, "b", 5)])).expect_err("the grant has another holder");
    let revoke = [did("x", RequestKind::Revoke, (10, 11), Ended::Changed(true))];
    check(&history(&revoke, &[granted(1, "a", 5)])).expect_err("the revoke is lost");
}

#[test]
fn acknowledged_revoke_and_its_transition_agree() {
    let revoke = [did("x", RequestKind::Revoke, (10, 11), Ended::Changed(true))];
    check(&history(&revoke, &[granted(1, "a", 5), revoked(10, "a", 5, 6)])).expect("seen when it was sent");
    check(&history(&revoke, &[granted(1, "a", 5), revoked(9, "a", 5, 6)])).expect_err("seen before it was sent");
}

#[test]
fn hand_over_with_another_new_grant_is_caught() {
    let handed = |to: Option<&str>, new| {
        let to = to.map(|to| HolderId::new(to).expect("valid"));
        let what = RequestKind::HandOver { token: token(5), to };
        [did("a", what, (10, 11), Ended::Held(token(new), Some(1000)))]
    };
    let log = [granted(1, "a", 5), handed_over(10, "a", 5, 8), by_hand_over(10, "b", 8)];
    check(&history(&handed(None, 8), &log)).expect("to the first waiter");
    check(&history(&handed(Some("b"), 8), &log)).expect("to the chosen waiter");
    check(&history(&handed(Some("c"), 8), &log)).expect_err("the holder chose c");
    check(&history(&handed(None, 9), &log)).expect_err("the answer has another token");
    check(&history(&handed(None, 8), &log[..2])).expect_err("there is no new grant");
    let from_queue = [log[0].clone(), log[1].clone(), from_queue(10, "b", 8)];
    check(&history(&handed(None, 8), &from_queue)).expect_err("the queue made the grant");
}
