//! The harness can fail: bugs that are planted from outside, and within how many seeds each is caught.

use tenure::testing::Safeguards;

use super::bugs::{MachineBug, Planted};
use super::plan::Plan;
use super::run::run;

/// Runs seeds until one of the promises is broken, which has to happen within so many.
fn is_caught(planted: Planted, promises: &[&str], within: u64) {
    let caught = (1..=within).find_map(|seed| {
        let verdict = run(Plan::of(seed, planted));
        let broken = verdict.broken.into_iter().find(|broken| promises.contains(&broken.promise));
        broken.map(|broken| (seed, broken))
    });
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    let (seed, broken) = caught.unwrap_or_else(|| panic!("{planted:?} was not caught within {within} seeds"));
    let how: String = broken.to_string().chars().take(160).collect();
    println!("{name}: caught by {} at seed {seed} of {within}: {how}", broken.promise);
}

fn without(safeguards: Safeguards) -> Planted {
    Planted { safeguards, ..Planted::default() }
}

fn with(bug: MachineBug) -> Planted {
    Planted { machine: Some(bug), ..Planted::default() }
}

#[test]
fn a_restart_without_the_quarantine_is_caught() {
    let planted = without(Safeguards { quarantine: false, ..Safeguards::default() });
    is_caught(planted, &["reads_are_current"], 100);
}

#[test]
fn a_restart_without_the_quarantine_is_caught_without_the_servers_indexes() {
    let planted = without(Safeguards { quarantine: false, ..Safeguards::default() });
    is_caught(planted, &["linearizable"], 200);
}

#[test]
fn a_leader_that_is_restored_without_an_election_is_caught() {
    let planted = without(Safeguards { quarantine: false, reelection: false, ..Safeguards::default() });
    is_caught(planted, &["reads_are_current", "one_leader", "linearizable"], 100);
}

#[test]
fn disks_that_lie_about_syncs_are_caught() {
    let planted = Planted { early_disk: true, ..Planted::default() };
    is_caught(planted, &["replicas_agree", "grants_survive"], 60);
}

#[test]
fn a_leader_that_takes_its_time_from_a_clock_that_jumps_is_caught() {
    is_caught(Planted { wall_clock: true, ..Planted::default() }, &["no_early_expiry"], 10);
}

#[test]
fn a_holder_whose_clock_is_far_too_slow_is_caught() {
    is_caught(Planted { slow_holder: true, ..Planted::default() }, &["holder_stops_first"], 60);
}

#[test]
fn holder_whose_clock_does_not_count_a_suspend_is_caught() {
    is_caught(Planted { deaf_to_suspend: true, ..Planted::default() }, &["holder_stops_first"], 60);
}

#[test]
fn a_client_that_takes_unknown_for_refused_is_caught() {
    is_caught(Planted { unknown_is_refused: true, ..Planted::default() }, &["unknown_is_said"], 20);
}

#[test]
fn reads_from_any_nodes_memory_are_caught() {
    is_caught(Planted { stale_reads: true, ..Planted::default() }, &["reads_are_current"], 10);
}

#[test]
fn stale_reads_are_caught_without_the_servers_indexes() {
    is_caught(Planted { stale_reads: true, ..Planted::default() }, &["linearizable"], 10);
}

#[test]
fn a_client_that_takes_a_lost_renewal_for_a_good_one_is_caught() {
    is_caught(Planted { deaf_to_loss: true, ..Planted::default() }, &["holder_stops_first"], 120);
}

#[test]
fn a_release_that_was_never_sent_is_caught() {
    is_caught(Planted { false_release: true, ..Planted::default() }, &["grants_survive"], 5);
}

#[test]
fn reads_without_a_leadership_lease_are_caught() {
    let planted = without(Safeguards { lease_on_read: false, ..Safeguards::default() });
    is_caught(planted, &["reads_are_current"], 100);
}

#[test]
fn reads_without_a_leadership_lease_are_caught_without_the_servers_indexes() {
    let planted = without(Safeguards { lease_on_read: false, ..Safeguards::default() });
    is_caught(planted, &["linearizable"], 100);
}

#[test]
fn a_leadership_lease_that_counts_from_the_answer_is_caught() {
    let planted = without(Safeguards { lease_from_asking: false, ..Safeguards::default() });
    is_caught(planted, &["reads_are_current", "linearizable"], 400);
}

#[test]
fn a_local_read_without_the_suspend_guard_is_caught() {
    let planted = without(Safeguards { suspend_guard: false, ..Safeguards::default() });
    is_caught(planted, &["reads_are_current"], 20);
}

#[test]
fn tokens_that_start_over_after_a_snapshot_are_caught() {
    is_caught(with(MachineBug::TokensFromSnapshot), &["tokens_rise"], 50);
}

#[test]
fn tokens_from_a_clock_are_caught() {
    is_caught(with(MachineBug::TokensFromClock), &["tokens_rise"], 20);
}

#[test]
fn a_release_that_ignores_the_token_is_caught() {
    is_caught(with(MachineBug::ReleaseIgnoresToken), &["only_the_current_token"], 20);
}

#[test]
fn a_release_that_ignores_the_token_is_caught_from_outside() {
    is_caught(with(MachineBug::ReleaseIgnoresToken), &["unknown_is_said", "linearizable"], 50);
}

#[test]
fn a_waiter_that_is_granted_when_its_wait_is_over_is_caught() {
    is_caught(with(MachineBug::DeadWaiterGranted), &["waiter_gets_what_is_free"], 20);
}

#[test]
fn a_renewal_of_an_expired_lease_is_caught() {
    is_caught(with(MachineBug::ExpiredRevived), &["only_the_current_token"], 50);
}

#[test]
fn a_second_token_for_a_retried_acquire_is_caught() {
    is_caught(with(MachineBug::SecondToken), &["one_token_a_claim"], 20);
}

#[test]
fn a_resource_without_a_fence_is_caught() {
    is_caught(Planted { no_fence: true, ..Planted::default() }, &["fenced_register"], 20);
}

#[test]
fn a_watch_that_skips_what_came_while_it_was_away_is_caught() {
    is_caught(Planted { late_watch: true, ..Planted::default() }, &["watch_completeness"], 30);
}
