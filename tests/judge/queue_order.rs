//! The queue serves waiters in order, and only while they wait. A hand-over goes to the waiter that the holder chose, or
//! to the first one whose request has reached the leader.

use tenure::api::GrantCause as ApiCause;
use tenure::lease::{self, Acquire, Command, DroppedWaiter, GrantCause};
use tenure::types::ClusterMs;

use super::claims::LeaseHistory;
use super::replay::ObservedName;

/// Applied entries: a grant at `now`, before the waiter leaves the queue. `command` caused it; without one, a timer or a
/// free place did.
pub fn check_grant(
    grant: &lease::Transition,
    cause: GrantCause,
    command: Option<&Command>,
    observed: &ObservedName,
    now: ClusterMs,
) -> Result<(), String> {
    let place = observed.place(&grant.holder);
    let fits = match cause {
        GrantCause::Asked => observed.waiting.is_empty(),
        GrantCause::Queue => place == Some(0) && observed.is_next_confirmed(grant.token.term()),
        GrantCause::HandOver => match command {
            Some(Command::HandOver { to: Some(to), .. }) => place.is_some() && grant.holder == *to,
            _ => place.is_some() && place == observed.first_confirmed(grant.token.term()),
        },
        _ => panic!("the machine has only known causes"),
    };
    if !fits {
        return Err(format!("{grant:?}, but the queue was {:?}", observed.waiting));
    }
    match place.map(|place| observed.waiting[place].until) {
        Some(until) if until < now => Err(format!("{grant:?} at {now}, but its wait ended at {until}")),
        _ => Ok(()),
    }
}

/// Applied entries: a waiter left the queue.
pub fn check_dropped(dropped: &DroppedWaiter, observed: &ObservedName) -> Result<(), String> {
    observed.place(&dropped.waiter.holder).map(drop).ok_or_else(|| format!("{dropped:?} did not wait"))
}

/// Applied entries: a claim was queued behind this number of waiters.
pub fn check_place(acquire: &Acquire, place: u32, observed: &ObservedName) -> Result<(), String> {
    let is_place = observed.place(&acquire.holder).unwrap_or(observed.waiting.len()) == place as usize;
    if acquire.wait_ms.is_none() || !is_place {
        return Err(format!("{acquire:?} at {place} of {:?}", observed.waiting));
    }
    Ok(())
}

/// Applied entries: a replica has these waiters.
pub fn check_waiters(waiters: &[lease::Waiter], observed: &ObservedName) -> Result<(), String> {
    if !waiters.iter().map(|waiter| &waiter.holder).eq(observed.waiting.iter().map(|waiting| &waiting.claim.holder)) {
        return Err(format!("the queue is {waiters:?}; expected {:?}", observed.waiting));
    }
    Ok(())
}

/// Client histories with observed queues. Each wait has a unique holder id. If the queue granted the lease to two
/// observed waiters, the first one must have the earlier grant.
pub fn check(history: &LeaseHistory) -> Result<(), String> {
    let served = |waiter: &String| {
        let grant = history.grants().find(|grant| grant.holder == *waiter)?;
        (grant.cause == Some(ApiCause::Queue)).then_some(grant.index)
    };
    for queue in history.queues {
        let mut last = None;
        for waiter in &queue.waiters {
            let Some(index) = served(waiter) else { continue };
            if index <= queue.index {
                return Err(format!("{waiter} was granted the lease at {index}, but still waits in {queue:?}"));
            }
            if let Some((ahead, later)) = last.replace((waiter, index)).filter(|(_, before)| *before > index) {
                return Err(format!(
                    "{waiter} was served at {index}, but {ahead}, ahead of it in {queue:?}, at {later}"
                ));
            }
        }
    }
    Ok(())
}
