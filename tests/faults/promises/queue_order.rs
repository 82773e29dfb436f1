//! The queue serves waiters in order.
//!
//! Each wait has a unique holder id. If the queue granted the lease to two observed waiters, the first one must have
//! the earlier grant. A handover is exempt, because the holder chooses the waiter.

use tenure::api::{EventKind, GrantCause};

use super::Evidence;

pub fn check(evidence: &Evidence) -> Result<(), String> {
    let served = |waiter: &String| {
        let is_its = |seen: &&super::Seen| seen.event.event == EventKind::Granted && seen.event.holder == *waiter;
        let grant = &evidence.log.iter().find(is_its)?.event;
        (grant.cause == Some(GrantCause::Queue)).then_some(grant.index)
    };
    for queue in evidence.queues {
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

#[cfg(test)]
mod tests {
    use super::super::ObservedQueue;
    use super::super::evidence::{from_queue, granted, with_queues};
    use super::*;

    #[test]
    fn grant_out_of_queue_order_is_caught() {
        let queue =
            |index, waiters: &[&str]| ObservedQueue { index, waiters: waiters.iter().map(|&who| who.into()).collect() };
        let log = [granted(1, "a", 5), from_queue(2, "b", 8), from_queue(3, "d", 11)];
        let good = [queue(6, &["b", "c", "d"]), queue(9, &["c", "d"])];
        check(&with_queues(&good, &log)).expect("c gave up");
        check(&with_queues(&[queue(6, &["d", "b"])], &log)).expect_err("d was ahead");
        check(&with_queues(&[queue(9, &["b", "d"])], &log)).expect_err("b has it already");
    }
}
