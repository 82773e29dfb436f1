//! Watchers of all leases. Each watcher starts at another node, and moves to the next node after an error or a random
//! time. It must receive every transition once and in order.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tenure::api::{Code, EventId};
use tenure::client::{CallError, Endpoints, Remote};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::cluster;
use super::judge::Broken;
use super::recorder::now;
use super::world::World;

/// How long a watcher uses one node.
const STAY_AT_NODE: (Duration, Duration) = (Duration::from_secs(4), Duration::from_secs(12));
/// The pause before the next node after an error.
const PAUSE: Duration = Duration::from_millis(100);

/// Starts one watcher per node.
pub fn start(world: &Arc<World>, seed: u64, tasks: &mut JoinSet<()>) -> Result<()> {
    for number in 0..world.nodes {
        let rng = StdRng::seed_from_u64(seed.wrapping_mul(2_000).wrapping_add(number));
        let remotes = (0..world.nodes).map(|place| {
            let endpoints: Endpoints = cluster::url((number + place) % world.nodes + 1).parse()?;
            Ok(Remote::new(endpoints).with_timeout(Duration::from_secs(1)))
        });
        let remotes = remotes.collect::<Result<Vec<Remote>>>()?;
        tasks.spawn(watch(world.clone(), number as usize, remotes, rng));
    }
    Ok(())
}

async fn watch(world: Arc<World>, number: usize, remotes: Vec<Remote>, mut rng: StdRng) {
    let mut after = EventId { index: 0, part: None };
    // The oldest index that each node kept, for consecutive nodes that refused the position as compacted.
    let mut compacted: Vec<u64> = Vec::new();
    for remote in remotes.iter().cycle() {
        let until = Instant::now() + rng.random_range(STAY_AT_NODE.0..STAY_AT_NODE.1);
        let mut stream = remote.watch("", Some(after));
        let ended = loop {
            let next = tokio::select! {
                next = tokio::time::timeout_at(until, stream.next()) => next,
                () = world.stop.cancelled() => return,
            };
            match next {
                Ok(Ok(event)) => {
                    compacted.clear();
                    let saw = world.log.lock().saw(number, event, now());
                    if let Err(how) = saw {
                        world.break_promise(Broken::of_cluster("watch_complete", how));
                    }
                }
                Ok(Err(error)) => break Some(error),
                Err(_) => break None,
            }
        };
        after = stream.position().unwrap_or(after);
        if let Some(CallError::Refused(problem)) = &ended
            && problem.code == Code::Compacted
        {
            compacted.push(problem.oldest.unwrap_or(after.index));
            if compacted.len() == remotes.len() {
                // No node keeps the log at this position. The watcher records the gap and continues behind it.
                let oldest = compacted.drain(..).min().expect("one for each node");
                world.log.lock().compacted(number, oldest);
                after = EventId { index: oldest, part: None };
            }
        }
        if ended.is_some() {
            tokio::time::sleep(PAUSE).await;
        }
    }
}
