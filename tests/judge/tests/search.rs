//! Searches for an order of calls.

use std::time::Duration;

use tenure::token::FencingToken;

use crate::judge::search::{Call, Doubt, Effect, is_linearizable};

fn token(index: u64) -> FencingToken {
    FencingToken::new(1, index)
}

fn call(what: Effect, invoked: u64, returned: u64) -> Call {
    let returned = (returned > 0).then(|| Duration::from_millis(returned));
    Call { what, invoked: Duration::from_millis(invoked), returned }
}

fn grant(by: &str, index: u64) -> Effect {
    Effect::Grant(by.into(), token(index))
}

fn end(by: &str, index: u64) -> Effect {
    Effect::End(by.into(), token(index))
}

fn saw(held: &[(&str, u64)]) -> Effect {
    Effect::Saw(held.iter().map(|(by, index)| ((*by).into(), token(*index))).collect())
}

#[test]
fn linearizable_history_is_accepted() {
    let calls = [
        call(grant("a", 1), 0, 10),
        call(saw(&[]), 5, 15),
        call(Effect::IsFull, 11, 20),
        call(end("a", 1), 12, 30),
        call(grant("b", 5), 14, 25),
        call(saw(&[("b", 5)]), 26, 27),
    ];
    is_linearizable(&calls, 1).expect("grant to a, release, grant to b");
}

#[test]
fn unknown_release_may_or_may_not_take_effect() {
    let unknown = call(end("a", 1), 5, 0);
    is_linearizable(&[call(grant("a", 1), 0, 1), unknown.clone(), call(grant("b", 2), 90, 99)], 1)
        .expect("the release took effect");
    is_linearizable(&[call(grant("a", 1), 0, 1), unknown, call(saw(&[("a", 1)]), 90, 99)], 1)
        .expect("the release had no effect");
}

#[test]
fn impossible_histories_are_rejected() {
    let wrong: [(&str, Vec<Call>); 7] = [
        ("two holders", vec![call(grant("a", 1), 0, 1), call(grant("b", 2), 2, 3)]),
        ("a stale read", vec![call(grant("a", 1), 0, 1), call(saw(&[]), 2, 3)]),
        ("a read from the future", vec![call(saw(&[("a", 1)]), 0, 1), call(grant("a", 1), 2, 3)]),
        ("a lost grant", vec![call(grant("a", 1), 0, 1), call(grant("a", 4), 2, 3)]),
        (
            "a release that found nothing",
            vec![call(grant("a", 1), 0, 1), call(Effect::HasNot("a".into(), token(1)), 2, 3)],
        ),
        ("a refusal of a free lease", vec![call(Effect::IsFull, 0, 1)]),
        ("reads that go back", vec![call(grant("a", 1), 0, 20), call(saw(&[("a", 1)]), 2, 3), call(saw(&[]), 4, 5)]),
    ];
    for (what, calls) in wrong {
        assert!(matches!(is_linearizable(&calls, 1), Err(Doubt::Impossible(_))), "{what}");
    }
}

#[test]
fn counted_lease_has_at_most_its_limit_of_holders() {
    let calls = [call(grant("a", 1), 0, 1), call(grant("b", 2), 2, 3), call(saw(&[("a", 1), ("b", 2)]), 4, 5)];
    is_linearizable(&calls, 2).expect("both");
    let third = [calls.to_vec(), vec![call(grant("c", 3), 6, 7)]].concat();
    assert!(is_linearizable(&third, 2).is_err());
}

#[test]
fn many_unknown_outcomes_do_not_exhaust_the_search() {
    // A revoke of unknown outcome follows each grant. Only some of the revokes took effect.
    let mut calls = Vec::new();
    for round in 0..60 {
        let at = round * 10;
        calls.push(call(grant("a", round + 1), at, at + 3));
        calls.push(call(Effect::EndAll, at + 1, 0));
        calls.push(call(Effect::End("a".into(), token(round + 1)), at + 2, 0));
        calls.push(call(saw(&[("a", round + 1)]), at + 4, at + 6));
    }
    is_linearizable(&calls, 1).expect("an operation ends every lease");
    calls.push(call(saw(&[("a", 7)]), 700, 701));
    assert!(matches!(is_linearizable(&calls, 1), Err(Doubt::Impossible(_))), "a read of an old state");
}
