//! A conformance test for resources that check fencing tokens.
//!
//! Implement [`Resource`], and pass [`check`] a closure that opens it:
//!
//! # Examples
//!
//! ```
//! use std::convert::Infallible;
//! use tenure::fence::conformance::{self, Answer, Resource};
//! use tenure::token::FencingToken;
//! # use std::collections::HashMap;
//! # use std::sync::{Arc, Mutex};
//!
//! /// A map under a lock that checks and writes while it is locked.
//! #[derive(Clone, Default)]
//! struct Shelf(Arc<Mutex<HashMap<String, (u64, String)>>>);
//!
//! impl Resource for Shelf {
//!     type Error = Infallible;
//!
//!     async fn write(&self, item: &str, token: FencingToken, value: &str) -> Result<Answer, Infallible> {
//!         let mut items = self.0.lock().unwrap();
//!         let (fence, kept) = items.entry(item.to_owned()).or_default();
//!         if token.as_u64() < *fence {
//!             return Ok(Answer::Refused);
//!         }
//!         (*fence, *kept) = (token.as_u64(), value.to_owned());
//!         Ok(Answer::Accepted)
//!     }
//!
//!     async fn read(&self, item: &str) -> Result<Option<String>, Infallible> {
//!         Ok(self.0.lock().unwrap().get(item).map(|(_, value)| value.clone()))
//!     }
//! }
//!
//! # let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
//! # runtime.block_on(async {
//! let shelf = Shelf::default();
//! let report = conformance::check(async || Ok(shelf.clone()), conformance::Effort::default()).await.unwrap();
//! println!("{report}");
//! # });
//! ```
//!
//! Run it on a multi-threaded runtime, so that concurrent writes run in parallel. The test creates items whose names
//! start with `conformance-`, and does not delete them. It samples races and does not enumerate them, so a pass is no
//! proof.

mod races;
mod rules;

use std::fmt;
use std::future::Future;

use crate::token::FencingToken;
use rules::Checker;

/// The resource to check. Each item has its own mark and value, and has neither at first.
pub trait Resource: Send + Sync + 'static {
    /// An error of the resource other than a stale token.
    type Error: fmt::Display + Send;

    /// Writes the item's value if the resource accepts the token.
    fn write(
        &self,
        item: &str,
        token: FencingToken,
        value: &str,
    ) -> impl Future<Output = Result<Answer, Self::Error>> + Send;

    /// The item's value, or `None` before its first accepted write.
    fn read(&self, item: &str) -> impl Future<Output = Result<Option<String>, Self::Error>> + Send;
}

/// The resource's answer to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The resource has written the value and stored the token.
    Accepted,
    /// The token is stale, and the resource has written nothing.
    Refused,
}

/// The number and size of races.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Effort {
    /// Number of races of each kind. Default: 100, which finds every bug that this crate's own tests plant.
    pub rounds: usize,
    /// Number of concurrent writers in a race, at least 2. Default: 4.
    pub writers: usize,
}

impl Effort {
    /// Sets the number of races of each kind.
    pub fn rounds(self, rounds: usize) -> Effort {
        Effort { rounds, ..self }
    }

    /// Sets the number of concurrent writers in a race, at least 2.
    pub fn writers(self, writers: usize) -> Effort {
        Effort { writers, ..self }
    }
}

impl Default for Effort {
    fn default() -> Effort {
        Effort { rounds: 100, writers: 4 }
    }
}

/// The rules for a resource, in the order of their checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// The resource accepts an equal token, because a holder writes more than once.
    EqualIsAccepted,
    /// The resource accepts a higher token.
    HigherIsAccepted,
    /// The resource refuses a token below the mark, also when it is sent again.
    LowerIsRefused,
    /// A refused write changes neither the value nor the mark.
    RefusedLeavesNoTrace,
    /// The resource compares all tokens as integers: around 2^53, where doubles lose precision, and up to 2^63 - 1.
    ExtremesAreOrdered,
    /// The mark of one item does not affect another item.
    ItemsAreApart,
    /// When the first writes of an item race, the resource accepts the highest token, keeps its value, and no write
    /// fails.
    FirstUsesMayRace,
    /// When writes race, the resource accepts no lower token after a higher one.
    NoLowerAfterHigher,
    /// The mark and the value survive a restart of the resource.
    SurvivesRestart,
}

impl Rule {
    /// The name of the rule in reports.
    pub fn name(self) -> &'static str {
        match self {
            Rule::EqualIsAccepted => "equal_is_accepted",
            Rule::HigherIsAccepted => "higher_is_accepted",
            Rule::LowerIsRefused => "lower_is_refused",
            Rule::RefusedLeavesNoTrace => "refused_leaves_no_trace",
            Rule::ExtremesAreOrdered => "extremes_are_ordered",
            Rule::ItemsAreApart => "items_are_apart",
            Rule::FirstUsesMayRace => "first_uses_may_race",
            Rule::NoLowerAfterHigher => "no_lower_after_higher",
            Rule::SurvivesRestart => "survives_restart",
        }
    }
}

/// The report of a resource that keeps all rules.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Each rule, and the number of writes that checked it.
    pub checked: Vec<(Rule, usize)>,
}

/// Checks a resource against all rules, and stops at the first violation.
///
/// `open` opens the resource, each time with the same stored data. To check [`Rule::SurvivesRestart`], the test drops
/// the resource and opens it again, like a restart of its process.
///
/// # Errors
///
/// The resource violates a rule, or the test could not check a rule because the resource failed.
///
/// # Cancel safety
///
/// Dropping the future ends the test, and aborts the tasks of a race at their next await. The items and marks that the
/// test has written stay.
pub async fn check<R: Resource>(
    open: impl AsyncFn() -> Result<R, R::Error>,
    effort: Effort,
) -> Result<Report, NotConformant> {
    let resource = open().await.map_err(|error| Rule::EqualIsAccepted.unchecked(&error))?;
    let mut checker = Checker::new(resource, effort);
    checker.equal_is_accepted().await?;
    checker.higher_is_accepted().await?;
    checker.lower_is_refused().await?;
    checker.refused_leaves_no_trace().await?;
    checker.extremes_are_ordered().await?;
    checker.items_are_apart().await?;
    checker.first_uses_may_race().await?;
    checker.no_lower_after_higher().await?;
    checker.survives_restart(open).await
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.checked.iter().try_for_each(|(rule, writes)| writeln!(f, "{:<24} holds in {writes} writes", rule.name()))
    }
}

impl Rule {
    fn violated(self, what: impl Into<String>) -> NotConformant {
        NotConformant::Broken { rule: self, what: what.into() }
    }

    fn unchecked(self, error: &impl fmt::Display) -> NotConformant {
        NotConformant::Unchecked { rule: self, error: error.to_string() }
    }
}

/// A resource did not pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotConformant {
    /// The resource violates a rule.
    #[error("the resource violates {rule}: {what}")]
    Broken {
        /// The rule.
        rule: Rule,
        /// The violation.
        what: String,
    },
    /// The resource has returned an error instead of an [`Answer`]. Such an error is a failure, too.
    #[error("cannot check {rule}, because the resource failed: {error}")]
    Unchecked {
        /// The rule.
        rule: Rule,
        /// The error of the resource.
        error: String,
    },
}

impl NotConformant {
    /// The violated rule, or the rule that could not be checked.
    pub fn rule(&self) -> Rule {
        match self {
            NotConformant::Broken { rule, .. } | NotConformant::Unchecked { rule, .. } => *rule,
        }
    }
}
