//! A test for any resource that claims to check fencing tokens.
//!
//! Give it a [`Resource`], and a way to open it anew:
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
//! Run it on a runtime of several threads, so that racing writes really race. It uses items of its own, whose names begin
//! with `conformance-`, and leaves them behind. Races are tried, not enumerated: passing means that many tries
//! found nothing.

mod races;
mod rules;

use std::fmt;
use std::future::Future;

use crate::token::FencingToken;
use rules::Examination;

/// What is examined. Items are apart from each other: each has its own mark and value, and none at first.
pub trait Resource: Send + Sync + 'static {
    type Error: fmt::Display + Send;

    /// Writes the item's value under the token, if the resource accepts it.
    fn write(
        &self,
        item: &str,
        token: FencingToken,
        value: &str,
    ) -> impl Future<Output = Result<Answer, Self::Error>> + Send;

    /// The item's value; `None` before its first accepted write.
    fn read(&self, item: &str) -> impl Future<Output = Result<Option<String>, Self::Error>> + Send;
}

/// What the resource did with a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Written, and the token is remembered.
    Accepted,
    /// Nothing was written, because the token is stale.
    Refused,
}

/// How hard races are tried.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Races of each kind. 100 unless set: every planted race of our own was found within these.
    pub rounds: usize,
    /// Writers in a race at once, at least 2; 4 unless set.
    pub writers: usize,
}

impl Default for Effort {
    fn default() -> Effort {
        Effort { rounds: 100, writers: 4 }
    }
}

/// What is asked of a resource, in the order in which it is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// A token is accepted again: a holder writes more than once.
    EqualIsAccepted,
    /// A higher token is accepted.
    HigherIsAccepted,
    /// A token below the highest is refused, however often it is offered.
    LowerIsRefused,
    /// A refused write changes neither value nor mark.
    RefusedLeavesNoTrace,
    /// Tokens of all sizes are compared as integers: around 2^53, where doubles end, and up to 2^63 - 1.
    ExtremesAreOrdered,
    /// What one item has seen does not count for another.
    ItemsAreApart,
    /// When the first writes of an item race, the highest is accepted, its value stays, and none fails.
    FirstUsesMayRace,
    /// When writes race, no lower one lands after a higher one was accepted.
    NoLowerAfterHigher,
    /// Mark and value survive that the resource is closed and opened anew.
    SurvivesRestart,
}

impl Rule {
    /// The name that programs and reports use.
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

/// Every rule was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Each rule, and how many writes were made for it.
    pub checked: Vec<(Rule, usize)>,
}

/// Examines the resource, and stops at the first rule that is broken.
///
/// `open` opens it, over the same stored data each time: for [`Rule::SurvivesRestart`] the resource is dropped and
/// opened anew, as a restart of its process would.
pub async fn check<R: Resource>(
    open: impl AsyncFn() -> Result<R, R::Error>,
    effort: Effort,
) -> Result<Report, NotConformant> {
    let resource = open().await.map_err(|error| Rule::EqualIsAccepted.unchecked(&error))?;
    let mut examination = Examination::new(resource, effort);
    examination.equal_is_accepted().await?;
    examination.higher_is_accepted().await?;
    examination.lower_is_refused().await?;
    examination.refused_leaves_no_trace().await?;
    examination.extremes_are_ordered().await?;
    examination.items_are_apart().await?;
    examination.first_uses_may_race().await?;
    examination.no_lower_after_higher().await?;
    examination.survives_restart(open).await
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.checked.iter().try_for_each(|(rule, writes)| writeln!(f, "{:<24} kept in {writes} writes", rule.name()))
    }
}

impl Rule {
    fn broken(self, what: impl Into<String>) -> NotConformant {
        NotConformant::Broken { rule: self, what: what.into() }
    }

    fn unchecked(self, error: &impl fmt::Display) -> NotConformant {
        NotConformant::Unchecked { rule: self, error: error.to_string() }
    }
}

/// Why a resource did not pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotConformant {
    #[error("the resource breaks {rule}: {what}")]
    Broken { rule: Rule, what: String },
    /// The resource failed to answer. A write that fails where it should be accepted or refused is a fault of its own.
    #[error("{rule} could not be checked, the resource failed: {error}")]
    Unchecked { rule: Rule, error: String },
}

impl NotConformant {
    /// The rule that is broken, or was being checked.
    pub fn rule(&self) -> Rule {
        match self {
            NotConformant::Broken { rule, .. } | NotConformant::Unchecked { rule, .. } => *rule,
        }
    }
}
