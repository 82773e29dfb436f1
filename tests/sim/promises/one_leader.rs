//! A term has one leader.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure::types::NodeId;

use crate::world::{World, lock};

/// Between two looks at all nodes.
const LOOK: Duration = Duration::from_millis(5);

/// Who was seen to lead in each term.
#[derive(Default)]
pub struct Leaders(BTreeMap<u64, NodeId>);

impl Leaders {
    /// A node says that it leads. Tells whether the term is a new one.
    pub fn see(&mut self, term: u64, node: NodeId) -> Result<bool, String> {
        match self.0.insert(term, node) {
            Some(first) if first != node => Err(format!("nodes {first} and {node} lead in term {term}")),
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
            match leaders.see(term, id) {
                Ok(true) => {
                    world.count_work("led");
                    world.note(|| format!("node {id} leads in term {term}"));
                }
                Ok(false) => {}
                Err(how) => world.break_promise("one_leader", how),
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}
