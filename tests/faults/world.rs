//! The state that the tasks of a run share.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use rand::Rng;
use rand::seq::IteratorRandom;
use tenure::token::FencingToken;
use tokio_util::sync::CancellationToken;

use super::judge::Broken;
use super::log::Log;
use super::names::Names;
use super::recorder::Recorder;

/// The largest number of violations on standard error. The file of the table has all of them.
const MAX_SHOWN: usize = 20;

pub struct World {
    /// The hosts of the members, and of the nodes that join or leave. Clients use them.
    pub hosts: Mutex<BTreeSet<u64>>,
    pub watchers: u64,
    pub recorder: Mutex<Recorder>,
    pub log: Mutex<Log>,
    pub names: Mutex<Names>,
    broken: Mutex<Vec<Broken>>,
    /// Ends all tasks.
    pub stop: CancellationToken,
}

impl World {
    /// The state of a cluster whose first nodes have the hosts from 1 to `nodes`. There are as many watchers.
    pub fn new(nodes: u64) -> World {
        World {
            hosts: Mutex::new((1..=nodes).collect()),
            watchers: nodes,
            recorder: Mutex::default(),
            log: Mutex::new(Log::new(nodes as usize)),
            names: Mutex::new(Names::new(1)),
            broken: Mutex::default(),
            stop: CancellationToken::new(),
        }
    }

    /// The highest token that a client or a watcher has seen.
    pub fn highest_token(&self) -> Option<FencingToken> {
        self.recorder.lock().highest_token.max(self.log.lock().highest_token)
    }

    pub fn random_host(&self, rng: &mut impl Rng) -> u64 {
        self.hosts.lock().iter().copied().choose(rng).expect("a cluster has members")
    }

    pub fn break_promise(&self, broken: Broken) {
        let mut all = self.broken.lock();
        if all.len() < MAX_SHOWN {
            eprintln!("VIOLATION: {broken}");
        }
        all.push(broken);
    }

    pub fn broken(&self) -> Vec<Broken> {
        self.broken.lock().clone()
    }
}
