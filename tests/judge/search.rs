//! Checks the calls on one lease for linearizability: each call must take effect at one moment between its invocation
//! and its answer.
//!
//! The check knows no server, no log and no clock except the clock that timed the calls.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use tenure::token::FencingToken;

use super::history::{Ended, Operation, RequestKind};

/// The search gives up after this number of states.
const MAX_STATES: usize = 300_000;

/// The result of a search that found no order.
#[derive(Debug)]
pub enum Doubt {
    /// No order explains the history.
    Impossible(String),
    TooHard,
}

/// A request about one lease. A call without a return may take effect at any later time, or never.
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
    /// Refused because the number of holders is at the limit.
    IsFull,
    /// Released, handed over or expired.
    End(String, FencingToken),
    /// The release found no such grant, or the cluster answered that the token is lost.
    HasNot(String, FencingToken),
    EndAll,
    IsFree,
    Saw(Holders),
}

impl Call {
    /// The effect of a request on the lease, or the state that it read. `None` if the outcome shows nothing about the
    /// holders.
    pub fn of(operation: &Operation) -> Option<Call> {
        let by = operation.by.to_string();
        let (what, is_certain) = match (&operation.what, &operation.ended) {
            (RequestKind::Acquire { .. }, Ended::Held(token, _)) => (Effect::Grant(by, *token), true),
            (RequestKind::Acquire { .. }, Ended::Refused(code)) if code == "held" => (Effect::IsFull, true),
            (RequestKind::Renew { .. }, Ended::Held(token, _)) => (Effect::Has(by, *token), true),
            (RequestKind::Release { token }, Ended::Changed(true)) => (Effect::End(by, *token), true),
            (RequestKind::Release { token }, Ended::Changed(false)) => (Effect::HasNot(by, *token), true),
            (RequestKind::HandOver { token, .. }, Ended::Held(..) | Ended::Changed(true)) => {
                (Effect::End(by, *token), true)
            }
            (RequestKind::Release { token } | RequestKind::HandOver { token, .. }, Ended::Unknown) => {
                (Effect::End(by, *token), false)
            }
            (RequestKind::UpdateMetadata { token, .. }, Ended::Updated { .. }) => (Effect::Has(by, *token), true),
            // Only the log decides that a token is lost, so this is certain with any clock.
            (
                RequestKind::Renew { token }
                | RequestKind::HandOver { token, .. }
                | RequestKind::UpdateMetadata { token, .. },
                Ended::Refused(code),
            ) if code == "lost" => (Effect::HasNot(by, *token), true),
            (RequestKind::Revoke, Ended::Changed(true)) => (Effect::EndAll, true),
            (RequestKind::Revoke, Ended::Changed(false)) => (Effect::IsFree, true),
            (RequestKind::Revoke, Ended::Unknown) => (Effect::EndAll, false),
            (RequestKind::Read, Ended::Saw(held, _)) => (Effect::Saw(held.iter().cloned().collect()), true),
            _ => return None,
        };
        Some(Call { what, invoked: operation.invoked, returned: operation.returned.filter(|_| is_certain) })
    }
}

/// Whether the answer to a request that began by then names this grant. A client may learn of a grant from a later
/// request if the first answer was lost.
pub fn is_told(calls: &[Call], granted: FencingToken, by: Duration) -> bool {
    let is_answered = |call: &Call| matches!(&call.what, Effect::Grant(_, token) if *token == granted);
    calls.iter().any(|call| is_answered(call) && call.invoked <= by)
}

pub type Holders = BTreeSet<(String, FencingToken)>;

/// The state after a call, or `None` if the call cannot have this answer in this state.
fn apply(state: &Holders, what: &Effect, limit: usize) -> Option<Holders> {
    let has = |by: &String, token: &FencingToken| state.contains(&(by.clone(), *token));
    let stays = |is_so: bool| is_so.then(|| state.clone());
    match what {
        // The holder acquires the lease again.
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
        Effect::EndAll => (!state.is_empty()).then(Holders::new),
        Effect::IsFree => stays(state.is_empty()),
        Effect::Saw(held) => stays(held == state),
    }
}

/// Searches for a valid order with the algorithm of Wing and Gong. It does not repeat a set of applied calls with the
/// same state.
pub fn is_linearizable(calls: &[Call], limit: usize) -> Result<(), Doubt> {
    let mut calls = calls.to_vec();
    calls.sort_by_key(|call| call.invoked);
    let mut tried = HashSet::new();
    let mut longest = (0, Holders::new(), Vec::new());
    let mut paths = vec![(AppliedCalls::new(calls.len()), Holders::new())];
    while let Some((mut done, state)) = paths.pop() {
        apply_neutral_calls(&calls, &mut done, &state, limit);
        if remaining(&calls, &done).all(|(_, call)| call.returned.is_none()) {
            return Ok(());
        }
        if tried.contains(&(done.clone(), state.clone())) {
            continue;
        }
        if tried.len() >= MAX_STATES {
            return Err(Doubt::TooHard);
        }
        let count = done.count();
        if count >= longest.0 {
            let open = candidates(&calls, &done).into_iter().map(|index| calls[index].clone()).collect();
            longest = (count, state.clone(), open);
        }
        for index in ordered_candidates(&calls, &done, &state).into_iter().rev() {
            if let Some(next) = apply(&state, &calls[index].what, limit).filter(|next| *next != state) {
                let mut done = done.clone();
                done.add(index);
                paths.push((done, next));
            }
        }
        tried.insert((done, state));
    }
    let (count, state, open) = longest;
    let calls = calls.len();
    Err(Doubt::Impossible(format!(
        "after {count} of {calls} calls the holders are {state:?}, and none of these calls fits: {open:?}"
    )))
}

/// The calls that have taken effect: one bit per call.
#[derive(Clone, PartialEq, Eq, Hash)]
struct AppliedCalls(Box<[u64]>);

impl AppliedCalls {
    fn new(calls: usize) -> AppliedCalls {
        AppliedCalls(vec![0; calls.div_ceil(64)].into())
    }

    fn has(&self, index: usize) -> bool {
        self.0[index / 64] & (1 << (index % 64)) != 0
    }

    fn add(&mut self, index: usize) {
        self.0[index / 64] |= 1 << (index % 64);
    }

    fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }
}

fn remaining<'a>(calls: &'a [Call], done: &'a AppliedCalls) -> impl Iterator<Item = (usize, &'a Call)> {
    calls.iter().enumerate().filter(|(index, _)| !done.has(*index))
}

/// The calls that can be next: no remaining call returned before they were invoked.
fn candidates(calls: &[Call], done: &AppliedCalls) -> Vec<usize> {
    let first = remaining(calls, done).filter_map(|(_, call)| call.returned).min().unwrap_or(Duration::MAX);
    remaining(calls, done).take_while(|(_, call)| call.invoked <= first).map(|(index, _)| index).collect()
}

/// The open calls to try, in the order of their returns, because the first return is the likeliest next call.
///
/// Of calls with the same effect, only the first is tried. An order that begins with another one stays valid when the
/// two are swapped: both are open, and the other may take effect later.
fn ordered_candidates(calls: &[Call], done: &AppliedCalls, state: &Holders) -> Vec<usize> {
    let mut indices = candidates(calls, done);
    indices.sort_by_key(|&index| calls[index].returned.unwrap_or(Duration::MAX));
    let mut seen: Vec<&Effect> = Vec::new();
    indices.retain(|&index| {
        let what = &calls[index].what;
        let is_new = !seen.contains(&what);
        seen.push(what);
        is_new && !blocks_remaining(calls, done, state, index)
    });
    indices
}

/// Whether a call ends a grant that another answered call still needs, and no remaining call grants it again.
fn blocks_remaining(calls: &[Call], done: &AppliedCalls, state: &Holders, index: usize) -> bool {
    let ends = |pair: &(String, FencingToken)| match &calls[index].what {
        Effect::End(by, token) => pair.0 == *by && pair.1 == *token,
        Effect::EndAll => true,
        _ => false,
    };
    let others = || remaining(calls, done).filter(|(other, _)| *other != index).map(|(_, call)| call);
    state.iter().filter(|pair| ends(pair)).any(|pair| {
        others().any(|call| call.returned.is_some() && needs(&call.what, pair))
            && !others().any(|call| matches!(&call.what, Effect::Grant(by, token) if (by, token) == (&pair.0, &pair.1)))
    })
}

/// Whether the answer to a call requires this grant.
fn needs(what: &Effect, pair: &(String, FencingToken)) -> bool {
    match what {
        Effect::Has(by, token) | Effect::End(by, token) => (by, token) == (&pair.0, &pair.1),
        Effect::Saw(held) => held.contains(pair),
        _ => false,
    }
}

/// Applies each answered call that fits now and leaves the state unchanged. Applying it later cannot allow more orders.
fn apply_neutral_calls(calls: &[Call], done: &mut AppliedCalls, state: &Holders, limit: usize) {
    loop {
        let fits = |index: &usize| {
            calls[*index].returned.is_some()
                && apply(state, &calls[*index].what, limit).is_some_and(|next| next == *state)
        };
        let fitting: Vec<usize> = candidates(calls, done).into_iter().filter(fits).collect();
        if fitting.is_empty() {
            return;
        }
        fitting.into_iter().for_each(|index| done.add(index));
    }
}
