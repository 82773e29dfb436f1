//! The limit on how often one candidate is elected.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::Duration;

/// The elections of one candidate within the window of its budget.
#[derive(Debug, Default)]
pub(super) struct ElectionBudget {
    elected: VecDeque<Duration>,
}

impl ElectionBudget {
    /// The time until the budget allows another election. `None`: it allows one at `now`.
    pub fn wait_time(&mut self, budget: Option<(NonZeroU32, Duration)>, now: Duration) -> Option<Duration> {
        let (most, window) = budget?;
        while self.elected.front().is_some_and(|at| at.saturating_add(window) <= now) {
            self.elected.pop_front();
        }
        // The budget allows another election when this one leaves the window.
        let excess = self.elected.len().checked_sub(most.get() as usize)?;
        Some(self.elected[excess].saturating_add(window) - now)
    }

    /// Records an election at `now`, if there is a budget.
    pub fn record(&mut self, budget: Option<(NonZeroU32, Duration)>, now: Duration) {
        if budget.is_some() {
            self.elected.push_back(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn budget_limits_the_elections_in_each_window() {
        let budget = Some((NonZeroU32::new(2).expect("not 0"), secs(60)));
        let mut spent = ElectionBudget::default();
        for at in [0, 10] {
            assert_eq!(spent.wait_time(budget, secs(at)), None);
            spent.record(budget, secs(at));
        }
        assert_eq!(spent.wait_time(budget, secs(11)), Some(secs(49)), "until the first election leaves the window");
        assert_eq!(spent.wait_time(budget, secs(60)), None);
        spent.record(budget, secs(60));
        assert_eq!(spent.wait_time(budget, secs(61)), Some(secs(9)), "until the second election leaves it");
    }

    #[test]
    fn missing_budget_limits_and_records_nothing() {
        let mut spent = ElectionBudget::default();
        spent.record(None, secs(0));
        assert_eq!((spent.wait_time(None, secs(0)), spent.elected.len()), (None, 0));
    }
}
