//! Who was seen ahead in the queue is not served later.
//!
//! Whoever waits has a name that is used for that wait only. So if two were seen waiting, one behind the other, and the
//! queue gave the lease to both, then to the one ahead first. (To whom a lease is handed over its holder says.)

use tenure::api::{Event, EventKind, GrantCause};

use super::Evidence;

pub fn check(evidence: &Evidence) -> Result<(), String> {
    let grants = |waiter: &String| -> Vec<&Event> {
        let is_its = |event: &&Event| event.event == EventKind::Granted && event.holder == *waiter;
        evidence.log.iter().map(|seen| &seen.event).filter(is_its).collect()
    };
    let had_ended = |grant: &Event, by: u64| {
        let ends = |event: &Event| event.event != EventKind::Granted && event.token == grant.token && event.index <= by;
        evidence.log.iter().any(|seen| ends(&seen.event))
    };
    for queue in evidence.queues {
        let mut last = None;
        for waiter in &queue.waiters {
            // A wait goes on over a change of leader. What it was granted meanwhile may have ended before it was told:
            // then it claims, and waits, again.
            let (before, later): (Vec<_>, Vec<_>) =
                grants(waiter).into_iter().partition(|grant| grant.index <= queue.index);
            if let Some(has) = before.iter().find(|grant| !had_ended(grant, queue.index)) {
                return Err(format!("{waiter} was granted the lease at {} and waits in {queue:?}", has.index));
            }
            let served = later.first().filter(|grant| grant.cause == Some(GrantCause::Queue));
            let Some(index) = served.map(|grant| grant.index) else { continue };
            if let Some((ahead, later)) = last.replace((waiter, index)).filter(|(_, before)| *before > index) {
                return Err(format!(
                    "{waiter} was served at {index}, and {ahead}, ahead of it in {queue:?}, at {later}"
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Queued;
    use super::super::evidence::{expired, from_queue, granted, with_queues};
    use super::*;

    #[test]
    fn being_served_out_of_turn_is_caught() {
        let queue =
            |index, waiters: &[&str]| Queued { index, waiters: waiters.iter().map(|&who| who.into()).collect() };
        let log = [granted(1, "a", 5), from_queue(2, "b", 8), from_queue(3, "d", 11)];
        let good = [queue(6, &["b", "c", "d"]), queue(9, &["c", "d"])];
        check(&with_queues(&good, &log)).expect("c gave up");
        check(&with_queues(&[queue(6, &["d", "b"])], &log)).expect_err("d was ahead");
        check(&with_queues(&[queue(9, &["b", "d"])], &log)).expect_err("b has it already");
        let lost = [log[1].clone(), expired(3, "b", 8, 9), from_queue(4, "b", 12), from_queue(5, "d", 15)];
        check(&with_queues(&[queue(9, &["b", "d"])], &lost)).expect("b had lost it, and waits again");
        check(&with_queues(&[queue(8, &["b", "d"])], &lost)).expect_err("b had it then");
        check(&with_queues(&[queue(9, &["d", "b"])], &lost)).expect_err("d was ahead");
    }
}
