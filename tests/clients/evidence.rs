//! The promises that a client can break, judged by the events of its drivers, the requests that the proxies saw, and the
//! history of the cluster.
//!
//! All times are of the clock that counts suspend, which the suite, the nodes and the clients share. There is no
//! tolerance: a proxy gets a request after the client has read its clock, and the observer sees a transition after its
//! commit. A clock with a low resolution only makes a reading earlier.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tenure::token::FencingToken;

use crate::judge::history::{Belief, Operation, RequestKind};
use crate::judge::{
    Bounds, Broken, LeaseHistory, Observed as Sees, Progress, Transition, current_token_only, expiry_happens,
    grants_survive, holder_stops_first, no_early_expiry, one_holder, reads_are_current, tokens_rise, unknown_is_said,
};
use crate::link::Traffic;
use crate::session::Record;
use crate::view::{View, name_of};

static BOUNDS: Bounds = Bounds {
    // All processes read the clock of one machine.
    inside_drift: true,
    shortest_second: 0.99,
    longest_second: 1.01,
    rounding: Duration::ZERO,
    observed: Sees::Later,
    tick: Duration::from_secs(1),
    commit: Duration::from_millis(250),
};

/// A driver and what was seen of it.
#[derive(Clone)]
pub struct Observed {
    pub holder: String,
    pub drift_permille: u32,
    pub record: Arc<Record>,
    pub traffic: Arc<Traffic>,
}

/// The evidence of a case.
pub struct Evidence {
    pub observed: Vec<Observed>,
    /// Grants that a request of the suite began or ended.
    pub touched: Vec<FencingToken>,
    /// The commits of the cluster.
    pub progress: Progress,
    /// The end of the case.
    pub now: Duration,
}

impl Evidence {
    /// Checks all leases. `transitions` returns those of a lease, in the order of the log.
    pub fn broken(&self, transitions: impl Fn(&str) -> Vec<Transition>) -> Vec<Broken> {
        let views: Vec<View> = self.observed.iter().map(|observed| View::new(observed, self.now)).collect();
        let names: BTreeSet<&str> = views.iter().flat_map(|view| view.asked.iter().filter_map(name_of)).collect();
        let candidates: BTreeMap<&str, &str> = views.iter().flat_map(View::candidates).collect();
        let mut broken = Vec::new();
        for name in names {
            let mut judge = |promise, checked: Result<(), String>| {
                broken.extend(checked.err().map(|how| Broken::of_lease(promise, name, how)));
            };
            let seen = transitions(name);
            for view in &views {
                judge("holder_stops_first", view.stops_before_its_deadline(name));
                judge("unknown_is_said", view.refuses_only_certain_outcomes(name));
                self.check_view(view, name, &seen, &candidates, &mut judge);
            }
            self.check_history(&views, name, &seen, &mut judge);
        }
        broken
    }

    /// Checks the answers of one client.
    fn check_view(
        &self,
        view: &View,
        name: &str,
        seen: &[Transition],
        candidates: &BTreeMap<&str, &str>,
        judge: &mut impl FnMut(&'static str, Result<(), String>),
    ) {
        let own: Vec<Transition> = seen.iter().filter(|seen| view.holder == seen.holder).cloned().collect();
        let checks = view.checks(name, &own);
        judge("reads_are_current", reads_are_current::check(&history(&checks, &own)));
        let leaders = view.leaders(name, seen, candidates);
        judge("reads_are_current", reads_are_current::check(&history(&leaders, seen)));

        // The holder learns later that the suite ended its grant.
        let mut named = view.named(name);
        named.retain(|named| !matches!(named.what, RequestKind::Renew { token } if self.touched.contains(&token)));
        judge("current_token_only", current_token_only::check(&history(&named, &own)));

        let kept = view.kept(name);
        let untouched: Vec<Transition> = own.into_iter().filter(|seen| !self.touched.contains(&seen.token)).collect();
        let expiries = expiry_happens::check(&history(&kept, &untouched), &self.progress, self.now);
        judge("expiry_happens", expiries.late.map_or(Ok(()), Err));
    }

    fn check_history(
        &self,
        views: &[View],
        name: &str,
        seen: &[Transition],
        judge: &mut impl FnMut(&'static str, Result<(), String>),
    ) {
        let told: Vec<Operation> = views.iter().flat_map(|view| view.told(name)).collect();
        let sent: Vec<Operation> = views.iter().flat_map(|view| view.sent(name)).collect();
        judge("one_holder", one_holder::check(&history(&told, seen)));
        judge("tokens_rise", tokens_rise::check(&history(&told, seen)));
        judge("grants_survive", grants_survive::check(&history(&told, seen)));
        judge("no_early_expiry", no_early_expiry::check(&history(&told, seen)));
        judge("no_early_expiry", no_early_expiry::check(&history(&sent, seen)));
        judge("current_token_only", current_token_only::check(&history(&sent, seen)));

        // The other holders of a case are no clients under test, and nothing records their requests.
        let is_own = |seen: &&Transition| {
            views.iter().any(|view| view.holder == seen.holder) && !self.touched.contains(&seen.token)
        };
        let own: Vec<Transition> = seen.iter().filter(is_own).cloned().collect();
        let ends = sent.iter().filter(|sent| !matches!(sent.what, RequestKind::Acquire { .. }));
        let all: Vec<Operation> = told.iter().chain(ends).cloned().collect();
        judge("unknown_is_said", unknown_is_said::check(&history(&all, &own)));

        let beliefs: Vec<Belief> = views.iter().flat_map(|view| view.beliefs(name)).collect();
        for belief in &beliefs {
            judge("holder_stops_first", holder_stops_first::check(seen, belief.token, belief.until, belief));
        }
        let certain: Vec<Belief> = beliefs.into_iter().filter(|belief| !self.touched.contains(&belief.token)).collect();
        if history(&told, seen).limit() == 1 {
            judge("one_holder", holder_stops_first::check_overlaps(&[], &certain));
            judge("tokens_rise", tokens_rise::check_answers(&self.untouched(&told)));
        }
    }

    /// The operations whose answers have no grant that the suite began or ended.
    fn untouched(&self, told: &[Operation]) -> Vec<Operation> {
        let is_touched = |told: &&Operation| !told.granted().is_some_and(|token| self.touched.contains(&token));
        told.iter().filter(is_touched).cloned().collect()
    }
}

fn history<'a>(operations: &'a [Operation], transitions: &'a [Transition]) -> LeaseHistory<'a> {
    LeaseHistory { operations, queues: &[], transitions, bounds: &BOUNDS }
}
