//! Request bodies. Fields have validated types, so reading a body refuses a value outside its bounds.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{TtlMs, integer, object};
use crate::token::FencingToken;
use crate::types::{HolderId, LeaseName, Metadata, ceil_ms};

/// Body of `POST /v1/leases/{name}/acquire`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Acquire {
    /// The claimant: 1 to 200 bytes of the caller's choice. A holder that acquires again keeps its token.
    #[cfg_attr(feature = "server", schema(value_type = String, min_length = 1, max_length = 200, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$"))]
    pub holder: HolderId,
    /// Lifetime of the grant without a renewal. Absent: the cluster's default.
    #[serde(default, deserialize_with = "TtlMs::present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "server", schema(value_type = TtlMs, required = false))]
    pub ttl_ms: Option<TtlMs>,
    /// Longest wait in the queue for a held lease. Absent: do not wait.
    #[serde(default, deserialize_with = "integer::optional", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "server", schema(maximum = 86_400_000))]
    pub wait_ms: Option<u64>,
    /// Time after an expiry or a revoke of this grant in which the cluster does not grant the lease. Absent: 0.
    #[serde(default, deserialize_with = "integer::optional", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "server", schema(maximum = 86_400_000))]
    pub lock_delay_ms: Option<u64>,
    /// Most holders at once. Absent: 1.
    #[serde(default, deserialize_with = "integer::optional", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "server", schema(minimum = 1, maximum = 10_000))]
    pub limit: Option<u32>,
    /// Metadata of the grant: at most 32 entries and 4096 bytes, keys and values together. A holder that acquires again
    /// does not change it.
    #[serde(default, skip_serializing_if = "Metadata::is_empty")]
    #[cfg_attr(feature = "server", schema(value_type = std::collections::BTreeMap<String, String>, required = false))]
    pub metadata: Metadata,
}

impl Acquire {
    /// A claim with the cluster's default ttl and without a wait.
    pub fn new(holder: HolderId) -> Acquire {
        Acquire { holder, ttl_ms: None, wait_ms: None, lock_delay_ms: None, limit: None, metadata: Metadata::default() }
    }

    /// Sets the ttl.
    pub fn ttl(self, ttl: impl Into<TtlMs>) -> Acquire {
        Acquire { ttl_ms: Some(ttl.into()), ..self }
    }

    /// Sets the longest wait for a held lease, rounded up to whole milliseconds.
    pub fn wait(self, wait: Duration) -> Acquire {
        Acquire { wait_ms: Some(ceil_ms(wait)), ..self }
    }

    /// Sets the lock delay, rounded up to whole milliseconds.
    pub fn lock_delay(self, lock_delay: Duration) -> Acquire {
        Acquire { lock_delay_ms: Some(ceil_ms(lock_delay)), ..self }
    }

    /// Sets the number of holders at once.
    pub fn limit(self, limit: u32) -> Acquire {
        Acquire { limit: Some(limit), ..self }
    }

    /// Sets the metadata of the grant.
    pub fn metadata(self, metadata: Metadata) -> Acquire {
        Acquire { metadata, ..self }
    }
}

/// Body of `POST /v1/leases/{name}/renew`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Renew {
    /// The holder.
    #[cfg_attr(feature = "server", schema(value_type = String, min_length = 1, max_length = 200, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$"))]
    pub holder: HolderId,
    /// The token of the grant.
    #[cfg_attr(feature = "server", schema(value_type = String, pattern = "^[0-9]+$", example = "281474976710661"))]
    pub token: FencingToken,
    /// The ttl from now on. Absent: the ttl of the grant. A renewal never moves the expiry to an earlier time.
    #[serde(default, deserialize_with = "TtlMs::present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "server", schema(value_type = TtlMs, required = false))]
    pub ttl_ms: Option<TtlMs>,
}

impl Renew {
    /// A renewal with the ttl of the grant.
    pub fn new(holder: HolderId, token: FencingToken) -> Renew {
        Renew { holder, token, ttl_ms: None }
    }

    /// Sets the ttl from now on.
    pub fn ttl(self, ttl: impl Into<TtlMs>) -> Renew {
        Renew { ttl_ms: Some(ttl.into()), ..self }
    }
}

/// Body of `POST /v1/renew`: at most 10,000 leases of one holder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RenewBatch {
    /// The holder of all leases.
    #[cfg_attr(feature = "server", schema(value_type = String, min_length = 1, max_length = 200, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$"))]
    pub holder: HolderId,
    /// The leases to renew.
    #[serde(deserialize_with = "object::list")]
    #[cfg_attr(feature = "server", schema(max_items = 10000))]
    pub leases: Vec<RenewItem>,
}

impl RenewBatch {
    /// A renewal of these leases of one holder.
    pub fn new(holder: HolderId, leases: Vec<RenewItem>) -> RenewBatch {
        RenewBatch { holder, leases }
    }
}

/// One lease of a batched renewal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RenewItem {
    /// The name of the lease.
    #[cfg_attr(feature = "server", schema(value_type = String, max_length = 200, pattern = "^[A-Za-z0-9][A-Za-z0-9._:/-]*$"))]
    pub name: LeaseName,
    /// The token of the grant.
    #[cfg_attr(feature = "server", schema(value_type = String, pattern = "^[0-9]+$", example = "281474976710661"))]
    pub token: FencingToken,
    /// The ttl from now on. Absent: the ttl of the grant. A renewal never moves the expiry to an earlier time.
    #[serde(default, deserialize_with = "TtlMs::present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "server", schema(value_type = TtlMs, required = false))]
    pub ttl_ms: Option<TtlMs>,
}

impl RenewItem {
    /// A renewal with the ttl of the grant.
    pub fn new(name: LeaseName, token: FencingToken) -> RenewItem {
        RenewItem { name, token, ttl_ms: None }
    }

    /// Sets the ttl from now on.
    pub fn ttl(self, ttl: impl Into<TtlMs>) -> RenewItem {
        RenewItem { ttl_ms: Some(ttl.into()), ..self }
    }
}

/// Body of `POST /v1/leases/{name}/release`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Release {
    /// The holder.
    #[cfg_attr(feature = "server", schema(value_type = String, min_length = 1, max_length = 200, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$"))]
    pub holder: HolderId,
    /// The token of the grant.
    #[cfg_attr(feature = "server", schema(value_type = String, pattern = "^[0-9]+$", example = "281474976710661"))]
    pub token: FencingToken,
}

impl Release {
    /// A release of the grant with this token.
    pub fn new(holder: HolderId, token: FencingToken) -> Release {
        Release { holder, token }
    }
}

/// Body of `POST /v1/leases/{name}/handover`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct HandOver {
    /// The holder.
    #[cfg_attr(feature = "server", schema(value_type = String, min_length = 1, max_length = 200, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$"))]
    pub holder: HolderId,
    /// The token of the grant.
    #[cfg_attr(feature = "server", schema(value_type = String, pattern = "^[0-9]+$", example = "281474976710661"))]
    pub token: FencingToken,
    /// The waiter that gets the lease. Absent: the first confirmed waiter in the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "server", schema(value_type = Option<String>, min_length = 1, max_length = 200, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$"))]
    pub to: Option<HolderId>,
}

impl HandOver {
    /// A hand-over to the first confirmed waiter.
    pub fn new(holder: HolderId, token: FencingToken) -> HandOver {
        HandOver { holder, token, to: None }
    }

    /// Sets the waiter that gets the lease.
    pub fn to(self, waiter: HolderId) -> HandOver {
        HandOver { to: Some(waiter), ..self }
    }
}

/// Body of `POST /v1/leases/{name}/metadata`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "server", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct UpdateMetadata {
    /// The holder.
    #[cfg_attr(feature = "server", schema(value_type = String, min_length = 1, max_length = 200, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$"))]
    pub holder: HolderId,
    /// The token of the grant.
    #[cfg_attr(feature = "server", schema(value_type = String, pattern = "^[0-9]+$", example = "281474976710661"))]
    pub token: FencingToken,
    /// The `metadata_version` that this update replaces.
    #[serde(deserialize_with = "integer::required")]
    #[cfg_attr(feature = "server", schema(maximum = 9_007_199_254_740_991_u64))]
    pub version: u64,
    /// The new metadata: at most 32 entries and 4096 bytes, keys and values together.
    #[serde(default, skip_serializing_if = "Metadata::is_empty")]
    #[cfg_attr(feature = "server", schema(value_type = std::collections::BTreeMap<String, String>, required = false))]
    pub metadata: Metadata,
}

impl UpdateMetadata {
    /// Replaces the metadata with this version by `metadata`.
    pub fn new(holder: HolderId, token: FencingToken, version: u64, metadata: Metadata) -> UpdateMetadata {
        UpdateMetadata { holder, token, version, metadata }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acquire_needs_only_a_holder() {
        let acquire: Acquire = serde_json::from_str(r#"{"holder":"h"}"#).expect("a valid acquire");
        assert_eq!(acquire, Acquire::new(HolderId::new("h").expect("valid")));
        assert_eq!(serde_json::to_string(&acquire).expect("plain"), r#"{"holder":"h"}"#);
    }

    #[test]
    fn durations_are_rounded_up_to_milliseconds() {
        let claim = Acquire::new(HolderId::new("h").expect("valid")).ttl(Duration::from_secs(2));
        let claim = claim.wait(Duration::from_micros(1)).lock_delay(Duration::from_micros(1_001));
        assert_eq!((claim.ttl_ms, claim.wait_ms, claim.lock_delay_ms), (Some(TtlMs::Millis(2_000)), Some(1), Some(2)));
    }

    #[test]
    fn version_accepts_a_zero_fraction() {
        let update = r#"{"holder":"h","token":"281474976710661","version":2.0}"#;
        assert_eq!(serde_json::from_str::<UpdateMetadata>(update).expect("an integer").version, 2);
        let error = serde_json::from_str::<UpdateMetadata>(&update.replace("2.0", "2.5")).expect_err("a fraction");
        assert!(error.to_string().contains("an integer from 0"), "{error}");
    }

    #[test]
    fn invalid_field_is_refused_and_named() {
        for (body, named) in [
            (r#"{"holder":"h","ttl":5}"#, "unknown field `ttl`"),
            (r#"{"holder":""}"#, "holder"),
            (r#"{}"#, "missing field `holder`"),
            (r#"{"holder":"h","ttl_ms":null}"#, "milliseconds"),
            (r#"{"holder":"h","metadata":{"a":1}}"#, "string"),
        ] {
            let error = serde_json::from_str::<Acquire>(body).expect_err(body).to_string();
            assert!(error.contains(named), "{body}: {error}");
        }
    }

    #[test]
    fn tokens_are_decimal_strings() {
        let renew: Renew = serde_json::from_str(r#"{"holder":"h","token":"281474976710661"}"#).expect("fine");
        assert_eq!(renew.token, FencingToken { term: 1, index: 5 });
        for bad in [r#"{"holder":"h","token":281474976710661}"#, r#"{"holder":"h","token":"0x5"}"#] {
            assert!(serde_json::from_str::<Renew>(bad).is_err(), "{bad}");
        }
    }
}
