//! The promises as invariants on the output of a machine: outcomes and effects of each entry. The checks see only
//! requests and output, not the state of the machine or the model.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use tenure::lease::{Acquire, Batch, Change, Command, DropCause, Effects, GrantCause, Outcome, Refusal, Transition};
use tenure::token::FencingToken;
use tenure::types::{ClusterMs, HolderId, LeaseName, Ttl};

/// A broken promise, with details.
#[derive(Debug)]
pub struct BrokenPromise {
    pub promise: &'static str,
    detail: String,
}

impl fmt::Display for BrokenPromise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.promise, self.detail)
    }
}

macro_rules! promise {
    ($promise:literal, $holds:expr, $($detail:tt)+) => {
        if !$holds {
            return Err(BrokenPromise { promise: $promise, detail: format!($($detail)+) });
        }
    };
}

/// Checks the output of one machine from its first entry.
#[derive(Default)]
pub struct Promises {
    now: ClusterMs,
    names: BTreeMap<LeaseName, ObservedName>,
}

/// The state of one name according to the output.
#[derive(Default)]
struct ObservedName {
    limit: usize,
    held: BTreeMap<FencingToken, HeldGrant>,
    /// In the order of the queue.
    waiting: Vec<(HolderId, Acquire)>,
    highest: Option<FencingToken>,
    not_before: ClusterMs,
}

struct HeldGrant {
    holder: HolderId,
    ttl: Ttl,
    /// The acknowledged deadline.
    until: Option<ClusterMs>,
    lock_delay_ms: u64,
}

impl Promises {
    pub fn check(
        &mut self,
        position: FencingToken,
        batch: &Batch,
        outcomes: &[Outcome],
        effects: &Effects,
    ) -> Result<(), BrokenPromise> {
        self.now = self.now.max(batch.stamp.now);
        promise!("each_is_answered", outcomes.len() == batch.commands.len(), "{} outcomes", outcomes.len());
        self.check_numbers(position, effects)?;
        self.forget_late_waiters(effects)?;
        let is_claimed = |transition: &Transition| {
            let mut answered = batch.commands.iter().zip(outcomes);
            answered.any(|(command, outcome)| is_granted_by(transition, command, outcome))
        };
        // Timers fire before the first command. A grant to a waiter that is not the first yet comes from a command.
        let mut rest = effects.transitions.iter();
        while let Some(transition) =
            rest.clone().next().filter(|next| is_of_time(next) && !is_claimed(next) && self.can_follow(next))
        {
            rest.next();
            self.follow(position, transition)?;
        }
        for (command, outcome) in batch.commands.iter().zip(outcomes) {
            self.check_giver(command, outcome)?;
            for transition in rest.by_ref().take(transitions_of(command, outcome)) {
                self.follow(position, transition)?;
            }
            self.check_answer(position, command, outcome)?;
            // A slot that a command frees goes to a waiter in the same entry.
            while let Some(turn) = rest.clone().next().filter(|next| is_turn(next) && self.can_follow(next)) {
                rest.next();
                self.follow(position, turn)?;
            }
        }
        // A queue grant that no command explains is out of order: `follow` reports it.
        if let Some(turn) = rest.clone().next().filter(|next| is_turn(next)) {
            self.follow(position, turn)?;
        }
        promise!("each_transition_once", rest.len() == 0, "{} transitions that no command explains", rest.len());
        self.check_expired()?;
        Ok(())
    }

    /// Checks that (index, part) has no gap, so that a watch can resume after each transition.
    fn check_numbers(&self, position: FencingToken, effects: &Effects) -> Result<(), BrokenPromise> {
        for (part, transition) in effects.transitions.iter().enumerate() {
            let is_numbered = transition.index == position.index() && transition.part as usize == part;
            promise!("each_transition_once", is_numbered, "{transition:?} is number {part} of {position:?}");
            promise!("time_is_the_logs", transition.at == self.now, "{transition:?} at {}", self.now);
        }
        Ok(())
    }

    fn forget_late_waiters(&mut self, effects: &Effects) -> Result<(), BrokenPromise> {
        for dropped in effects.dropped.iter().filter(|dropped| dropped.cause != DropCause::Left) {
            let waiting = &mut self.names.entry(dropped.waiter.name.clone()).or_default().waiting;
            let place = waiting.iter().position(|(holder, _)| *holder == dropped.waiter.holder);
            promise!("queue_order", place.is_some(), "{dropped:?} did not wait");
            place.map(|place| waiting.remove(place));
        }
        Ok(())
    }

    /// Whether the transition ends a grant, or grants to the current first waiter.
    fn can_follow(&self, transition: &Transition) -> bool {
        let waiting = self.names.get(&transition.name).map_or(&[][..], |seen| &seen.waiting);
        !matches!(transition.change, Change::Granted(_))
            || waiting.first().is_some_and(|(first, _)| *first == transition.holder)
    }

    fn follow(&mut self, position: FencingToken, transition: &Transition) -> Result<(), BrokenPromise> {
        let now = self.now;
        let seen = self.names.entry(transition.name.clone()).or_default();
        let Transition { holder, token, change, .. } = transition;
        let Change::Granted(cause) = change else {
            let held = seen.held.remove(token).filter(|held| held.holder == *holder);
            promise!("each_transition_once", held.is_some(), "{transition:?} ends a grant that is not held");
            let held = held.expect("the promise above checks it");
            let is_in_time = *change != Change::Expired || held.until.is_some_and(|until| until < now);
            promise!("no_early_expiry", is_in_time, "{transition:?}, acknowledged until {:?}", held.until);
            if matches!(change, Change::Expired | Change::Revoked { .. }) {
                seen.not_before = seen.not_before.max(now + held.lock_delay_ms + u64::from(held.lock_delay_ms > 0));
            }
            return Ok(());
        };
        let rises = *token == position && seen.highest.is_none_or(|highest| highest.as_u64() < token.as_u64());
        promise!("tokens_rise", rises, "{transition:?} after {:?}", seen.highest);
        seen.highest = Some(*token);
        let is_early = now < seen.not_before && *cause != GrantCause::HandOver;
        promise!("lock_delay", !is_early, "{transition:?} before {}", seen.not_before);
        match cause {
            GrantCause::Asked => {
                promise!("queue_order", seen.waiting.is_empty(), "{transition:?} overtakes {:?}", seen.waiting);
            }
            GrantCause::Queue => {
                let is_first = seen.waiting.first().is_some_and(|(first, _)| first == holder);
                promise!("queue_order", is_first, "{transition:?} before {:?}", seen.waiting);
            }
            GrantCause::HandOver => {
                let waits = seen.waiting.iter().any(|(waiting, _)| waiting == holder);
                promise!("queue_order", waits, "{transition:?} did not wait");
            }
            _ => panic!("the machine has only known causes"),
        }
        if let Some(place) = seen.waiting.iter().position(|(waiting, _)| waiting == holder) {
            let asked = seen.waiting.remove(place).1;
            seen.hold(*token, &asked, now);
        }
        Ok(())
    }

    /// Checks that only the holder with its current token can release a lease or hand it over.
    fn check_giver(&self, command: &Command, outcome: &Outcome) -> Result<(), BrokenPromise> {
        let (Command::Release { name, holder, token } | Command::HandOver { name, holder, token, .. }) = command else {
            return Ok(());
        };
        let held = self.names.get(name).into_iter().flat_map(|seen| &seen.held);
        let mut own = held.filter(|(at, held)| held.holder == *holder && at.as_u64() == token.as_u64());
        let is_own = own.next().is_some();
        let is_right = match outcome {
            Outcome::Released(is_released) => *is_released == is_own,
            Outcome::HandedOver(_) => is_own,
            Outcome::Refused(Refusal::Lost(_)) => !is_own,
            _ => is_own,
        };
        promise!("current_token_only", is_right, "{command:?} = {outcome:?}, own: {is_own}");
        Ok(())
    }

    fn check_answer(
        &mut self,
        position: FencingToken,
        command: &Command,
        outcome: &Outcome,
    ) -> Result<(), BrokenPromise> {
        match (command, outcome) {
            (Command::Acquire(acquire), _) => self.check_acquire(position, acquire, outcome),
            (Command::Renew { holder, leases }, Outcome::Renewed(answers)) => {
                for (renewal, answer) in leases.iter().zip(answers) {
                    self.check_renewal(holder, renewal.name.clone(), renewal.token, renewal.ttl, answer.is_ok())?;
                }
                Ok(())
            }
            (Command::LeaveQueue { waiter }, Outcome::Waiting(1)) => {
                let seen = self.names.entry(waiter.name.clone()).or_default();
                seen.waiting.retain(|(holder, _)| *holder != waiter.holder);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn check_acquire(
        &mut self,
        position: FencingToken,
        acquire: &Acquire,
        outcome: &Outcome,
    ) -> Result<(), BrokenPromise> {
        let now = self.now;
        let seen = self.names.entry(acquire.name.clone()).or_default();
        let own = seen.held.iter_mut().find(|(_, held)| held.holder == acquire.holder);
        match (outcome, own) {
            (Outcome::Held { lease, fresh: false }, Some((token, held))) => {
                promise!("reentrance_keeps_the_token", lease.token == *token, "{lease:?} for {token:?}");
                held.extend(acquire.ttl, now);
            }
            // The holder waited, and a slot was reserved for it. `follow` recorded the grant with the older request.
            (Outcome::Held { lease, fresh: true }, Some((token, _))) if *token == position => {
                promise!("tokens_rise", lease.token == position, "{lease:?} at {position:?}");
                seen.hold(position, acquire, now);
            }
            (Outcome::Held { lease, fresh: true }, None) => {
                promise!("tokens_rise", lease.token == position, "{lease:?} at {position:?}");
                seen.hold(position, acquire, now);
            }
            (Outcome::Held { lease, .. }, own) => {
                let own = own.map(|(token, _)| *token);
                promise!("reentrance_keeps_the_token", false, "{lease:?}, had {own:?}");
            }
            (Outcome::Refused(Refusal::Held { .. } | Refusal::LockDelay { .. }), own) => {
                promise!("reentrance_keeps_the_token", own.is_none(), "{acquire:?} refused");
            }
            (Outcome::Queued { place }, None) => {
                let at = seen.waiting.iter().position(|(holder, _)| *holder == acquire.holder);
                let is_right = at.unwrap_or(seen.waiting.len()) == *place as usize;
                promise!("queue_order", is_right, "{acquire:?} at {place} of {:?}", seen.waiting);
                match at {
                    Some(at) => seen.waiting[at].1 = acquire.clone(),
                    None => seen.waiting.push((acquire.holder.clone(), acquire.clone())),
                }
            }
            _ => {}
        }
        let held = seen.held.len();
        promise!("one_holder", held <= seen.limit.max(1), "{held} hold {} of {}", acquire.name, seen.limit);
        Ok(())
    }

    fn check_renewal(
        &mut self,
        holder: &HolderId,
        name: LeaseName,
        token: FencingToken,
        ttl: Option<Ttl>,
        is_renewed: bool,
    ) -> Result<(), BrokenPromise> {
        let now = self.now;
        let mut own = self.names.entry(name).or_default().held.iter_mut();
        let own = own.find(|(at, held)| held.holder == *holder && at.as_u64() == token.as_u64());
        promise!("current_token_only", own.is_some() == is_renewed, "{holder} {token:?}, renewed: {is_renewed}");
        if let Some((_, held)) = own {
            held.extend(ttl.unwrap_or(held.ttl), now);
        }
        Ok(())
    }

    /// Checks that no grant outlives the first entry after its deadline, and that no name has too many holders.
    fn check_expired(&self) -> Result<(), BrokenPromise> {
        for (name, seen) in &self.names {
            let late = seen.held.iter().find(|(_, held)| held.until.is_some_and(|until| until < self.now));
            promise!("expiry_happens", late.is_none(), "{name} {:?} at {}", late.map(|(token, _)| token), self.now);
            let holders: BTreeSet<&HolderId> = seen.held.values().map(|held| &held.holder).collect();
            let is_exclusive = seen.held.len() <= seen.limit.max(1) && holders.len() == seen.held.len();
            promise!("one_holder", is_exclusive, "{name} has {holders:?}, limit {}", seen.limit);
        }
        Ok(())
    }
}

impl ObservedName {
    fn hold(&mut self, token: FencingToken, asked: &Acquire, now: ClusterMs) {
        if self.held.is_empty() {
            self.limit = asked.limit as usize;
        }
        let held = HeldGrant {
            holder: asked.holder.clone(),
            ttl: asked.ttl,
            until: asked.ttl.deadline(now),
            lock_delay_ms: asked.lock_delay_ms,
        };
        self.held.insert(token, held);
    }
}

impl HeldGrant {
    /// An acquire or a renewal never moves the acknowledged deadline to an earlier time.
    fn extend(&mut self, ttl: Ttl, now: ClusterMs) {
        let asked = ttl.deadline(now);
        if self.until.is_some() && asked.is_none_or(|asked| self.until.is_some_and(|until| until <= asked)) {
            (self.ttl, self.until) = (ttl, asked);
        }
    }
}

/// Whether a timer can cause the transition: an expiry, or a grant from the queue. Such transitions come first.
fn is_of_time(transition: &Transition) -> bool {
    matches!(transition.change, Change::Expired | Change::Granted(GrantCause::Queue))
}

fn is_turn(transition: &Transition) -> bool {
    transition.change == Change::Granted(GrantCause::Queue)
}

/// Whether this command is a claim that got this grant.
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
