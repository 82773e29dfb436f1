//! Members for tests of a placement.

use std::collections::BTreeMap;

use crate::api::Timestamp;
use crate::group::Member;
use crate::token::FencingToken;

/// A ready member with this id and weight.
pub fn member(id: &str, weight: u32) -> Member {
    Member {
        id: id.to_owned(),
        weight,
        is_ready: true,
        metadata: BTreeMap::new(),
        token: FencingToken { term: 1, index: 1 },
        holder: id.to_owned(),
        since: Timestamp::default(),
        ttl: None,
    }
}
