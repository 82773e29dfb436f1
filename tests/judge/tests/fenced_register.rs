//! A stale write that a resource accepted is found.

use crate::judge::fenced_register::{AcceptedWrites, check_granted};
use crate::judge::samples::{granted, token};

#[test]
fn stale_write_is_caught() {
    let mut writes = AcceptedWrites::default();
    for (index, holder) in [(5, "a"), (5, "a"), (9, "b")] {
        writes.accept(token(index), holder).expect("tokens that do not fall");
    }
    writes.accept(token(5), "a").expect_err("after token 9");
    writes.accept(token(9), "c").expect_err("b has this token");
    writes.accept(token(9), "b").expect("b still holds the lease");
}

#[test]
fn write_without_a_grant_is_caught() {
    let log = [granted(5, "a", 5)];
    check_granted(&log, token(5), "a").expect("the log has the grant");
    check_granted(&log, token(7), "a").expect_err("the token was never granted");
    check_granted(&log, token(5), "b").expect_err("the grant has another holder");
}
