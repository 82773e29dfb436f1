//! A resource outside the cluster, one for each lease, that holders write to: it knows fencing tokens and no lease.

use std::time::Duration;

use tenure::fence::HighWater;
use tenure::token::FencingToken;
use tenure::types::LeaseName;

/// A write, and whether it was taken.
#[derive(Clone, Debug)]
pub struct Write {
    pub name: LeaseName,
    pub token: FencingToken,
    pub at: Duration,
    pub taken: bool,
}

/// All of them, with every write that arrived, in order.
#[derive(Default)]
pub struct Registers {
    marks: std::collections::BTreeMap<LeaseName, HighWater>,
    pub writes: Vec<Write>,
}

impl Registers {
    /// A write arrives. Without the fence it is taken, whatever came before.
    pub fn write(&mut self, name: &LeaseName, token: FencingToken, at: Duration, fenced: bool) {
        let mark = self.marks.entry(name.clone()).or_insert(HighWater::NONE);
        let taken = match mark.offer(token) {
            Ok(next) => {
                *mark = next;
                true
            }
            Err(_) => !fenced,
        };
        self.writes.push(Write { name: name.clone(), token, at, taken });
    }
}
