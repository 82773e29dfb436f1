//! The run of all cases for all clients.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tenure::clock::{Clock, SystemClock};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::case::Case;
use crate::cases::{self, Entry, On};
use crate::cluster::Cluster;
use crate::language::{self, Language};
use crate::steady::machine::Machine;

/// Cases that run at the same time. Most of them wait.
pub const CONCURRENT: usize = 14;
/// A case that takes longer hangs.
const LONGEST_CASE: Duration = Duration::from_secs(60);

/// One test runs at a time: the cases of both would disturb each other.
static TURN: Mutex<()> = Mutex::new(());

pub fn turn() -> MutexGuard<'static, ()> {
    // A test that failed leaves nothing behind.
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The results of a run, by case and client.
pub struct Results {
    pub entries: Vec<Entry>,
    pub languages: Vec<&'static str>,
    pub verdicts: BTreeMap<(&'static str, &'static str), Verdict>,
    pub took: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    Failed(String),
    /// The client has no call that the case needs.
    NotApplicable,
}

/// Runs the cases for the clients. A case that fails while the machine stands still runs once more.
pub async fn run(languages: &[Language], entries: &[Entry]) -> Results {
    let began = Instant::now();
    let machine = Arc::new(Machine::watch(&std::env::temp_dir()));
    let shared = Arc::new(Cluster::start().await);
    let (turns, mut running) = (Arc::new(Semaphore::new(CONCURRENT)), JoinSet::new());
    let mut verdicts = BTreeMap::new();
    for (number, entry) in entries.iter().enumerate() {
        for language in languages {
            if entry.cancels && !language.cancels {
                verdicts.insert((entry.name, language.name), Verdict::NotApplicable);
                continue;
            }
            let (entry, language) = (*entry, language.clone());
            let (machine, shared, turns) = (machine.clone(), shared.clone(), turns.clone());
            running.spawn(async move {
                let _turn = turns.acquire().await.expect("nothing closes it");
                let prefix = format!("{number}.{}", language.name);
                let begun = SystemClock.elapsed();
                let mut result = run_case(&entry, &language, &shared, prefix.clone()).await;
                let stood_still = |machine: &Machine| machine.standstills().iter().any(|still| still.until > begun);
                if let Err(why) = &result
                    && !is_safety(why)
                    && stood_still(&machine)
                {
                    println!("repeated once, the machine stood still: {} {}: {why}", language.name, entry.name);
                    result = run_case(&entry, &language, &shared, format!("{prefix}.again")).await;
                }
                ((entry.name, language.name), result.map_or_else(Verdict::Failed, |()| Verdict::Passed))
            });
        }
    }
    verdicts.extend(running.join_all().await);
    let languages = languages.iter().map(|language| language.name).collect();
    Results { entries: entries.to_vec(), languages, verdicts, took: began.elapsed() }
}

/// The start of a failure that is a broken promise.
pub const BROKEN: &str = "broken promise: ";
/// The promise with a time bound. A pause of the machine excuses no other one.
const TIMED: &str = "expiry_happens";

fn is_safety(why: &str) -> bool {
    why.lines().filter_map(|line| line.trim().strip_prefix(BROKEN)).any(|broken| !broken.starts_with(TIMED))
}

/// Runs a case, and judges its evidence, also if the case fails.
pub async fn run_case(entry: &Entry, language: &Language, shared: &Arc<Cluster>, prefix: String) -> Result<(), String> {
    let cluster = match entry.on {
        On::Shared | On::Configured => shared.clone(),
        On::Own => Arc::new(Cluster::start().await),
    };
    let case = Arc::new(Case::new(language, &cluster, prefix));
    let ran = tokio::time::timeout(LONGEST_CASE, tokio::spawn((entry.run)(case.clone()))).await;
    let mut failures = Vec::new();
    match ran {
        Ok(Ok(())) => {}
        Ok(Err(panicked)) => failures.push(message(panicked)),
        Err(_) => failures.push(format!("it takes longer than {LONGEST_CASE:?}")),
    }
    let evidence = case.evidence().await;
    let broken = evidence.broken(|lease| cluster.transitions(lease));
    failures.extend(broken.iter().map(|broken| format!("{BROKEN}{broken}")));
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n    ")) }
}

fn message(panicked: tokio::task::JoinError) -> String {
    let Ok(panic) = panicked.try_into_panic() else { return "it was cancelled".to_owned() };
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message").to_owned()
}

/// The cases that `TENURE_CLIENTS_ONLY` selects.
pub fn selected() -> Vec<Entry> {
    let only = std::env::var("TENURE_CLIENTS_ONLY").unwrap_or_default();
    cases::all().into_iter().filter(|entry| entry.name.contains(&only)).collect()
}

/// Each client keeps its promises in each case.
#[test]
fn clients_conform() {
    let (others, missing) = language::others();
    for name in &missing {
        println!("NOT CHECKED: the {name} client, because its driver is not given");
    }
    let is_required = std::env::var("TENURE_REQUIRE_SERVERS").is_ok_and(|value| value == "1");
    assert!(missing.is_empty() || !is_required, "these clients have no driver: {missing:?}");
    let languages: Vec<Language> = std::iter::once(language::rust()).chain(others).collect();
    let _turn = turn();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let results = runtime.expect("the system has threads").block_on(run(&languages, &selected()));
    let table = results.table();
    println!("{table}\n{}", results.summary());
    assert!(results.failed().is_empty(), "{} cases failed:\n{}", results.failed().len(), results.failed().join("\n"));
    if missing.is_empty() && results.entries.len() == cases::all().len() {
        assert!(include_str!("../../clients/conformance/README.md").ends_with(&table), "the README has another table");
    }
}

impl Results {
    /// The failures, each with its case and its client.
    pub fn failed(&self) -> Vec<String> {
        let failed = |((case, language), verdict): (&(&str, &str), &Verdict)| match verdict {
            Verdict::Failed(why) => Some(format!("{language} {case}: {why}")),
            Verdict::Passed | Verdict::NotApplicable => None,
        };
        self.verdicts.iter().filter_map(failed).collect()
    }

    /// A table of cases and clients, in Markdown.
    pub fn table(&self) -> String {
        let mut entries = self.entries.clone();
        entries.sort_by_key(|entry| (entry.promise, entry.name));
        let mut table = format!("| promise | case | {} |\n", self.languages.join(" | "));
        table.push_str(&format!("|---|---|{}\n", "---|".repeat(self.languages.len())));
        for entry in entries {
            let passed = |language: &&'static str| match &self.verdicts[&(entry.name, *language)] {
                Verdict::Passed => "yes",
                Verdict::Failed(_) => "**no**",
                Verdict::NotApplicable => "not applicable: no `cancel`",
            };
            let cells: Vec<&str> = self.languages.iter().map(passed).collect();
            table.push_str(&format!("| `{}` | {} | {} |\n", entry.promise, words(entry.name), cells.join(" | ")));
        }
        table
    }

    fn summary(&self) -> String {
        let judged = self.verdicts.values().filter(|verdict| **verdict != Verdict::NotApplicable).count();
        let (cases, clients) = (self.entries.len(), self.languages.len());
        format!("{cases} cases, {clients} clients, {judged} results, {:.0?}", self.took)
    }
}

fn words(name: &str) -> String {
    name.replace('_', " ")
}
