//! How often one candidate may be elected.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::Duration;

/// The elections of one candidate, as far as they still count.
#[derive(Debug, Default)]
pub(super) struct Budget {
    elected: VecDeque<Duration>,
}

impl Budget {
    /// How long until there may be another election. `None`: there may be one at `now`.
    pub fn held_back(&mut self, budget: Option<(NonZeroU32, Duration)>, now: Duration) -> Option<Duration> {
        let (most, window) = budget?;
        while self.elected.front().is_some_and(|at| *at + window <= now) {
            self.elected.pop_front();
        }
        // The one that has to leave the window first, for there to be room.
        let excess = self.elected.len().checked_sub(most.get() as usize)?;
        Some(self.elected[excess] + window - now)
    }

    /// Elected at `now`. Without a budget nothing is counted.
    pub fn spend(&mut self, budget: Option<(NonZeroU32, Duration)>, now: Duration) {
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
    fn in_any_window_there_are_no_more_elections_than_the_budget_has() {
        let budget = Some((NonZeroU32::new(2).expect("not 0"), secs(60)));
        let mut spent = Budget::default();
        for at in [0, 10] {
            assert_eq!(spent.held_back(budget, secs(at)), None);
            spent.spend(budget, secs(at));
        }
        assert_eq!(spent.held_back(budget, secs(11)), Some(secs(49)), "until the first is out of the window");
        assert_eq!(spent.held_back(budget, secs(60)), None);
        spent.spend(budget, secs(60));
        assert_eq!(spent.held_back(budget, secs(61)), Some(secs(9)), "then the second");
    }

    #[test]
    fn without_a_budget_nobody_is_held_back_and_nothing_is_kept() {
        let mut spent = Budget::default();
        spent.spend(None, secs(0));
        assert_eq!((spent.held_back(None, secs(0)), spent.elected.len()), (None, 0));
    }
}
