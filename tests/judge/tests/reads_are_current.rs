//! A stale read is found.

use std::time::Duration;

use crate::judge::history::{Ended, Operation, RequestKind, StateAge};
use crate::judge::reads_are_current::{check, check_ages, check_indexes};
use crate::judge::samples::{acquired, did, expired, granted, history, saw};

#[test]
fn read_of_a_state_not_in_the_log_is_caught() {
    let log = [granted(5, "a", 5), expired(1500, "a", 5, 9)];
    let good = [saw((0, 1), &[], 4), saw((2, 3), &[("a", 5)], 5), saw((4, 9), &[("a", 5)], 8), saw((9, 10), &[], 9)];
    check(&history(&good, &log)).expect("each read has the state at its index");
    for bad in [saw((0, 1), &[("a", 5)], 4), saw((0, 1), &[], 8), saw((0, 1), &[("b", 5)], 5)] {
        check(&history(&[bad], &log)).expect_err("not the state at that index");
    }
}

#[test]
fn read_older_than_a_known_index_is_caught() {
    let done = |operations: &[Operation]| check_indexes(operations.iter());
    let claimed = acquired("a", (0, 10), 5);
    done(&[claimed.clone(), saw((10, 20), &[], 4)]).expect("the read began when the answer arrived");
    done(&[claimed.clone(), saw((11, 20), &[], 4)]).expect_err("the read began later");
    done(&[claimed, saw((11, 20), &[("a", 5)], 5)]).expect("the read has the index of the grant");
    let at =
        |times, index| Operation { index: Some(index), ..did("x", RequestKind::Revoke, times, Ended::Changed(false)) };
    done(&[at((0, 10), 7), at((5, 30), 6), at((31, 40), 7)]).expect("the second call began before the first answer");
    done(&[at((0, 10), 7), at((11, 30), 6)]).expect_err("any answer with an index must be current");
}

#[test]
fn state_older_than_its_age_is_caught() {
    let claimed = acquired("a", (0, 10), 5);
    let ages = |asked, age, index, slowest| {
        let [asked, age] = [asked, age].map(Duration::from_millis);
        check_ages(&[StateAge { node: 2, asked, age, index }], [claimed.clone()].iter(), slowest)
    };
    ages(100, 50, 4, 1.0).expect_err("the answer arrived 90 ms before");
    ages(100, 50, 5, 1.0).expect("the state has the grant");
    ages(100, 89, 4, 1.0).expect("an age of 89 ms can be 90 ms");
    ages(100, 88, 4, 1.0).expect_err("an age of 88 ms is less than 90 ms");
    ages(100, 80, 4, 0.9).expect("a slow clock counts 81 ms in 90 ms");
    ages(100, 79, 4, 0.9).expect_err("a slow clock counts 81 ms in 90 ms");
    ages(100, 500, 0, 1.0).expect("older than the run");
}
