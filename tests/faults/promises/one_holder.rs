//! At each log position a lease has at most one holder, or at most its limit. A transition that ends a grant names a
//! current holder.

use std::collections::BTreeSet;

use tenure::api::EventKind;

use super::Evidence;

pub fn check(evidence: &Evidence) -> Result<(), String> {
    let mut held = BTreeSet::new();
    for seen in evidence.log {
        let event = &seen.event;
        let named = (&event.holder, event.token);
        if event.event != EventKind::Granted {
            if !held.remove(&named) {
                return Err(format!("{event:?}, but the log has no such grant"));
            }
        } else if held.insert(named) && held.len() > evidence.limit() {
            return Err(format!("{event:?}, but the holders were {held:?}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::super::history::{Ended, What};
    use super::super::evidence::{did, evidence, expired, granted, released};
    use super::*;

    #[test]
    fn second_holder_and_end_without_grant_are_caught() {
        let good = [granted(1, "a", 5), expired(2, "a", 5, 9), granted(3, "b", 10)];
        check(&evidence(&[], &good)).expect("one at a time");
        check(&evidence(&[], &[granted(1, "a", 5), granted(2, "b", 6)])).expect_err("two");
        check(&evidence(&[], &[granted(1, "a", 5), released(2, "b", 5, 6)])).expect_err("b does not hold the lease");
        let counted = did(
            "a",
            What::Acquire { ttl_ms: Some(1000), limit: 2, wait: false, lock_delay_ms: 0 },
            (0, 9),
            Ended::Unknown,
        );
        let three = [granted(1, "a", 5), granted(2, "b", 6), granted(3, "c", 7)];
        check(&evidence(std::slice::from_ref(&counted), &three[..2])).expect("two of two");
        check(&evidence(&[counted], &three)).expect_err("three of two");
        check(&evidence(&[], &[granted(1, "a", 5), expired(2, "a", 5, 6), released(2, "a", 5, 7)])).expect_err("twice");
    }
}
