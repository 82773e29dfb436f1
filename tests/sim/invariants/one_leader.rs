//! A term has at most one leader.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure::types::NodeId;

use crate::world::{World, lock};

/// Interval between two polls of all nodes.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The observed leader of each term.
#[derive(Default)]
pub struct Leaders(BTreeMap<u64, NodeId>);

impl Leaders {
    /// Records that a node claims to lead a term. Returns whether the term is new.
    pub fn observe(&mut self, term: u64, node: NodeId) -> Result<bool, String> {
        match self.0.insert(term, node) {
            Some(first) if first != node => Err(format!("nodes {first} and {node} both lead in term {term}")),
            before => Ok(before.is_none()),
        }
    }
}

pub async fn watch(world: Arc<World>) {
    let mut leaders = Leaders::default();
    loop {
        for id in world.ids() {
            let seen = lock(&world.cluster).running(id).map(|node| node.leadership());
            let Some(term) = seen.filter(|seen| seen.leader == Some(id)).map(|seen| seen.term) else { continue };
            match leaders.observe(term, id) {
                Ok(true) => {
                    world.count_work("led");
                    world.trace(|| format!("node {id} leads in term {term}"));
                }
                Ok(false) => {}
                Err(how) => world.report_violation("one_leader", how),
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
