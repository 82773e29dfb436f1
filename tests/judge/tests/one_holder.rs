//! A second holder is found.

use crate::judge::history::{Ended, RequestKind};
use crate::judge::one_holder::check;
use crate::judge::samples::{did, expired, granted, history, released};

#[test]
fn second_holder_and_end_without_grant_are_caught() {
    let good = [granted(1, "a", 5), expired(2, "a", 5, 9), granted(3, "b", 10)];
    check(&history(&[], &good)).expect("one at a time");
    check(&history(&[], &[granted(1, "a", 5), granted(2, "b", 6)])).expect_err("two");
    check(&history(&[], &[granted(1, "a", 5), released(2, "b", 5, 6)])).expect_err("b does not hold the lease");
    let counted = did(
        "a",
        RequestKind::Acquire { ttl_ms: Some(1000), limit: 2, wait_ms: None, lock_delay_ms: 0 },
        (0, 9),
        Ended::Unknown,
    );
    let three = [granted(1, "a", 5), granted(2, "b", 6), granted(3, "c", 7)];
    check(&history(std::slice::from_ref(&counted), &three[..2])).expect("two of two");
    check(&history(&[counted], &three)).expect_err("three of two");
    check(&history(&[], &[granted(1, "a", 5), expired(2, "a", 5, 6), released(2, "a", 5, 7)])).expect_err("twice");
}
