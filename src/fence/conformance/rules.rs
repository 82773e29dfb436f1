//! The rules that sequential writes can check.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::{Answer, Effort, NotConformant, Report, Resource, Rule};
use crate::token::FencingToken;

/// Boundaries of number types: number of digits, 32 bits, doubles and 63 bits.
const EXTREMES: [u64; 12] =
    [0, 1, 9, 10, (1 << 31) - 1, 1 << 32, (1 << 53) - 1, 1 << 53, (1 << 53) + 1, 1 << 62, (1 << 63) - 2, (1 << 63) - 1];

pub(super) struct Checker<R> {
    pub resource: Arc<R>,
    pub effort: Effort,
    checked: Vec<(Rule, usize)>,
    /// Part of the item names: items of an earlier run may still exist, with high marks.
    run: u128,
    items: usize,
}

impl<R: Resource> Checker<R> {
    pub fn new(resource: R, effort: Effort) -> Checker<R> {
        let run = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        Checker { resource: Arc::new(resource), effort, checked: Vec::new(), run, items: 0 }
    }

    pub async fn equal_is_accepted(&mut self) -> Result<(), NotConformant> {
        let rule = Rule::EqualIsAccepted;
        let item = self.new_item();
        for value in ["first", "second", "third"] {
            self.write(rule, &item, 1000, value, Answer::Accepted).await?;
            self.expect_value(rule, &item, Some(value)).await?;
        }
        Ok(())
    }

    pub async fn higher_is_accepted(&mut self) -> Result<(), NotConformant> {
        let rule = Rule::HigherIsAccepted;
        let item = self.new_item();
        for token in [7, 8, 70, 1000] {
            self.write(rule, &item, token, &format!("by {token}"), Answer::Accepted).await?;
            self.expect_value(rule, &item, Some(&format!("by {token}"))).await?;
        }
        Ok(())
    }

    /// Sends each token twice: a resource that stores the token of the last *request* accepts the second one.
    pub async fn lower_is_refused(&mut self) -> Result<(), NotConformant> {
        let rule = Rule::LowerIsRefused;
        let item = self.new_item();
        self.write(rule, &item, 1000, "kept", Answer::Accepted).await?;
        for token in [999, 999, 1, 1] {
            self.write(rule, &item, token, "late", Answer::Refused).await?;
        }
        self.write(rule, &item, 1000, "kept", Answer::Accepted).await
    }

    pub async fn refused_leaves_no_trace(&mut self) -> Result<(), NotConformant> {
        let rule = Rule::RefusedLeavesNoTrace;
        let item = self.new_item();
        self.expect_value(rule, &item, None).await?;
        self.write(rule, &item, 1000, "kept", Answer::Accepted).await?;
        self.write(rule, &item, 999, "late", Answer::Refused).await?;
        self.expect_value(rule, &item, Some("kept")).await?;
        // The refused write has not lowered the mark.
        self.write(rule, &item, 999, "late", Answer::Refused).await?;
        self.expect_value(rule, &item, Some("kept")).await
    }

    pub async fn extremes_are_ordered(&mut self) -> Result<(), NotConformant> {
        let rule = Rule::ExtremesAreOrdered;
        let item = self.new_item();
        let mut below = None;
        for token in EXTREMES {
            let value = token.to_string();
            self.write(rule, &item, token, &value, Answer::Accepted).await?;
            if let Some(below) = below.replace(token) {
                self.write(rule, &item, below, "late", Answer::Refused).await?;
            }
            self.expect_value(rule, &item, Some(&value)).await?;
        }
        Ok(())
    }

    pub async fn items_are_apart(&mut self) -> Result<(), NotConformant> {
        let rule = Rule::ItemsAreApart;
        let (one, other) = (self.new_item(), self.new_item());
        self.write(rule, &one, 1000, "one", Answer::Accepted).await?;
        self.write(rule, &other, 1, "other", Answer::Accepted).await?;
        self.expect_value(rule, &one, Some("one")).await?;
        self.expect_value(rule, &other, Some("other")).await
    }

    pub async fn survives_restart(
        mut self,
        open: impl AsyncFn() -> Result<R, R::Error>,
    ) -> Result<Report, NotConformant> {
        let rule = Rule::SurvivesRestart;
        let item = self.new_item();
        self.write(rule, &item, 1000, "kept", Answer::Accepted).await?;
        // All racing writers are done, so this drops the last reference, and the resource releases its locks.
        let Checker { resource, effort, mut checked, run, items } = self;
        drop(Arc::into_inner(resource).expect("all racing writers are joined"));
        let resource = open().await.map_err(|error| rule.unchecked(&error))?;
        checked.retain(|(checked, _)| *checked != rule);
        let mut again = Checker { resource: Arc::new(resource), effort, checked, run, items };
        again.count(rule, 1);
        again.expect_value(rule, &item, Some("kept")).await?;
        again.write(rule, &item, 999, "late", Answer::Refused).await?;
        again.expect_value(rule, &item, Some("kept")).await?;
        again.write(rule, &item, 1000, "again", Answer::Accepted).await?;
        Ok(Report { checked: again.checked })
    }

    pub fn new_item(&mut self) -> String {
        self.items += 1;
        format!("conformance-{}-{}", self.run, self.items)
    }

    pub fn count(&mut self, rule: Rule, writes: usize) {
        match self.checked.last_mut() {
            Some((last, count)) if *last == rule => *count += writes,
            _ => self.checked.push((rule, writes)),
        }
    }

    /// Writes, and checks the answer.
    pub async fn write(
        &mut self,
        rule: Rule,
        item: &str,
        token: u64,
        value: &str,
        expected: Answer,
    ) -> Result<(), NotConformant> {
        self.count(rule, 1);
        let answer = self.resource.write(item, fencing(token), value).await;
        match answer.map_err(|error| rule.unchecked(&error))? {
            answer if answer == expected => Ok(()),
            answer => Err(rule.violated(format!("a write with token {token} was {answer:?}: expected {expected:?}"))),
        }
    }

    pub async fn expect_value(&self, rule: Rule, item: &str, expected: Option<&str>) -> Result<(), NotConformant> {
        let found = self.resource.read(item).await.map_err(|error| rule.unchecked(&error))?;
        if found.as_deref() != expected {
            return Err(rule.violated(format!("the value is {found:?}: expected {expected:?}")));
        }
        Ok(())
    }
}

pub(super) fn fencing(token: u64) -> FencingToken {
    FencingToken::try_from(token).expect("the checks use at most 63 bits")
}
