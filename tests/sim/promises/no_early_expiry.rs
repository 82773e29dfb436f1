//! No lease expires before its acknowledged ttl.

use std::time::Duration;

use tenure::lease::Change;

use crate::history::Ended;
use crate::run::Evidence;

/// Rounding error of the conversion between clock rates.
const ROUNDING: Duration = Duration::from_nanos(1);

pub fn check(run: &Evidence) -> Result<(), String> {
    if !run.plan.inside_drift {
        return Ok(());
    }
    // The leader counts a ttl by its own clock. The fastest clock of the run gives the shortest true time.
    let (_, fastest) = run.plan.extreme_rates();
    let expires = run.ledger.transitions().filter(|(_, transition)| transition.change == Change::Expired);
    for (entry, expiry) in expires {
        for operation in run.history.operations.iter().filter(|operation| operation.name == expiry.name) {
            let Ended::Held(token, Some(ttl_ms)) = operation.ended else { continue };
            let due = operation.invoked + Duration::from_millis(ttl_ms).div_f64(fastest) - ROUNDING;
            let acknowledged = operation.returned.is_some_and(|returned| returned <= entry.at);
            if token == expiry.token && acknowledged && entry.at < due {
                return Err(format!("{:?} at {:?}, before the end of {operation:?}", expiry, entry.at));
            }
        }
    }
    Ok(())
}
