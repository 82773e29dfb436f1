//! At any log position a lease has at most one holder, and what ends was held.

use tenure::api::EventKind;

use super::Evidence;

pub fn check(evidence: &Evidence) -> Result<(), String> {
    let mut holder = None;
    for seen in evidence.log {
        let event = &seen.event;
        let named = (&event.holder, event.token);
        let before = match event.event {
            EventKind::Granted => holder.replace(named).filter(|before| *before != named),
            _ if holder.take() == Some(named) => None,
            _ => return Err(format!("{event:?}, and it was not held so")),
        };
        if let Some(before) = before {
            return Err(format!("{event:?}, and it was held by {before:?}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::evidence::{evidence, expired, granted, released};
    use super::*;

    #[test]
    fn a_second_holder_and_an_end_of_nothing_are_caught() {
        let good = [granted(1, "a", 5), expired(2, "a", 5, 9), granted(3, "b", 10)];
        check(&evidence(&[], &good)).expect("one at a time");
        check(&evidence(&[], &[granted(1, "a", 5), granted(2, "b", 6)])).expect_err("two");
        check(&evidence(&[], &[granted(1, "a", 5), released(2, "b", 5, 6)])).expect_err("not its own");
        check(&evidence(&[], &[granted(1, "a", 5), expired(2, "a", 5, 6), released(2, "a", 5, 7)])).expect_err("twice");
    }
}
