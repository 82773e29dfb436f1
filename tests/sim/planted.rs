//! Planted bugs, each with the invariants that must catch it and a bound on the number of seeds.

use super::bugs::PlantedBugs;
use super::plan::Plan;
use super::restore;
use super::run::run;
use super::verdict::Verdict;

/// Runs seeds until one of the invariants is violated.
///
/// # Panics
///
/// The first `max_seeds` seeds do not violate any of them.
fn assert_caught(planted: PlantedBugs, promises: &[&str], max_seeds: u64) {
    assert_caught_in(run, planted, promises, max_seeds);
}

fn assert_caught_in(run: fn(Plan) -> Verdict, planted: PlantedBugs, promises: &[&str], max_seeds: u64) {
    let caught = (1..=max_seeds).find_map(|seed| {
        let verdict = run(Plan::of(seed, planted));
        let violation = verdict.violations.into_iter().find(|found| promises.contains(&found.promise));
        violation.map(|violation| (seed, violation))
    });
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    let (seed, violation) =
        caught.unwrap_or_else(|| panic!("{planted:?}: no violation of {promises:?} within {max_seeds} seeds"));
    let how: String = violation.to_string().chars().take(160).collect();
    println!("{name}: caught by {} at seed {seed} of {max_seeds}: {how}", violation.promise);
}

#[test]
fn early_sync_acknowledgement_is_caught() {
    let planted = PlantedBugs { early_syncs: true, ..PlantedBugs::default() };
    assert_caught(planted, &["replicas_agree", "grants_survive"], 60);
}

#[test]
fn jumping_clock_is_caught() {
    assert_caught(PlantedBugs { jumping_clock: true, ..PlantedBugs::default() }, &["no_early_expiry"], 10);
}

#[test]
fn slow_holder_clock_is_caught() {
    assert_caught(PlantedBugs { slow_holder: true, ..PlantedBugs::default() }, &["holder_stops_first"], 60);
}

#[test]
fn holder_clock_that_ignores_a_suspend_is_caught() {
    assert_caught(PlantedBugs { ignores_suspend: true, ..PlantedBugs::default() }, &["holder_stops_first"], 60);
}

#[test]
fn unknown_outcome_reported_as_refusal_is_caught() {
    assert_caught(PlantedBugs { unknown_is_refused: true, ..PlantedBugs::default() }, &["unknown_is_said"], 20);
}

#[test]
fn stale_reads_are_caught() {
    assert_caught(PlantedBugs { stale_reads: true, ..PlantedBugs::default() }, &["reads_are_current"], 10);
}

#[test]
fn stale_reads_are_caught_from_client_histories() {
    assert_caught(PlantedBugs { stale_reads: true, ..PlantedBugs::default() }, &["linearizable"], 10);
}

#[test]
fn ignored_refusal_of_a_renewal_is_caught() {
    assert_caught(PlantedBugs { ignores_loss: true, ..PlantedBugs::default() }, &["holder_stops_first"], 120);
}

#[test]
fn unsent_release_is_caught() {
    assert_caught(PlantedBugs { unsent_release: true, ..PlantedBugs::default() }, &["grants_survive"], 5);
}

#[test]
fn resource_without_a_fence_is_caught() {
    assert_caught(PlantedBugs { no_fence: true, ..PlantedBugs::default() }, &["fenced_register"], 20);
}

#[test]
fn watch_that_skips_transitions_is_caught() {
    assert_caught(PlantedBugs { late_watch: true, ..PlantedBugs::default() }, &["each_transition_once"], 30);
}

#[test]
fn renewal_of_another_principal_is_caught() {
    assert_caught(PlantedBugs { shared_credentials: true, ..PlantedBugs::default() }, &["owner_only"], 20);
}

#[test]
fn revoked_access_token_that_works_is_caught() {
    assert_caught(PlantedBugs { revoked_access_works: true, ..PlantedBugs::default() }, &["revoked_access_ends"], 20);
}

#[test]
fn restore_that_does_not_wait_for_holders_is_caught() {
    let planted = PlantedBugs { restored_too_soon: true, ..PlantedBugs::default() };
    assert_caught_in(restore::run, planted, &["one_holder"], 30);
}
