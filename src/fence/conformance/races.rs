//! The rules that need concurrent writers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::rules::{Checker, fencing};
use super::{Answer, NotConformant, Resource, Rule};

/// Writes per holder in a race. With more than one, some writes of an older holder come after the newer one is
/// accepted.
const WRITES: usize = 4;

/// One write of a race, and its answer.
struct RaceWrite {
    token: u64,
    /// The highest token whose acceptance was known when this write was sent.
    accepted_before: u64,
    answer: Answer,
}

impl<R: Resource> Checker<R> {
    pub async fn first_uses_may_race(&mut self) -> Result<(), NotConformant> {
        let rule = Rule::FirstUsesMayRace;
        for _ in 0..self.effort.rounds {
            let item = self.new_item();
            self.race(rule, &item, 1, 1).await?;
        }
        Ok(())
    }

    pub async fn no_lower_after_higher(&mut self) -> Result<(), NotConformant> {
        let rule = Rule::NoLowerAfterHigher;
        let item = self.new_item();
        let mut lowest = 1;
        for _ in 0..self.effort.rounds {
            self.race(rule, &item, lowest, WRITES).await?;
            lowest += self.effort.writers.max(2) as u64;
        }
        Ok(())
    }

    /// Holders with consecutive tokens from `lowest` on write concurrently. The result must equal that of the accepted
    /// writes in the order of their tokens.
    async fn race(&mut self, rule: Rule, item: &str, lowest: u64, writes: usize) -> Result<(), NotConformant> {
        let holders = self.effort.writers.max(2);
        let highest = lowest + holders as u64 - 1;
        let start = Arc::new(Barrier::new(holders));
        let accepted = Arc::new(AtomicU64::new(0));
        let mut racing = JoinSet::new();
        for token in lowest..=highest {
            let (resource, item) = (Arc::clone(&self.resource), item.to_owned());
            let (start, accepted) = (Arc::clone(&start), Arc::clone(&accepted));
            racing.spawn(async move {
                start.wait().await;
                write_as_holder(&*resource, &item, token, writes, &accepted).await
            });
        }
        self.count(rule, holders * writes);
        let mut race_writes = Vec::new();
        while let Some(ended) = racing.join_next().await {
            let ended = ended.map_err(|panic| rule.unchecked(&panic))?;
            race_writes.extend(ended.map_err(|error| rule.unchecked(&error))?);
        }
        if let Some(late) =
            race_writes.iter().find(|write| write.answer == Answer::Accepted && write.token < write.accepted_before)
        {
            let (token, before) = (late.token, late.accepted_before);
            return Err(rule.violated(format!("token {token} was accepted after token {before}")));
        }
        if race_writes.iter().any(|write| write.token == highest && write.answer == Answer::Refused) {
            return Err(rule.violated(format!("token {highest} was refused, although no holder has a higher one")));
        }
        self.expect_value(rule, item, Some(&value(highest))).await?;
        self.write(rule, item, highest - 1, "late", Answer::Refused).await?;
        self.expect_value(rule, item, Some(&value(highest))).await
    }
}

/// The sequential writes of one holder.
async fn write_as_holder<R: Resource>(
    resource: &R,
    item: &str,
    token: u64,
    writes: usize,
    accepted: &AtomicU64,
) -> Result<Vec<RaceWrite>, R::Error> {
    let mut race_writes = Vec::with_capacity(writes);
    for _ in 0..writes {
        let accepted_before = accepted.load(Ordering::SeqCst);
        let answer = resource.write(item, fencing(token), &value(token)).await?;
        if answer == Answer::Accepted {
            accepted.fetch_max(token, Ordering::SeqCst);
        }
        race_writes.push(RaceWrite { token, accepted_before, answer });
    }
    Ok(race_writes)
}

fn value(token: u64) -> String {
    format!("by {token}")
}
