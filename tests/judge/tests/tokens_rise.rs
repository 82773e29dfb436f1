//! A token that does not rise is found.

use tenure::token::FencingToken;

use crate::judge::samples::{acquired, expired, granted, history};
use crate::judge::tokens_rise::{check, check_answers};

#[test]
fn token_that_does_not_rise_is_caught() {
    let mut log = vec![granted(1, "a", 5), expired(2, "a", 5, 9), granted(3, "b", 10)];
    check(&history(&[], &log)).expect("5, then 10");
    log[2].token = log[0].token;
    check(&history(&[], &log)).expect_err("5 again");
}

#[test]
fn token_that_is_not_the_index_of_its_grant_is_caught() {
    let mut log = [granted(1, "a", 5)];
    log[0].token = FencingToken::new(7, 5);
    check(&history(&[], &log)).expect("any term");
    log[0].token = FencingToken::new(7, 6);
    check(&history(&[], &log)).expect_err("another index");
}

#[test]
fn answer_with_a_lower_token_is_caught() {
    let first = acquired("a", (0, 10), 5);
    check_answers(&[first.clone(), acquired("b", (10, 20), 4)]).expect("at the same time");
    check_answers(&[first.clone(), acquired("a", (11, 20), 5)]).expect("the same grant");
    check_answers(&[acquired("b", (11, 20), 4), first]).expect_err("4 after 5");
}
