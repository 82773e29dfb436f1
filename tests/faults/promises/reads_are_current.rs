//! A read returns the state of the log at its index. [`Recorder::end`](super::super::recorder::Recorder::end) checks
//! that the index itself is current.

use super::super::history::Ended;
use super::super::log::held;
use super::Evidence;

pub fn check(evidence: &Evidence) -> Result<(), String> {
    for read in evidence.operations {
        let Ended::Saw(saw, index) = &read.ended else { continue };
        let holds = held(evidence.log.iter().take_while(|seen| seen.event.index <= *index));
        let holds: Vec<_> = holds.into_iter().map(|grant| (grant.event.holder, grant.event.token)).collect();
        if holds != *saw {
            return Err(format!("{read:?}, but the log has {holds:?}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::evidence::{evidence, expired, granted, saw};
    use super::*;

    #[test]
    fn read_of_a_state_not_in_the_log_is_caught() {
        let log = [granted(5, "a", 5), expired(1500, "a", 5, 9)];
        let good =
            [saw((0, 1), &[], 4), saw((2, 3), &[("a", 5)], 5), saw((4, 9), &[("a", 5)], 8), saw((9, 10), &[], 9)];
        check(&evidence(&good, &log)).expect("each read has the state at its index");
        for bad in [saw((0, 1), &[("a", 5)], 4), saw((0, 1), &[], 8), saw((0, 1), &[("b", 5)], 5)] {
            check(&evidence(&[bad], &log)).expect_err("not the state at that index");
        }
    }
}
