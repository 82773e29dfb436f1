//! No lease ends by time before the ttl that was acknowledged.

use tenure::lease::Change;

use crate::history::Ended;
use crate::run::Evidence;

/// Clock rates differ from true time by less than this.
const DRIFT: f64 = 0.01;

pub fn check(run: &Evidence) -> Result<(), String> {
    if !run.plan.inside_drift {
        return Ok(());
    }
    let lapses = run.ledger.transitions().filter(|(_, transition)| transition.change == Change::Expired);
    for (entry, lapse) in lapses {
        for operation in run.history.operations.iter().filter(|operation| operation.name == lapse.name) {
            let Ended::Held(token, Some(ttl_ms)) = operation.ended else { continue };
            let due = operation.invoked.as_secs_f64() + ttl_ms as f64 / 1000.0 * (1.0 - DRIFT);
            let told = operation.returned.is_some_and(|returned| returned <= entry.at);
            if token == lapse.token && told && entry.at.as_secs_f64() < due {
                return Err(format!("{:?} lapsed at {:?}, and it was told {operation:?}", lapse, entry.at));
            }
        }
    }
    Ok(())
}
