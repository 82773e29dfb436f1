//! Tests of the conversion of requests, refusals and errors.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::*;
use crate::access::{AccessView, PrincipalView, TokenId, TokenView};
use crate::api::TtlMs;
use crate::lease::{Batch, Machine, Stamp};
use crate::token::FencingToken;
use crate::types::{AccessName, HolderId, Right};

fn claim_of(json: &str) -> Result<Acquire, Box<Problem>> {
    let policy = TtlPolicy { default_ms: 5_000, min_ms: 1_000, max_ms: 60_000, infinite: false };
    claim(&policy, LeaseName::new("a").expect("valid"), serde_json::from_str(json).expect("the JSON is a claim"))
}

#[test]
fn prefix_of_a_right_begins_a_lease_name() {
    let taken = |prefix: &str| access::permission(api::Permission::new(crate::types::Right::Hold, prefix));
    for prefix in ["", "j", "jobs/", "0:._-", &"a".repeat(200)] {
        assert_eq!(taken(prefix).expect("names begin with it").prefix, prefix);
    }
    for prefix in ["/jobs/", "-x", ".", ":a", "jobs *", "é", &"a".repeat(201)] {
        let refused = taken(prefix).map(drop).expect_err(prefix);
        assert_eq!(refused.code, Code::Invalid, "{prefix}");
        assert!(refused.detail.starts_with("prefix: no lease name begins with "), "{refused:?}");
    }
}

#[test]
fn omitted_claim_fields_have_their_defaults() {
    let claim = claim_of(r#"{"holder":"h","wait_ms":0}"#).expect("the claim is valid");
    assert_eq!(
        (claim.ttl, claim.wait_ms, claim.lock_delay_ms, claim.limit),
        (Ttl::millis(5_000).expect("valid"), None, 0, 1)
    );
}

#[test]
fn claim_outside_the_bounds_is_refused_with_the_bounds() {
    for (json, bounds) in [
        (r#"{"holder":"h","ttl_ms":999}"#, "ttl_ms 999 is outside 1000 to 60000"),
        (r#"{"holder":"h","ttl_ms":60001}"#, "ttl_ms 60001 is outside 1000 to 60000"),
        (r#"{"holder":"h","ttl_ms":"infinite"}"#, "request at most 60000 ms"),
        (r#"{"holder":"h","limit":0}"#, "limit 0"),
        (r#"{"holder":"h","limit":10001}"#, "limit 10001 is above 10000"),
        (r#"{"holder":"h","wait_ms":86400001}"#, "wait_ms 86400001 is above 86400000"),
        (r#"{"holder":"h","lock_delay_ms":86400001}"#, "lock_delay_ms 86400001 is above 86400000"),
    ] {
        let refused = format!("{:?}", claim_of(json).expect_err(json));
        assert!(refused.contains(bounds) && refused.contains("code: Invalid"), "{json}: {refused}");
    }
}

#[test]
fn claim_at_the_bounds_is_accepted() {
    let claim_by = |policy: &TtlPolicy, json: &str| {
        let body = serde_json::from_str(json).expect("the JSON is a claim");
        claim(policy, LeaseName::new("a").expect("valid"), body)
    };
    let all = r#"{"holder":"h","ttl_ms":86400000,"wait_ms":86400000,"lock_delay_ms":86400000,"limit":10000}"#;
    let taken = claim_by(&TtlPolicy::default(), all).expect("the claim is at the bounds");
    let numbers = (taken.ttl, taken.wait_ms, taken.lock_delay_ms, taken.limit);
    assert_eq!(numbers, (Ttl::millis(86_400_000).expect("valid"), Some(86_400_000), 86_400_000, 10_000));
    let narrow = TtlPolicy { default_ms: 5_000, min_ms: 1_000, max_ms: 60_000, infinite: false };
    for (policy, min, max) in [(TtlPolicy::default(), 100, 86_400_000), (narrow, 1_000, 60_000)] {
        let ttl = |ms: u64| claim_by(&policy, &format!(r#"{{"holder":"h","ttl_ms":{ms}}}"#));
        for ms in [min, max] {
            assert_eq!(ttl(ms).expect("the ttl is at a bound").ttl, Ttl::millis(ms).expect("valid"));
        }
        for ms in [min - 1, max + 1] {
            let refused = ttl(ms).expect_err("the ttl is outside the bounds");
            assert_eq!(refused.code, Code::Invalid);
            assert!(refused.detail.contains(&format!("ttl_ms {ms} is outside {min} to {max}")), "{refused:?}");
        }
    }
}

#[test]
fn revoke_reason_has_at_most_500_bytes() {
    let revoke = |character: &str, count| revoke(LeaseName::new("a").expect("valid"), character.repeat(count));
    for (character, most) in [("r", 500), ("é", 250), ("🦀", 125)] {
        let taken = revoke(character, most);
        assert!(matches!(taken, Ok(Request::Change(Command::Revoke { reason, .. })) if reason.len() == 500));
        let refused = revoke(character, most + 1).map(drop).expect_err("the reason is above the bound");
        assert_eq!(refused.code, Code::Invalid, "{character}");
    }
}

#[test]
fn batch_has_at_most_10_000_renewals() {
    let renew = |count: usize| {
        let item = |number: usize| api::RenewItem {
            name: LeaseName::new(format!("n{number}")).expect("valid"),
            token: FencingToken { term: 1, index: 1 },
            ttl_ms: None,
        };
        let holder = HolderId::new("h").expect("valid");
        let leases = (0..count).map(item).collect();
        renew_batch(&TtlPolicy::default(), api::RenewBatch { holder, leases })
    };
    let taken = renew(10_000).expect("the batch is at the bound");
    assert!(matches!(taken, Request::Change(Command::Renew { leases, .. }) if leases.len() == 10_000));
    assert_eq!(renew(10_001).map(drop).expect_err("the batch is above the bound").code, Code::TooLarge);
}

/// A principal that tries the tokens of others can add its own lease to the batch.
#[test]
fn batch_is_lost_for_the_audit_log_if_one_lease_is() {
    let (mut machine, mut index) = (Machine::new(), 0);
    let mut apply = |command| {
        index += 1;
        let batch = Batch { stamp: Stamp::default(), commands: vec![command] };
        Answer::Outcome(machine.apply(FencingToken { term: 1, index }, &batch).0.remove(0))
    };
    apply(Command::Acquire(claim_of(r#"{"holder":"h"}"#).expect("valid")));
    let renewal = |index| {
        let (name, token) = (LeaseName::new("a").expect("valid"), FencingToken { term: 1, index });
        Renewal { name, token, ttl: None }
    };
    for (tokens, is_lost) in [(vec![], false), (vec![1], false), (vec![1, 7], true), (vec![7], true)] {
        let (holder, leases) = (HolderId::new("h").expect("valid"), tokens.into_iter().map(renewal).collect());
        let answer = apply(Command::Renew { holder, leases });
        assert_eq!(refusal_code(&answer), is_lost.then_some(Code::Lost), "{answer:?}");
    }
}

#[test]
fn refused_claim_has_its_code_in_the_audit_log() {
    let refused = |refusal| Answer::Outcome(Outcome::Refused(refusal));
    let (holder, token) = (HolderId::new("h").expect("valid"), FencingToken { term: 3, index: 4 });
    let held = Refusal::Held { holder, token, granted_wall_ms: 1, retry_after_ms: None, waiters: 0 };
    for (answer, code) in [
        (refused(held), Code::Held),
        (refused(Refusal::LockDelay { retry_after_ms: 9 }), Code::LockDelay),
        (refused(Refusal::QueueFull { max_waiters: 8 }), Code::QueueFull),
        (refused(Refusal::HolderInUse), Code::Forbidden),
        (Answer::WaitTimeout, Code::WaitTimeout),
        (Answer::WaitAbandoned, Code::WaitAbandoned),
    ] {
        assert_eq!(refusal_code(&answer), Some(code), "{answer:?}");
    }
    assert_eq!(refusal_code(&Answer::Outcome(Outcome::Held { lease: lease(None), fresh: true })), None);
}

#[test]
fn renewal_without_a_ttl_names_none() {
    let policy = TtlPolicy { default_ms: 5_000, min_ms: 1_000, max_ms: 60_000, infinite: true };
    for (ttl, expected) in [
        ("", None),
        (r#","ttl_ms":7000"#, Some(Ttl::millis(7_000).expect("valid"))),
        (r#","ttl_ms":"infinite""#, Some(Ttl::INFINITE)),
    ] {
        let body = serde_json::from_str(&format!(r#"{{"holder":"h","token":"5"{ttl}}}"#)).expect("it has the form");
        let one = renew(&policy, LeaseName::new("a").expect("valid"), body);
        let item = format!(r#"{{"holder":"h","leases":[{{"name":"a","token":"5"{ttl}}}]}}"#);
        let batch = renew_batch(&policy, serde_json::from_str(&item).expect("it has the form"));
        for request in [one, batch] {
            let Ok(Request::Change(Command::Renew { leases, .. })) = request else { panic!("{request:?}") };
            assert_eq!(leases.iter().map(|renewal| renewal.ttl).collect::<Vec<_>>(), [expected], "{ttl}");
        }
    }
}

#[test]
fn renewal_outside_the_bounds_is_refused_with_the_bounds() {
    let policy = TtlPolicy { default_ms: 5_000, min_ms: 1_000, max_ms: 60_000, infinite: false };
    for (ttl, bounds) in [
        ("999", "ttl_ms 999 is outside 1000 to 60000"),
        ("60001", "ttl_ms 60001 is outside 1000 to 60000"),
        ("\"infinite\"", "request at most 60000 ms"),
    ] {
        let body = format!(r#"{{"holder":"h","token":"5","ttl_ms":{ttl}}}"#);
        let one = serde_json::from_str(&body).expect("the JSON is a renewal");
        let one = renew(&policy, LeaseName::new("a").expect("valid"), one);
        let items = format!(r#"{{"name":"a","token":"5"}},{{"name":"b","token":"5","ttl_ms":{ttl}}}"#);
        let batch = format!(r#"{{"holder":"h","leases":[{items}]}}"#);
        let batch = renew_batch(&policy, serde_json::from_str(&batch).expect("the JSON is a batch"));
        for refused in [one, batch] {
            let refused = refused.expect_err(ttl);
            assert!(refused.code == Code::Invalid && refused.detail.contains(bounds), "{ttl}: {refused:?}");
        }
    }
}

#[test]
fn fields_that_a_request_leaves_out_name_nothing() {
    let holder = || HolderId::new("h").expect("valid");
    let name = || LeaseName::new("a").expect("valid");
    let token = FencingToken { term: 0, index: 5 };
    let body = serde_json::from_str(r#"{"holder":"h","token":"5"}"#).expect("it has the form");
    let expected = Request::Change(Command::HandOver { name: name(), holder: holder(), token, to: None });
    assert_eq!(hand_over(name(), body), expected);
    let body = serde_json::from_str(r#"{"holder":"h","token":"5","version":3}"#).expect("it has the form");
    let metadata = crate::types::Metadata::default();
    let command = Command::UpdateMetadata { name: name(), holder: holder(), token, version: 3, metadata };
    assert_eq!(update_metadata(name(), body), Ok(Request::Change(command)));
    let claim = claim_of(r#"{"holder":"h"}"#).expect("it is fine");
    assert_eq!((claim.wait_ms, claim.metadata.bytes()), (None, 0));
}

#[test]
fn request_errors_have_exact_problem_codes() {
    let soon = Some(250);
    for (error, status, code, retry_after_ms) in [
        (RequestError::NoLeader, 503, Code::NoLeader, soon),
        (RequestError::Busy, 429, Code::TooBusy, soon),
        (RequestError::TooManyBackups, 429, Code::TooBusy, soon),
        (RequestError::TooLarge, 413, Code::TooLarge, None),
        (RequestError::Unreadable("no such request".to_owned()), 501, Code::Unsupported, None),
        (RequestError::ShuttingDown, 503, Code::ShuttingDown, None),
        (RequestError::Unknown("the connection broke".to_owned()), 504, Code::OutcomeUnknown, None),
        (RequestError::AnswerTooLarge("17 MiB".to_owned()), 500, Code::Internal, None),
    ] {
        let problem = request_error(error);
        assert_eq!((problem.status, problem.code, problem.retry_after_ms), (status, code, retry_after_ms));
    }
}

/// The documentation of `internal` refers to the log of the node.
#[cfg(feature = "cli")]
#[test]
fn answer_that_is_too_large_is_in_the_log() {
    let (written, _logged_here) = crate::telemetry::tests::capture();
    request_error(RequestError::AnswerTooLarge("17 MiB".to_owned()));
    let lines = written.text();
    assert!(lines.contains("ERROR") && lines.contains("17 MiB"), "{lines}");
}

#[test]
fn loss_has_its_cause_and_the_current_holder() {
    let holder = HolderId::new("worker-2").expect("valid");
    let problem = lost(Lost { cause: LostReason::Expired, holder: Some(holder) });
    assert_eq!(problem.detail, "it expired before it was renewed; worker-2 holds the lease now");
    assert_eq!(problem.holder.as_deref(), Some("worker-2"));
}

#[test]
fn reached_machine_bounds_are_refused_with_429() {
    for (refused, code, limit) in [
        (Refusal::TooManyLeases { max_leases: 7 }, Code::TooManyLeases, 7),
        (Refusal::QueueFull { max_waiters: 8 }, Code::QueueFull, 8),
        (Refusal::LeaseFull { max_bytes: 9 }, Code::LeaseFull, 9),
    ] {
        let problem = refusal(refused);
        assert_eq!((problem.status, problem.code, problem.limit), (429, code, Some(limit)));
    }
}

fn lease(deadline: Option<ClusterMs>) -> HolderLease {
    HolderLease {
        name: LeaseName::new("a").expect("valid"),
        holder: HolderId::new("h").expect("valid"),
        token: FencingToken { term: 3, index: 4 },
        ttl: Ttl::millis(5_000).expect("valid"),
        deadline,
        state: LeaseState::Active,
        granted_at: 10,
        granted_wall_ms: 1,
        renewed_at: 20,
        renewed_wall_ms: 2,
        renewals: 6,
        metadata: Metadata::default(),
        limit: 7,
        lock_delay_ms: 8,
        waiters: 9,
        metadata_version: 11,
    }
}

#[test]
fn lease_has_its_times() {
    // An overdue lease is held until a log entry expires it.
    for (deadline, now, expires_in_ms) in [(Some(500), 700, Some(0)), (Some(500), 300, Some(200)), (None, 300, None)] {
        let answer = Answer::Outcome(Outcome::Held { lease: lease(deadline), fresh: true });
        let granted = granted(answer, now).expect("it is granted");
        assert_eq!(granted.expires_in_ms, expires_in_ms, "deadline {deadline:?} at {now}");
        let walls = (granted.granted_at, granted.renewed_at);
        assert_eq!(walls, (Timestamp::from_millis(1), Timestamp::from_millis(2)));
        let numbers = (granted.term, granted.index, granted.ttl_ms, granted.renewals);
        assert_eq!(numbers, (3, 4, TtlMs::Millis(5_000), 6));
        let counts = (granted.limit, granted.lock_delay_ms, granted.waiters, granted.metadata_version);
        assert_eq!(counts, (7, 8, 9, 11));
    }
}

/// `limit` decides, and not the number of holders.
#[test]
fn counted_lease_lists_all_its_holders() {
    let of = |limit: u32, index: u64, state: LeaseState| {
        let holder = HolderId::new(format!("h-{index}")).expect("valid");
        HolderLease { holder, token: FencingToken { term: 3, index }, state, limit, ..lease(Some(500)) }
    };
    for (limit, held, listed) in [
        (1, vec![4], None),
        (2, vec![4], Some(vec!["h-4"])),
        (2, vec![5, 4], Some(vec!["h-4", "h-5"])),
        (7, vec![6, 4, 5], Some(vec!["h-4", "h-5", "h-6"])),
    ] {
        // The last grant before these has ended.
        let ended = of(limit, 3, LeaseState::Released);
        let leases = held.iter().map(|index| of(limit, *index, LeaseState::Active)).chain([ended.clone()]).collect();
        let shown = one_name(leases, 300).expect("it is held");
        assert_eq!((shown.holder.as_str(), shown.limit), ("h-4", limit), "the first holder");
        let holders = shown.holders.as_deref().map(|all| all.iter().map(|one| one.holder.as_str()).collect::<Vec<_>>());
        assert_eq!(holders, listed, "limit {limit}");
        let last = one_name(vec![ended], 300).expect("it has ended");
        assert_eq!((last.state, last.holders), (LeaseState::Released, None), "limit {limit}");
    }
    assert_eq!(one_name(Vec::new(), 300), None);
}

#[test]
fn waiter_has_its_times() {
    let holder = HolderId::new("h").expect("valid");
    let waiter = Waiter { holder, since: 100, since_wall_ms: 1, until: 500 };
    for (now, waited_ms, expires_in_ms) in [(250, 150, 250), (50, 0, 450), (700, 600, 0)] {
        let answer = Answer::Queue(vec![waiter.clone()]);
        let shown = queue(LeaseName::new("a").expect("valid"), answer, now).expect("a queue");
        assert_eq!((shown.total, shown.waiters.len()), (1, 1));
        let first = &shown.waiters[0];
        let times = (first.since_at, first.waited_ms, first.expires_in_ms);
        assert_eq!(times, (Timestamp::from_millis(1), waited_ms, expires_in_ms), "at {now}");
    }
}

fn waiter(holder: &str) -> Waiter {
    Waiter { holder: HolderId::new(holder).expect("valid"), since: 100, since_wall_ms: 1, until: 500 }
}

#[test]
fn waiter_has_the_number_of_waiters_before_it() {
    let name = || LeaseName::new("a").expect("valid");
    let all = ["b", "c", "d"].map(waiter).to_vec();
    let shown = queue(name(), Answer::Queue(all), 300).expect("a queue");
    assert_eq!(shown.waiters.iter().map(|waiter| waiter.place).collect::<Vec<_>>(), [0, 1, 2]);
    let standing = Some(Standing::Waits { place: 2, waiter: waiter("d") });
    let held = vec![lease(Some(500))];
    let explanation = Explanation { held, delay_until: None, next: Some(waiter("b")), waiters: 3, standing };
    let shown = explained(name(), Answer::Explain(explanation), 300).expect("an explanation");
    assert_eq!(shown.next.as_ref().map(|next| (next.place, next.holder.as_str())), Some((0, "b")));
    assert!(shown.summary.ends_with("; 3 waiting; d waits, with 2 before it"), "{}", shown.summary);
    let Some(api::Standing::Waits { waiter }) = &shown.standing else { panic!("{:?}", shown.standing) };
    assert_eq!((waiter.place, waiter.holder.as_str()), (2, "d"));
}

/// At the last millisecond of the delay, a claim is told to wait for 1 ms more.
#[test]
fn explanation_counts_the_last_millisecond_of_a_lock_delay() {
    for (now, left) in [(498, Some(3)), (499, Some(2)), (500, Some(1)), (501, None), (700, None)] {
        let explanation =
            Explanation { held: Vec::new(), delay_until: Some(500), next: None, waiters: 0, standing: None };
        let name = LeaseName::new("a").expect("valid");
        let shown = explained(name, Answer::Explain(explanation), now).expect("an explanation");
        assert_eq!((shown.lock_delay_left_ms, shown.summary == "free"), (left, left.is_none()), "at {now}");
    }
}

#[test]
fn explanation_tells_how_a_holder_lost_the_lease() {
    let revoked = |reason: &str| Change::Revoked { reason: reason.to_owned() };
    for (change, how) in [
        (Change::Expired, "expired"),
        (Change::Released, "was released"),
        (revoked("stuck"), "was revoked (stuck)"),
        (revoked(""), "was revoked"),
        (Change::HandedOver { to: HolderId::new("b").expect("valid") }, "was handed over to b"),
        (Change::Restored, "was restored"),
    ] {
        let ended = transition(change);
        let (token, at) = (ended.token, Timestamp::from_millis(ended.wall_ms));
        let standing = Some(Standing::Ended(ended));
        let explanation = Explanation { held: Vec::new(), delay_until: None, next: None, waiters: 0, standing };
        let name = LeaseName::new("a").expect("valid");
        let shown = explained(name, Answer::Explain(explanation), 300).expect("an explanation");
        assert_eq!(shown.summary, format!("free; the lease of h with token {token} {how} at {at}"));
    }
}

#[test]
fn held_lease_is_described_with_its_expiry() {
    let since = Timestamp::from_millis(1);
    for (deadline, until) in [(Some(500), "expires in 200 ms unless renewed"), (None, "with an infinite ttl")] {
        let held = vec![lease(deadline)];
        let explanation = Explanation { held, delay_until: None, next: None, waiters: 0, standing: None };
        let name = LeaseName::new("a").expect("valid");
        let shown = explained(name, Answer::Explain(explanation), 300).expect("an explanation");
        assert_eq!(shown.summary, format!("held by h since {since}, {until}"));
    }
    for (retry_after_ms, until) in [(Some(70), "it can expire in 70 ms"), (None, "its ttl is infinite")] {
        let (holder, token) = (HolderId::new("h").expect("valid"), FencingToken { term: 3, index: 4 });
        let problem = refusal(Refusal::Held { holder, token, granted_wall_ms: 1, retry_after_ms, waiters: 0 });
        assert_eq!(problem.detail, format!("held by h since {since}; {until}"));
    }
}

#[test]
fn held_problem_has_its_grant_and_its_waiters() {
    let holder = HolderId::new("h").expect("valid");
    let token = FencingToken { term: 3, index: 4 };
    let granted_wall_ms = 1_790_000_000_123;
    let held = Refusal::Held { holder, token, granted_wall_ms, retry_after_ms: Some(70), waiters: 9 };
    let problem = refusal(held);
    assert_eq!((problem.holder.as_deref(), problem.token, problem.waiters), (Some("h"), Some(token), Some(9)));
    assert_eq!(problem.since, Some(Timestamp::from_millis(granted_wall_ms)));
    assert_eq!(problem.retry_after_ms, Some(70));
}

fn transition(change: Change) -> Transition {
    Transition {
        index: 12,
        part: 3,
        name: LeaseName::new("a").expect("valid"),
        holder: HolderId::new("h").expect("valid"),
        token: FencingToken { term: 3, index: 4 },
        change,
        at: 77,
        wall_ms: 1_790_000_000_123,
    }
}

#[test]
fn event_has_the_position_and_the_time_of_its_transition() {
    let shown = event(&transition(Change::Released));
    assert_eq!((shown.index, shown.part), (12, 3));
    assert_eq!(shown.at, Timestamp::from_millis(1_790_000_000_123));
}

#[test]
fn prefix_of_a_role_has_at_most_200_bytes() {
    let given = |bytes: usize| access::permission(api::Permission::new(Right::Hold, "p".repeat(bytes)));
    for bytes in [0, 200] {
        assert_eq!(given(bytes).expect("a name can have it").prefix.len(), bytes);
    }
    assert_eq!(given(201).map(drop).expect_err("no name has it").code, Code::Invalid);
}

#[test]
fn access_token_is_shown_with_its_creation_and_its_expiry() {
    let (id, created_wall_ms) = (TokenId(5), 1_790_000_000_123);
    let ci = PrincipalView { roles: BTreeSet::new(), tokens: vec![TokenView { id, created_wall_ms }] };
    let principals = BTreeMap::from([(AccessName::new("ci").expect("valid"), ci)]);
    let view = AccessView { is_enabled: true, roles: BTreeMap::new(), principals };
    let expires_wall_ms = created_wall_ms + 60_000;
    let expiring = Answer::AccessWithExpiries { view: view.clone(), expiries: BTreeMap::from([(id, expires_wall_ms)]) };
    for (answer, expires) in [(Answer::Access(view), None), (expiring, Some(expires_wall_ms))] {
        let shown = access::view(answer).expect("the state of access control");
        let token = &shown.principals[0].tokens[0];
        let expected = (Timestamp::from_millis(created_wall_ms), expires.map(Timestamp::from_millis));
        assert_eq!((token.created_at, token.expires_at), expected);
    }
}

#[test]
fn access_token_expires_after_1_ms_to_100_years() {
    const LONGEST_MS: u64 = 3_155_760_000_000;
    let created = |ttl_ms: u64| {
        let principal = AccessName::new("ci").expect("valid");
        access::new_token(principal, Some(Duration::from_millis(ttl_ms))).map(drop)
    };
    for ttl_ms in [1, LONGEST_MS] {
        assert_eq!(created(ttl_ms), Ok(()), "{ttl_ms}");
    }
    for ttl_ms in [0, LONGEST_MS + 1] {
        assert_eq!(created(ttl_ms).expect_err("outside the bounds").code, Code::Invalid, "{ttl_ms}");
    }
}
