//! The token of each grant is higher than all earlier ones.

use tenure::api::EventKind;

use super::Evidence;

pub fn check(evidence: &Evidence) -> Result<(), String> {
    let grants = evidence.log.iter().filter(|seen| seen.event.event == EventKind::Granted);
    let mut highest = None;
    for seen in grants {
        let token = seen.event.token;
        if highest.is_some_and(|highest| highest >= token) {
            return Err(format!("{:?} after token {highest:?}", seen.event));
        }
        highest = Some(token);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::evidence::{evidence, expired, granted};
    use super::*;

    #[test]
    fn token_that_does_not_rise_is_caught() {
        let mut log = vec![granted(1, "a", 5), expired(2, "a", 5, 9), granted(3, "b", 10)];
        check(&evidence(&[], &log)).expect("5, then 10");
        log[2].event.token = log[0].event.token;
        check(&evidence(&[], &log)).expect_err("5 again");
    }
}
