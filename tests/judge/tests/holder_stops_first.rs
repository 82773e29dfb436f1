//! A holder that believes too long is found.

use std::time::Duration;

use tenure::types::{HolderId, LeaseName};

use crate::judge::history::Belief;
use crate::judge::holder_stops_first::{check, check_overlaps};
use crate::judge::samples::{expired, granted, revoked, token};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn belief(by: &str, index: u64, from: u64, until: u64) -> Belief {
    let (by, name) = (HolderId::new(by).expect("valid"), LeaseName::new("job").expect("valid"));
    Belief { by, name, token: token(index), from: ms(from), until: ms(until) }
}

#[test]
fn belief_after_the_expiry_is_caught() {
    let log = [granted(5, "a", 5), expired(100, "a", 5, 8), granted(110, "b", 9)];
    check(&log, token(5), ms(100), &"a").expect("until the expiry");
    check(&log, token(5), ms(101), &"a").expect_err("after the expiry");
    check(&log, token(9), ms(500), &"b").expect("the lease has not expired");
}

#[test]
fn overlapping_beliefs_are_caught() {
    let first = belief("a", 5, 10, 50);
    check_overlaps(&[], &[first.clone(), belief("b", 9, 50, 90)]).expect("one after the other");
    check_overlaps(&[], &[first.clone(), belief("b", 9, 49, 90)]).expect_err("1 ms together");
    check_overlaps(&[], &[first.clone(), belief("a", 9, 20, 90)]).expect("one holder");
    check_overlaps(&[], &[first.clone(), belief("b", 9, 30, 30)]).expect("a belief without a duration");
    check_overlaps(&[revoked(40, "a", 5, 8)], &[first.clone(), belief("b", 9, 40, 90)]).expect("revoked before");
    check_overlaps(&[revoked(41, "a", 5, 8)], &[first, belief("b", 9, 40, 90)]).expect_err("revoked later");
}
