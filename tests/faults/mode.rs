//! The mode of a lease: its limit, ttl and lock delay. The name and the seed of the run decide it, so all claims of a
//! name agree.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tenure::types::{HolderId, LeaseName};

use super::judge::history::RequestKind;

/// The percentage of counted names, infinite names, and names with a lock delay. A name can have several of these
/// modes.
const COUNTED_PERCENT: u32 = 30;
const INFINITE_PERCENT: u32 = 20;
const DELAYED_PERCENT: u32 = 30;
const SHORTEST_DELAY: Duration = Duration::from_millis(100);
/// Shorter than most waits, so that waiters outlast a delay.
pub const LONGEST_DELAY: Duration = Duration::from_millis(1_000);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// The number of holders that the lease may have.
    pub limit: u32,
    pub is_infinite: bool,
    pub lock_delay: Duration,
}

impl Mode {
    pub fn of(name: &LeaseName, seed: u64) -> Mode {
        let hash = name.as_str().bytes().fold(seed, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        let mut rng = StdRng::seed_from_u64(hash);
        let mut is = |percent| rng.random_range(0..100) < percent;
        let (is_counted, is_infinite, is_delayed) = (is(COUNTED_PERCENT), is(INFINITE_PERCENT), is(DELAYED_PERCENT));
        let limit = if is_counted { rng.random_range(2..=4) } else { 1 };
        let lock_delay = rng.random_range(SHORTEST_DELAY..LONGEST_DELAY);
        let lock_delay = Duration::from_millis(if is_delayed { lock_delay.as_millis() as u64 } else { 0 });
        Mode { limit, is_infinite, lock_delay }
    }

    /// The body of an acquire request, and its record in the history. A finite lease has the given ttl.
    pub fn claim(&self, by: &HolderId, ttl_ms: u64, wait: Option<Duration>) -> (Value, RequestKind) {
        let ttl_ms = (!self.is_infinite).then_some(ttl_ms);
        let lock_delay_ms = self.lock_delay.as_millis() as u64;
        let mut body = json!({"holder": by.as_str()});
        body["ttl_ms"] = ttl_ms.map_or("infinite".into(), Value::from);
        if let Some(wait) = wait {
            body["wait_ms"] = (wait.as_millis() as u64).into();
        }
        // An absent field has its default: one holder, no lock delay.
        if self.limit > 1 {
            body["limit"] = self.limit.into();
        }
        if lock_delay_ms > 0 {
            body["lock_delay_ms"] = lock_delay_ms.into();
        }
        let wait_ms = wait.map(|wait| wait.as_millis() as u64);
        (body, RequestKind::Acquire { ttl_ms, limit: self.limit, wait_ms, lock_delay_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modes(seed: u64) -> Vec<Mode> {
        let name = |slot| LeaseName::new(format!("e1.{slot}.0")).expect("valid");
        (0..200).map(|slot| Mode::of(&name(slot), seed)).collect()
    }

    #[test]
    fn name_and_seed_decide_the_mode() {
        assert_eq!(modes(7), modes(7));
        assert_ne!(modes(7), modes(8));
    }

    #[test]
    fn modes_occur_alone_and_combined() {
        let modes = modes(1);
        let count = |is: fn(&Mode) -> bool| modes.iter().filter(|mode| is(mode)).count();
        assert!(count(|mode| mode.limit == 1 && !mode.is_infinite && mode.lock_delay.is_zero()) > 50, "plain");
        assert!(count(|mode| mode.limit > 1) > 40 && count(|mode| mode.limit == 4) > 5, "counted");
        assert!(count(|mode| mode.is_infinite) > 25 && count(|mode| !mode.lock_delay.is_zero()) > 40);
        assert!(count(|mode| mode.is_infinite && mode.limit > 1 && !mode.lock_delay.is_zero()) > 0, "all three");
    }

    #[test]
    fn claim_matches_its_history_record() {
        let by = HolderId::new("a").expect("valid");
        let plain = Mode { limit: 1, is_infinite: false, lock_delay: Duration::ZERO };
        let (body, what) = plain.claim(&by, 900, None);
        assert_eq!(body, json!({"holder": "a", "ttl_ms": 900}));
        assert_eq!(what, RequestKind::Acquire { ttl_ms: Some(900), limit: 1, wait_ms: None, lock_delay_ms: 0 });
        let all = Mode { limit: 3, is_infinite: true, lock_delay: Duration::from_millis(250) };
        let (body, what) = all.claim(&by, 900, Some(Duration::from_millis(40)));
        let expected = json!({"holder": "a", "ttl_ms": "infinite", "wait_ms": 40, "limit": 3, "lock_delay_ms": 250});
        assert_eq!(body, expected);
        assert_eq!(what, RequestKind::Acquire { ttl_ms: None, limit: 3, wait_ms: Some(40), lock_delay_ms: 250 });
    }
}
