//! What must hold for each lease, one promise a file, judged when nothing happens to it any more.

#[cfg(test)]
pub mod evidence;
mod grants_survive;
mod linear;
mod no_early_lapse;
mod one_holder;
mod queue_order;
mod reads_are_current;
mod tokens_rise;
mod unknown_is_said;

pub use linear::Decided;

use super::history::Operation;
use super::log::Seen;
use super::verdict::Broken;

/// Who was seen to wait for a lease, next first, at a log index.
#[derive(Clone, Debug)]
pub struct Queued {
    pub index: u64,
    pub waiters: Vec<String>,
}

/// Everything that is known of one lease.
pub struct Evidence<'a> {
    pub operations: &'a [Operation],
    pub queues: &'a [Queued],
    /// Its transitions, in the order of the log.
    pub log: &'a [Seen],
}

type Check = fn(&Evidence) -> Result<(), String>;

const PROMISES: [(&str, Check); 7] = [
    ("one_holder", one_holder::check),
    ("tokens_rise", tokens_rise::check),
    ("grants_survive", grants_survive::check),
    ("no_early_lapse", no_early_lapse::check),
    ("reads_are_current", reads_are_current::check),
    ("unknown_is_said", unknown_is_said::check),
    ("queue_order", queue_order::check),
];

/// What is broken, and whether there was an order of its operations to be found.
pub fn check(name: &str, evidence: &Evidence) -> (Vec<Broken>, Decided) {
    let broken = |(promise, check): &(&'static str, Check)| {
        check(evidence).err().map(|how| Broken::of_lease(promise, name, how))
    };
    let mut broken: Vec<Broken> = PROMISES.iter().filter_map(broken).collect();
    let decided = linear::check(evidence);
    if let Decided::Impossible(how) = &decided {
        broken.push(Broken::of_lease("linearizable", name, how));
    }
    (broken, decided)
}

/// What can be said of a lease whose operations are not known: holders' own.
pub fn check_log(name: &str, log: &[Seen]) -> Vec<Broken> {
    let evidence = Evidence { operations: &[], queues: &[], log };
    let checks = PROMISES.iter().filter(|(promise, _)| ["one_holder", "tokens_rise"].contains(promise));
    checks
        .filter_map(|(promise, check)| check(&evidence).err().map(|how| Broken::of_lease(promise, name, how)))
        .collect()
}

/// Whether a transition of a lease that was judged before is explained by a request whose outcome was unknown then.
pub fn explains_late(operations: &[Operation], seen: &Seen) -> bool {
    unknown_is_said::check(&Evidence { operations, queues: &[], log: std::slice::from_ref(seen) }).is_ok()
}
