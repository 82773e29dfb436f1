//! What must hold in every run, one promise a file.

mod grants_survive;
mod holder_stops_first;
pub mod linear;
pub mod log_matching;
mod no_early_lapse;
pub mod one_holder;
pub mod one_leader;
mod queue_order;
mod reads_are_current;
mod tokens_rise;
mod unknown_is_said;

use super::run::Evidence;
use super::verdict::Broken;

type Check = fn(&Evidence) -> Result<(), String>;

/// Everything that is checked when a run is over.
pub fn check(run: &Evidence) -> Vec<Broken> {
    let promises: [(&'static str, Check); 8] = [
        ("one_holder", one_holder::check),
        ("tokens_rise", tokens_rise::check),
        ("grants_survive", grants_survive::check),
        ("no_early_lapse", no_early_lapse::check),
        ("holder_stops_first", holder_stops_first::check),
        ("reads_are_current", reads_are_current::check),
        ("unknown_is_said", unknown_is_said::check),
        ("queue_order", queue_order::check),
    ];
    let broken = |(promise, check): &(&'static str, Check)| check(run).err().map(|how| Broken::new(promise, how));
    promises.iter().filter_map(broken).collect()
}
