//! A lost acknowledgement is found.

use crate::judge::grants_survive::check;
use crate::judge::history::{Ended, RequestKind};
use crate::judge::samples::{acquired, did, granted, history, released, revoked, token};

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
