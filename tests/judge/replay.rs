//! Follows applied entries in log order, and checks each against the state that the earlier ones allow. The state comes
//! only from commands, outcomes and effects, not from the lease machine.

use std::borrow::Cow;
use std::collections::BTreeMap;

use tenure::lease::{
    Acquire, Change, Command, DropCause, DroppedWaiter, GrantCause, HolderLease, Machine, Outcome, Renewal, Transition,
};
use tenure::token::FencingToken;
use tenure::types::{AccessName, ClusterMs, HolderId, LeaseName, Ttl};

use super::broken::Broken;
use super::entry::Entry;
use super::{
    current_token_only, each_is_answered, each_transition_once, expiry_happens, lock_delay, no_early_expiry,
    one_holder, owner_only, queue_order, reentrance_keeps_the_token, time_is_the_logs, tokens_rise,
};

/// The entries from the first one of a cluster.
#[derive(Default)]
pub struct Replay {
    now: ClusterMs,
    names: BTreeMap<LeaseName, ObservedName>,
    /// Found in the current entry.
    broken: Vec<Broken>,
}

/// The state of one name.
#[derive(Default)]
pub struct ObservedName {
    pub limit: usize,
    pub held: BTreeMap<FencingToken, HeldGrant>,
    /// In the order of the queue.
    pub waiting: Vec<WaitingClaim>,
    pub highest: Option<FencingToken>,
    /// The end of the lock delay.
    pub not_before: ClusterMs,
    /// The principal of each holder and waiter that has one.
    owners: BTreeMap<HolderId, AccessName>,
}

#[derive(Debug)]
pub struct HeldGrant {
    pub holder: HolderId,
    ttl: Ttl,
    /// The acknowledged deadline; `None` for an infinite ttl.
    pub until: Option<ClusterMs>,
    lock_delay_ms: u64,
}

#[derive(Debug)]
pub struct WaitingClaim {
    pub claim: Acquire,
    /// The end of the wait.
    pub until: ClusterMs,
    /// The term of the last entry that confirmed the waiter.
    pub confirmed_term: u64,
}

impl Replay {
    /// Sets the cluster time of the state before the first entry.
    pub fn begin_at(&mut self, now: ClusterMs) {
        self.now = now;
    }

    /// Follows an entry. Returns the promises that it breaks, in the order of discovery.
    pub fn apply(&mut self, entry: &Entry) -> Vec<Broken> {
        self.now = self.now.max(entry.batch.stamp.now);
        self.judge("each_is_answered", each_is_answered::check(entry.batch, entry.outcomes));
        self.judge("each_transition_once", each_transition_once::check_numbers(entry.transitions, entry.position));
        self.judge("time_is_the_logs", time_is_the_logs::check_transitions(entry.transitions, self.now));
        entry.dropped.iter().filter(|dropped| dropped.cause != DropCause::Left).for_each(|late| self.forget(late));
        let rest = self.follow_timers(entry);
        self.follow_commands(entry, rest);
        self.check_names();
        std::mem::take(&mut self.broken)
    }

    /// Compares a replica that has applied the same entries with the state that they allow. After a difference, the
    /// replay continues with the grants of the replica.
    pub fn compare(&mut self, replica: &Machine) -> Vec<Broken> {
        self.judge("time_is_the_logs", time_is_the_logs::check_clock(replica.now(), self.now));
        let held: usize = self.names.values().map(|observed| observed.held.len()).sum();
        self.judge("one_holder", one_holder::check_count(replica.counts().held, held));
        let mut broken = Vec::new();
        for (name, observed) in &mut self.names {
            let (held, _) = replica.holders(name);
            let deadline = |lease: &HolderLease| match observed.held.get(&lease.token) {
                Some(acknowledged) => no_early_expiry::check_deadline(lease, acknowledged),
                None => Ok(()),
            };
            let checks = [
                ("one_holder", one_holder::check_grants(&held, observed)),
                ("queue_order", queue_order::check_waiters(&replica.queue(name), observed)),
                ("no_early_expiry", held.iter().try_for_each(deadline)),
            ];
            if checks.iter().all(|(_, checked)| checked.is_ok()) {
                continue;
            }
            let failed = checks.into_iter().filter_map(|(promise, checked)| Some((promise, checked.err()?)));
            broken.extend(failed.map(|(promise, how)| Broken::of_cluster(promise, format!("{name}: {how}"))));
            observed.held = held.iter().map(|lease| (lease.token, HeldGrant::of(lease))).collect();
        }
        self.broken.append(&mut broken);
        std::mem::take(&mut self.broken)
    }

    fn judge(&mut self, promise: &'static str, checked: Result<(), String>) {
        self.broken.extend(checked.err().map(|how| Broken::of_cluster(promise, how)));
    }

    fn forget(&mut self, dropped: &DroppedWaiter) {
        let observed = self.names.entry(dropped.waiter.name.clone()).or_default();
        let checked = queue_order::check_dropped(dropped, observed);
        observed.leave(&dropped.waiter.holder);
        self.judge("queue_order", checked);
    }

    /// Timers fire before the first command. A grant to a waiter that is not the first yet comes from a command.
    /// Returns the transitions of the commands.
    fn follow_timers<'a>(&mut self, entry: &Entry<'a>) -> &'a [Transition] {
        let mut rest = entry.transitions;
        while let Some((next, later)) = rest.split_first() {
            if !is_of_time(next) || is_claimed(entry, next) || !self.can_follow(next) {
                break;
            }
            self.follow(entry.position, next, None);
            rest = later;
        }
        rest
    }

    fn follow_commands(&mut self, entry: &Entry, mut rest: &[Transition]) {
        for (command, outcome) in entry.batch.commands.iter().zip(entry.outcomes) {
            let (principal, command) = parts(command);
            let command = &*command;
            self.check_giver(principal, command, outcome);
            self.follow_confirmation(entry.position, command, outcome);
            let (caused, later) = rest.split_at(transitions_of(command, outcome).min(rest.len()));
            for transition in caused {
                self.follow(entry.position, transition, Some(command));
                self.judge("each_transition_once", each_transition_once::check_cause(command, outcome, transition));
            }
            rest = later;
            self.follow_answer(entry.position, principal, command, outcome);
            // A slot that a command frees goes to a waiter in the same entry. After a leader change it stays reserved
            // until a later command confirms that waiter.
            while let Some((turn, later)) = rest
                .split_first()
                .filter(|(next, _)| is_turn(next) && !is_claimed(entry, next) && self.can_follow(next))
            {
                self.follow(entry.position, turn, None);
                rest = later;
            }
        }
        // A queue grant that no command explains is out of order: `follow` reports it.
        if let Some((turn, later)) = rest.split_first().filter(|(next, _)| is_turn(next)) {
            self.follow(entry.position, turn, None);
            rest = later;
        }
        if !rest.is_empty() {
            self.judge("each_transition_once", Err(format!("no command explains {rest:?}")));
        }
    }

    /// Whether the transition ends a grant, or grants to the current first waiter, which is confirmed. The machine cannot
    /// grant to a waiter earlier in the entry than the command that confirms it.
    fn can_follow(&self, transition: &Transition) -> bool {
        let observed = self.names.get(&transition.name);
        !matches!(transition.change, Change::Granted(_))
            || observed.is_some_and(|observed| {
                observed.place(&transition.holder) == Some(0) && observed.is_next_confirmed(transition.token.term())
            })
    }

    /// A queued claim confirms its waiter, and so does the leader that has the request of the waiter.
    fn follow_confirmation(&mut self, position: FencingToken, command: &Command, outcome: &Outcome) {
        match (command, outcome) {
            (Command::Acquire(Acquire { name, holder, .. }), Outcome::Held { fresh: true, .. }) => {
                self.confirm(position, name, holder);
            }
            (Command::KeepWaiting { waiters }, _) => {
                waiters.iter().for_each(|waiter| self.confirm(position, &waiter.name, &waiter.holder));
            }
            _ => {}
        }
    }

    fn confirm(&mut self, position: FencingToken, name: &LeaseName, holder: &HolderId) {
        let waiting = self.names.get_mut(name).into_iter().flat_map(|observed| &mut observed.waiting);
        let mut own = waiting.filter(|waiting| waiting.claim.holder == *holder);
        own.next().into_iter().for_each(|waiting| waiting.confirmed_term = position.term());
    }

    fn follow(&mut self, position: FencingToken, transition: &Transition, command: Option<&Command>) {
        match transition.change {
            Change::Granted(cause) => self.follow_grant(position, transition, cause, command),
            _ => self.follow_end(transition),
        }
    }

    fn follow_grant(
        &mut self,
        position: FencingToken,
        grant: &Transition,
        cause: GrantCause,
        command: Option<&Command>,
    ) {
        let now = self.now;
        let observed = self.names.entry(grant.name.clone()).or_default();
        let rises = tokens_rise::check_grant(grant, position, observed.highest);
        let delayed = lock_delay::check_grant(grant, cause, observed, now);
        let in_order = queue_order::check_grant(grant, cause, command, observed, now);
        observed.highest = Some(grant.token);
        if let Some(place) = observed.place(&grant.holder) {
            let claim = observed.waiting.remove(place).claim;
            observed.hold(grant.token, &claim, now);
        }
        self.judge("tokens_rise", rises);
        self.judge("lock_delay", delayed);
        self.judge("queue_order", in_order);
    }

    fn follow_end(&mut self, ended: &Transition) {
        let now = self.now;
        let observed = self.names.entry(ended.name.clone()).or_default();
        let Some(held) = observed.held.remove(&ended.token).filter(|held| held.holder == ended.holder) else {
            self.judge("each_transition_once", Err(format!("{ended:?} ends a grant that is not held")));
            return;
        };
        observed.owners.remove(&ended.holder);
        if matches!(ended.change, Change::Expired | Change::Revoked { .. }) && held.lock_delay_ms > 0 {
            observed.not_before = observed.not_before.max(now + held.lock_delay_ms + 1);
        }
        self.judge("no_early_expiry", no_early_expiry::check_end(ended, &held, now));
    }

    /// Only the holder with its current token can release a lease or hand it over.
    fn check_giver(&mut self, principal: Option<&AccessName>, command: &Command, outcome: &Outcome) {
        if let Command::Release { name, holder, token } | Command::HandOver { name, holder, token, .. } = command {
            let is_own = self.own(name, principal, holder, *token).is_some();
            self.judge("current_token_only", current_token_only::check_end(command, outcome, is_own));
        }
    }

    fn follow_answer(
        &mut self,
        position: FencingToken,
        principal: Option<&AccessName>,
        command: &Command,
        outcome: &Outcome,
    ) {
        match (command, outcome) {
            (Command::Acquire(acquire), _) => self.follow_claim(position, principal, acquire, outcome),
            (Command::Renew { holder, leases }, Outcome::Renewed(answers)) => {
                for (renewal, answer) in leases.iter().zip(answers) {
                    self.follow_renewal(principal, holder, renewal, answer.is_ok());
                }
            }
            (Command::LeaveQueue { waiter }, Outcome::Waiting(1)) => {
                let observed = self.names.entry(waiter.name.clone()).or_default();
                observed.leave(&waiter.holder);
            }
            _ => {}
        }
    }

    fn follow_claim(
        &mut self,
        position: FencingToken,
        principal: Option<&AccessName>,
        acquire: &Acquire,
        outcome: &Outcome,
    ) {
        let now = self.now;
        let observed = self.names.entry(acquire.name.clone()).or_default();
        let is_foreign = observed.is_foreign(&acquire.holder, principal);
        let owned = owner_only::check_claim(acquire, outcome, is_foreign);
        let is_new = !observed.has(&acquire.holder);
        self.judge("owner_only", owned);
        if is_foreign {
            return;
        }
        let observed = self.names.entry(acquire.name.clone()).or_default();
        let own = observed.held.iter().find(|(_, held)| held.holder == acquire.holder).map(|(token, _)| *token);
        let keeps = reentrance_keeps_the_token::check_answer(acquire, outcome, own, position);
        let mut placed = Ok(());
        let mut rises = Ok(());
        match outcome {
            Outcome::Held { fresh: false, .. } => {
                let own = own.and_then(|own| observed.held.get_mut(&own));
                own.into_iter().for_each(|held| held.extend(acquire.ttl, now));
            }
            // For a former waiter, `follow` has recorded the grant with the older claim.
            Outcome::Held { lease, fresh: true } => {
                rises = tokens_rise::check_answer(lease, position);
                observed.hold(position, acquire, now);
            }
            Outcome::Queued { place } => {
                placed = queue_order::check_place(acquire, *place, observed);
                observed.wait(acquire, now, position.term());
            }
            _ => {}
        }
        if let Some(principal) = principal.filter(|_| is_new && observed.has(&acquire.holder)) {
            observed.owners.insert(acquire.holder.clone(), principal.clone());
        }
        let held = one_holder::check_holders(&acquire.name, observed);
        self.judge("reentrance_keeps_the_token", keeps);
        self.judge("tokens_rise", rises);
        self.judge("queue_order", placed);
        self.judge("one_holder", held);
    }

    fn follow_renewal(
        &mut self,
        principal: Option<&AccessName>,
        holder: &HolderId,
        renewal: &Renewal,
        is_renewed: bool,
    ) {
        let (now, name, token) = (self.now, &renewal.name, renewal.token);
        let own = self.own(name, principal, holder, token);
        let is_own = own.is_some();
        if let Some(held) = own.filter(|_| is_renewed) {
            held.extend(renewal.ttl.unwrap_or(held.ttl), now);
        }
        let checked = current_token_only::check_renewal(holder, name, token, is_own, is_renewed);
        self.judge("current_token_only", checked);
    }

    /// The grant of this holder with this token, unless it belongs to another principal. Clients name a token by its
    /// integer form.
    fn own(
        &mut self,
        name: &LeaseName,
        principal: Option<&AccessName>,
        holder: &HolderId,
        token: FencingToken,
    ) -> Option<&mut HeldGrant> {
        let observed = self.names.get_mut(name).filter(|observed| !observed.is_foreign(holder, principal))?;
        let mut held = observed.held.iter_mut();
        held.find(|(at, held)| held.holder == *holder && at.as_u64() == token.as_u64()).map(|(_, held)| held)
    }

    fn check_names(&mut self) {
        let mut broken = Vec::new();
        for (name, observed) in &self.names {
            let late = expiry_happens::check_late(name, observed, self.now);
            broken.extend(late.err().map(|how| Broken::of_cluster("expiry_happens", how)));
            let held = one_holder::check_holders(name, observed);
            broken.extend(held.err().map(|how| Broken::of_cluster("one_holder", how)));
        }
        self.broken.append(&mut broken);
    }
}

impl ObservedName {
    /// The place of a waiter in the queue.
    pub fn place(&self, holder: &HolderId) -> Option<usize> {
        self.waiting.iter().position(|waiting| waiting.claim.holder == *holder)
    }

    /// The place of the first waiter that an entry of this term has confirmed.
    pub fn first_confirmed(&self, term: u64) -> Option<usize> {
        self.waiting.iter().position(|waiting| waiting.confirmed_term == term)
    }

    /// Whether an entry of this term has confirmed the first waiter.
    pub fn is_next_confirmed(&self, term: u64) -> bool {
        self.waiting.first().is_some_and(|first| first.confirmed_term == term)
    }

    /// Whether this holder or waiter belongs to another principal. A program has all rights and is no principal.
    fn is_foreign(&self, holder: &HolderId, principal: Option<&AccessName>) -> bool {
        principal.is_some_and(|principal| self.owners.get(holder).is_some_and(|owner| owner != principal))
    }

    fn has(&self, holder: &HolderId) -> bool {
        self.place(holder).is_some() || self.held.values().any(|held| held.holder == *holder)
    }

    /// Removes a waiter that got no grant.
    fn leave(&mut self, holder: &HolderId) {
        self.waiting.retain(|waiting| waiting.claim.holder != *holder);
        self.owners.remove(holder);
    }

    fn hold(&mut self, token: FencingToken, claim: &Acquire, now: ClusterMs) {
        if self.held.is_empty() {
            self.limit = claim.limit as usize;
        }
        let held = HeldGrant {
            holder: claim.holder.clone(),
            ttl: claim.ttl,
            until: claim.ttl.deadline(now),
            lock_delay_ms: claim.lock_delay_ms,
        };
        self.held.insert(token, held);
    }

    /// Adds a waiter. A waiter that claims again keeps its place.
    fn wait(&mut self, claim: &Acquire, now: ClusterMs, confirmed_term: u64) {
        let until = now.saturating_add(claim.wait_ms.unwrap_or(0));
        let waiting = WaitingClaim { claim: claim.clone(), until, confirmed_term };
        match self.place(&claim.holder) {
            Some(place) => self.waiting[place] = waiting,
            None => self.waiting.push(waiting),
        }
    }
}

impl HeldGrant {
    fn of(lease: &HolderLease) -> HeldGrant {
        let (holder, ttl) = (lease.holder.clone(), lease.ttl);
        HeldGrant { holder, ttl, until: lease.deadline, lock_delay_ms: lease.lock_delay_ms }
    }

    /// An acquire or a renewal never moves the acknowledged deadline to an earlier time.
    fn extend(&mut self, ttl: Ttl, now: ClusterMs) {
        let asked = ttl.deadline(now);
        if self.until.is_some() && asked.is_none_or(|asked| self.until.is_some_and(|until| until <= asked)) {
            (self.ttl, self.until) = (ttl, asked);
        }
    }
}

/// The principal of a command, and the command.
fn parts(command: &Command) -> (Option<&AccessName>, Cow<'_, Command>) {
    match command {
        Command::As { principal, command } => (Some(principal), Cow::Owned(command.clone().into())),
        command => (None, Cow::Borrowed(command)),
    }
}

/// Whether a timer can cause the transition: an expiry, or a grant from the queue.
fn is_of_time(transition: &Transition) -> bool {
    transition.change == Change::Expired || is_turn(transition)
}

fn is_turn(transition: &Transition) -> bool {
    transition.change == Change::Granted(GrantCause::Queue)
}

/// Whether a command of the entry is a claim that got this grant.
fn is_claimed(entry: &Entry, transition: &Transition) -> bool {
    let mut answered = entry.batch.commands.iter().zip(entry.outcomes);
    answered.any(|(command, outcome)| is_granted_by(transition, &parts(command).1, outcome))
}

fn is_granted_by(transition: &Transition, command: &Command, outcome: &Outcome) -> bool {
    let (Command::Acquire(acquire), Outcome::Held { fresh: true, .. }) = (command, outcome) else { return false };
    is_turn(transition) && acquire.name == transition.name && acquire.holder == transition.holder
}

/// The number of transitions that this command caused, without grants to waiters.
fn transitions_of(command: &Command, outcome: &Outcome) -> usize {
    match (command, outcome) {
        (_, Outcome::Held { fresh: true, .. }) => 1,
        (_, Outcome::Released(true)) => 1,
        (_, Outcome::HandedOver(_)) => 2,
        (_, Outcome::Revoked(holders)) => *holders as usize,
        _ => 0,
    }
}
