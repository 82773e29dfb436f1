//! A resource outside the cluster, one per lease, that holders write to. It checks only fencing tokens.

use std::time::Duration;

use tenure::fence::HighWater;
use tenure::token::FencingToken;
use tenure::types::{HolderId, LeaseName};

/// A write, and whether the resource accepted it.
#[derive(Clone, Debug)]
pub struct Write {
    pub name: LeaseName,
    pub token: FencingToken,
    pub by: HolderId,
    pub at: Duration,
    pub accepted: bool,
}

/// All resources, and all writes in order of arrival.
#[derive(Default)]
pub struct Registers {
    high_water: std::collections::BTreeMap<LeaseName, HighWater>,
    pub writes: Vec<Write>,
}

impl Registers {
    /// Handles a write that arrives. Without the fence, the resource accepts each write.
    pub fn write(&mut self, name: &LeaseName, token: FencingToken, by: &HolderId, at: Duration, fenced: bool) {
        let mark = self.high_water.entry(name.clone()).or_insert(HighWater::NONE);
        let accepted = match mark.offer(token) {
            Ok(next) => {
                *mark = next;
                true
            }
            Err(_) => !fenced,
        };
        self.writes.push(Write { name: name.clone(), token, by: by.clone(), at, accepted });
    }
}
