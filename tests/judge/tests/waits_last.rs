//! A wait that ends too early is found.

use std::time::Duration;

use crate::judge::history::{Ended, Operation, RequestKind};
use crate::judge::samples::{BOUNDS, did, history};
use crate::judge::waits_last::{check, check_kept};
use crate::judge::{Bounds, LeaseHistory, Observed};

fn wait(by: &str, wait_ms: u64, times: (u64, u64), ended: Ended) -> Operation {
    let what = RequestKind::Acquire { ttl_ms: Some(1_000), limit: 1, wait_ms: Some(wait_ms), lock_delay_ms: 0 };
    did(by, what, times, ended)
}

fn refused(code: &str) -> Ended {
    Ended::Refused(code.to_owned())
}

#[test]
fn wait_that_is_over_too_early_is_caught() {
    let exact = Bounds { observed: Observed::AtApply, ..BOUNDS.clone() };
    let judged = |bounds: &Bounds, asked: &[Operation]| check(&LeaseHistory { bounds, ..history(asked, &[]) });
    let over = |returned| wait("a", 1_000, (100, returned), refused("wait_timeout"));
    judged(&exact, &[over(1_088)]).expect("by a clock that is 1 % too fast");
    judged(&exact, &[over(1_080)]).expect_err("980 ms");
    judged(&BOUNDS, &[over(1_080)]).expect("the timers of a real process can be wrong");
    let outside = Bounds { inside_drift: false, ..exact.clone() };
    judged(&outside, &[over(1_080)]).expect("any clock");
    let other = |times, ended| [wait("a", 10, times, ended), over(1_080)];
    judged(&exact, &other((0, 50), Ended::Unknown)).expect("the other claim may have replaced this one");
    judged(&exact, &other((0, 50), refused("wait_timeout"))).expect_err("the other claim was over");
    judged(&exact, &other((0, 100), refused("wait_timeout"))).expect("the other claim may have been queued last");
    judged(&exact, &other((1_081, 1_092), Ended::Unknown)).expect_err("the other claim began later");
}

#[test]
fn waiter_that_loses_its_place_without_a_fault_is_caught() {
    let ms = Duration::from_millis;
    let lost = [wait("a", 9_000, (1_000, 2_100), refused("wait_abandoned"))];
    let judged = |asked: &[Operation], calm, terms: &[Duration]| check_kept(&history(asked, &[]), ms(calm), terms);
    judged(&lost, 1_000, &[ms(999), ms(2_101)]).expect_err("one leader led all the time");
    judged(&lost, 1_001, &[]).expect("a fault may have happened before");
    judged(&lost, 1_000, &[ms(1_000)]).expect("the leader changed");
    judged(&lost, 1_000, &[ms(2_100)]).expect("the leader changed");
    let soon = [wait("a", 9_000, (1_000, 1_999), refused("wait_abandoned"))];
    judged(&soon, 1_000, &[]).expect("an earlier claim of the holder may have lost its place");
    let outside = Bounds { inside_drift: false, ..BOUNDS.clone() };
    check_kept(&LeaseHistory { bounds: &outside, ..history(&lost, &[]) }, ms(1_000), &[]).expect("any clock");
}
