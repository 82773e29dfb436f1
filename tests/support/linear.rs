//! Whether a history of calls on one lease is one that a single lease could have had: every call took effect at one moment
//! between its invocation and its answer. It knows no server, no log and no clock but the one that timed the calls.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use tenure::token::FencingToken;

/// Moments that are looked at before a history is given up as too hard.
const LONGEST_SEARCH: usize = 300_000;

/// What came of a search.
#[derive(Debug)]
pub enum Doubt {
    /// No order explains the history.
    Impossible(String),
    TooHard,
}

/// A request about one lease. Without an end it may have happened at any time later, or never.
#[derive(Clone, Debug)]
pub struct Call {
    pub what: Effect,
    pub invoked: Duration,
    pub returned: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    Grant(String, FencingToken),
    /// Renewed or acquired again.
    Has(String, FencingToken),
    /// Refused because as many hold it as may.
    IsFull,
    /// Released, handed over or lapsed.
    End(String, FencingToken),
    /// A release that found nothing.
    HasNot(String, FencingToken),
    EndAll,
    IsFree,
    Saw(State),
}

pub type State = BTreeSet<(String, FencingToken)>;

/// The state after a call, if it could have been answered so in this one.
fn step(state: &State, what: &Effect, limit: usize) -> Option<State> {
    let has = |by: &String, token: &FencingToken| state.contains(&(by.clone(), *token));
    let stays = |is_so: bool| is_so.then(|| state.clone());
    match what {
        // Acquired again by its holder.
        Effect::Grant(by, token) if has(by, token) => Some(state.clone()),
        Effect::Grant(by, token) => {
            let fits = state.len() < limit && !state.iter().any(|(holder, _)| holder == by);
            fits.then(|| state.iter().cloned().chain([(by.clone(), *token)]).collect())
        }
        Effect::Has(by, token) => stays(has(by, token)),
        Effect::IsFull => stays(state.len() >= limit),
        Effect::End(by, token) => {
            has(by, token).then(|| state.iter().filter(|held| **held != (by.clone(), *token)).cloned().collect())
        }
        Effect::HasNot(by, token) => stays(!has(by, token)),
        Effect::EndAll => (!state.is_empty()).then(State::new),
        Effect::IsFree => stays(state.is_empty()),
        Effect::Saw(held) => stays(held == state),
    }
}

/// Searches for an order, as Wing and Gong do; what was tried from the same calls and the same state is not tried again.
pub fn is_linearizable(calls: &[Call], limit: usize) -> Result<(), Doubt> {
    let mut calls = calls.to_vec();
    calls.sort_by_key(|call| call.invoked);
    let mut tried = HashSet::new();
    let mut longest = (0, State::new(), Vec::new());
    let mut paths = vec![(vec![false; calls.len()], State::new())];
    while let Some((mut done, state)) = paths.pop() {
        settle(&calls, &mut done, &state, limit);
        let left = calls.iter().zip(&done).any(|(call, done)| call.returned.is_some() && !done);
        if !left {
            return Ok(());
        }
        if !tried.insert((done.clone(), state.clone())) {
            continue;
        }
        if tried.len() > LONGEST_SEARCH {
            return Err(Doubt::TooHard);
        }
        let count = done.iter().filter(|done| **done).count();
        if count >= longest.0 {
            let open = open(&calls, &done).map(|place| calls[place].clone()).collect();
            longest = (count, state.clone(), open);
        }
        for place in open(&calls, &done).collect::<Vec<_>>().into_iter().rev() {
            if let Some(next) = step(&state, &calls[place].what, limit).filter(|next| *next != state) {
                let mut done = done.clone();
                done[place] = true;
                paths.push((done, next));
            }
        }
    }
    let (count, state, open) = longest;
    let calls = calls.len();
    Err(Doubt::Impossible(format!(
        "behind {count} of {calls} calls it is held by {state:?}, and none fits of {open:?}"
    )))
}

/// The calls that could be next: none that is left was answered before they began.
fn open<'a>(calls: &'a [Call], done: &'a [bool]) -> impl Iterator<Item = usize> + 'a {
    let left = calls.iter().zip(done).filter(|(_, done)| !**done);
    let first = left.filter_map(|(call, _)| call.returned).min().unwrap_or(Duration::MAX);
    (0..calls.len()).filter(move |&place| !done[place] && calls[place].invoked <= first)
}

/// Whatever fits now and changes nothing may as well happen now.
fn settle(calls: &[Call], done: &mut [bool], state: &State, limit: usize) {
    loop {
        let fits = |place: &usize| {
            calls[*place].returned.is_some()
                && step(state, &calls[*place].what, limit).is_some_and(|next| next == *state)
        };
        let fitting: Vec<usize> = open(calls, done).filter(fits).collect();
        if fitting.is_empty() {
            return;
        }
        fitting.into_iter().for_each(|place| done[place] = true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(index: u64) -> FencingToken {
        FencingToken { term: 1, index }
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
    fn what_one_lease_could_have_done_is_found() {
        let calls = [
            call(grant("a", 1), 0, 10),
            call(saw(&[]), 5, 15),
            call(Effect::IsFull, 11, 20),
            call(end("a", 1), 12, 30),
            call(grant("b", 5), 14, 25),
            call(saw(&[("b", 5)]), 26, 27),
        ];
        is_linearizable(&calls, 1).expect("a, the release, b");
    }

    #[test]
    fn an_unknown_release_explains_what_came_later_and_need_not_have_happened() {
        let unknown = call(end("a", 1), 5, 0);
        is_linearizable(&[call(grant("a", 1), 0, 1), unknown.clone(), call(grant("b", 2), 90, 99)], 1).expect("it did");
        is_linearizable(&[call(grant("a", 1), 0, 1), unknown, call(saw(&[("a", 1)]), 90, 99)], 1).expect("it did not");
    }

    #[test]
    fn histories_that_no_lease_has_are_refused() {
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
            (
                "reads that go back",
                vec![call(grant("a", 1), 0, 20), call(saw(&[("a", 1)]), 2, 3), call(saw(&[]), 4, 5)],
            ),
        ];
        for (what, calls) in wrong {
            assert!(matches!(is_linearizable(&calls, 1), Err(Doubt::Impossible(_))), "{what}");
        }
    }

    #[test]
    fn a_counted_lease_has_as_many_holders_as_its_limit() {
        let calls = [call(grant("a", 1), 0, 1), call(grant("b", 2), 2, 3), call(saw(&[("a", 1), ("b", 2)]), 4, 5)];
        is_linearizable(&calls, 2).expect("both");
        let third = [calls.to_vec(), vec![call(grant("c", 3), 6, 7)]].concat();
        assert!(is_linearizable(&third, 2).is_err());
    }
}
