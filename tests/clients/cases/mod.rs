//! The cases: short scripts that are the same for each client. After each case, [`evidence`](crate::evidence) judges all
//! promises, so a case asserts only its own subject.

mod cancels;
mod clocks;
mod deadlines;
mod elections;
mod losses;
mod outcomes;
mod processes;
mod queues;
mod renewals;
mod security;

use std::pin::Pin;
use std::sync::Arc;

use crate::case::Case;

/// The cluster of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// All cases share a cluster, each with its own leases.
    Shared,
    /// The case kills nodes.
    Own,
    /// The case configures the nodes.
    Configured,
}

/// A case and the promise that it checks; `none` if the observer does not see its leases.
#[derive(Clone, Copy)]
pub struct Entry {
    pub name: &'static str,
    pub promise: &'static str,
    pub on: On,
    /// Whether the case cancels acquires.
    pub cancels: bool,
    pub run: fn(Arc<Case>) -> Running,
}

type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

macro_rules! cases {
    ($($promise:ident: $on:ident $module:ident::$case:ident,)*) => {
        [$(Entry {
            name: stringify!($case),
            promise: stringify!($promise),
            on: On::$on,
            cancels: stringify!($module) == "cancels",
            run: |case| Box::pin(async move { $module::$case(&case).await }),
        }),*]
    };
}

/// All cases. The longest ones come first.
pub fn all() -> Vec<Entry> {
    cases![
        grants_survive: Own processes::leader_killed_keeps_the_lease,
        none: Configured security::tls_and_access_token,
        waiters_are_served: Shared queues::waiter_leaves_a_frozen_node,
        holder_stops_first: Shared processes::stopped_process_does_no_late_work,
        holder_stops_first: Shared processes::suspended_machine_does_no_late_work,
        one_holder: Shared queues::contending_holders_never_overlap,
        holder_stops_first: Shared elections::isolated_leader_is_deposed_first,
        holder_stops_first: Shared deadlines::late_grant_counts_from_its_request,
        holder_stops_first: Shared deadlines::very_late_grant_is_renewed_first,
        holder_stops_first: Shared deadlines::late_renewal_counts_from_its_request,
        holder_stops_first: Shared deadlines::delayed_acquire_counts_from_its_send,
        holder_stops_first: Shared deadlines::delayed_renewal_counts_from_its_send,
        holder_stops_first: Shared deadlines::drift_ends_work_early,
        holder_stops_first: Shared deadlines::ending_precedes_the_deadline,
        holder_stops_first: Shared deadlines::failed_renewals_put_the_lease_at_risk,
        holder_stops_first: Shared renewals::renewals_come_at_a_third_of_the_ttl,
        holder_stops_first: Shared renewals::one_request_renews_all_leases,
        holder_stops_first: Shared renewals::slow_node_does_not_cost_the_lease,
        expiry_happens: Shared renewals::lost_lease_is_not_renewed,
        expiry_happens: Shared renewals::lost_lease_expires_by_its_ttl,
        expiry_happens: Shared processes::crashed_driver_leaves_the_lease_to_its_ttl,
        current_token_only: Shared renewals::late_duplicate_renewal_has_no_effect,
        no_early_expiry: Shared clocks::wall_clock_leaps_have_no_effect,
        holder_stops_first: Shared clocks::clock_of_deadlines_counts_suspend,
        one_holder: Shared outcomes::held_lease_is_refused_to_others,
        tokens_rise: Shared outcomes::each_grant_has_a_higher_token,
        grants_survive: Shared outcomes::options_reach_the_cluster,
        unknown_is_said: Shared outcomes::refusals_have_codes,
        unknown_is_said: Shared outcomes::unreachable_cluster_is_unavailable,
        unknown_is_said: Shared outcomes::lost_answer_is_resolved_by_a_retry,
        unknown_is_said: Shared outcomes::lost_request_is_sent_again,
        unknown_is_said: Shared outcomes::lost_answers_are_unknown,
        unknown_is_said: Shared outcomes::late_duplicate_acquire_is_not_held,
        unknown_is_said: Shared outcomes::acquire_that_arrives_late_is_not_held,
        unknown_is_said: Shared outcomes::release_that_arrives_late_is_unknown,
        current_token_only: Shared outcomes::duplicated_requests_have_one_effect,
        unknown_is_said: Shared outcomes::refused_retry_after_a_lost_answer_is_unknown,
        unknown_is_said: Shared outcomes::release_without_an_answer_is_not_held,
        reads_are_current: Shared losses::check_sees_a_revoke,
        holder_stops_first: Shared losses::revoke_ends_the_work,
        holder_stops_first: Shared losses::release_by_another_ends_the_work,
        holder_stops_first: Shared losses::hand_over_by_another_ends_the_work,
        waiters_are_served: Shared queues::waiter_gets_a_released_lease,
        waiters_are_served: Shared queues::hand_over_goes_to_the_waiter,
        waiters_are_served: Shared queues::wait_ends_at_its_limit,
        waiters_are_served: Shared queues::crashed_waiter_leaves_the_queue,
        waiters_are_served: Shared queues::shutdown_leaves_the_queue,
        waiters_are_served: Shared cancels::cancelled_acquire_releases_a_late_grant,
        waiters_are_served: Shared cancels::cancelled_acquire_releases_a_lost_grant,
        waiters_are_served: Shared cancels::cancelled_wait_leaves_the_queue,
        waiters_are_served: Shared cancels::cancelled_wait_releases_its_grant,
        grants_survive: Shared processes::shutdown_releases_all_leases,
        one_holder: Shared elections::election_has_one_leader,
        tokens_rise: Shared elections::revoked_leader_is_elected_again,
    ]
    .to_vec()
}
