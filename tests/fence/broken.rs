//! The conformance test finds planted bugs, and names the violated rule.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tenure::fence::conformance::{self, Answer, Effort, NotConformant, Resource, Rule};
use tenure::token::FencingToken;

/// The mark and the value of each item.
type Items = Arc<Mutex<BTreeMap<String, (u64, Option<String>)>>>;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// Accepts all tokens and stores the last one.
    RemembersTheLast,
    /// Stores a refused token as the mark.
    RefusedMoveTheMark,
    /// Stores only the first token.
    RemembersTheFirst,
    /// Refuses an equal token.
    OnlyAbove,
    /// Compares tokens as text without leading zeros.
    ComparesText,
    /// Compares tokens as doubles, like JavaScript and Lua.
    ComparesDoubles,
    /// Refuses the token, but writes the value.
    WritesAnyway,
    /// Uses one mark for all items.
    OneMark,
    /// Compares, then writes, in two steps.
    ChecksThenWrites,
    /// Fails when two writers insert the first mark concurrently.
    FirstInsertCollides,
    ForgetsAtRestart,
    /// Accepts a racing write with a stale token, and writes nothing.
    AcceptsStaleRacers,
}

struct Broken {
    fault: Fault,
    items: Items,
}

impl Broken {
    /// The item that has the mark for `item`.
    fn mark_item<'a>(&self, item: &'a str) -> &'a str {
        if self.fault == Fault::OneMark { "" } else { item }
    }

    fn accepts(&self, mark: u64, token: u64) -> bool {
        match self.fault {
            Fault::RemembersTheLast => true,
            Fault::OnlyAbove => mark < token || mark == 0,
            Fault::ComparesText => mark.to_string() <= token.to_string(),
            Fault::ComparesDoubles => mark as f64 <= token as f64,
            _ => mark <= token,
        }
    }

    /// Checks and writes under one lock, with the planted bug.
    fn write_atomically(&self, item: &str, token: u64, value: &str) -> Answer {
        let mut items = self.items.lock().expect("no panic");
        let seen = items.get(self.mark_item(item)).map(|(mark, _)| *mark);
        let accepted = self.accepts(seen.unwrap_or(0), token);
        if self.fault == Fault::AcceptsStaleRacers && !accepted && value.starts_with("by ") {
            return Answer::Accepted;
        }
        if accepted || self.fault == Fault::RefusedMoveTheMark {
            let first = seen.filter(|_| self.fault == Fault::RemembersTheFirst);
            items.entry(self.mark_item(item).to_owned()).or_default().0 = first.unwrap_or(token);
        }
        if accepted || self.fault == Fault::WritesAnyway {
            items.entry(item.to_owned()).or_default().1 = Some(value.to_owned());
        }
        if accepted { Answer::Accepted } else { Answer::Refused }
    }

    fn mark(&self, item: &str) -> Option<u64> {
        self.items.lock().expect("no panic").get(item).map(|(mark, _)| *mark)
    }
}

impl Resource for Broken {
    type Error = &'static str;

    async fn write(&self, item: &str, token: FencingToken, value: &str) -> Result<Answer, &'static str> {
        let token = token.as_u64();
        let seen = self.mark(item);
        tokio::task::yield_now().await;
        match self.fault {
            Fault::ChecksThenWrites if seen.is_some_and(|mark| token < mark) => Ok(Answer::Refused),
            Fault::ChecksThenWrites => {
                self.items.lock().expect("no panic").insert(item.to_owned(), (token, Some(value.to_owned())));
                Ok(Answer::Accepted)
            }
            Fault::FirstInsertCollides if seen.is_none() && self.mark(item).is_some() => {
                Err("duplicate key value violates unique constraint")
            }
            _ => Ok(self.write_atomically(item, token, value)),
        }
    }

    async fn read(&self, item: &str) -> Result<Option<String>, &'static str> {
        Ok(self.items.lock().expect("no panic").get(item).and_then(|(_, value)| value.clone()))
    }
}

async fn check_fault(fault: Fault) -> Result<conformance::Report, NotConformant> {
    let items = Items::default();
    let open = async || {
        let items = &items;
        if fault == Fault::ForgetsAtRestart {
            items.lock().expect("no panic").values_mut().for_each(|(mark, _)| *mark = 0);
        }
        Ok(Broken { fault, items: Arc::clone(items) })
    };
    conformance::check(open, Effort::default()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_planted_bug_violates_its_rule() {
    let broken = [
        (Fault::RemembersTheLast, Rule::LowerIsRefused),
        (Fault::RefusedMoveTheMark, Rule::LowerIsRefused),
        (Fault::RemembersTheFirst, Rule::ExtremesAreOrdered),
        (Fault::OnlyAbove, Rule::EqualIsAccepted),
        (Fault::ComparesText, Rule::HigherIsAccepted),
        (Fault::ComparesDoubles, Rule::ExtremesAreOrdered),
        (Fault::WritesAnyway, Rule::RefusedLeavesNoTrace),
        (Fault::OneMark, Rule::HigherIsAccepted),
        (Fault::FirstInsertCollides, Rule::FirstUsesMayRace),
        (Fault::ForgetsAtRestart, Rule::SurvivesRestart),
    ];
    for (fault, rule) in broken {
        let error = check_fault(fault).await.expect_err("the resource has a bug");
        println!("{fault:?}: {error}");
        assert_eq!(error.rule(), rule, "{fault:?}: {error}");
    }
}

/// The bug shows in a race at first use or in a later one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_then_write_is_found() {
    found_in_a_race(Fault::ChecksThenWrites).await;
}

/// Only the answers show this bug: the mark and the value are correct after each race.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stale_token_accepted_in_a_race_is_found() {
    found_in_a_race(Fault::AcceptsStaleRacers).await;
}

async fn found_in_a_race(fault: Fault) {
    let error = check_fault(fault).await.expect_err("the resource has a bug");
    println!("{error}");
    assert!(matches!(error.rule(), Rule::FirstUsesMayRace | Rule::NoLowerAfterHigher), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resource_without_a_bug_passes() {
    check_fault(Fault::None).await.unwrap_or_else(|error| panic!("{error}"));
}
