//! Conversion of API requests to requests of the node, with checks of all bounds.

use super::problem::problem;
use crate::api::{self, Code, MAX_RENEW_ITEMS, Problem, TtlMs};
use crate::config::TtlPolicy;
use crate::lease::{Acquire, Command, Renewal};
use crate::node::Request;
use crate::types::{LeaseName, MAX_LIMIT, MAX_LOCK_DELAY_MS, MAX_METADATA_VERSION, MAX_REASON_BYTES, MAX_WAIT_MS, Ttl};

pub(crate) fn claim(policy: &TtlPolicy, name: LeaseName, body: api::Acquire) -> Result<Acquire, Box<Problem>> {
    let limit = body.limit.unwrap_or(1);
    let lock_delay_ms = body.lock_delay_ms.unwrap_or(0);
    at_most("limit", limit, MAX_LIMIT)?;
    at_most("lock_delay_ms", lock_delay_ms, MAX_LOCK_DELAY_MS)?;
    at_most("wait_ms", body.wait_ms.unwrap_or(0), MAX_WAIT_MS)?;
    if limit == 0 {
        return Err(invalid(format!("limit 0 allows no holder: expected 1 to {MAX_LIMIT}")));
    }
    let ttl = allowed_ttl(policy, body.ttl_ms.unwrap_or(TtlMs::Millis(policy.default_ms)))?;
    let wait_ms = body.wait_ms.filter(|wait| *wait > 0);
    Ok(Acquire { name, holder: body.holder, ttl, wait_ms, lock_delay_ms, limit, metadata: body.metadata })
}

pub(crate) fn renew(policy: &TtlPolicy, name: LeaseName, body: api::Renew) -> Result<Request, Box<Problem>> {
    let ttl = body.ttl_ms.map(|ttl| allowed_ttl(policy, ttl)).transpose()?;
    let leases = vec![Renewal { name, token: body.token, ttl }];
    Ok(Request::Change(Command::Renew { holder: body.holder, leases }))
}

pub(crate) fn renew_batch(policy: &TtlPolicy, body: api::RenewBatch) -> Result<Request, Box<Problem>> {
    if body.leases.len() > MAX_RENEW_ITEMS {
        let detail = format!("the batch has {} leases: expected at most {MAX_RENEW_ITEMS}", body.leases.len());
        return Err(Box::new(problem(Code::TooLarge, detail)));
    }
    let renewal = |item: api::RenewItem| -> Result<Renewal, Box<Problem>> {
        let ttl = item.ttl_ms.map(|ttl| allowed_ttl(policy, ttl)).transpose()?;
        Ok(Renewal { name: item.name, token: item.token, ttl })
    };
    let leases = body.leases.into_iter().map(renewal).collect::<Result<Vec<Renewal>, Box<Problem>>>()?;
    Ok(Request::Change(Command::Renew { holder: body.holder, leases }))
}

pub(crate) fn release(name: LeaseName, body: api::Release) -> Request {
    Request::Change(Command::Release { name, holder: body.holder, token: body.token })
}

pub(crate) fn hand_over(name: LeaseName, body: api::HandOver) -> Request {
    Request::Change(Command::HandOver { name, holder: body.holder, token: body.token, to: body.to })
}

pub(crate) fn update_metadata(name: LeaseName, body: api::UpdateMetadata) -> Result<Request, Box<Problem>> {
    let api::UpdateMetadata { holder, token, version, metadata } = body;
    at_most("version", version, MAX_METADATA_VERSION)?;
    Ok(Request::Change(Command::UpdateMetadata { name, holder, token, version, metadata }))
}

pub(crate) fn revoke(name: LeaseName, reason: String) -> Result<Request, Box<Problem>> {
    at_most("reason bytes", reason.len(), MAX_REASON_BYTES)?;
    Ok(Request::Change(Command::Revoke { name, reason }))
}

fn allowed_ttl(policy: &TtlPolicy, requested: TtlMs) -> Result<Ttl, Box<Problem>> {
    policy.check(requested).map_err(|error| invalid(error.to_string()))
}

fn at_most<T: PartialOrd + std::fmt::Display>(field: &str, value: T, max: T) -> Result<(), Box<Problem>> {
    if value > max { Err(invalid(format!("{field} {value} is above {max}"))) } else { Ok(()) }
}

fn invalid(detail: impl Into<String>) -> Box<Problem> {
    Box::new(problem(Code::Invalid, detail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::FencingToken;
    use crate::types::HolderId;

    fn claim_of(json: &str) -> Result<Acquire, Box<Problem>> {
        let policy = TtlPolicy { default_ms: 5_000, min_ms: 1_000, max_ms: 60_000, infinite: false };
        claim(&policy, LeaseName::new("a").expect("valid"), serde_json::from_str(json).expect("the JSON is a claim"))
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
        let revoke = |bytes: usize| revoke(LeaseName::new("a").expect("valid"), "r".repeat(bytes));
        assert!(matches!(revoke(500), Ok(Request::Change(Command::Revoke { reason, .. })) if reason.len() == 500));
        assert_eq!(revoke(501).map(drop).expect_err("the reason is above the bound").code, Code::Invalid);
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
}
