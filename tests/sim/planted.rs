//! Planted bugs, each with the invariants that must catch it and a bound on the number of seeds.

use tenure::testing::Safeguards;

use super::bugs::{MachineBug, PlantedBugs};
use super::plan::Plan;
use super::run::run;

/// Runs seeds until one of the invariants is violated.
///
/// # Panics
///
/// The first `max_seeds` seeds do not violate any of them.
fn assert_caught(planted: PlantedBugs, promises: &[&str], max_seeds: u64) {
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

fn without(safeguards: Safeguards) -> PlantedBugs {
    PlantedBugs { safeguards, ..PlantedBugs::default() }
}

fn with(bug: MachineBug) -> PlantedBugs {
    PlantedBugs { machine: Some(bug), ..PlantedBugs::default() }
}

#[test]
fn missing_quarantine_is_caught() {
    let planted = without(Safeguards { quarantine: false, ..Safeguards::default() });
    assert_caught(planted, &["reads_are_current"], 100);
}

#[test]
fn missing_quarantine_is_caught_from_client_histories() {
    let planted = without(Safeguards { quarantine: false, ..Safeguards::default() });
    assert_caught(planted, &["linearizable"], 200);
}

#[test]
fn leader_restored_without_election_is_caught() {
    let planted = without(Safeguards { quarantine: false, reelection: false, ..Safeguards::default() });
    assert_caught(planted, &["reads_are_current", "one_leader", "linearizable"], 100);
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
fn reads_without_a_leadership_lease_are_caught() {
    let planted = without(Safeguards { lease_on_read: false, ..Safeguards::default() });
    assert_caught(planted, &["reads_are_current"], 100);
}

#[test]
fn leaseless_reads_are_caught_from_client_histories() {
    let planted = without(Safeguards { lease_on_read: false, ..Safeguards::default() });
    assert_caught(planted, &["linearizable"], 100);
}

#[test]
fn leadership_lease_from_the_answer_is_caught() {
    let planted = without(Safeguards { lease_from_asking: false, ..Safeguards::default() });
    assert_caught(planted, &["reads_are_current", "linearizable"], 400);
}

#[test]
fn local_read_without_suspend_guard_is_caught() {
    let planted = without(Safeguards { suspend_guard: false, ..Safeguards::default() });
    assert_caught(planted, &["reads_are_current"], 20);
}

#[test]
fn tokens_that_restart_after_a_snapshot_are_caught() {
    assert_caught(with(MachineBug::TokensFromSnapshot), &["tokens_rise"], 50);
}

#[test]
fn tokens_from_a_clock_are_caught() {
    assert_caught(with(MachineBug::TokensFromClock), &["tokens_rise"], 20);
}

#[test]
fn release_without_token_check_is_caught() {
    assert_caught(with(MachineBug::ReleaseIgnoresToken), &["current_token_only"], 20);
}

#[test]
fn release_without_token_check_is_caught_from_histories() {
    assert_caught(with(MachineBug::ReleaseIgnoresToken), &["unknown_is_said", "linearizable"], 50);
}

#[test]
fn grant_after_the_end_of_a_wait_is_caught() {
    assert_caught(with(MachineBug::DeadWaiterGranted), &["queue_order"], 20);
}

#[test]
fn renewal_of_an_expired_lease_is_caught() {
    assert_caught(with(MachineBug::ExpiredRevived), &["current_token_only"], 50);
}

#[test]
fn second_token_for_a_retried_acquire_is_caught() {
    assert_caught(with(MachineBug::SecondToken), &["reentrance_keeps_the_token"], 20);
}

#[test]
fn resource_without_a_fence_is_caught() {
    assert_caught(PlantedBugs { no_fence: true, ..PlantedBugs::default() }, &["fenced_register"], 20);
}

#[test]
fn watch_that_skips_transitions_is_caught() {
    assert_caught(PlantedBugs { late_watch: true, ..PlantedBugs::default() }, &["each_transition_once"], 30);
}
